"""Copies by value, of every dtype and layout; what can't be copied exactly is refused by name."""

import pytest
import torch
from torch import nn

from segue._capture.staging import capture_tensor, capture_value, class_name, is_of_class, type_name
from segue._record.tensors import DTYPES, empty_like_captured, fill, needs_scratch, read_bytes, same_bits
from segue.errors import UnsupportedState
from tests._capture.zoo import layouts, logical_bytes, of_dtype

LAYOUTS = layouts()


def captured_bytes(tensor):
    return bytes(read_bytes(capture_tensor(tensor, "w").source))


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("reshape", [lambda t: t, lambda t: t.view(3, 4).t(), lambda t: t[1:8:2], lambda t: t[0]],
                         ids=["flat", "transposed", "strided", "zero-dim"])  # fmt: skip
def test_every_dtype_keeps_its_bits_in_every_layout(name, reshape):
    tensor = reshape(of_dtype(name))
    captured = capture_tensor(tensor, "w")
    assert (captured.dtype, captured.shape) == (tensor.dtype, tuple(tensor.shape))
    assert captured.strides == tensor.stride()
    again = captured.to_host()
    assert (again.dtype, again.shape, again.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
    assert same_bits(captured, capture_tensor(again, "w"))
    flat, flat_again = (t.contiguous().reshape(-1).view(torch.uint8).tolist() for t in (tensor, again))
    assert flat == flat_again


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_keeps_values_and_strides(layout):
    tensor = LAYOUTS[layout]
    captured = capture_tensor(tensor, "w")
    assert bytes(read_bytes(captured.source)) == logical_bytes(tensor)
    assert captured.num_bytes == tensor.numel() * tensor.element_size()
    again = captured.to_host()
    assert again.stride() == tensor.stride()
    assert logical_bytes(again) == logical_bytes(tensor)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_tensor_of_any_layout_is_filled_in_place(layout):
    tensor = LAYOUTS[layout]
    captured = capture_tensor(tensor, "w")
    target = empty_like_captured(captured, "cpu")
    if layout.startswith("inference"):
        with torch.inference_mode():
            target = target.clone()
    pointer = target.data_ptr()
    scratch = torch.empty(captured.num_bytes, dtype=torch.uint8) if needs_scratch(target) else None
    fill(target, captured, scratch)
    assert target.data_ptr() == pointer
    assert captured_bytes(target) == bytes(read_bytes(captured.source))


@pytest.mark.parametrize("layout", ["conjugate", "conjugate and transposed", "negative"])
def test_a_conjugate_or_negative_view_can_be_filled(layout):
    source = layouts()[layout]
    captured = capture_tensor(source, "w")
    target = layouts()[layout]
    torch.view_as_real(target).zero_() if target.is_complex() and not target.is_conj() else target.zero_()
    fill(target, captured)
    assert logical_bytes(target) == logical_bytes(source)


@pytest.mark.parametrize(
    "layout", ["zero-dim", "transposed", "channels last", "sliced", "expanded", "conjugate", "with gaps"]
)
def test_the_copy_does_not_follow_the_tensor(layout):
    tensor = layouts()[layout]
    captured = capture_tensor(tensor, "w")
    before = bytes(read_bytes(captured.source))
    tensor.detach()[..., :1].fill_(9) if tensor.ndim else tensor.fill_(9)
    assert bytes(read_bytes(captured.source)) == before


def test_filling_in_place_is_seen_by_a_graph_that_is_still_alive():
    weight = torch.ones(2, requires_grad=True)
    captured = capture_tensor(weight, "w")
    loss = (weight * weight).sum()
    fill(weight, captured)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_elements_around_a_view_are_left_alone():
    storage = torch.zeros(10)
    captured = capture_tensor(torch.ones(4), "w")
    fill(storage[3:7], captured)
    assert storage.tolist() == [0, 0, 0, 1, 1, 1, 1, 0, 0, 0]
    fill(storage[::3], captured)
    assert storage.tolist() == [1, 0, 0, 1, 1, 1, 1, 0, 0, 1]


class Marked(torch.Tensor):
    pass


def nested():
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)


def quantized():
    return torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)


REFUSED = {
    "sparse": (lambda: torch.sparse_coo_tensor([[0]], [1.0], (2,), check_invariants=True), "torch.sparse_coo"),
    "compressed": (
        lambda: torch.sparse_csr_tensor([0, 1], [0], [1.0], (1, 2), check_invariants=True), "torch.sparse_csr",
    ),
    "nested": (nested, "Nested"),
    "quantized": (quantized, "torch.qint8"),
    "meta": (lambda: torch.empty(2, device="meta"), "meta"),
    "subclass": (lambda: torch.ones(1).as_subclass(Marked), "Marked"),
    "overlapping": (lambda: torch.as_strided(torch.zeros(4), (2, 3), (1, 1)), "strides (1, 1)"),
    "four bits": (lambda: torch.empty(2, dtype=torch.uint4), "torch.uint4"),
    "bits": (lambda: torch.empty(2, dtype=torch.bits8), "torch.bits8"),
}  # fmt: skip


@pytest.mark.filterwarnings(
    "ignore:Sparse CSR:UserWarning", "ignore:torch.quantize:UserWarning", "ignore:.*prototype stage.*"
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*quant.*:UserWarning")
@pytest.mark.parametrize("kind", REFUSED)
def test_what_has_no_bits_of_its_own_to_keep_is_refused_by_name(kind):
    make, found = REFUSED[kind]
    with pytest.raises(UnsupportedState) as caught:
        capture_tensor(make(), "model layer.weight")
    assert caught.value.where == "model layer.weight"
    assert found in caught.value.found


def test_parameters_and_buffers_are_plain_tensors():
    assert capture_tensor(nn.Parameter(torch.ones(1)), "w").shape == (1,)
    assert capture_tensor(nn.Buffer(torch.ones(1)), "w").shape == (1,)


def test_classes_are_named_in_full():
    assert type_name(nn.Linear(1, 1)) == class_name(nn.Linear) == "torch.nn.modules.linear.Linear"


class Own:
    pass


def test_a_class_of_the_program_is_the_same_when_it_is_run_as_a_script():
    assert is_of_class(Own(), f"{__name__}.Own")
    assert is_of_class(Own(), "__main__.Own")
    assert not is_of_class(Own(), "__main__.Other")
    assert not is_of_class(Own(), "elsewhere.Own")


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize(
    "lie",
    [
        lambda: torch.sparse_coo_tensor([[1, 0]], [1.0, 2.0], (2,), is_coalesced=True, check_invariants=False),
        lambda: torch.sparse_coo_tensor([[5]], [1.0], (2,), check_invariants=False),
        lambda: torch.sparse_csr_tensor([0, 2], [1, 0], [1.0, 2.0], (1, 2), check_invariants=False),
    ],
)  # fmt: skip
def test_a_sparse_tensor_that_no_restore_could_make_is_refused_at_capture(lie):
    with pytest.raises(UnsupportedState, match="contradicts itself") as caught:
        capture_value(lie(), "g")
    assert caught.value.where == "g"
