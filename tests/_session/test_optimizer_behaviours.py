"""Behaviours 80 to 84 of the specification: routes, histories, absent gradients, composed schedules, exact rates."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, lr_scheduler

import segue
from segue import Training
from segue.errors import OptimizerMismatch, SchedulerMismatch
from tests.cases.state import live, raw, stored


def made(*, decay=0.0):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    return model, AdamW(model.parameters(), lr=0.1, weight_decay=decay)


def routed(first=("0.weight", "1.weight")):
    """Two groups, by names."""
    model, _ = made()
    named = dict(model.named_parameters())
    others = [name for name in named if name not in first]
    groups = [
        {"params": [named[name] for name in first], "lr": 0.1},
        {"params": [named[name] for name in others]},
    ]
    return model, AdamW(groups, lr=0.01)


def step(model, optimizer, closure=None):
    optimizer.zero_grad()
    model(torch.ones(2, 3)).pow(2).sum().backward()
    optimizer.step()


def refused(error, record, model, *optimizer, scheduler=None):
    training = Training(model, optimizer[0], scheduler, rng=None)
    before = live(model, *optimizer)
    with pytest.raises(error) as caught:
        training.restore(record)
    assert live(model, *optimizer) == before
    return [finding.code for finding in caught.value.findings]


def test_behaviour_80_a_record_with_other_routes_is_refused(tmp_path):
    model, optimizer = routed()
    step(model, optimizer)
    record = stored(Training(model, optimizer, rng=None).capture(), tmp_path)
    other = routed(first=("0.weight", "1.bias"))
    assert refused(OptimizerMismatch, record, *other) == [
        "optimizer.optimizer.group.1.bias", "optimizer.optimizer.group.1.weight",
    ]  # fmt: skip
    assert refused(OptimizerMismatch, record, *made())[0] == "optimizer.optimizer.groups"


def test_behaviour_80_a_history_of_a_parameter_in_no_group_or_in_two_is_refused():
    model, optimizer = routed()
    step(model, optimizer)
    record = Training(model, optimizer, rng=None).capture()
    own = record.optimizers["optimizer"]
    slots = own.state["0.weight"]
    strange = replace(own, state={**own.state, "stranger": slots})
    assert refused(OptimizerMismatch, replace(record, optimizers={"optimizer": strange}), *routed()) == [
        "optimizer.optimizer.state.stranger"
    ]
    first, second = own.groups
    twice = replace(own, groups=(first, replace(second, parameters=(*second.parameters, "0.weight"))))
    codes = refused(OptimizerMismatch, replace(record, optimizers={"optimizer": twice}), *routed())
    assert codes == ["optimizer.optimizer.group.0.weight"]


WRONG = {
    "rank": lambda slots: slots["exp_avg"].to_host().reshape(-1),
    "shape": lambda slots: slots["exp_avg"].to_host().T.contiguous(),
    "dtype": lambda slots: slots["exp_avg"].to_host().to(torch.int32),
}


@pytest.mark.parametrize("kind", WRONG)
def test_behaviour_81_a_history_of_wrong_rank_shape_or_dtype_is_refused_before_any_move(kind, tmp_path):
    model, optimizer = made()
    step(model, optimizer)
    record = Training(model, optimizer, rng=None).capture()
    own = record.optimizers["optimizer"]
    wrong = made()
    wrong[1].state[wrong[0][0].weight]["x"] = WRONG[kind](own.state["0.weight"])
    odd = Training(*wrong, rng=None).capture().optimizers["optimizer"].state["0.weight"]["x"]
    state = {**own.state, "0.weight": {**own.state["0.weight"], "exp_avg": odd}}
    lying = stored(replace(record, optimizers={"optimizer": replace(own, state=state)}), tmp_path)
    assert refused(OptimizerMismatch, lying, *made()) == ["optimizer.optimizer.state.0.weight.exp_avg"]


def test_behaviour_81_the_history_of_a_parameter_that_was_frozen_since_is_kept(tmp_path):
    a, one = made()
    training = Training(a, one, rng=None)
    step(a, one)
    a[0].requires_grad_(False)
    one.zero_grad()
    step(a, one)
    record = stored(training.capture(), tmp_path)
    b, other = made()
    Training(b, other, rng=None).restore(record)
    assert other.state[b[0].weight]["step"].item() == 1
    assert live(b, other) == live(a, one)
    for model, optimizer in ((a, one), (b, other)):
        model[0].requires_grad_(True)
        step(model, optimizer)
    assert other.state[b[0].weight]["step"].item() == 2
    assert live(b, other) == live(a, one)


def test_behaviour_82_without_a_gradient_there_is_no_state_and_no_decay(tmp_path):
    a, one = made(decay=0.5)
    training = Training(a, one, rng=None)
    weight = raw(a[1].weight)
    for _ in range(2):
        one.zero_grad()
        a[0](torch.ones(2, 3)).sum().backward()
        one.step()
    record = stored(training.capture(), tmp_path)
    assert sorted(record.optimizers["optimizer"].state) == ["0.bias", "0.weight"]
    b, other = made(decay=0.5)
    Training(b, other, rng=None).restore(record)
    other.zero_grad()
    b[0](torch.ones(2, 3)).sum().backward()
    other.step()
    assert raw(b[1].weight) == raw(a[1].weight) == weight
    assert b[1].weight not in other.state
    assert b[1].weight.grad is None


def composed(kinds, compose):
    model = nn.Linear(2, 2)
    optimizer = SGD(model.parameters(), lr=1.0)
    parts = {
        "linear": lambda: lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4),
        "exponential": lambda: lr_scheduler.ExponentialLR(optimizer, 0.9),
    }
    return model, optimizer, compose(optimizer, [parts[kind]() for kind in kinds])


COMPOSITIONS = {
    "in turn": lambda optimizer, parts: lr_scheduler.SequentialLR(optimizer, parts, [2]),
    "together": lambda optimizer, parts: lr_scheduler.ChainedScheduler(parts, optimizer=optimizer),
}


@pytest.mark.parametrize("kind", COMPOSITIONS)
def test_behaviour_83_a_composed_schedule_with_swapped_children_is_refused_unchanged(kind, tmp_path):
    model, optimizer, schedule = composed(("linear", "exponential"), COMPOSITIONS[kind])
    training = Training(model, optimizer, schedule, rng=None)
    for _ in range(3):
        optimizer.step()
        schedule.step()
    record = stored(training.capture(), tmp_path)
    model, optimizer, schedule = composed(("exponential", "linear"), COMPOSITIONS[kind])
    before = [{**vars(part), "optimizer": None} for part in schedule._schedulers], schedule.state_dict()
    codes = refused(SchedulerMismatch, record, model, optimizer, scheduler=schedule)
    assert (
        [{**vars(part), "optimizer": None} for part in schedule._schedulers],
        schedule.state_dict(),
    ) == before
    assert {"scheduler.scheduler.0.class", "scheduler.scheduler.1.class"} <= set(codes)


def test_behaviour_84_an_exponential_rate_comes_back_exactly(tmp_path):
    def fresh():
        model = nn.Linear(1, 1).half()
        optimizer = SGD(model.parameters(), lr=0.1)
        schedule = lr_scheduler.ExponentialLR(optimizer, 0.7)
        return optimizer, schedule, Training(model, optimizer, schedule, rng=None)

    optimizer, schedule, training = fresh()
    for _ in range(9):
        optimizer.step()
        schedule.step()
    segue.save(training.capture(), tmp_path / "record")
    again, other, resumed = fresh()
    resumed.restore(segue.load(tmp_path / "record"))
    rate = again.param_groups[0]["lr"]
    assert rate.hex() == optimizer.param_groups[0]["lr"].hex() == other.get_last_lr()[0].hex()
    assert rate != torch.tensor(rate).item()  # it is no fp32
    for pair in ((optimizer, schedule), (again, other)):
        pair[0].step()
        pair[1].step()
    assert again.param_groups[0]["lr"].hex() == optimizer.param_groups[0]["lr"].hex()
