"""Schedulers: their position comes back, their configuration is compared, in every class that torch has."""

import dataclasses
import inspect

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW
from torch.optim import lr_scheduler as schedules
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.swa_utils import SWALR

from segue import StateOf, Training
from segue._capture.scheduler import (
    bind_scheduler,
    capture_scheduler,
    check_scheduler,
    children,
    family,
    is_scheduler,
    plan_scheduler,
    refuse_unregistered,
)
from segue._record.diff import diff
from segue.errors import SchedulerMismatch, UnsupportedState


class Cap:
    def __init__(self):
        self.calls = 0

    def __call__(self, epoch):
        self.calls += 1
        return 0.9**epoch


def sequence(optimizer):
    return schedules.SequentialLR(
        optimizer, [schedules.LinearLR(optimizer, 0.1, 1, 3), schedules.CosineAnnealingLR(optimizer, 5)], [3]
    )


def chain(optimizer):
    return schedules.ChainedScheduler(
        [schedules.ConstantLR(optimizer, 0.1, 2), schedules.ExponentialLR(optimizer, 0.9)]
    )


VARIANTS = {
    "LambdaLR": lambda o: schedules.LambdaLR(o, lambda e: 0.9**e),
    "LambdaLR with an object": lambda o: schedules.LambdaLR(o, Cap()),
    "MultiplicativeLR": lambda o: schedules.MultiplicativeLR(o, lambda e: 0.9),
    "StepLR": lambda o: schedules.StepLR(o, 2),
    "MultiStepLR": lambda o: schedules.MultiStepLR(o, [2, 4, 4]),
    "ConstantLR": lambda o: schedules.ConstantLR(o, 0.1, 3),
    "LinearLR": lambda o: schedules.LinearLR(o, 0.1, 1, 4),
    "ExponentialLR": lambda o: schedules.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda o: schedules.PolynomialLR(o, 5),
    "CosineAnnealingLR": lambda o: schedules.CosineAnnealingLR(o, 5),
    "CosineAnnealingWarmRestarts": lambda o: schedules.CosineAnnealingWarmRestarts(o, 3, 2),
    "CyclicLR": lambda o: schedules.CyclicLR(o, 0.01, 0.1, 3),
    "CyclicLR with exp_range": lambda o: schedules.CyclicLR(o, 0.01, 0.1, 3, mode="exp_range", gamma=0.9),
    "CyclicLR with triangular2": lambda o: schedules.CyclicLR(o, 0.01, 0.1, 3, mode="triangular2"),
    "CyclicLR with a function": lambda o: schedules.CyclicLR(o, 0.01, 0.1, 3, scale_fn=lambda x: 0.9**x),
    "OneCycleLR": lambda o: schedules.OneCycleLR(o, 0.1, total_steps=20),
    "ReduceLROnPlateau": lambda o: ReduceLROnPlateau(o, patience=1, cooldown=1),
    "SequentialLR": sequence,
    "ChainedScheduler": chain,
    "SWALR": lambda o: SWALR(o, 0.05, 4),
}


def test_every_scheduler_of_torch_is_among_the_variants():
    known = {name.split()[0] for name in VARIANTS}
    classes = {
        name for name, cls in vars(schedules).items() if inspect.isclass(cls) and issubclass(cls, LRScheduler)
    }
    assert classes - known == {"LRScheduler", "_LRScheduler"}


def fresh(variant, rate=0.1, **options):
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    optimizer = SGD(model.parameters(), lr=rate() if callable(rate) else rate, momentum=0.9)
    return model, optimizer, VARIANTS[variant](optimizer)


def advance(model, optimizer, scheduler, steps):
    """Train, and return the options of the group before each step."""
    seen = []
    for _ in range(steps):
        seen.append({key: repr(value) for key, value in optimizer.param_groups[0].items() if key != "params"})
        optimizer.zero_grad()
        model(torch.ones(1, 2)).pow(2).sum().backward()
        optimizer.step()
        scheduler.step(*([1.0] if isinstance(scheduler, ReduceLROnPlateau) else []))
    optimizer.zero_grad()
    return seen


