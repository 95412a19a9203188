"""`accept=` and `rename=`: what a program changes on purpose between two of its processes."""

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.optim import LBFGS, SGD, AdamW, lr_scheduler

import segue
from segue.errors import ContractMismatch, MismatchError, OptimizerMismatch, SchedulerMismatch
from tests.cases.state import live, raw


class Model(nn.Module):
    def __init__(self, *names):
        super().__init__()
        for name in names:
            torch.manual_seed(len(name))
            self.add_module(name, nn.Linear(3, 3))

    def forward(self, rows):
        for layer in self.children():
            rows = layer(rows).tanh()
        return rows


def backward(model, seed):
    generator = torch.Generator().manual_seed(seed)
    model(torch.randn(4, 3, generator=generator)).pow(2).sum().backward()


def step(model, optimizer, seed, scheduler=None):
    backward(model, seed)
    optimizer.step()
    optimizer.zero_grad()
    if scheduler is not None:
        scheduler.step()


def program(*names, optimizer=lambda m: AdamW(m.parameters(), lr=0.1), schedule=None, **others):
    model = Model(*names)
    made = optimizer(model)
    scheduler = None if schedule is None else schedule(made)
    return model, made, scheduler, segue.Training(model, made, scheduler, **others)


def refused(training, record, **options):
    """Return the codes that the refusal prints, in one entry to paste."""
    with pytest.raises(MismatchError) as caught:
        training.restore(record, **options)
    codes = [finding.code for finding in caught.value.findings]
    entries = ", ".join(f'"{code}"' for code in dict.fromkeys(codes))
    if len(codes) > 1:
        assert f"resume(accept=[{entries}])" in str(caught.value)
    drops = len(codes) > 1 and any(".missing." in code for code in codes)
    assert (", dropping what is missing" in str(caught.value)) == drops
    return codes


def moments(optimizer, parameter):
    return {slot: raw(value) for slot, value in optimizer.state[parameter].items()}


# --- parameters that come and go ---


def after_two_steps(*names, pending=True, **options):
    model, optimizer, scheduler, training = program(*names, **options)
    for seed in range(2):
        step(model, optimizer, seed, scheduler)
    if pending:
        backward(model, 9)
    return model, optimizer, scheduler, training


def test_a_layer_that_was_added_begins_as_the_program_made_it_and_the_others_go_on():
    model, optimizer, _, training = after_two_steps("a", "bb")
    record = training.capture()
    wider, other, _, resumed = program("a", "new", "bb")
    before, made = live(wider, other), raw(wider.new.weight)
    codes = refused(resumed, record)
    assert codes == ["model.extra.new.bias", "model.extra.new.weight"]
    assert live(wider, other) == before
    resumed.restore(record, accept=codes)
    assert raw(wider.new.weight) == made
    assert wider.new.weight.grad is None
    assert wider.new.weight not in other.state
    for name in ("a", "bb"):
        then, now = getattr(model, name).weight, getattr(wider, name).weight
        assert (raw(now), raw(now.grad)) == (raw(then), raw(then.grad))
        assert moments(other, now) == moments(optimizer, then)
    [entry] = resumed.capture().lineage
    assert entry["accepted"] == codes
    step(wider, other, 3)
    assert other.state[wider.new.weight]["step"] == 1
    assert other.state[wider.a.weight]["step"] == 3


@pytest.mark.parametrize("window", [None, segue.GradientAccumulator])
def test_a_layer_that_is_gone_takes_what_was_recorded_of_it_along(window):
    def make(*names):
        model = Model(*names)
        optimizer = AdamW(model.parameters(), lr=0.1)
        accumulator = None if window is None else window(model, microbatches=4)
        return model, optimizer, accumulator, segue.Training(model, optimizer, accumulator=accumulator)

    model, optimizer, accumulator, training = make("a", "old", "bb")
    step(model, optimizer, 0)
    backward(model, 1)
    if accumulator is not None:
        accumulator.add()
    record = training.capture()
    narrower, other, kept, resumed = make("a", "bb")
    before = live(narrower, other)
    codes = refused(resumed, record)
    assert codes == ["model.missing.old.bias", "model.missing.old.weight"]
    assert live(narrower, other) == before
    resumed.restore(record, accept=codes)
    for name in ("a", "bb"):
        then, now = getattr(model, name).weight, getattr(narrower, name).weight
        assert raw(now) == raw(then)
        assert moments(other, now) == moments(optimizer, then)
    if kept is None:
        assert raw(narrower.a.weight.grad) == raw(model.a.weight.grad)
    else:
        assert {raw(total) for _, total in kept.sums()} < {raw(total) for _, total in accumulator.sums()}
    again = resumed.capture()
    assert set(again.model.tensors) == {"a.bias", "a.weight", "bb.bias", "bb.weight"}
    assert again.lineage[-1]["accepted"] == codes


