"""How many optimizer steps a schedule has not answered."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.optim import SGD, lr_scheduler

from segue import Training
from segue._capture.clock import ScheduleClock
from segue.errors import ScheduleWarning


def pair():
    optimizer = SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    return optimizer, lr_scheduler.StepLR(optimizer, 2)


def test_steps_are_counted_until_the_schedule_moves():
    optimizer, scheduler = pair()
    clock = ScheduleClock({"s": scheduler})
    assert (clock.outstanding("s"), clock.usual("s")) == (0, None)
    for _ in range(3):
        optimizer.step()
    assert (clock.outstanding("s"), clock.usual("s")) == (3, None)
    scheduler.step()
    assert (clock.outstanding("s"), clock.usual("s")) == (0, 3)


def test_it_is_due_when_the_usual_number_of_steps_has_passed():
    optimizer, scheduler = pair()
    clock = ScheduleClock({"s": scheduler})
    for _ in range(2):
        optimizer.step()
    assert not clock.tells_due("s")
    scheduler.step()
    optimizer.step()
    assert not clock.tells_due("s")
    optimizer.step()
    assert clock.tells_due("s")


def test_a_move_without_a_step_says_nothing_about_the_pattern():
    optimizer, scheduler = pair()
    clock = ScheduleClock({"s": scheduler})
    optimizer.step()
    scheduler.step()
    scheduler.step()
    assert clock.usual("s") == 1


def test_only_its_own_optimizer_counts():
    (one, first), (other, second) = pair(), pair()
    clock = ScheduleClock({"a": first, "b": second})
    one.step()
    assert (clock.outstanding("a"), clock.outstanding("b")) == (1, 0)
    other.step()
    assert (clock.outstanding("a"), clock.outstanding("b")) == (1, 1)


def test_two_schedules_of_one_optimizer_count_each_step_once():
    optimizer, first = pair()
    second = lr_scheduler.ReduceLROnPlateau(optimizer)
    clock = ScheduleClock({"a": first, "b": second})
    optimizer.step()
    first.step()
    optimizer.step()
    second.step(1.0)
    assert (clock.outstanding("a"), clock.outstanding("b")) == (1, 0)
    assert (clock.usual("a"), clock.usual("b")) == (1, 2)


def test_a_nested_schedule_moves_with_its_children():
    optimizer, _ = pair()
    scheduler = lr_scheduler.ChainedScheduler([lr_scheduler.ExponentialLR(optimizer, 0.9)])
    clock = ScheduleClock({"s": scheduler})
    optimizer.step()
    scheduler.step()
    assert (clock.outstanding("s"), clock.usual("s")) == (0, 1)


def test_it_goes_on_counting_from_a_record():
    optimizer, scheduler = pair()
    clock = ScheduleClock({"s": scheduler})
    clock.restore("s", 1, 2)
    assert not clock.tells_due("s")
    optimizer.step()
    assert clock.tells_due("s")


def test_the_hook_does_not_keep_the_clock_alive():
    optimizer, scheduler = pair()
    clock = ScheduleClock({"s": scheduler})
    gone = weakref.ref(clock)
    del clock
    gc.collect()
    assert gone() is None
    optimizer.step()


def test_the_hook_goes_with_the_clock():
    optimizer, scheduler = pair()
    clock = ScheduleClock({"s": scheduler})
    assert len(optimizer._optimizer_step_post_hooks) == 1
    del clock
    gc.collect()
    assert not optimizer._optimizer_step_post_hooks


@pytest.mark.parametrize("is_first", [False, True])
def test_a_schedule_that_a_hook_of_the_step_moves_has_answered_it(is_first):
    optimizer, scheduler = pair()
    clock = None if is_first else ScheduleClock({"s": scheduler})
    optimizer.register_step_post_hook(lambda *_: scheduler.step())
    clock = clock or ScheduleClock({"s": scheduler})
    for _ in range(3):
        optimizer.step()
    assert (clock.outstanding("s"), clock.usual("s")) == (0, 1)
    assert not clock.tells_due("s")


def test_a_capture_while_a_schedule_is_due_warns_and_names_it():
    model = nn.Linear(1, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    scheduler = lr_scheduler.StepLR(optimizer, 2)
    training = Training(model, optimizer, {"main": scheduler}, rng=None)
    optimizer.step()
    training.capture()
    scheduler.step()
    optimizer.step()
    with pytest.warns(ScheduleWarning, match=r"scheduler\.main is due"):
        record = training.capture()
    assert (record.schedulers["main"].outstanding_steps, record.schedulers["main"].usual_steps) == (1, 1)
    scheduler.step()
    training.capture()


def test_a_schedule_that_another_one_took_over_from_is_not_due():
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    main = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    averaging = torch.optim.swa_utils.SWALR(optimizer, 0.05)
    clock = ScheduleClock({"main": main, "averaging": averaging})
    for scheduler in (main, main, main, averaging, averaging):
        optimizer.step()
        scheduler.step()
        assert not clock.tells_due("main")


def test_a_schedule_that_has_ended_is_not_due():
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=4)
    clock = ScheduleClock({"s": scheduler})
    for _ in range(3):
        optimizer.step()
        scheduler.step()
    optimizer.step()
    assert not clock.tells_due("s")


def test_a_due_schedule_is_told_once_until_it_moves():
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    clock = ScheduleClock({"s": scheduler})
    for _ in range(2):
        optimizer.step()
        scheduler.step()
    for _ in range(2):
        optimizer.step()
        assert clock.tells_due("s")
        assert not clock.tells_due("s")
        scheduler.step()


class Own(lr_scheduler.LRScheduler):
    """Keeps its position in an attribute of its own."""

    def __init__(self, optimizer):
        self.optimizer, self.moves = optimizer, 0

    def step(self):
        self.moves += 1


def test_a_schedule_with_a_position_of_its_own_moves():
    optimizer, _ = pair()
    scheduler = Own(optimizer)
    clock = ScheduleClock({"s": scheduler})
    optimizer.step()
    scheduler.step()
    assert (clock.outstanding("s"), clock.usual("s")) == (0, 1)
    optimizer.step()
    assert clock.tells_due("s")


def scaled_step(scaler, optimizer, *, overflows):
    parameter = optimizer.param_groups[0]["params"][0]
    parameter.grad = torch.full_like(parameter, float("inf") if overflows else 1.0)
    scaler.step(optimizer)
    scaler.update()


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_a_scaler_skips_is_none_although_a_fused_optimizer_is_called(fused):
    optimizer = SGD([nn.Parameter(torch.ones(1))], lr=0.1, fused=fused)
    scheduler = lr_scheduler.StepLR(optimizer, 2)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(torch.zeros(1))
    clock = ScheduleClock({"s": scheduler})
    for overflows in (False, False, True):
        scaled_step(scaler, optimizer, overflows=overflows)
    assert (clock.outstanding("s"), clock.usual("s")) == (2, None)
    scheduler.step()
    scaled_step(scaler, optimizer, overflows=True)
    assert (clock.outstanding("s"), clock.usual("s")) == (0, 2)
    scheduler.step()
    assert clock.usual("s") == 2
    scaled_step(scaler, optimizer, overflows=False)
    assert not clock.tells_due("s")
    scaled_step(scaler, optimizer, overflows=False)
    assert clock.tells_due("s")
