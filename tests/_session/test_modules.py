"""A module alone: as a value and back, checked completely before anything is written."""

import pytest
import torch
from torch import nn

import segue
from segue.errors import (
    BaseMismatch,
    ContractMismatch,
    CorruptCheckpoint,
    DeviceMismatch,
    InvalidRecord,
    LossyRecord,
    NotAtBoundary,
    UnsupportedState,
)
from tests._session.callers import Net, bits


def state(module):
    return {
        name: (id(item), item._version, bits(item), item.requires_grad)
        for name, item in [*module.named_parameters(), *module.named_buffers()]
    }, [child.training for child in module.modules()]


def test_every_bit_comes_back_and_the_tensors_stay_the_same_objects():
    source, target = Net(0).eval(), Net(1)
    source.seen.fill_(7)
    before = {name: id(parameter) for name, parameter in target.named_parameters()}
    segue.restore_module(segue.capture_module(source), target)
    assert {name: bits(p) for name, p in source.named_parameters()} == {
        name: bits(p) for name, p in target.named_parameters()
    }
    assert target.seen.tolist() == [7, 7]
    assert not target.training
    assert {name: id(parameter) for name, parameter in target.named_parameters()} == before


def test_capture_reads_only_and_copies():
    source = Net()
    before = state(source)
    record = segue.capture_module(source)
    assert state(source) == before
    with torch.no_grad():
        source.first.weight.zero_()
    target = Net(1)
    segue.restore_module(record, target)
    assert not target.first.weight.eq(0).all()


def _refused(error, record, module, **options):
    before = state(module)
    with pytest.raises(error) as caught:
        segue.restore_module(record, module, **options)
    assert state(module) == before
    return caught.value


def test_another_layout_is_refused_unchanged():
    other = Net(1)
    other.second = nn.Linear(4, 3)
    error = _refused(ContractMismatch, segue.capture_module(Net()), other)
    assert "accept" not in str(error)


def test_another_device_is_refused():
    other = Net(1)
    other.frozen = nn.Linear(4, 4, device="meta").requires_grad_(False)
    with pytest.raises(UnsupportedState):
        segue.capture_module(other)
    record = segue.capture_module(nn.Linear(2, 2))
    placed = type(record)(
        {name: item.with_device("cuda:0") for name, item in record.tensors.items()}, record.training,
        segue.Training(nn.Linear(2, 2), {}).capture().with_device("cuda:0").model.contract,
    )  # fmt: skip
    _refused(DeviceMismatch, placed, nn.Linear(2, 2))


def test_damaged_bytes_are_refused_unchanged(tmp_path):
    segue.save(segue.Training(Net(), {}).capture(), tmp_path / "one")
    record = segue.load(tmp_path / "one")
    path = tmp_path / "one" / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    _refused(CorruptCheckpoint, record.model, Net(1))


def test_a_lossless_conversion_comes_back_and_a_lossy_one_is_refused():
    source = nn.Linear(2, 2)
    record = segue.Training(source, {}).capture()
    target = nn.Linear(2, 2)
    segue.restore_module(record.converted("double").model, target)
    assert bits(target.weight) == bits(source.weight)
    error = _refused(LossyRecord, record.converted("half").model, nn.Linear(2, 2))
    assert "weight" in error.where or "bias" in error.where


def test_behaviour_39_beside_a_base_the_base_is_compared():
    model = Net()
    base = segue.base_identity(model)
    record = segue.Training(
        model, torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1),
        model_state=segue.TrainableOnly(base=base),
    ).capture().model  # fmt: skip
    same = Net()
    with torch.no_grad():
        same.first.weight.zero_()
    segue.restore_module(record, same)
    assert bits(same.first.weight) == bits(model.first.weight)
    _refused(BaseMismatch, record, Net(1))


def test_a_base_that_the_caller_names_must_be_named_again():
    model = Net()
    record = segue.Training(
        model, torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1),
        model_state=segue.TrainableOnly(base="the one"),
    ).capture().model  # fmt: skip
    segue.restore_module(record, Net(), base="the one")
    _refused(BaseMismatch, record, Net(), base="another")
    _refused(BaseMismatch, record, Net())


def test_what_is_no_record_of_a_module_is_refused():
    _refused(InvalidRecord, {"weight": 1}, Net())
    _refused(InvalidRecord, segue.TrainingRecord.capture(Net(), model_state=None).model, Net())
    with pytest.raises(UnsupportedState):
        segue.restore_module(segue.capture_module(Net()), object())
    with pytest.raises(UnsupportedState):
        segue.capture_module(object())


def test_not_inside_a_backward():
    model, errors = Net(), []

    def hook(_gradient):
        try:
            segue.capture_module(model)
        except NotAtBoundary as error:
            errors.append(error)

    model.first.weight.register_hook(hook)
    model(torch.ones(1, 3)).sum().backward()
    assert len(errors) == 1


def test_the_dtype_of_gradients_is_for_optimizers_to_set():
    source, target = nn.Linear(2, 2).bfloat16(), nn.Linear(2, 2).bfloat16()
    source.weight.grad_dtype = torch.float32
    segue.restore_module(segue.capture_module(source), target)
    assert bits(target.weight) == bits(source.weight)
    assert target.weight.grad_dtype is torch.bfloat16