def test_one_goes_another_comes_and_a_third_is_renamed():
    model, optimizer, _, training = after_two_steps("a", "old", "bb")
    record = training.capture()
    changed, other, _, resumed = program("c", "fresh", "bb")
    codes = refused(resumed, record, rename={"a": "c"})
    assert codes == [
        "model.missing.old.bias", "model.missing.old.weight", "model.extra.fresh.bias", "model.extra.fresh.weight",
    ]  # fmt: skip
    resumed.restore(record, accept=codes, rename={"a": "c"})
    assert moments(other, changed.c.weight) == moments(optimizer, model.a.weight)
    [entry] = resumed.capture().lineage
    assert entry["renamed"] == {"a": "c"}


def test_one_entry_admits_all_that_came_under_a_name_and_nothing_else():
    class Deep(nn.Module):
        def __init__(self, *names):
            super().__init__()
            self.body = nn.Linear(3, 3)
            for name in names:
                self.add_module(name, Model("a", "bb", "ccc"))

    def make(*names):
        model = Deep(*names)
        return model, segue.Training(model, AdamW(model.parameters()))

    record = make("old")[1].capture()
    model, resumed = make("head")
    with pytest.raises(MismatchError) as caught:
        resumed.restore(record)
    assert str(caught.value).endswith('resume(accept=["model.missing.old.*", "model.extra.head.*"])')
    for entry in (
        "model.extra.*",
        "model.missing.*",
        "model.*",
        "*",
        "model.extra.hea.*",
        "model.extra.head",
    ):
        with pytest.raises(MismatchError):
            resumed.restore(record, accept=[entry])
    resumed.restore(record, accept=["model.missing.old.*", "model.extra.head.*"])
    [entry] = resumed.capture().lineage
    assert len(entry["accepted"]) == 12
    assert "model.extra.head.bb.weight" in entry["accepted"]
    assert raw(model.body.weight) == raw(record.model.tensors["body.weight"].to_host())


def test_accepting_one_side_of_a_change_still_refuses_the_other():
    record = after_two_steps("a", "old")[-1].capture()
    model, optimizer, _, resumed = program("a", "fresh")
    before = live(model, optimizer)
    codes = refused(resumed, record)
    gone = [code for code in codes if "missing" in code]
    assert refused(resumed, record, accept=gone) == [code for code in codes if code not in gone]
    assert live(model, optimizer) == before


def test_parameters_of_a_component_come_and_go_too():
    def make(*names):
        model, loss = Model("a"), Model(*names)
        optimizer = AdamW([*model.parameters(), *loss.parameters()], lr=0.1)
        return model, loss, optimizer, segue.Training(model, optimizer, components={"loss": loss})

    def both(model, loss, optimizer):
        backward(model, 1)
        backward(loss, 2)
        optimizer.step()

    model, loss, optimizer, training = make("centers")
    both(model, loss, optimizer)
    record = training.capture()
    _, other_loss, other, resumed = make("centers", "more")
    codes = refused(resumed, record)
    assert codes == ["component.loss.extra.more.bias", "component.loss.extra.more.weight"]
    resumed.restore(record, accept=codes)
    assert moments(other, other_loss.centers.weight) == moments(optimizer, loss.centers.weight)
    assert other_loss.more.weight not in other.state


def grouped(*groups):
    return lambda m: AdamW([{"params": getattr(m, name).parameters(), "lr": lr} for name, lr in groups])