@pytest.mark.parametrize("rate", [0.1, lambda: torch.tensor(0.1)], ids=["float", "tensor"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_schedule_goes_on_with_the_same_bits(variant, rate):
    one = fresh(variant, rate)
    training = Training(*one, rng=None)
    advance(*one, 5)
    record = training.capture()
    other = fresh(variant, rate)
    resumed = Training(*other, rng=None)
    resumed.restore(record)
    assert diff(record, resumed.capture()).identical
    assert advance(*one, 6) == advance(*other, 6)
    assert diff(training.capture(), resumed.capture()).identical


def captured(scheduler, name="main"):
    return capture_scheduler(scheduler, name, 0, None, "scheduler.s")


def codes(before, after, names=None):
    named = {id(after.optimizer): "main"} if names is None else names
    return [item.code for item in check_scheduler(captured(before), after, named, "scheduler.s")]


def optimizer(rate=0.1):
    return SGD([nn.Parameter(torch.ones(1))], lr=rate, momentum=0.9)


CHANGES = {
    "step": (lambda o: schedules.StepLR(o, 2), lambda o: schedules.StepLR(o, 3), ["step_size"]),
    "gamma": (lambda o: schedules.ExponentialLR(o, 0.9), lambda o: schedules.ExponentialLR(o, 0.8), ["gamma"]),
    "horizon": (lambda o: schedules.CosineAnnealingLR(o, 5), lambda o: schedules.CosineAnnealingLR(o, 9), ["T_max"]),
    "milestones": (
        lambda o: schedules.MultiStepLR(o, [4]), lambda o: schedules.MultiStepLR(o, [4, 4]), ["milestones"],
    ),
    "total": (
        lambda o: schedules.OneCycleLR(o, 0.1, 20), lambda o: schedules.OneCycleLR(o, 0.1, 40),
        ["total_steps", "_schedule_phases"],
    ),
    "mode": (
        lambda o: ReduceLROnPlateau(o, "min"), lambda o: ReduceLROnPlateau(o, "max"), ["mode_worse", "mode"],
    ),
    "threshold": (
        lambda o: ReduceLROnPlateau(o), lambda o: ReduceLROnPlateau(o, threshold=0.1), ["threshold"],
    ),
    "lambda": (
        lambda o: schedules.LambdaLR(o, lambda e: 0.9), lambda o: schedules.LambdaLR(o, lambda e: 0.8), ["lr_lambdas"],
    ),
    "scale function": (
        lambda o: schedules.CyclicLR(o, 0.1, 1.0, scale_fn=lambda x: 1.0),
        lambda o: schedules.CyclicLR(o, 0.1, 1.0, scale_fn=lambda x: 2.0),
        ["_scale_fn_custom"],
    ),
    "base rate": (
        lambda o: schedules.StepLR(o, 2), lambda o: schedules.StepLR(optimizer(0.2), 2), ["base_lrs"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", CHANGES)
def test_a_changed_configuration_has_its_own_code_and_can_be_accepted(kind):
    before, after, keys = CHANGES[kind]
    one, other = before(optimizer()), after(optimizer())
    found = list(check_scheduler(captured(one), other, {id(other.optimizer): "main"}, "scheduler.s"))
    assert [item.code for item in found] == [f"scheduler.s.{key}" for key in keys]
    assert all(item.admissible for item in found)


def test_moving_on_is_no_change_of_configuration():
    for make in VARIANTS.values():
        one, other = make(optimizer()), make(optimizer())
        bind_scheduler(one, "scheduler.s")
        for _ in range(7):
            one.optimizer.step()
            one.step(*([1.0] if isinstance(one, ReduceLROnPlateau) else []))
        assert codes(one, other) == []


def test_another_class_or_another_optimizer_is_refused_for_good():
    assert codes(schedules.StepLR(optimizer(), 2), schedules.ExponentialLR(optimizer(), 0.9)) == [
        "scheduler.s.class"
    ]
    assert codes(schedules.StepLR(optimizer(), 2), schedules.StepLR(optimizer(), 2), {}) == [
        "scheduler.s.optimizer"
    ]


def test_nested_schedulers_are_compared_one_by_one():
    def nest(optimizer, *gammas):
        return schedules.ChainedScheduler([schedules.ExponentialLR(optimizer, gamma) for gamma in gammas])

    def swapped(optimizer):
        cosine, linear = schedules.CosineAnnealingLR(optimizer, 5), schedules.LinearLR(optimizer, 0.1, 1, 3)
        return schedules.SequentialLR(optimizer, [cosine, linear], [3])

    assert codes(nest(optimizer(), 0.9, 0.8), nest(optimizer(), 0.9, 0.7)) == ["scheduler.s.1.gamma"]
    assert codes(nest(optimizer(), 0.9, 0.8), nest(optimizer(), 0.9)) == ["scheduler.s.children"]
    assert codes(sequence(optimizer()), swapped(optimizer())) == [
        "scheduler.s.0.class",
        "scheduler.s.1.class",
    ]


def test_what_was_accepted_stays_as_the_program_has_it_and_the_rest_comes_back():
    one, other = schedules.StepLR(optimizer(), 2), schedules.StepLR(optimizer(), 3)
    for _ in range(5):
        one.optimizer.step()
        one.step()
    for write in plan_scheduler(captured(one), other, "scheduler.s", ["scheduler.s.step_size"]):
        write.run(torch.empty(0, dtype=torch.uint8))
    assert other.step_size == 3
    assert other.last_epoch == 5


def test_restored_values_are_not_those_of_the_record():
    one = schedules.MultiStepLR(optimizer(), [2])
    record = captured(one)
    for write in plan_scheduler(record, one, "scheduler.s", []):
        write.run(torch.empty(0, dtype=torch.uint8))
    one.milestones[9] += 1
    one.base_lrs.append(5)
    assert record.position["milestones"] == {2: 1}
    assert record.position["base_lrs"] == [0.1]


def test_an_objects_attributes_are_position_not_configuration():
    one, other = (schedules.LambdaLR(optimizer(), Cap()) for _ in range(2))
    one.lr_lambdas[0].calls = 40
    record = captured(one)
    assert codes(one, other) == []
    for write in plan_scheduler(record, other, "scheduler.s", []):
        write.run(torch.empty(0, dtype=torch.uint8))
    assert other.lr_lambdas[0].calls == 40


def test_a_user_class_keeps_its_attributes_by_itself():
    class Own(LRScheduler):
        def __init__(self, optimizer):
            self.boost = 1.0
            super().__init__(optimizer)

        def get_lr(self):
            self.boost += 0.5
            return [0.1 * self.boost for _ in self.optimizer.param_groups]

    def fresh():
        opt = optimizer()
        scheduler = Own(opt)
        bind_scheduler(scheduler, "scheduler.s")
        return scheduler

    one, other = fresh(), fresh()
    for _ in range(3):
        one.optimizer.step()
        one.step()
    assert codes(one, other) == []
    for write in plan_scheduler(captured(one), other, "scheduler.s", []):
        write.run(torch.empty(0, dtype=torch.uint8))
    assert other.boost == one.boost == 3.0


def test_an_attribute_that_cannot_be_kept_is_refused_by_its_path():
    scheduler = schedules.StepLR(optimizer(), 2)
    scheduler.log = {"file": object()}
    with pytest.raises(UnsupportedState) as caught:
        captured(scheduler)
    assert caught.value.where == "scheduler.s log['file']"


def test_members_of_a_family_are_found():
    scheduler = sequence(optimizer())
    assert list(family(scheduler)) == [scheduler, *children(scheduler)]
    assert is_scheduler(scheduler)
    assert not is_scheduler(scheduler.optimizer)


ATTACHED = {
    "StepLR": lambda o: schedules.StepLR(o, 2),
    "ReduceLROnPlateau": lambda o: ReduceLROnPlateau(o),
    "nested": sequence,
    "on AdamW": lambda o: schedules.OneCycleLR(o, 0.1, 20),
}


@pytest.mark.parametrize("kind", ATTACHED)
def test_a_scheduler_that_is_attached_and_not_registered_is_refused_at_capture(kind):
    model = nn.Linear(2, 2)
    opt = AdamW(model.parameters(), lr=0.1)
    scheduler = ATTACHED[kind](opt)
    training = Training(model, {"adamw": opt}, rng=None)
    with pytest.raises(UnsupportedState, match="not registered") as caught:
        training.capture()
    assert caught.value.code == "capture.unregistered_scheduler"
    assert caught.value.where == "optimizer.adamw"
    registered = Training(model, {"adamw": opt}, {"s": scheduler}, rng=None)
    registered.capture()


def test_a_second_scheduler_beside_a_registered_one_is_refused():
    model = nn.Linear(2, 2)
    opt = SGD(model.parameters(), lr=0.1)
    first, plateau = schedules.StepLR(opt, 2), ReduceLROnPlateau(opt)
    with pytest.raises(UnsupportedState) as caught:
        Training(model, opt, first, rng=None).capture()
    assert "ReduceLROnPlateau" in caught.value.found
    Training(model, opt, {"a": first, "b": plateau}, rng=None).capture()


def test_one_that_was_attached_later_is_found_by_what_it_left_in_the_groups():
    opt = optimizer()
    refuse_unregistered({"o": opt}, [], [])
    scheduler = schedules.StepLR(opt, 2)
    with pytest.raises(UnsupportedState, match="not registered"):
        refuse_unregistered({"o": opt}, [], [])
    refuse_unregistered({"o": opt}, [scheduler], [scheduler, opt, object()])


def test_a_scheduler_that_was_replaced_is_not_found():
    model = nn.Linear(2, 2)
    opt = SGD(model.parameters(), lr=0.1)
    scheduler = schedules.StepLR(opt, 2)
    scheduler = schedules.StepLR(opt, 2)
    Training(model, opt, scheduler, rng=None).capture()


def capped(box):
    return lambda epoch: min(box["cap"], 1 / (epoch + 1))


class Capped:
    def __init__(self, cap):
        self.cap = cap

    def __call__(self, epoch):
        return min(self.cap, 1 / (epoch + 1))


def test_b21_a_closure_that_moved_since_it_was_bound_is_refused_at_capture():
    model, box = nn.Linear(1, 1), {"cap": 1.0}
    opt = SGD(model.parameters(), lr=1.0)
    scheduler = schedules.LambdaLR(opt, capped(box))
    training = Training(model, opt, scheduler, rng=None)
    training.capture()
    box["cap"] = 0.05
    with pytest.raises(UnsupportedState, match="has changed") as caught:
        training.capture()
    assert caught.value.code == "capture.changed_function"
    assert caught.value.where == "scheduler.scheduler lr_lambdas"
    assert caught.value.what.endswith('closed-over box["cap"]: 1.0 -> 0.05')
    assert "__call__" in caught.value.hint
    assert 'components={"box": segue.StateOf(box, "cap")}' in caught.value.hint
    # What the hint says works at once, also for the schedule that was bound before.
    registered = Training(model, opt, scheduler, rng=None, components={"box": StateOf(box, "cap")})
    record = registered.capture()
    assert record.schedulers["scheduler"].configuration["lr_lambdas"][0]["closure"] == {
        "box": {"entries": {"cap": {"registered": True}}}
    }
    box["cap"] = 0.5
    registered.restore(record)
    assert box["cap"] == 0.05
    with pytest.raises(UnsupportedState, match="has changed"):
        training.capture()
    box["cap"] = 1.0
    training.capture()


def test_a_function_whose_state_is_no_longer_registered_is_known_by_what_it_was_then():
    model, box = nn.Linear(1, 1), {"cap": 1.0}
    opt = SGD(model.parameters(), lr=1.0)
    scheduler = schedules.LambdaLR(opt, capped(box))
    Training(model, opt, scheduler, rng=None, components={"box": StateOf(box, "cap")}).capture()
    box["cap"] = 0.5
    training = Training(model, opt, scheduler, rng=None)
    training.capture()
    box["cap"] = 0.25
    with pytest.raises(UnsupportedState, match=r"0\.5 -> 0\.25"):
        training.capture()
    Training(model, opt, scheduler, rng=None, components={"box": StateOf(box, "cap")}).capture()


def test_a_function_that_changed_after_it_was_bound_is_compared_as_it_is_now():
    box = {"cap": 1.0}
    recorded, live = (
        schedules.LambdaLR(optimizer(1.0), capped({"cap": 1.0})),
        schedules.LambdaLR(optimizer(1.0), capped(box)),
    )
    bind_scheduler(live, "scheduler.s")
    assert codes(recorded, live) == []
    box["cap"] = 0.5
    assert codes(recorded, live) == ["scheduler.s.lr_lambdas"]


def test_the_method_of_a_registered_object_may_decide_a_schedule():
    class Ema:
        def __init__(self):
            self.share = 1.0

        def factor(self, epoch):
            self.share *= 0.9
            return self.share

        def state_dict(self):
            return {"share": self.share}

        def load_state_dict(self, state):
            self.share = state["share"]

    def fresh():
        torch.manual_seed(0)
        model, ema = nn.Linear(2, 2), Ema()
        opt = SGD(model.parameters(), lr=1.0)
        scheduler = schedules.LambdaLR(opt, ema.factor)
        return (
            (model, opt, scheduler),
            Training(model, opt, scheduler, rng=None, components={"ema": ema}),
            ema,
        )

    one, training, _ = fresh()
    advance(*one, 3)
    other, resumed, _ = fresh()
    resumed.restore(training.capture())
    assert advance(*other, 3) == advance(*one, 3)
    with pytest.raises(UnsupportedState, match="bound method") as caught:
        Training(*other, rng=None)
    assert "register the object" in caught.value.hint


def test_a_registered_object_that_decides_a_schedule_is_kept_by_its_own_part():
    class Warm:
        def __init__(self):
            self.cap, self.lock = 1.0, iter(())

        def __call__(self, epoch):
            return self.cap

        def state_dict(self):
            return {"cap": self.cap}

        def load_state_dict(self, state):
            self.cap = state["cap"]

    def fresh():
        model, warm = nn.Linear(2, 2), Warm()
        opt = SGD(model.parameters(), lr=1.0)
        scheduler = schedules.LambdaLR(opt, warm)
        return warm, Training(model, opt, scheduler, rng=None, components={"warm": warm})

    warm, training = fresh()
    warm.cap = 0.5
    other, resumed = fresh()
    resumed.restore(training.capture())
    assert other.cap == 0.5


def test_an_accepted_schedule_that_reads_registered_state_stays_where_it_is():
    def fresh(gamma, cap):
        torch.manual_seed(0)
        model, box = nn.Linear(2, 2), {"cap": cap}
        opt = SGD(model.parameters(), lr=1.0)
        scheduler = schedules.LambdaLR(opt, lambda epoch: min(box["cap"], gamma**epoch))
        box_state = StateOf(box, "cap")
        return (model, opt, scheduler), Training(
            model, opt, scheduler, rng=None, components={"box": box_state}
        )

    one, training = fresh(0.9, 0.05)
    advance(*one, 3)
    other, resumed = fresh(0.8, 1.0)
    with pytest.raises(SchedulerMismatch) as caught:
        resumed.restore(training.capture())
    [finding] = caught.value.findings
    assert "closed-over gamma: 0.9 -> 0.8" in finding.what
    resumed.restore(training.capture(), accept=[finding.code])
    assert one[1].param_groups[0]["lr"] == other[1].param_groups[0]["lr"] == 0.05
    assert other[2].last_epoch == 3
    assert other[2].lr_lambdas[0](9) == 0.05


def read_only(scheduler):
    """Everything that a scheduler has, and how often its functions were called."""
    return {key: repr(value) for key, value in vars(scheduler).items()}


CALLS = []


def counted(epoch):
    CALLS.append(epoch)
    return 0.9**epoch


@pytest.mark.parametrize("variant", [*VARIANTS, "counted"])
def test_reading_a_scheduler_changes_nothing_and_calls_no_function(variant):
    opt = optimizer()
    scheduler = schedules.LambdaLR(opt, counted) if variant == "counted" else VARIANTS[variant](opt)
    before, groups, calls = read_only(scheduler), repr(opt.param_groups), len(CALLS)
    bind_scheduler(scheduler, "scheduler.s")
    record = captured(scheduler)
    assert list(check_scheduler(record, scheduler, {id(opt): "main"}, "scheduler.s")) == []
    assert (read_only(scheduler), repr(opt.param_groups), len(CALLS)) == (before, groups, calls)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_attribute_of_every_scheduler_is_compared_or_restored(variant):
    """Each attribute in turn is made another in the program: it comes back, or is refused by its code."""
    opt = optimizer()
    scheduler = VARIANTS[variant](opt)
    for _ in range(3):
        opt.step()
        scheduler.step(*([1.0] if isinstance(scheduler, ReduceLROnPlateau) else []))
    for member, scope in members(scheduler, "scheduler.s"):
        record = captured(scheduler)
        for name in vars(member).keys() - {"optimizer", "_schedulers"}:
            other_opt = optimizer()
            other = VARIANTS[variant](other_opt)
            live = {where: each for each, where in members(other, "scheduler.s")}[scope]
            vars(live)[name] = another(vars(live)[name])
            found = [
                item.code for item in check_scheduler(record, other, {id(other_opt): "main"}, "scheduler.s")
            ]
            if f"{scope}.{name}" not in found:
                for write in plan_scheduler(record, other, "scheduler.s", []):
                    write.run(torch.empty(0, dtype=torch.uint8))
                assert repr(vars(live)[name]) == repr(vars(member)[name]), name


def members(scheduler, scope):
    yield scheduler, scope
    for index, child in enumerate(children(scheduler)):
        yield from members(child, f"{scope}.{index}")


def another(value):
    if callable(value):
        return lambda x: 17.0
    if isinstance(value, list):
        return [another(item) for item in value]
    if isinstance(value, dict):
        return type(value)({7: 8})
    return 17 if not isinstance(value, str) else "another"


def test_the_functions_of_torchs_own_schedulers_are_compared():
    assert codes(
        schedules.CyclicLR(optimizer(), 0.01, 0.1, mode="exp_range", gamma=0.9),
        schedules.CyclicLR(optimizer(), 0.01, 0.1, mode="exp_range", gamma=0.8),
    ) == ["scheduler.s.gamma", "scheduler.s._scale_fn_ref"]
    assert "scheduler.s._scale_fn_ref" in codes(
        schedules.CyclicLR(optimizer(), 0.01, 0.1, mode="triangular"),
        schedules.CyclicLR(optimizer(), 0.01, 0.1, mode="triangular2"),
    )
    linear, cosine = (SWALR(optimizer(), 0.05, 4, anneal_strategy=kind) for kind in ("linear", "cos"))
    assert codes(linear, cosine) == ["scheduler.s._anneal_strategy", "scheduler.s.anneal_func"]


def test_b21_an_object_that_moved_goes_on_where_it_was():
    def fresh():
        torch.manual_seed(0)
        model = nn.Linear(2, 2)
        opt = SGD(model.parameters(), lr=1.0)
        scheduler = schedules.LambdaLR(opt, Capped(1.0))
        return (model, opt, scheduler), Training(model, opt, scheduler, rng=None)

    one, training = fresh()
    advance(*one, 2)
    one[2].lr_lambdas[0].cap = 0.05
    advance(*one, 2)
    other, resumed = fresh()
    resumed.restore(training.capture())
    assert advance(*other, 3) == advance(*one, 3)


def test_b21_a_program_whose_closure_differs_is_refused_and_can_be_accepted():
    one, other = (schedules.LambdaLR(optimizer(1.0), capped({"cap": cap})) for cap in (1.0, 0.5))
    [found] = check_scheduler(captured(one), other, {id(other.optimizer): "main"}, "scheduler.s")
    assert (found.code, found.admissible) == ("scheduler.s.lr_lambdas", True)
    assert found.what == 'a function differs: closed-over box["cap"]: 1.0 -> 0.5'
    assert (found.where, found.expected, found.found) == ("scheduler.s lr_lambdas", "1.0", "0.5")


def test_functions_of_another_python_are_refused_as_such_and_can_be_accepted():
    one, other = (schedules.LambdaLR(optimizer(1.0), lambda epoch: 0.9**epoch) for _ in range(2))
    record = captured(one)
    [function] = record.configuration["lr_lambdas"]
    before = {**record.configuration, "lr_lambdas": [{**function, "python": "3.99", "code": "another"}]}
    record = dataclasses.replace(record, configuration=before)
    [found] = check_scheduler(record, other, {id(other.optimizer): "main"}, "scheduler.s")
    assert (found.code, found.admissible) == ("scheduler.s.lr_lambdas", True)
    assert "the bytecode is of another Python (3.99 -> 3." in found.what
