"""`accept=` where several things meet: schedules that begin in mid-run, shared options, layers of many parts."""

import sys

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, lr_scheduler

import segue
from segue.errors import InvalidRecord, MismatchError
from tests._session.test_change_on_purpose import Model, backward, moments, program, refused, step
from tests.cases.state import live, raw


def advanced(steps, *names, **options):
    made = program(*names, **options)
    for seed in range(steps):
        step(*made[:2], seed, made[2])
    return made


def rates(optimizer, key="lr"):
    return [group[key] for group in optimizer.param_groups]


# --- schedules that come ---

BEGINNING = {
    "a warm-up": lambda o: lr_scheduler.LinearLR(o, 0.1, total_iters=5),
    "a warm-up, then a decay": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=3), lr_scheduler.ExponentialLR(o, 0.5)], [3]
    ),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.5, total_steps=20),
    "a function": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.1 * (1 + epoch)),
}


@pytest.mark.parametrize(
    "before", [None, lambda o: lr_scheduler.ExponentialLR(o, 0.5)], ids=["none", "another"]
)
@pytest.mark.parametrize("name", BEGINNING)
def test_a_schedule_that_came_begins_as_it_does_in_a_new_program(name, before):
    def make(schedule, called):
        model = Model("a")
        optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
        scheduler = None if schedule is None else {called: schedule(optimizer)}
        return model, optimizer, scheduler, segue.Training(model, optimizer, scheduler)

    model, optimizer, scheduler, training = make(before, "old")
    for seed in range(2):
        step(model, optimizer, seed, scheduler and scheduler["old"])
    record = training.capture()
    fresh, other = make(BEGINNING[name], "new"), make(BEGINNING[name], "new")
    other[-1].restore(record, accept=refused(other[-1], record))
    for seed in range(7):
        assert rates(other[1]) == rates(fresh[1])
        assert rates(other[1], "momentum") == rates(fresh[1], "momentum")
        for each in (fresh, other):
            step(*each[:2], seed, each[2]["new"])


def test_a_schedule_that_came_beside_another_leaves_the_present_rate_and_says_so():
    def make(*, warm):
        model = Model("a")
        optimizer = SGD(model.parameters(), lr=0.1)
        schedulers = {"decay": lr_scheduler.ExponentialLR(optimizer, 0.5)}
        if warm:
            schedulers["averaging"] = torch.optim.swa_utils.SWALR(optimizer, 0.01, anneal_epochs=2)
        return model, optimizer, schedulers, segue.Training(model, optimizer, schedulers)

    model, optimizer, schedulers, training = make(warm=False)
    step(model, optimizer, 0, schedulers["decay"])
    record = training.capture()
    _, other, _, resumed = make(warm=True)
    with pytest.raises(MismatchError, match="begins it beside the others; the present rate stays"):
        resumed.restore(record)
    resumed.restore(record, accept=["scheduler.averaging"])
    assert rates(other) == rates(optimizer) == [0.05]


# --- options ---


def test_a_beta_that_no_schedule_moves_is_compared_beside_the_one_that_it_moves():
    def make(second):
        return advanced(
            3, "a", optimizer=lambda m: AdamW(m.parameters(), lr=0.1, betas=(0.9, second)),
            schedule=lambda o: lr_scheduler.OneCycleLR(o, 0.5, total_steps=20),
        )  # fmt: skip

    record = make(0.95)[-1].capture()
    make(0.95)[-1].restore(record)
    _, other, _, resumed = make(0.999)
    codes = refused(resumed, record)
    assert codes == ["optimizer.optimizer.betas"]
    moved = record.optimizers["optimizer"].groups[0].options["betas"][0]
    assert moved != 0.95
    resumed.restore(record, accept=codes)
    assert rates(other, "betas") == [(moved, 0.999)]


def test_where_all_groups_are_new_the_defaults_are_the_program_s_too():
    record = program("old", optimizer=lambda m: SGD(m.parameters(), lr=0.1))[-1].capture()
    _, other, _, resumed = program("new", optimizer=lambda m: SGD(m.parameters(), lr=0.3, weight_decay=0.5))
    resumed.restore(record, accept=refused(resumed, record))
    other.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
    assert rates(other) == [0.3, 0.3]
    assert rates(other, "weight_decay") == [0.5, 0.5]


def test_a_new_group_that_has_one_rate_with_another_does_not_move_it():
    one_rate = {
        "schedule": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
        "optimizer": lambda m: SGD(
            [{"params": layer.parameters()} for layer in m.children()], lr=torch.tensor(0.1)
        ),
    }
    _, optimizer, _, training = advanced(2, "a", **one_rate)
    optimizer.param_groups[0]["lr"].fill_(0.75)  # by hand, which a schedule of functions does not look at
    record = training.capture()
    _, other, _, resumed = program("a", "new", **one_rate)
    codes = refused(resumed, record)
    assert codes == ["model.extra.new.bias", "model.extra.new.weight"]
    resumed.restore(record, accept=codes)
    assert [rate.item() for rate in rates(other)] == [0.75, 0.75]
    assert other.param_groups[0]["lr"] is other.param_groups[1]["lr"]