def test_a_group_of_new_parameters_keeps_its_own_options_and_follows_the_schedule():
    def schedule(optimizer):
        return lr_scheduler.LambdaLR(optimizer, [lambda epoch: 1 / (1 + epoch)] * len(optimizer.param_groups))

    model, optimizer, scheduler, training = after_two_steps(
        "a", optimizer=grouped(("a", 0.1)), schedule=schedule
    )
    optimizer.param_groups[0]["lr"] = 0.7  # by hand, which a schedule of functions does not look at
    record = training.capture()
    wider, other, later, resumed = program(
        "a", "new", optimizer=grouped(("new", 0.3), ("a", 0.1)), schedule=schedule
    )
    codes = refused(resumed, record)
    assert codes == [
        "model.extra.new.bias", "model.extra.new.weight",
    ]  # fmt: skip
    resumed.restore(record, accept=codes)
    assert [group["lr"] for group in other.param_groups] == [0.3 * (1 / 3), 0.7]
    assert later.get_last_lr() == [0.3 * (1 / 3), 0.7]
    step(model, optimizer, 5, scheduler)
    step(wider, other, 5, later)
    assert [group["lr"] for group in other.param_groups] == [0.3 * (1 / 4), optimizer.param_groups[0]["lr"]]


def test_a_group_that_is_gone_leaves_the_others_as_they_were():
    model, optimizer, _, training = after_two_steps(
        "a", "old", "bb", optimizer=grouped(("a", 0.1), ("old", 0.2), ("bb", 0.3))
    )
    optimizer.param_groups[2]["lr"] = 0.35
    record = training.capture()
    narrower, other, _, resumed = program("a", "bb", optimizer=grouped(("bb", 0.3), ("a", 0.1)))
    codes = refused(resumed, record)
    assert (
        codes
        == [
            "model.missing.old.bias",
            "model.missing.old.weight",
            "model.order",
            "optimizer.optimizer.group_order",
        ][:2]
        + codes[2:]
    )
    assert codes[2:] == ["optimizer.optimizer.group_order"]
    resumed.restore(record, accept=codes)
    assert [group["lr"] for group in other.param_groups] == [0.35, 0.1]
    assert moments(other, narrower.bb.weight) == moments(optimizer, model.bb.weight)


def test_a_parameter_may_leave_its_optimizer_or_join_it():
    frozen = lambda m: AdamW(m.a.parameters(), lr=0.1)  # noqa: E731
    model, optimizer, _, training = program("a", "bb")
    step(model, optimizer, 0)
    model.bb.requires_grad_(False)
    record = training.capture()
    other_model, other, _, resumed = program("a", "bb", optimizer=frozen)
    other_model.bb.requires_grad_(False)
    resumed = segue.Training(other_model, other)
    codes = refused(resumed, record)
    assert codes == ["optimizer.optimizer.missing.bb.bias", "optimizer.optimizer.missing.bb.weight"]
    resumed.restore(record, accept=codes)
    assert moments(other, other_model.a.weight) == moments(optimizer, model.a.weight)
    later = resumed.capture()
    joined_model, joined, _, _ = program("a", "bb")
    joined_model.bb.requires_grad_(False)
    training = segue.Training(joined_model, joined)
    codes = refused(training, later)
    assert codes == ["optimizer.optimizer.extra.bb.bias", "optimizer.optimizer.extra.bb.weight"]
    training.restore(later, accept=codes)
    assert joined_model.bb.weight not in joined.state


def test_under_lbfgs_none_may_come_or_go():
    record = program("a", optimizer=lambda m: LBFGS(m.parameters()))[-1].capture()
    resumed = program("a", "new", optimizer=lambda m: LBFGS(m.parameters()))[-1]
    with pytest.raises(MismatchError) as caught:
        resumed.restore(record, accept=["model.extra.new.bias", "model.extra.new.weight"])
    assert {finding.code for finding in caught.value.findings} == {
        "optimizer.optimizer.extra.new.bias", "optimizer.optimizer.extra.new.weight",
    }  # fmt: skip


