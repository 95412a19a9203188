"""Gradients alone: what stands in `.grad`, or in a table, as a value and back; all of it is checked before any is placed."""

import pytest
import torch
from torch import nn

import segue
from segue import GradientsRecord
from segue._record.composite import CapturedSparse
from segue._record.quantized import QuantizedTensor, QuantScheme, QuantValue
from segue._record.tensors import CapturedTensor
from segue._record.tree import same
from segue.errors import (
    ContractMismatch,
    CorruptCheckpoint,
    InvalidRecord,
    LossyRecord,
    MismatchError,
    NotAtBoundary,
    PendingGradientError,
    UnsupportedState,
)
from tests._record.test_gradients import Counted
from tests._store.records import captured, tensor
from tests._window.models import Pair, bits


def everything(model):
    """What a refusal must leave as it was: the very tensors, with their bits and versions."""
    return [
        None if p.grad is None else (id(p.grad), p.grad._version, p.grad.stride(), bits(p.grad))
        for p in model.parameters()
    ]


def test_taking_gradients_does_not_clear_or_touch_them():
    model = Pair()
    model.give(1, 2)
    before = everything(model)
    first, second = segue.capture_gradients(model), segue.capture_gradients(model)
    assert everything(model) == before
    assert same(dict(first.tensors), dict(second.tensors))
    model.a.grad.fill_(9)
    assert first.to_tensors()["a"].tolist() == [1, 1]


def test_absent_is_not_zero_and_a_zero_stays_one():
    model = Pair()
    model.a.grad = torch.tensor([0.0, -0.0])
    record = segue.capture_gradients(model)
    assert record.names == ("a",)
    model.give(5, 5)
    segue.restore_gradients(record, model)
    assert bits(model.a.grad) == bits(torch.tensor([0.0, -0.0]))
    assert model.b.grad is None


def test_behaviour_54_restoring_replaces_and_never_adds():
    model = Pair()
    model.give(1, 2)
    record = segue.capture_gradients(model)
    for _ in range(2):
        segue.restore_gradients(record, model)
    assert model.taken() == [[1, 1], [2, 2]]