def test_a_scheduler_of_one_s_own_that_updates_groups_is_replayed_too():
    class Updating(lr_scheduler.LRScheduler):
        def get_lr(self):
            return [base / (1 + self.last_epoch) for base in self.base_lrs]

        def step(self, epoch=None):
            super().step(epoch)
            for group in self.optimizer.param_groups:
                group.update(weight_decay=group["lr"] / 10)

    def make(lr):
        return program("a", optimizer=lambda m: SGD(m.parameters(), lr=lr), schedule=Updating)

    made, asked, other = make(0.1), make(0.2), make(0.2)
    for seed in range(3):
        for each in (made, asked):
            step(*each[:2], seed, each[2])
    other[-1].restore(
        made[-1].capture(), accept=["optimizer.optimizer.lr", "optimizer.optimizer.weight_decay"]
    )
    assert rates(other[1], "weight_decay") == rates(asked[1], "weight_decay")


# --- what is told, and what an entry admits ---


def test_an_entry_of_many_needs_a_name():
    record = program("a")[-1].capture()
    model, optimizer, _, resumed = program("a", "new")
    before = live(model, optimizer)
    for entry in (
        "model.extra.*",
        "model.*",
        "*",
        ".*",
        "model.extra..*",
        "model.extra.ne.*",
        "model.extra.new",
    ):
        assert refused(resumed, record, accept=[entry]) == ["model.extra.new.bias", "model.extra.new.weight"]
    assert live(model, optimizer) == before
    resumed.check(record, accept=["model.extra.new.*"])


def test_submodules_of_a_layer_that_came_or_went_are_told_with_it():
    def make(*, head, drop):
        model = Model("a")
        if head:
            model.add_module("head", nn.Sequential(*[nn.TransformerEncoderLayer(4, 1, 8) for _ in range(3)]))
        if drop:
            model.add_module("drop", nn.Sequential(nn.Dropout(), nn.Sequential(nn.ReLU())))
        return segue.Training(model, AdamW(model.parameters()))

    for there, here, aspect in ((True, False, "missing"), (False, True, "extra")):
        record, resumed = make(head=there, drop=there).capture(), make(head=here, drop=here)
        with pytest.raises(MismatchError) as caught:
            resumed.restore(record)
        entries = f'accept=["model.{aspect}.head.*", "model.module.drop"])'
        assert str(caught.value).endswith(entries)
        resumed.restore(record, accept=[f"model.{aspect}.head.*", "model.module.drop"])


def test_entries_may_come_from_an_iterator_and_are_strings():
    record = program("a")[-1].capture()
    _, optimizer, _, resumed = program("a", optimizer=lambda m: AdamW(m.parameters(), lr=0.2))
    for wrong in ([1], [b"optimizer.optimizer.lr"], [["optimizer.optimizer.lr"]], "optimizer.optimizer.lr"):
        with pytest.raises(TypeError, match="accept takes"):
            resumed.restore(record, accept=wrong)
    resumed.restore(record, accept=iter(["optimizer.optimizer.lr"]))
    assert rates(optimizer) == [0.2]
    assert resumed.capture().lineage[0]["accepted"] == ["optimizer.optimizer.lr"]


# --- how much it costs ---


class Wide(nn.Module):
    def __init__(self, prefix, width):
        super().__init__()
        self.rows = nn.ParameterDict({f"{prefix}{number}": torch.zeros(2) for number in range(width)})


def wide(prefix, width):
    model = Wide(prefix, width)
    return segue.Training(model, SGD(model.parameters(), lr=0.1))


def swapped(width):
    record, resumed = wide("a", width).capture(), wide("b", width)
    with pytest.raises(MismatchError) as caught:
        resumed.restore(record)
    codes = [finding.code for finding in caught.value.findings]
    assert len(codes) == 2 * width
    resumed.check(record, accept=[f"{code}.stale.*" for code in codes] + codes)
    resumed.restore(record, accept=["model.missing.rows.*", "model.extra.rows.*"])


def renamed_one_by_one(width):
    record, resumed = wide("a", width).capture(), wide("b", width)
    resumed.restore(record, rename={f"rows.a{number}": f"rows.b{number}" for number in range(width)})


@pytest.mark.parametrize("change", [swapped, renamed_one_by_one])
def test_a_change_of_thousands_of_parameters_costs_as_much_as_there_are(change):
    def calls(width):
        count = 0

        def profile(_frame, event, _argument):
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(profile)
        try:
            change(width)
        finally:
            sys.setprofile(None)
        return count

    calls(10)
    assert calls(800) < 6 * calls(200)


