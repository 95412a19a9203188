"""B17 to B24: schedules go on where they were, whatever was built first, and a changed horizon is never taken back."""

import warnings

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, lr_scheduler

from segue import Training
from segue.errors import OptimizerMismatch, SchedulerMismatch, ScheduleWarning
from tests.cases.state import live, raw, stored


def rates(optimizer):
    return [raw(group["lr"]) for group in optimizer.param_groups]


def milestone():
    model = nn.Linear(1, 1)
    optimizer = SGD(model.parameters(), lr=1.0)
    return model, optimizer, lr_scheduler.MultiStepLR(optimizer, [4], 0.1)


def go(optimizer, scheduler, steps):
    seen = []
    for _ in range(steps):
        seen.append(rates(optimizer))
        optimizer.step()
        scheduler.step()
    return seen


def test_b17_saved_after_the_schedule_moved_the_next_rates_are_equal(tmp_path):
    one = milestone()
    training = Training(*one)
    go(*one[1:], 3)
    record = stored(training.capture(), tmp_path)
    other = milestone()
    Training(*other).restore(record)
    assert go(*other[1:], 3) == go(*one[1:], 3)
    assert record.schedulers["scheduler"].outstanding_steps == 0


def test_b17_saved_before_the_schedule_moved_warns_and_the_record_shows_the_outstanding_step(tmp_path):
    model, optimizer, scheduler = milestone()
    training = Training(model, optimizer, scheduler)
    go(optimizer, scheduler, 2)
    optimizer.step()
    with pytest.warns(ScheduleWarning, match="one move late"):
        record = stored(training.capture(), tmp_path)
    assert (record.schedulers["scheduler"].outstanding_steps, record.schedulers["scheduler"].usual_steps) == (
        1,
        1,
    )
    other = milestone()
    resumed = Training(*other)
    resumed.restore(record)
    # Whoever answers the outstanding step first goes on equally, and without torch's warning about the order of calls.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other[2].step()
    scheduler.step()
    assert go(*other[1:], 3) == go(optimizer, scheduler, 3)


def test_b17_a_schedule_that_moves_once_in_four_steps_warns_only_when_it_is_due():
    model, optimizer, scheduler = milestone()
    training = Training(model, optimizer, scheduler)
    for step in range(1, 9):
        optimizer.step()
        if step == 8:
            with pytest.warns(ScheduleWarning):
                training.capture()
        else:
            training.capture()
        if step % 4 == 0:
            scheduler.step()


def warm_cosine(optimizer):
    linear = lr_scheduler.LinearLR(optimizer, 0.1, 1, total_iters=20)
    cosine = lr_scheduler.CosineAnnealingLR(optimizer, T_max=80, eta_min=3e-5)
    return lr_scheduler.SequentialLR(optimizer, [linear, cosine], milestones=[20])


def test_b19_the_order_of_building_and_restoring_makes_no_difference(tmp_path):
    def fresh():
        torch.manual_seed(0)
        model = nn.Linear(1, 1)
        optimizer = SGD(model.parameters(), lr=3e-4)
        return model, optimizer, warm_cosine(optimizer)

    model, optimizer, scheduler = fresh()
    training = Training(model, optimizer, scheduler)
    go(optimizer, scheduler, 31)
    true = optimizer.param_groups[0]["lr"]
    record = stored(training.capture(), tmp_path)

    both = fresh()
    Training(*both).restore(record)
    assert rates(both[1]) == rates(optimizer)
    assert both[2].get_last_lr() == [true]

    # The order that goes wrong elsewhere: the optimizer holds the run's rate already when its scheduler is built.
    late = nn.Linear(1, 1)
    late_optimizer = SGD(late.parameters(), lr=true)
    late_optimizer.param_groups[0]["initial_lr"] = 3e-4
    late_scheduler = warm_cosine(late_optimizer)
    assert late_optimizer.param_groups[0]["lr"] != true
    Training(late, late_optimizer, late_scheduler).restore(record)
    assert rates(late_optimizer) == rates(optimizer)
    assert late_scheduler.get_last_lr() == [true]

    expected = go(optimizer, scheduler, 3)
    assert go(*both[1:], 3) == go(late_optimizer, late_scheduler, 3) == expected


def tensor_rate():
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    optimizer = SGD(model.parameters(), lr=torch.tensor(1.0))
    linear = lr_scheduler.LinearLR(optimizer, 0.1, 1, total_iters=3)
    return (
        model,
        optimizer,
        lr_scheduler.SequentialLR(
            optimizer, [linear, lr_scheduler.CosineAnnealingLR(optimizer, T_max=8)], [3]
        ),
    )