def test_a_layer_without_tensors_and_a_component_may_come_and_go():
    def make(*, dropout, ema):
        model = Model("a")
        if dropout:
            model.add_module("drop", nn.Dropout(0.5))
        optimizer = AdamW(model.parameters())
        components = {"ema": copy.deepcopy(model.a)} if ema else {}
        return model, segue.Training(model, optimizer, components=components)

    for there, here in ((True, False), (False, True)):
        record = make(dropout=there, ema=there)[1].capture()
        _model, resumed = make(dropout=here, ema=here)
        codes = refused(resumed, record)
        assert codes == ["model.module.drop", "component.ema"]
        resumed.restore(record, accept=codes)
        assert ("ema" in resumed.capture().components) == here


# --- options ---


def test_a_rate_without_a_schedule_is_the_program_s_from_now_on():
    record = after_two_steps("a")[-1].capture()
    _model, optimizer, _, resumed = program("a", optimizer=lambda m: AdamW(m.parameters(), lr=0.05))
    assert refused(resumed, record) == ["optimizer.optimizer.lr"]
    resumed.restore(record, accept=["optimizer.optimizer.lr"])
    assert optimizer.param_groups[0]["lr"] == optimizer.defaults["lr"] == 0.05


@pytest.mark.parametrize(
    ("option", "then", "now"),
    [
        ("weight_decay", 0.1, 0.2),
        ("betas", (0.9, 0.99), (0.8, 0.99)),
        ("maximize", False, True),
        ("foreach", True, False),
        ("fused", None, True),
        ("lr", 0.1, torch.tensor(0.1)),
    ],
)
def test_an_option_or_kernel_flag_is_the_program_s_from_now_on(option, then, now):
    def make(value):
        options = {"foreach": False} if option not in ("foreach", "fused") else {}
        return program("a", optimizer=lambda m: AdamW(m.parameters(), **{**options, option: value}))

    model, optimizer, _, training = make(then)
    step(model, optimizer, 0)
    record = training.capture()
    other_model, other, _, resumed = make(now)
    codes = refused(resumed, record)
    assert codes == [f"optimizer.optimizer.{option}"]
    resumed.restore(record, accept=codes)
    assert raw_or_same(other.param_groups[0][option], now)
    assert moments(other, other_model.a.weight) == moments(optimizer, model.a.weight)
    assert resumed.capture().lineage[-1]["accepted"] == codes
    step(other_model, other, 1)


FORMS = {
    "amsgrad": lambda on: lambda m: AdamW(m.parameters(), amsgrad=on),
    "centered": lambda on: lambda m: torch.optim.RMSprop(m.parameters(), centered=on),
    "momentum": lambda on: lambda m: torch.optim.RMSprop(m.parameters(), momentum=0.9 * on),
    "history_size": lambda on: lambda m: LBFGS(m.parameters(), history_size=5 + 3 * on),
}


@pytest.mark.parametrize("option", FORMS)
def test_an_option_that_asks_for_other_state_is_refused_for_good_once_there_is_state(option):
    model, optimizer, _, training = program("a", optimizer=FORMS[option](False))
    _, _, _, resumed = program("a", optimizer=FORMS[option](True))
    code = f"optimizer.optimizer.{option}"
    resumed.restore(training.capture(), accept=[code])  # before the first step
    backward(model, 0)
    optimizer.step(lambda: model(torch.ones(1, 3)).sum())
    with pytest.raises(OptimizerMismatch, match="no room for it") as caught:
        resumed.restore(training.capture(), accept=[code])
    assert [finding.code for finding in caught.value.findings] == [code]


def test_a_layer_that_was_thawed_and_is_accepted_to_have_left_its_optimizer_stays_frozen():
    def make():
        model = Model("a", "bb")
        model.bb.requires_grad_(False)
        optimizer = AdamW(model.a.parameters(), lr=0.1)
        return model, optimizer, segue.Training(model, optimizer)

    model, optimizer, training = make()
    model.bb.requires_grad_(True)
    optimizer.add_param_group({"params": model.bb.parameters()})
    step(model, optimizer, 0)
    backward(model, 1)
    record = training.capture()
    other_model, other, resumed = make()
    codes = refused(resumed, record)
    resumed.restore(record, accept=codes)
    assert not other_model.bb.weight.requires_grad
    assert other_model.bb.weight.grad is None
    assert raw(other_model.bb.weight) == raw(model.bb.weight)
    step(other_model, other, 2)
    resumed.capture()


