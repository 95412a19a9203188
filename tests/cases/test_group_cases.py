"""B03: a group that was added in mid-run is named where it is missing, built from the record, and never added twice."""

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adagrad, AdamW, Optimizer, RMSprop, lr_scheduler

from segue import Checkpointer, GradientAccumulator, Training
from segue.errors import ContractMismatch, MismatchError, OptimizerMismatch, UnsupportedState
from tests.cases import children
from tests.cases.state import live, raw, stored

pytestmark = pytest.mark.filterwarnings("ignore:state that segue can see")  # of a run that stands beside

MADE = {
    "AdamW": lambda p: AdamW(p, lr=1e-2),
    "AdamW, foreach": lambda p: AdamW(p, lr=1e-2, foreach=True, amsgrad=True),
    "SGD": lambda p: SGD(p, lr=1e-2, momentum=0.9),
    "Adagrad, whose state is there from the beginning": lambda p: Adagrad(p, lr=1e-2),
    "RMSprop": lambda p: RMSprop(p, lr=1e-2, centered=True),
}


def original(make=MADE["AdamW"]):
    """The program as it begins: the first layer is frozen, the second is trained."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    model[0].requires_grad_(False)
    return model, make(model[1].parameters())


def unfreeze(model, optimizer, **options):
    """What the program does at its scheduled time."""
    model[0].requires_grad_(True)
    optimizer.add_param_group({"params": list(model[0].parameters()), "lr": 1e-3, **options})


def backward(model, seed):
    rows = torch.randn(2, 3, generator=torch.Generator().manual_seed(seed))
    model(rows).pow(2).sum().backward()


def step(model, optimizer, seed=0, scheduler=None):
    optimizer.zero_grad()
    backward(model, seed)
    optimizer.step()
    if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
        scheduler.step(1.0)
    elif scheduler is not None:
        scheduler.step()


def unfrozen(make=MADE["AdamW"], **options):
    """The run: a step, the unfreezing, a step."""
    model, optimizer = original(make)
    training = Training(model, optimizer)
    step(model, optimizer, 0)
    unfreeze(model, optimizer, **options)
    step(model, optimizer, 1)
    return model, optimizer, training


def refusal(training, record, error=MismatchError, **options):
    with pytest.raises(error) as caught:
        training.restore(record, **options)
    return caught.value


def build_groups_of(record, model, optimizer, name="optimizer"):
    """As the hint says: what the record has more than the program's first lines make."""
    named = dict(model.named_parameters())
    for group in record.optimizers[name].groups[len(optimizer.param_groups) :]:
        members = [named[parameter].requires_grad_(True) for parameter in group.parameters]
        optimizer.add_param_group({**group.options, "params": members})


def order(optimizer, model):
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [[names[id(parameter)] for parameter in group["params"]] for group in optimizer.param_groups]


# --- the group is missing ---


@pytest.mark.parametrize("kind", MADE)
def test_b03_without_the_group_it_is_refused_naming_the_group_its_parameters_and_its_options(kind, tmp_path):
    _, _, training = unfrozen(MADE[kind], weight_decay=0.25, tag="late")
    record = stored(training.capture(), tmp_path)
    model, optimizer = original(MADE[kind])
    resumed = Training(model, optimizer)
    before = live(model, optimizer)
    error = refusal(resumed, record, OptimizerMismatch)
    [groups, *missing] = error.findings
    assert (groups.code, groups.expected, groups.found) == ("optimizer.optimizer.groups", 2, 1)
    assert "group 1 (0.weight, 0.bias) with lr=0.001" in groups.hint
    assert "weight_decay=0.25" in groups.hint
    assert "tag=late" in groups.hint
    assert [finding.code for finding in missing] == [
        "optimizer.optimizer.missing.0.bias", "optimizer.optimizer.missing.0.weight",
    ]  # fmt: skip
    assert all(finding.expected == "group 1" for finding in missing)
    assert live(model, optimizer) == before
    # A second attempt is the first.
    assert str(refusal(resumed, record)) == str(error)
    assert live(model, optimizer) == before