def test_a_hint_of_a_rename_is_right_among_thousands():
    def make(*layers):
        model = nn.Module()
        for layer in layers:
            model.add_module(layer, nn.ModuleList([nn.Linear(2, 2) for _ in range(30)]))
        return segue.Training(model, SGD(model.parameters(), lr=0.1))

    with pytest.raises(MismatchError) as caught:
        make("encoder", "other").restore(make("body").capture())
    hints = {finding.code: finding.hint for finding in caught.value.findings}
    for number in range(30):
        hint = hints[f"model.missing.body.{number}.weight"]
        assert hint == 'was it renamed? then resume(rename={"body": "encoder"}) tells so'


# --- renames in components ---


def averaged(*names):
    model = Model(*names)
    optimizer = AdamW(model.parameters(), lr=0.1)
    average = torch.optim.swa_utils.AveragedModel(model)
    return model, optimizer, average, segue.Training(model, optimizer, components={"ema": average})


def test_an_average_of_a_renamed_model_is_renamed_by_the_entry_that_is_printed():
    model, optimizer, average, training = averaged("a", "old")
    for seed in range(2):
        step(model, optimizer, seed)
        average.update_parameters(model)
    record = training.capture()
    other_model, other, other_average, resumed = averaged("a", "new")
    before = live(other_average, other)
    with pytest.raises(MismatchError) as caught:
        resumed.restore(record, rename={"old": "new"})
    assert live(other_average, other) == before
    hint = 'was it renamed? then resume(rename={"ema/module.old": "ema/module.new"}) tells so'
    assert hint in caught.value.findings[0].hint
    names = {"old": "new", "ema/module.old": "ema/module.new"}
    resumed.restore(record, rename=names)
    assert raw(other_average.module.new.weight) == raw(average.module.old.weight)
    assert raw(other_model.new.weight) == raw(model.old.weight)
    again = resumed.capture()
    assert again.lineage[-1]["renamed"] == names
    averaged("a", "new")[-1].restore(again, rename=names)  # the entry may stay in the program


def test_trained_parameters_of_a_component_take_their_state_to_the_new_name():
    def make(name, called="loss"):
        model, loss = Model("a"), Model(name)
        optimizer = AdamW([*model.parameters(), *loss.parameters()], lr=0.1)
        return model, loss, optimizer, segue.Training(model, optimizer, components={called: loss})

    model, loss, optimizer, training = make("x")
    for part in (model, loss):
        backward(part, 1)
    optimizer.step()
    record = training.capture()
    _, other_loss, other, resumed = make("y")
    for wrong, code in (
        ({"x": "y"}, "rename.unknown"),
        ({"loss/x": "y"}, "rename.component"),
        ({"loss/x": "other/y"}, "rename.component"),
    ):
        with pytest.raises(InvalidRecord) as caught:
            resumed.restore(record, rename=wrong)
        assert caught.value.code == code
    resumed.restore(record, rename={"loss/x": "loss/y"})
    assert moments(other, other_loss.y.weight) == moments(optimizer, loss.x.weight)
    assert raw(other_loss.y.weight.grad) == raw(loss.x.weight.grad)


# --- state of new parameters, phases ---


class MadeAtOnce(torch.optim.Optimizer):
    """One that makes its state as it is built, and needs it."""

    def __init__(self, parameters, lr=0.1):
        super().__init__(parameters, {"lr": lr})
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["speed"] = torch.ones_like(parameter)

    def step(self):
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    speed = self.state[parameter]["speed"].mul_(0.9).add_(parameter.grad)
                    parameter.sub_(group["lr"] * speed)


def test_a_new_parameter_has_the_state_with_which_its_optimizer_made_it():
    def make(*names):
        return program(*names, optimizer=lambda m: MadeAtOnce(m.parameters()))

    model, optimizer, _, training = make("a")
    step(model, optimizer, 0)
    record = training.capture()
    wider, other, _, resumed = make("a", "new")
    resumed.restore(record, accept=["model.extra.new.*"])
    assert moments(other, wider.a.weight) == moments(optimizer, model.a.weight)
    assert torch.equal(other.state[wider.new.weight]["speed"], torch.ones(3, 3))
    step(wider, other, 1)


@pytest.mark.parametrize(
    ("change", "keys"),
    [
        ({"total_steps": 40}, ["total_steps"]),
        ({"total_steps": 40, "pct_start": 0.5}, ["total_steps", "_schedule_phases"]),
        ({"total_steps": 40, "three_phase": True}, ["total_steps", "_schedule_phases"]),
        (
            {"anneal_strategy": "linear", "three_phase": True},
            ["_schedule_phases", "_anneal_func_type"],
        ),
    ],
)
def test_phases_are_told_unless_they_follow_from_the_horizon(change, keys):
    def make(**options):
        options = {"total_steps": 20, **options}
        return program("a", schedule=lambda o: lr_scheduler.OneCycleLR(o, 0.5, **options))

    record, resumed = make()[-1].capture(), make(**change)[-1]
    assert refused(resumed, record) == [f"scheduler.scheduler.{key}" for key in keys]