def raw_or_same(value, expected):
    if isinstance(expected, torch.Tensor):
        return isinstance(value, torch.Tensor) and raw(value) == raw(expected)
    return value == expected and type(value) is type(expected)


# --- schedules ---

RATES = {
    "step": lambda o: lr_scheduler.StepLR(o, 2, 0.5),
    "multistep": lambda o: lr_scheduler.MultiStepLR(o, [1, 4], 0.3),
    "exponential": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "linear": lambda o: lr_scheduler.LinearLR(o, 0.1, total_iters=7),
    "constant": lambda o: lr_scheduler.ConstantLR(o, 0.1, total_iters=7),
    "polynomial": lambda o: lr_scheduler.PolynomialLR(o, 20, 2.0),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 20, eta_min=0.001),
    "restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3, 2),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    "multiplicative": lambda o: lr_scheduler.MultiplicativeLR(o, lambda epoch: 0.9),
    "sequential": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=3), lr_scheduler.CosineAnnealingLR(o, 20)], [3]
    ),
    "chained": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, 0.1, total_iters=3), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
}


@pytest.mark.parametrize("tensor", [False, True], ids=["float", "tensor"])
@pytest.mark.parametrize("name", RATES)
def test_another_rate_under_a_schedule_is_as_if_it_had_been_so_from_the_beginning(name, tensor):
    def make(lr):
        lr = torch.tensor(lr) if tensor else lr
        return program("a", optimizer=lambda m: SGD(m.parameters(), lr=lr), schedule=RATES[name])

    model, optimizer, scheduler, training = make(0.1)
    for seed in range(5):
        step(model, optimizer, seed, scheduler)
    record = training.capture()
    asked_model, asked, asked_scheduler, _ = make(0.02)
    for seed in range(5):
        step(asked_model, asked, seed, asked_scheduler)
    other_model, other, later, resumed = make(0.02)
    assert refused(resumed, record) == ["optimizer.optimizer.lr"]
    held = other.param_groups[0]["lr"]
    resumed.restore(record, accept=["optimizer.optimizer.lr"])
    assert raw(other_model.a.weight) == raw(model.a.weight)
    if tensor:
        assert other.param_groups[0]["lr"] is held
    for seed in range(5, 9):
        assert same(other.param_groups[0]["lr"], asked.param_groups[0]["lr"])
        assert all(map(same, later.get_last_lr(), asked_scheduler.get_last_lr()))
        step(asked_model, asked, seed, asked_scheduler)
        step(other_model, other, seed, later)


def same(left, right):
    if isinstance(left, torch.Tensor) or isinstance(right, torch.Tensor):
        return type(left) is type(right) and raw(left) == raw(right)
    return left == right


CHANGED = {
    "horizon of a cosine": (
        lambda o: lr_scheduler.CosineAnnealingLR(o, 10), lambda o: lr_scheduler.CosineAnnealingLR(o, 20), ["T_max"],
    ),
    "a longer warm-up": (
        lambda o: lr_scheduler.SequentialLR(o, [lr_scheduler.LinearLR(o, 0.1, total_iters=2), lr_scheduler.ExponentialLR(o, 0.5)], [2]),
        lambda o: lr_scheduler.SequentialLR(o, [lr_scheduler.LinearLR(o, 0.1, total_iters=6), lr_scheduler.ExponentialLR(o, 0.5)], [6]),
        ["_milestones", "0.total_iters"],
    ),
    "another peak": (
        lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=20), lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.2, total_steps=20), [],
    ),
    "another function": (
        lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch), lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.8**epoch), ["lr_lambdas"],
    ),
    "restarts": (
        lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3), lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 4, 2), ["T_0", "T_mult"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGED)
def test_another_schedule_is_as_if_it_had_been_so_from_the_beginning(name):
    before, after, keys = CHANGED[name]

    def make(schedule):
        return program("a", optimizer=lambda m: SGD(m.parameters(), lr=0.1, momentum=0.9), schedule=schedule)

    def moved(schedule):
        made = make(schedule)
        for seed in range(5):
            step(*made[:2], seed, made[2])
        return made

    record = moved(before)[-1].capture()
    asked, other = moved(after), make(after)
    codes = refused(other[-1], record)
    scheduler_codes = [code.removeprefix("scheduler.scheduler.") for code in codes if code.startswith("sch")]
    assert scheduler_codes == keys
    other[-1].restore(record, accept=codes)
    for seed in range(5, 12):
        for key in other[1].param_groups[0].keys() - {"params"}:
            assert same(other[1].param_groups[0][key], asked[1].param_groups[0][key]), key
        assert vars_of(other[2]) == vars_of(asked[2])
        step(*other[:2], seed, other[2])
        step(*asked[:2], seed, asked[2])