WAYS = {
    "by the program's own code": lambda record, model, optimizer: unfreeze(model, optimizer, tag="late"),
    "from the record": build_groups_of,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", MADE)
def test_b03_with_the_group_built_before_the_restore_it_goes_on_in_bits_each_time(kind, way, tmp_path):
    model, optimizer, training = unfrozen(MADE[kind], tag="late")
    optimizer.param_groups[1]["lr"] = 0.5e-3
    for seed in range(2, 4):  # the second resume is that of a record which the first one wrote
        record = stored(training.capture(), tmp_path)
        again, other = original(MADE[kind])
        WAYS[way](record, again, other)
        training = Training(again, other)
        training.restore(record)
        assert live(again, other) == live(model, optimizer)
        assert order(other, again) == order(optimizer, model)
        assert other.param_groups[1]["lr"] == 0.5e-3
        for _ in range(2):
            step(model, optimizer, seed)
            step(again, other, seed)
        assert live(again, other) == live(model, optimizer)


@pytest.mark.parametrize("cut", ["before", "after a backward", "after a step"])
@pytest.mark.parametrize("window", [False, True])
def test_b03_at_every_moment_around_the_unfreezing(cut, window, tmp_path):
    def begin():
        model, optimizer = original()
        accumulator = GradientAccumulator(model) if window else None
        return model, optimizer, accumulator, Training(model, optimizer, accumulator=accumulator)

    def train(model, optimizer, accumulator, seed):
        backward(model, seed)
        if accumulator is not None:
            accumulator.add()
            accumulator.finish_mean()
        optimizer.step()
        optimizer.zero_grad()

    def pend(model, accumulator, seed):
        backward(model, seed)
        if accumulator is not None:
            accumulator.add()

    def finish(model, optimizer, accumulator):
        pend(model, accumulator, 8)
        if accumulator is not None:
            accumulator.finish_mean()
        optimizer.step()

    model, optimizer, accumulator, training = begin()
    train(model, optimizer, accumulator, 0)
    if cut == "before":
        pend(model, accumulator, 1)
    else:
        unfreeze(model, optimizer)
        if cut == "after a step":
            train(model, optimizer, accumulator, 1)
        pend(model, accumulator, 2)
    record = stored(training.capture(), tmp_path)
    again, other, sums, resumed = begin()
    build_groups_of(record, again, other)
    resumed.restore(record)
    assert live(again, other) == live(model, optimizer)
    assert (again[0].weight in other.state) == (cut == "after a step")
    if cut == "before":
        unfreeze(model, optimizer)
        unfreeze(again, other)
    finish(model, optimizer, accumulator)
    finish(again, other, sums)
    assert live(again, other) == live(model, optimizer)


def test_b03_a_layer_that_is_thawed_and_not_yet_in_a_group_is_no_boundary():
    model, optimizer = original()
    training = Training(model, optimizer)
    step(model, optimizer)
    model[0].requires_grad_(True)
    before = live(model, optimizer)
    with pytest.raises(UnsupportedState) as caught:
        training.capture()
    assert caught.value.code == "capture.unowned_parameter"
    assert "0.weight" in str(caught.value)
    assert live(model, optimizer) == before


@pytest.mark.exact
def test_b03_in_processes_of_their_own_the_second_resume_behaves_as_the_first(tmp_path):
    whole = children.run("unfreezes", tmp_path / "whole", 6)
    assert whole["groups"] == [["1.weight", "1.bias"], ["0.weight", "0.bias"]]
    # One process each up to just before the unfreezing, into the run with the group, and once more.
    for stop in (2, 3, 5):
        children.run("unfreezes", tmp_path / "parts", stop)
    assert children.run("unfreezes", tmp_path / "parts", 6) == whole
    refused = children.run("unfreezes", tmp_path / "parts", 6, "forgets")
    assert refused["codes"] == [
        "optimizer.optimizer.groups", "optimizer.optimizer.missing.0.bias", "optimizer.optimizer.missing.0.weight",
    ]  # fmt: skip
    assert refused["unchanged"]
    assert children.run("unfreezes", tmp_path / "parts", 6) == whole


# --- a second add ---


def by_the_program_s_own_code(model, optimizer):
    with pytest.raises(ValueError, match="more than one parameter group"):
        unfreeze(model, optimizer)


def behind_torch_s_back(model, optimizer):
    optimizer.param_groups.append({**optimizer.param_groups[1], "params": list(model[0].parameters())})


def into_the_first_group(model, optimizer):
    optimizer.param_groups[0]["params"].extend(model[0].parameters())


def twice_into_one_group(model, optimizer):
    optimizer.param_groups[1]["params"].append(model[0].weight)


def test_b03_a_second_add_after_the_resume_is_refused_and_changes_nothing(tmp_path):
    model, optimizer, training = unfrozen()
    record = stored(training.capture(), tmp_path)
    again, other = original()
    unfreeze(again, other)
    Training(again, other).restore(record)
    before = live(again, other)
    by_the_program_s_own_code(again, other)
    assert live(again, other) == before
    step(model, optimizer, 2)
    step(again, other, 2)
    assert live(again, other) == live(model, optimizer)


@pytest.mark.parametrize("again", [behind_torch_s_back, into_the_first_group, twice_into_one_group])
def test_b03_a_second_add_that_torch_does_not_see_is_refused_at_restore_and_at_capture(again, tmp_path):
    _, _, training = unfrozen()
    record = stored(training.capture(), tmp_path)
    model, optimizer = original()
    unfreeze(model, optimizer)
    resumed = Training(model, optimizer)
    again(model, optimizer)
    before = live(model, optimizer)
    error = refusal(resumed, record, OptimizerMismatch)
    assert "0.weight" in str(error)
    with pytest.raises(OptimizerMismatch):
        resumed.restore(record, accept=[finding.code for finding in error.findings])
    with pytest.raises(UnsupportedState) as caught:
        resumed.capture()
    assert caught.value.code == "capture.owned_twice"
    assert "0.weight" in str(caught.value)
    assert live(model, optimizer) == before


def test_b03_a_second_optimizer_for_the_layer_that_has_its_group_already_is_refused(tmp_path):
    model, optimizer, training = unfrozen()
    training.capture()
    second = SGD(model[0].parameters(), lr=1e-3)
    both = Training(model, {"optimizer": optimizer, "second": second})
    before = live(model, optimizer, second)
    with pytest.raises(UnsupportedState) as caught:
        both.capture()
    assert caught.value.code == "capture.owned_twice"
    assert live(model, optimizer, second) == before


# --- on purpose ---


def test_b03_dropping_the_group_is_admitted_by_the_printed_entry_alone_and_it_begins_anew(tmp_path):
    model, optimizer, training = unfrozen()
    record = stored(training.capture(step=2), tmp_path)
    again, other = original()
    resumed = Training(again, other)
    before = live(again, other)
    codes = [finding.code for finding in refusal(resumed, record).findings]
    for part in (codes[:1], codes[1:], codes[:2]):
        left = refusal(resumed, record, accept=part)
        assert [finding.code for finding in left.findings] == [code for code in codes if code not in part]
        assert live(again, other) == before
    resumed.restore(record, accept=codes)
    assert live(again, other)["parameters"] == live(model, optimizer)["parameters"]
    assert again[0].weight not in other.state
    assert raw(dict(other.state[again[1].weight])) == raw(dict(optimizer.state[model[1].weight]))
    # It left its optimizer, so it stays frozen, until the program's own code thaws it as at the first time.
    assert not again[0].weight.requires_grad
    resumed.capture()
    unfreeze(again, other)
    step(again, other, 2)
    assert other.state[again[0].weight]["step"] == 1
    assert other.state[again[1].weight]["step"] == 3
    later = stored(resumed.capture(step=3), tmp_path)
    assert [entry["accepted"] for entry in later.lineage] == [codes]
    third, last = original()
    unfreeze(third, last)
    Training(third, last).restore(later)
    assert live(third, last) == live(again, other)


def test_b03_a_record_from_before_the_unfreezing_does_not_fit_a_program_that_has_done_it(tmp_path):
    model, optimizer = original()
    training = Training(model, optimizer)
    step(model, optimizer)
    record = stored(training.capture(), tmp_path)
    again, other = original()
    unfreeze(again, other)
    resumed = Training(again, other)
    before = live(again, other)
    error = refusal(resumed, record, ContractMismatch)
    [groups] = [finding for finding in error.findings if finding.code == "optimizer.optimizer.groups"]
    assert "came later than the record: resume first" in groups.hint
    # What is frozen is to be frozen as it was, whatever is accepted.
    left = refusal(resumed, record, accept=[finding.code for finding in error.findings])
    assert {finding.code for finding in left.findings} == {
        "model.requires_grad.0.bias", "model.requires_grad.0.weight",
    }  # fmt: skip
    assert live(again, other) == before


# --- its neighbours: a schedule, several groups, other changes of membership ---

SCHEDULES = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2, 0.5),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [3, 5], 0.5),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 10),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, 0.5, total_iters=6),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, 0.5, total_iters=6),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 10),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.5, total_iters=2), lr_scheduler.ExponentialLR(o, 0.9)], [2]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, 0.5, total_iters=3), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
}  # fmt: skip