def test_b20_a_tensor_rate_stays_the_same_object_and_aliases_nothing(tmp_path):
    model, optimizer, scheduler = tensor_rate()
    training = Training(model, optimizer, scheduler)
    go(optimizer, scheduler, 5)
    record = stored(training.capture(), tmp_path)
    model_2, optimizer_2, scheduler_2 = tensor_rate()
    group = optimizer_2.param_groups[0]
    held = group["lr"]
    Training(model_2, optimizer_2, scheduler_2).restore(record)
    assert group["lr"] is held
    assert held.dim() == 0
    pointers = [
        held,
        group["initial_lr"],
        *(rate for child in scheduler_2._schedulers for rate in child.base_lrs),
    ]
    addresses = [value.untyped_storage().data_ptr() for value in pointers if isinstance(value, torch.Tensor)]
    assert addresses.count(held.untyped_storage().data_ptr()) == 1
    assert [g.keys() for g in optimizer.param_groups] == [g.keys() for g in optimizer_2.param_groups]
    assert go(optimizer_2, scheduler_2, 4) == go(optimizer, scheduler, 4)
    assert optimizer_2.param_groups[0]["lr"] is held


def test_b20_a_float_rate_where_a_tensor_was_is_refused(tmp_path):
    model, optimizer, scheduler = tensor_rate()
    record = Training(model, optimizer, scheduler).capture()
    other = nn.Linear(1, 1)
    plain = SGD(other.parameters(), lr=1.0)
    linear = lr_scheduler.LinearLR(plain, 0.1, 1, total_iters=3)
    scheduler_2 = lr_scheduler.SequentialLR(
        plain, [linear, lr_scheduler.CosineAnnealingLR(plain, T_max=8)], [3]
    )
    with pytest.raises(OptimizerMismatch) as caught:
        Training(other, plain, scheduler_2).restore(record)
    assert "optimizer.optimizer.lr" in [finding.code for finding in caught.value.findings]


def one_cycle(total=20, momentum=True):
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    optimizer = AdamW(model.parameters(), lr=1e-3)
    return (
        model,
        optimizer,
        lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=total, cycle_momentum=momentum),
    )


def test_b24_one_cycle_keeps_betas_too(tmp_path):
    one, other = one_cycle(), one_cycle()
    training = Training(*one)
    go(*one[1:], 9)
    Training(*other).restore(stored(training.capture(), tmp_path))
    group = other[1].param_groups[0]
    assert type(group["betas"]) is tuple
    assert group["betas"] == one[1].param_groups[0]["betas"] != (0.95, 0.999)
    assert live(*other[:2]) == live(*one[:2])
    assert go(*other[1:], 9) == go(*one[1:], 9)
    assert live(*other[:2]) == live(*one[:2])


def test_b24_the_scheduler_alone_is_no_training(tmp_path):
    one, other = one_cycle(), one_cycle()
    record = Training(*one).capture()
    before = live(*other[:2])
    with pytest.raises(OptimizerMismatch, match="missing in the program"):
        Training(other[0], {"another": other[1]}, {"scheduler": other[2]}).restore(record)
    model = nn.Linear(1, 1)
    with pytest.raises(OptimizerMismatch, match="scheduler of the record is missing in the program"):
        Training(model, AdamW(model.parameters(), lr=1e-3)).restore(record)
    assert live(*other[:2]) == before


def test_b24_a_longer_horizon_is_refused_and_kept_when_accepted(tmp_path):
    one, other = one_cycle(20), one_cycle(40)
    training = Training(*one)
    go(*one[1:], 9)
    record = stored(training.capture(), tmp_path)
    resumed = Training(*other)
    with pytest.raises(SchedulerMismatch) as caught:
        resumed.restore(record)
    codes = [finding.code for finding in caught.value.findings]
    assert codes == ["scheduler.scheduler.total_steps"]
    assert other[2].total_steps == 40
    resumed.restore(record, accept=codes)
    assert other[2].total_steps == 40
    assert other[2].last_epoch == one[2].last_epoch == 9
    # Where it would stand, had the program asked for 40 from the beginning.
    as_asked = one_cycle(40)
    go(*as_asked[1:], 9)
    for _ in range(30):
        assert cycled(other[1]) == cycled(as_asked[1])
        go(*other[1:], 1)
        go(*as_asked[1:], 1)


def cycled(optimizer):
    return [(group["lr"], group["betas"]) for group in optimizer.param_groups]


def test_b24_cycling_no_momentum_is_another_configuration():
    record = Training(*one_cycle(momentum=True)).capture()
    with pytest.raises(OptimizerMismatch) as caught:
        Training(*one_cycle(momentum=False)).restore(record)
    assert "scheduler.scheduler.cycle_momentum" in [finding.code for finding in caught.value.findings]