def vars_of(scheduler):
    return {
        key: value
        for key, value in vars(scheduler).items()
        if key not in ("optimizer", "_schedulers", "lr_lambdas") and not callable(value)
    } | {index: vars_of(child) for index, child in enumerate(getattr(scheduler, "_schedulers", ()))}


def test_groups_in_another_order_take_their_parts_of_the_schedule_along():
    class Countdown:
        def __init__(self, left):
            self.left = left

        def __call__(self, epoch):
            self.left -= 1
            return max(self.left, 0) / 10

    def make(*names):
        left = {"a": 9, "bb": 5}
        model = Model("a", "bb")
        optimizer = SGD([{"params": getattr(model, name).parameters()} for name in names], lr=1.0)
        scheduler = lr_scheduler.LambdaLR(optimizer, [Countdown(left[name]) for name in names])
        return model, optimizer, scheduler, segue.Training(model, optimizer, scheduler)

    model, optimizer, scheduler, training = make("a", "bb")
    for seed in range(3):
        step(model, optimizer, seed, scheduler)
    record = training.capture()
    other_model, other, later, resumed = make("bb", "a")
    codes = refused(resumed, record)
    assert codes == ["optimizer.optimizer.group_order"]
    resumed.restore(record, accept=codes)
    for seed in range(3, 6):
        assert later.get_last_lr() == scheduler.get_last_lr()[::-1]
        assert [group["lr"] for group in other.param_groups] == later.get_last_lr()
        assert [function.left for function in later.lr_lambdas] == [f.left for f in scheduler.lr_lambdas][
            ::-1
        ]
        step(model, optimizer, seed, scheduler)
        step(other_model, other, seed, later)


def test_a_function_that_draws_and_fails_moves_no_stream():
    def rate(epoch, fails=False):
        if fails and epoch == 3:
            raise ZeroDivisionError
        return float(torch.rand(()))

    def make(**options):
        return program("a", schedule=lambda o: lr_scheduler.LambdaLR(o, partial(rate, **options)))

    model, optimizer, scheduler, training = make()
    for seed in range(3):
        step(model, optimizer, seed, scheduler)
    record = training.capture()
    other_model, other, _, resumed = make(fails=True)
    before, streams = live(other_model, other), raw(torch.get_rng_state())
    with pytest.raises(SchedulerMismatch, match="ZeroDivisionError"):
        resumed.restore(record, accept=["scheduler.scheduler.lr_lambdas"])
    assert live(other_model, other) == before
    assert raw(torch.get_rng_state()) == streams


def test_a_schedule_that_would_be_over_is_refused_and_nothing_has_changed():
    def make(total):
        return program("a", schedule=lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=total))

    model, optimizer, scheduler, training = make(20)
    for seed in range(9):
        step(model, optimizer, seed, scheduler)
    record = training.capture()
    other_model, other, _, resumed = make(5)
    codes = refused(resumed, record)
    before = live(other_model, other)
    with pytest.raises(SchedulerMismatch, match=r"can't be moved to where the record's stands[\s\S]*9 moves"):
        resumed.restore(record, accept=codes)
    assert live(other_model, other) == before