@pytest.mark.parametrize("options", [{}, {"initial_lr": 1e-3}], ids=["", "initial_lr"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_b03_under_a_schedule_the_new_group_s_rate_goes_on_where_it_was(name, options, tmp_path):
    def begin():
        model, optimizer = original()
        scheduler = SCHEDULES[name](optimizer)
        return model, optimizer, scheduler, Training(model, optimizer, scheduler)

    model, optimizer, scheduler, training = begin()
    for seed in range(2):
        step(model, optimizer, seed, scheduler)
    unfreeze(model, optimizer, **options)
    for seed in range(2, 4):  # nothing looks at the new group before the schedule has moved it
        step(model, optimizer, seed, scheduler)
    record = stored(training.capture(), tmp_path)
    assert record.optimizers["optimizer"].groups[1].configured["lr"] == 1e-3
    again, other, later, resumed = begin()
    before = live(again, other)
    assert refusal(resumed, record, OptimizerMismatch).code == "optimizer.optimizer.groups"
    assert live(again, other) == before
    unfreeze(again, other, **options)
    resumed.restore(record)
    for seed in range(4, 8):
        assert live(again, other) == live(model, optimizer)
        step(model, optimizer, seed, scheduler)
        step(again, other, seed, later)
    assert live(again, other) == live(model, optimizer)


def deep(make=lambda p: AdamW(p, lr=1e-2)):
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(3, 3) for _ in range(4)])
    for layer in model[:3]:
        layer.requires_grad_(False)
    return model, make(model[3].parameters())


