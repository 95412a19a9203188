"""An optimizer alone: as a value and back, by name, with every option as it was."""

import dataclasses

import pytest
import torch
from torch import nn

import segue
from segue.errors import InvalidRecord, LossyRecord, OptimizerMismatch, UnsupportedState
from segue.optim import FP32Master
from tests._session.callers import bits


def trained(make, dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    model = nn.Linear(3, 2).to(dtype)
    optimizer = make(model)
    for _ in range(2):
        model(torch.ones(1, 3, dtype=dtype)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def state(optimizer):
    return [
        {key: bits(value) if isinstance(value, torch.Tensor) else value for key, value in slots.items()}
        for slots in optimizer.state.values()
    ], [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=0.1, amsgrad=True)


def master(model):
    return FP32Master(model.parameters(), torch.optim.AdamW, lr=0.1)


@pytest.mark.parametrize(("make", "dtype"), [(adamw, torch.float32), (master, torch.bfloat16)])
def test_every_bit_comes_back(make, dtype):
    model, optimizer = trained(make, dtype)
    record = segue.capture_optimizer(optimizer, model)
    other = nn.Linear(3, 2).to(dtype)
    target = make(other)
    groups = [id(group) for group in target.param_groups]
    segue.restore_optimizer(record, target, other)
    assert state(target) == state(optimizer)
    assert [id(group) for group in target.param_groups] == groups


def test_capture_reads_only_and_copies_and_absent_state_stays_absent():
    model, optimizer = trained(adamw)
    del optimizer.state[model.bias]
    before = state(optimizer)
    record = segue.capture_optimizer(optimizer, model)
    assert state(optimizer) == before
    assert [*record.state] == ["weight"]
    optimizer.state[model.weight]["exp_avg"].zero_()
    other = nn.Linear(3, 2)
    target = adamw(other)
    segue.restore_optimizer(record, target, other)
    assert state(target) == before


def test_options_that_moved_come_back_as_they_were():
    model, optimizer = trained(adamw)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    optimizer.step()
    scheduler.step()
    optimizer.param_groups[0]["mine"] = "kept"
    record = segue.capture_optimizer(optimizer, model)
    other = nn.Linear(3, 2)
    target = adamw(other)
    segue.restore_optimizer(record, target, other)
    assert target.param_groups[0]["lr"] == 0.05
    assert target.param_groups[0]["mine"] == "kept"


def test_a_training_that_is_bound_afterwards_compares_what_the_program_asked_for():
    model, optimizer = trained(adamw)
    optimizer.param_groups[0]["lr"] = 0.01
    record = segue.capture_optimizer(optimizer, model)
    other = nn.Linear(3, 2)
    target = adamw(other)
    segue.restore_optimizer(record, target, other)
    written = segue.Training(other, target).capture().optimizers["optimizer"]
    assert written.groups[0].configured["lr"] == 0.1
    assert written.groups[0].options["lr"] == 0.01


def _refused(error, record, optimizer, model):
    before = state(optimizer)
    with pytest.raises(error) as caught:
        segue.restore_optimizer(record, optimizer, model)
    assert state(optimizer) == before
    return caught.value


def test_another_class_or_other_members_are_refused_unchanged():
    model, optimizer = trained(adamw)
    record = segue.capture_optimizer(optimizer, model)
    other = nn.Linear(3, 2)
    _refused(OptimizerMismatch, record, torch.optim.Adam(other.parameters()), other)
    fewer = adamw(nn.ParameterList([other.weight]))
    assert "bias" in str(_refused(OptimizerMismatch, record, fewer, other))


def test_another_order_of_parameters_is_refused_and_nothing_is_offered():
    model, optimizer = trained(adamw)
    record = segue.capture_optimizer(optimizer, model)
    other = nn.Linear(3, 2)
    swapped = torch.optim.AdamW([other.bias, other.weight], lr=0.1, amsgrad=True)
    error = _refused(OptimizerMismatch, record, swapped, other)
    assert "order" in error.what
    assert "accept" not in str(error)


def test_a_parameter_of_another_model_is_refused():
    _, optimizer = trained(adamw)
    with pytest.raises(UnsupportedState, match="no registered module"):
        segue.capture_optimizer(optimizer, nn.Linear(3, 2))


def test_what_is_no_optimizer_and_no_record_is_refused():
    model, optimizer = trained(adamw)
    with pytest.raises(UnsupportedState):
        segue.capture_optimizer(object(), model)
    with pytest.raises(InvalidRecord):
        segue.restore_optimizer(optimizer.state_dict(), optimizer, model)


def test_a_lossless_conversion_comes_back_and_a_lossy_one_is_refused():
    model, optimizer = trained(adamw)
    optimizer.state[model.weight]["exp_avg"].fill_(0.1)
    record = segue.Training(model, optimizer).capture()
    other = nn.Linear(3, 2)
    target = adamw(other)
    segue.restore_optimizer(record.converted("double").optimizers["optimizer"], target, other)
    assert state(target) == state(optimizer)
    error = _refused(LossyRecord, record.converted("half").optimizers["optimizer"], target, other)
    assert "exp_avg" in error.where


def test_damaged_bytes_are_refused_unchanged():
    model, optimizer = trained(adamw)
    record = segue.capture_optimizer(optimizer, model)

    class Damaged:
        num_bytes = 4

        def verify(self):
            raise segue.errors.CorruptCheckpoint("damaged")

    slots = record.state["weight"]
    broken = dataclasses.replace(slots["step"], source=Damaged())
    record = dataclasses.replace(record, state={**record.state, "weight": {**slots, "step": broken}})
    _refused(segue.errors.CorruptCheckpoint, record, optimizer, model)


@pytest.mark.parametrize("make", [adamw, master])
def test_what_was_restored_is_captured_as_what_was_captured(make):
    """What a program asks for before and after a schedule has moved is not in it: that depends on the process."""
    model, optimizer = trained(make)
    optimizer.param_groups[0]["lr"] = 0.05
    record = segue.capture_optimizer(optimizer, model)
    other = nn.Linear(3, 2)
    segue.restore_module(segue.capture_module(model), other)
    target = make(other)
    segue.restore_optimizer(record, target, other)
    again = segue.capture_optimizer(target, other)

    def whole(groups):
        return segue.TrainingRecord.capture(model, model_state=None, groups=groups)

    assert segue.diff(whole(again), whole(record)).identical