REFUSED = {
    "shape": (GradientsRecord({"a": tensor(shape=(2,)), "b": tensor(shape=(1, 2))}), ContractMismatch, "gradient.b"),
    "unknown": (GradientsRecord({"a": tensor(shape=(2,)), "z": tensor(shape=(2,))}), ContractMismatch, "gradient.z"),
    "dtype": (GradientsRecord({"a": tensor("float64", (2,))}), ContractMismatch, "gradient.a"),
    "quantized": (
        GradientsRecord({"a": QuantizedTensor(QuantScheme(QuantValue.Q8S), (2,), tensor("uint8", (6,)))}),
        ContractMismatch, "gradient.a",
    ),
    "lossy": (
        GradientsRecord({"a": captured(torch.tensor([0.1, 0.2]))}).converted("half"), LossyRecord, "gradient.lossy.a",
    ),
    "indices": (
        GradientsRecord({
            "a": tensor(shape=(2,)),
            "b": CapturedSparse("sparse_coo", (2,), False, {"indices": captured(torch.tensor([[2]])), "values": tensor(shape=(1,))}),
        }),
        InvalidRecord, "record.composite",
    ),
    "bytes": (
        GradientsRecord({
            "a": tensor(shape=(2,)), "b": CapturedTensor(torch.float32, (2,), (1,), "cpu", Counted(8, intact=False)),
        }),
        CorruptCheckpoint, "store.corrupt",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", REFUSED)
def test_behaviours_27_28_50_54_a_refused_record_leaves_what_was_there(fault):
    record, error, code = REFUSED[fault]
    model = Pair()
    model.give(3)
    before = everything(model)
    with pytest.raises(error) as caught:
        segue.restore_gradients(record, model)
    assert caught.value.code == code
    assert everything(model) == before


def test_a_gradient_whose_only_parameter_is_frozen_is_refused():
    model = Pair()
    model.give(1, 2)
    record = segue.capture_gradients(model)
    model.zero_grad()
    model.b.requires_grad_(False)
    with pytest.raises(ContractMismatch) as caught:
        segue.restore_gradients(record, model)
    assert (caught.value.code, caught.value.found) == ("gradient.frozen.b", "frozen")
    assert everything(model) == [None, None]
    segue.restore_gradients(record.select(["a"]), model)
    assert model.taken() == [[1, 1], None]


def test_all_that_does_not_fit_is_told_at_once():
    record = GradientsRecord({"a": tensor(shape=(3,)), "z": tensor()})
    with pytest.raises(MismatchError, match=r"gradient\.a(.|\n)*gradient\.z"):
        segue.restore_gradients(record, Pair())


def test_a_tied_parameter_has_one_gradient_under_its_first_name():
    model = nn.ModuleDict({"z": nn.Linear(2, 2, bias=False), "a": nn.Linear(2, 2, bias=False)})
    model["a"].weight = model["z"].weight
    model["z"].weight.grad = torch.ones(2, 2)
    record = segue.capture_gradients(model)
    assert record.names == ("a.weight",)
    model.zero_grad()
    segue.restore_gradients(record, model)
    assert model["z"].weight.grad.tolist() == [[1, 1], [1, 1]]


def test_each_gradient_goes_to_its_parameters_own_device():
    """Meta stands in for a second device: what is placed there has the layout, and nothing to read."""
    model = Pair()
    model.give(1, 2)
    record = segue.capture_gradients(model)
    other = Pair()
    other.b = nn.Parameter(torch.empty(2, device="meta"))
    segue.restore_gradients(record, other)
    assert (other.a.grad.device.type, other.b.grad.device.type) == ("cpu", "meta")
    assert other.a.grad.tolist() == [1, 1]


def test_a_dtype_that_the_parameter_was_told_to_take_survives():
    model = Pair(torch.bfloat16)
    for parameter in model.parameters():
        parameter.grad_dtype = torch.float32
    model.give(1 + 2**-20, 2)
    record = segue.capture_gradients(model)
    model.zero_grad()
    segue.restore_gradients(record, model)
    assert model.a.grad.dtype is torch.float32
    assert model.taken() == [[1 + 2**-20] * 2, [2, 2]]


def test_a_table_of_gradients_is_taken_by_name():
    quantized = QuantizedTensor(QuantScheme(QuantValue.Q8S), (2,), tensor("uint8", (6,)))
    sums = torch.tensor([1.0, -0.0], dtype=torch.float64)
    record = segue.capture_gradients({"q": quantized, "d": sums})
    sums.fill_(5)
    assert record.names == ("d", "q")
    assert bits(record.to_tensors()["d"]) == bits(torch.tensor([1.0, -0.0], dtype=torch.float64))
    assert same(record.tensors["q"], quantized)
    assert record.tensors["q"].data.source is not quantized.data.source


def test_a_name_without_a_gradient_is_refused():
    with pytest.raises(PendingGradientError) as caught:
        segue.capture_gradients({"a": torch.ones(2), "b": None})
    assert (caught.value.code, caught.value.where) == ("gradients.missing", "gradient of b")
    with pytest.raises(UnsupportedState, match="graph"):
        segue.capture_gradients({"a": torch.ones(2, requires_grad=True)})


def test_channels_last_and_nan_payloads_come_back():
    model = nn.Conv2d(3, 4, 3)
    payload = torch.arange(4 * 27, dtype=torch.int32).add(0x7F800001).view(torch.float32).view(4, 3, 3, 3)
    model.weight.grad = payload.contiguous(memory_format=torch.channels_last)
    before = bits(model.weight.grad), model.weight.grad.stride()
    record = segue.capture_gradients(model)
    model.zero_grad()
    segue.restore_gradients(record, model)
    assert (bits(model.weight.grad), model.weight.grad.stride()) == before


def test_gradients_that_are_restored_in_inference_mode_can_be_added_to_outside_of_it():
    """What is allocated in inference mode could never be written to outside of it (torch 2.13)."""
    model = nn.ModuleDict({"dense": nn.Linear(2, 2), "table": nn.Embedding(3, 2, sparse=True)})

    def backward():
        (model["dense"](torch.ones(1, 2)) + model["table"](torch.tensor([1]))).sum().backward()

    backward()
    record = segue.capture_gradients(model)
    for precision in ("native", "double"):
        model.zero_grad()
        with torch.inference_mode():
            segue.restore_gradients(record.converted(precision), model)
        backward()
        assert model["dense"].bias.grad.tolist() == [2, 2]


def test_inside_a_backward_gradients_are_half_there_and_refused():
    model = Pair()
    refused = []

    class Inside(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            with pytest.raises(NotAtBoundary):
                segue.capture_gradients(model)
            refused.append(True)
            return gradient

    (Inside.apply(model.a) + model.b).sum().backward()
    assert refused


def test_arguments_of_other_kinds_are_refused_by_name():
    model = Pair()
    record = segue.capture_gradients(model)
    for swapped in ((model, record), (record, None), (None, model)):
        with pytest.raises(InvalidRecord) as caught:
            segue.restore_gradients(*swapped)
        assert caught.value.code == "gradients.record"
    for source in ([torch.ones(2)], torch.optim.SGD(model.parameters(), lr=0.1)):
        with pytest.raises(UnsupportedState) as refused:
            segue.capture_gradients(source)
        assert refused.value.code == "gradients.source"