def unfreeze_layer(model, optimizer, index):
    model[index].requires_grad_(True)
    optimizer.add_param_group(
        {"params": list(model[index].parameters()), "lr": 10.0 ** -(4 + index), "tag": index}
    )


@pytest.mark.parametrize("cut", range(1, 5))
def test_b03_layers_unfrozen_one_after_the_other_are_each_in_their_group_at_every_cut(cut, tmp_path):
    model, optimizer = deep()
    training = Training(model, optimizer)
    record = None
    for seed in range(4):
        step(model, optimizer, seed)
        if seed + 1 == cut:
            record = stored(training.capture(), tmp_path)
        if seed < 3:
            unfreeze_layer(model, optimizer, 2 - seed)
    again, other = deep()
    resumed = Training(again, other)
    if cut > 1:
        before = live(again, other)
        hint = refusal(resumed, record, OptimizerMismatch).findings[0].hint
        for layer in range(2, 3 - cut, -1):
            assert f"({layer}.weight, {layer}.bias) with lr=" in hint
        assert live(again, other) == before
    build_groups_of(record, again, other)
    resumed.restore(record)
    for seed in range(cut - 1, 3):  # the unfreezing of the cut's own step comes after it
        unfreeze_layer(again, other, 2 - seed)
        step(again, other, seed + 1)
    assert live(again, other) == live(model, optimizer)
    assert order(other, again) == order(optimizer, model)


def test_b03_groups_added_in_another_order_are_refused_and_follow_their_members_when_accepted(tmp_path):
    model, optimizer = deep()
    training = Training(model, optimizer)
    for seed in range(3):
        step(model, optimizer, seed)
        unfreeze_layer(model, optimizer, 2 - seed)
    step(model, optimizer, 3)
    record = stored(training.capture(), tmp_path)
    again, other = deep()
    for index in (0, 2, 1):
        unfreeze_layer(again, other, index)
    resumed = Training(again, other)
    before = live(again, other)
    codes = [finding.code for finding in refusal(resumed, record, OptimizerMismatch).findings]
    assert codes == ["optimizer.optimizer.group_order"]
    assert live(again, other) == before
    resumed.restore(record, accept=codes)
    assert [group.get("tag") for group in other.param_groups] == [None, 0, 2, 1]
    for each in ((model, optimizer), (again, other)):
        step(*each, 4)
    assert live(again, other) == live(model, optimizer)


def joined(model, optimizer):
    model[0].requires_grad_(True)
    optimizer.param_groups[0]["params"].extend(model[0].parameters())


def into_an_empty_group(model, optimizer):
    optimizer.add_param_group({"params": [], "lr": 1e-4})
    model[0].requires_grad_(True)
    optimizer.param_groups[1]["params"].extend(model[0].parameters())