@pytest.mark.parametrize("why", ["a metric", "an epoch", "two schedulers", "moved already"])
def test_where_a_schedule_can_not_be_replayed_the_present_rate_stays_and_the_message_says_so(why):
    def make(lr):
        def schedules(o):
            if why == "a metric":
                return lr_scheduler.SequentialLR(o, [lr_scheduler.ConstantLR(o, 1.0)], [])
            return lr_scheduler.StepLR(o, 1, 0.5)

        model = Model("a")
        optimizer = SGD(model.parameters(), lr=lr)
        named = {"one": schedules(optimizer)}
        if why == "two schedulers":
            named["two"] = lr_scheduler.ExponentialLR(optimizer, 0.9)
        if why == "a metric":
            named["one"] = lr_scheduler.StepLR(optimizer, 1, 0.5)
            named["two"] = lr_scheduler.ReduceLROnPlateau(optimizer)
        return model, optimizer, named, segue.Training(model, optimizer, named)

    model, optimizer, named, training = make(0.1)
    for seed in range(3):
        step(model, optimizer, seed)
        for scheduler in named.values():
            if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
                scheduler.step(1.0)
            elif why == "an epoch":
                with pytest.warns(UserWarning, match="epoch parameter"):
                    scheduler.step(seed + 4)
            else:
                scheduler.step()
    record = training.capture()
    present = optimizer.param_groups[0]["lr"]
    other_model, other, later, resumed = make(0.2)
    if why == "moved already":
        step(other_model, other, 0)
        later["one"].step()
    with pytest.raises(OptimizerMismatch, match="`param_groups` after resuming") as caught:
        resumed.restore(record)
    codes = [finding.code for finding in caught.value.findings]
    assert codes == ["optimizer.optimizer.lr"]
    resumed.restore(record, accept=codes)
    assert other.param_groups[0]["lr"] == present
    assert other.param_groups[0]["initial_lr"] == 0.2
    assert later["one"].base_lrs == [0.2]


def test_a_schedule_may_come_and_go():
    record = after_two_steps("a", schedule=lambda o: lr_scheduler.StepLR(o, 1, 0.5))[-1].capture()
    _, optimizer, _, resumed = program("a", optimizer=lambda m: AdamW(m.parameters(), lr=0.3))
    codes = refused(resumed, record)
    assert codes == ["optimizer.optimizer.lr", "scheduler.scheduler"]
    resumed.restore(record, accept=codes)
    assert optimizer.param_groups[0]["lr"] == 0.3
    assert "initial_lr" not in optimizer.param_groups[0]
    _, optimizer, _, resumed = program("a")
    assert refused(resumed, record) == ["scheduler.scheduler"]
    resumed.restore(record, accept=["scheduler.scheduler"])
    assert optimizer.param_groups[0]["lr"] == 0.1 * 0.5**2  # where the schedule had brought it
    record = resumed.capture()
    model, optimizer, scheduler, resumed = program(
        "a",
        optimizer=lambda m: AdamW(m.parameters(), lr=0.3),
        schedule=lambda o: lr_scheduler.StepLR(o, 1, 0.5),
    )
    codes = refused(resumed, record)
    assert codes == ["optimizer.optimizer.lr", "scheduler.scheduler"]
    resumed.restore(record, accept=codes)
    step(model, optimizer, 3, scheduler)
    assert optimizer.param_groups[0]["lr"] == 0.15


# --- the lineage ---


def test_what_was_accepted_is_in_every_later_checkpoint_and_the_entry_may_stay_in_the_program(tmp_path):
    def make(lr):
        return program("a", optimizer=lambda m: AdamW(m.parameters(), lr=lr))

    model, optimizer, _, training = make(0.1)
    with segue.Checkpointer(training, tmp_path / "run") as checkpointer:
        step(model, optimizer, 0)
        checkpointer.save(step=1)
    for _ in range(2):
        model, optimizer, _, training = make(0.2)
        with segue.Checkpointer(training, tmp_path / "run") as checkpointer:
            checkpointer.resume(accept=["optimizer.optimizer.lr"])
            step(model, optimizer, 1)
            checkpointer.save(step=2)
    record = segue.load(tmp_path / "run" / "ckpt-000000003")
    [entry] = record.lineage
    assert (entry["step"], entry["accepted"]) == (1, ["optimizer.optimizer.lr"])


def test_a_tie_that_came_is_no_parameter_that_went():
    def make(tied):
        model = Model("a", "bb")
        if tied:
            model.bb.weight = model.a.weight
        return segue.Training(model, AdamW(model.parameters()))

    with pytest.raises(ContractMismatch) as caught:
        make(tied=True).restore(make(tied=False).capture())
    told = {finding.code: finding.admissible for finding in caught.value.findings}
    assert told["model.missing.bb.weight"] is False