def empty_group(model, optimizer):
    optimizer.add_param_group({"params": [], "lr": 1e-4})


def split(model, optimizer):
    bias = optimizer.param_groups[0]["params"].pop()
    optimizer.add_param_group({"params": [bias], "lr": 1e-4, "weight_decay": 0.0})


def left(model, optimizer):
    bias = optimizer.param_groups[0]["params"].pop()
    optimizer.state.pop(bias, None)
    bias.requires_grad_(False)
    bias.grad = None


MEMBERSHIP = {
    "a layer joined the group that was there": (joined, "missing.0.bias"),
    "a layer joined a group that was added empty": (into_an_empty_group, "groups"),
    "an empty group was added": (empty_group, "groups"),
    "a group was split": (split, "groups"),
    "a parameter left its group": (left, "extra.1.bias"),
}


@pytest.mark.parametrize("kind", MEMBERSHIP)
def test_b03_any_change_of_membership_in_mid_run_is_refused_until_the_program_has_made_it(kind, tmp_path):
    change, code = MEMBERSHIP[kind]
    model, optimizer = original()
    training = Training(model, optimizer)
    step(model, optimizer, 0)
    change(model, optimizer)
    step(model, optimizer, 1)
    record = stored(training.capture(), tmp_path)
    again, other = original()
    resumed = Training(again, other)
    before = live(again, other)
    error = refusal(resumed, record)
    assert f"optimizer.optimizer.{code}" in [finding.code for finding in error.findings]
    assert live(again, other) == before
    change(again, other)
    for _ in range(2):
        resumed.restore(record)
        assert live(again, other) == live(model, optimizer)
    step(model, optimizer, 2)
    step(again, other, 2)
    assert live(again, other) == live(model, optimizer)


def test_b03_a_group_that_was_removed_with_its_state_left_behind_is_refused_at_capture():
    model, optimizer, training = unfrozen()
    del optimizer.param_groups[1]
    model[0].requires_grad_(False)
    model.zero_grad()
    before = live(model, optimizer)
    with pytest.raises(UnsupportedState, match="no group") as caught:
        training.capture()
    assert "0.weight" in str(caught.value)
    assert live(model, optimizer) == before
    for parameter in model[0].parameters():
        del optimizer.state[parameter]
    assert [list(group.parameters) for group in training.capture().optimizers["optimizer"].groups] == [
        ["1.weight", "1.bias"]
    ]


class Own(Optimizer):
    """An optimizer with a `state_dict` of its own: it is asked for its state whole."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in filter(lambda p: p.grad is not None, group["params"]):
                slots = self.state[parameter]
                slots["sum"] = slots.get("sum", torch.zeros_like(parameter)) + parameter.grad
                with torch.no_grad():
                    parameter -= group["lr"] * slots["sum"]

    def state_dict(self):
        return super().state_dict()

    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)


def test_b03_it_holds_for_an_optimizer_that_is_asked_whole_too(tmp_path):
    model, optimizer, training = unfrozen(lambda p: Own(p, 1e-2))
    record = stored(training.capture(), tmp_path)
    again, other = original(lambda p: Own(p, 1e-2))
    resumed = Training(again, other)
    before = live(again, other)
    error = refusal(resumed, record, OptimizerMismatch)
    assert "group 1 (0.weight, 0.bias) must be there before the restore" in error.findings[0].hint
    assert live(again, other) == before
    unfreeze(again, other)
    resumed.restore(record)
    assert live(again, other) == live(model, optimizer)
    by_the_program_s_own_code(again, other)
    step(model, optimizer, 2)
    step(again, other, 2)
    assert live(again, other) == live(model, optimizer)


def test_b03_a_checkpointer_refuses_and_resumes_as_the_training_does(tmp_path):
    model, optimizer, training = unfrozen()
    with Checkpointer(training, tmp_path / "run") as checkpointer:
        checkpointer.save({"step": 2})
    again, other = original()
    before = live(again, other)
    with Checkpointer(Training(again, other), tmp_path / "run") as checkpointer:
        with pytest.raises(OptimizerMismatch):
            checkpointer.resume()
        assert live(again, other) == before
        build_groups_of(checkpointer.newest(), again, other)
        assert checkpointer.resume() == {"step": 2}
    assert live(again, other) == live(model, optimizer)
