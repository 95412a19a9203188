"""Tensor subclasses as values: contexts there and back, and what a hostile record may not do with them."""

import dataclasses
import sys

import pytest
import torch

from segue._capture.staging import capture_value
from segue._capture.targets import empty_like
from segue._record.composite import CapturedSparse
from segue._record.parts import parts_of
from segue._record.subclass import (
    CONTEXT_CLASSES,
    TENSOR_CLASSES,
    context_of,
    context_tree,
    is_admitted,
    rebuild,
)
from segue._record.tree import decode, encode, same
from segue.errors import InvalidRecord, UnsupportedState
from tests._record.fake_torchao import (
    MX,
    Derived,
    Float8MMConfig,
    KernelPreference,
    MXTensor,
    QuantizeTensorToMXKwargs,
    SubclassTensorArgs,
    contents,
    fake_torchao,
    mx,
    state,
)

__all__ = ["fake_torchao"]
pytestmark = pytest.mark.usefixtures("fake_torchao")

CONTEXTS = {
    "none": None,
    "a list": [True, torch.bfloat16, torch.Size([2, 3])],
    "a tuple in a dictionary": {"block_size": (1, 32), "name": "x", "factor": 0.5},
    "a dictionary that looks like a tag": {"member": ("a", "b")},
    "a member of an enum": KernelPreference.TORCH,
    "a dataclass": {"kwargs": QuantizeTensorToMXKwargs(torch.float8_e5m2, 16)},
    "a named tuple": [Float8MMConfig(True, False)],
    "a shell dtype": torch.int4,
}


@pytest.mark.parametrize("what", CONTEXTS)
def test_a_context_comes_back_through_its_encoding(what):
    tree = context_tree(CONTEXTS[what], "w")
    again = decode(encode(tree, lambda path, blob: ""), lambda name: None)
    assert same(again, tree)
    found = context_of(again, {})
    assert found == CONTEXTS[what]
    assert type(found) is type(CONTEXTS[what])


class Stranger:
    pass


@dataclasses.dataclass
class Look:
    block_size: int = 1


@pytest.mark.parametrize(
    "value", [Stranger(), Look(), {1: 2}, {"a": [Stranger()]}, {1, 2}, torch.ones(1), print]
)
def test_a_context_with_anything_else_is_refused_by_type(value):
    with pytest.raises(UnsupportedState):
        context_tree(value, "w")


def test_a_context_that_contains_itself_is_refused():
    context = []
    context.append(context)
    with pytest.raises(UnsupportedState, match="too deeply"):
        context_tree(context, "w")


def test_what_the_record_says_elsewhere_is_left_out_and_put_in_again():
    arguments = SubclassTensorArgs(torch.Size([2]), torch.device("cpu"), True)
    tree = context_tree(arguments, "w")
    assert "device" not in str(tree)
    elsewhere = {"device": torch.device("meta"), "requires_grad": False}
    assert context_of(tree, elsewhere) == SubclassTensorArgs(torch.Size([2]), torch.device("meta"), False)


HOSTILE = {
    "a stranger's class": {"object": ("os.system", {})},
    "a class that is no context": {"object": (f"{MX}.MXTensor", {})},
    "a class by another type": {"object": (1, {})},
    "no fields": {"object": (f"{MX}.QuantizeTensorToMXKwargs", {})},
    "one field more": {"object": (f"{MX}.QuantizeTensorToMXKwargs", {"elem_dtype": 1, "block_size": 1, "x": 1})},
    "fields that are none": {"object": (f"{MX}.QuantizeTensorToMXKwargs", [1, 2])},
    "no such member": {"member": ("torchao.quantization.quantize_.common.kernel_preference.KernelPreference", "X")},
    "a member of no enum": {"member": (f"{MX}.QuantizeTensorToMXKwargs", "AUTO")},
    "a member by another type": {
        "member": ("torchao.quantization.quantize_.common.kernel_preference.KernelPreference", 1)
    },
    "an unknown tag": {"eval": "1"},
    "two tags": {"dict": {}, "object": {}},
    "a pair of three": {"member": ("a", "b", "c")},
    "no pair": {"object": "ab"},
    "a set": {1, 2},
    "a dictionary of other keys": {"dict": {1: 2}},
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_context_is_refused(what):
    with pytest.raises(InvalidRecord):
        context_of(HOSTILE[what], {})


def test_only_classes_of_the_list_that_are_imported_are_admitted(monkeypatch):
    assert is_admitted(MXTensor)
    assert not is_admitted(Derived)
    twin = type("MXTensor", (torch.Tensor,), {"__module__": MX})
    assert not is_admitted(twin)
    monkeypatch.delitem(sys.modules, MX)
    assert not is_admitted(MXTensor)


def test_a_class_that_nothing_has_imported_is_named_and_not_imported(monkeypatch):
    captured = capture_value(mx(), "w")
    monkeypatch.delitem(sys.modules, MX)
    before = set(sys.modules)
    with pytest.raises(InvalidRecord, match="not imported") as caught:
        captured.to_host()
    assert f"`import {MX}`" in caught.value.hint
    assert set(sys.modules) == before


@pytest.mark.parametrize("make", [mx, state])
def test_a_captured_tensor_is_made_again_bit_for_bit(make):
    tensor = make()
    again = capture_value(tensor, "w").to_host()
    assert type(again) is type(tensor)
    assert contents(again) == contents(tensor)
    assert same(capture_value(again, "w"), capture_value(tensor, "w"))


def captured(**changes):
    return dataclasses.replace(capture_value(mx(), "w"), **changes)


def without(name):
    parts = dict(capture_value(mx(), "w").tensors)
    return {key: part for key, part in parts.items() if key != name}


def reshaped(tensor, name, shape):
    part = dataclasses.replace(tensor.tensors[name], shape=shape, strides=(1,) * len(shape))
    return dataclasses.replace(tensor, tensors={**tensor.tensors, name: part})


LIES = {
    "a class of nobody": lambda: captured(class_name="os.system"),
    "a class of a context": lambda: captured(class_name=f"{MX}.QuantizeTensorToMXKwargs"),
    "another dtype": lambda: captured(dtype=torch.float64),
    "another shape": lambda: captured(shape=(4, 2)),
    "other strides": lambda: captured(strides=(1, 2)),
    "a context of nothing": lambda: captured(context={"eval": 1}),
    "a missing part": lambda: captured(tensors=without("scale")),
    "a part of another name": lambda: captured(tensors={**without("scale"), "scales": without("qdata")["scale"]}),
    "a part too many": lambda: captured(tensors={**without(""), "other": without("qdata")["scale"]}),
    "what its class asserts": lambda: reshaped(capture_value(mx(), "w"), "scale", (2, 2)),
    "codes that are too few": lambda: reshaped(capture_value(state(), "w"), "codes", (4, 2)),
    "no scale": lambda: reshaped(capture_value(state(), "w"), "scale", (0,)),
    "blocks that are no whole number": lambda: reshaped(capture_value(state(), "w"), "scale", (3,)),
    "a table that would be read beyond its end": lambda: reshaped(capture_value(state(), "w"), "qmap", (255,)),
    "a context of another type": lambda: dataclasses.replace(capture_value(state(), "w"), context=5),
}  # fmt: skip


@pytest.mark.parametrize("what", LIES)
def test_a_record_that_lies_about_a_tensor_is_refused(what):
    lie = LIES[what]()
    parts = {
        name: torch.empty_strided(part.shape, part.strides, dtype=part.dtype)
        for name, part in lie.tensors.items()
    }
    with pytest.raises(InvalidRecord):
        rebuild(lie, parts)


def test_parts_are_described_and_compared():
    left, right = (parts_of(capture_value(mx(block_size=size), "w")) for size in (2, 4))
    assert left == parts_of(capture_value(mx(5), "w"))
    assert left != right
    assert left != "parts"
    found = {(aspect, path): (before, now) for aspect, path, before, now in left.differences(right)}
    assert found == {
        ("context", ()): (
            {"block_size.1": 2, "kwargs.block_size": 2}, {"block_size.1": 4, "kwargs.block_size": 4}
        ),
        ("part_shape", ("scale",)): ((4,), (2,)),
    }  # fmt: skip


def test_true_and_one_are_two_contexts():
    left, right = (parts_of(capture_value(mx(context=[value]), "w")) for value in (True, 1))
    assert left != right


def test_a_missing_part_and_a_part_of_another_class_differ():
    plain, whole, nested = mx(), mx(global_scale=torch.ones(1)), mx(qdata=mx())
    specs = [parts_of(capture_value(tensor, "w")) for tensor in (plain, whole, nested)]
    assert list(specs[0].differences(specs[1])) == [("part", ("global_scale",), "absent", "float32 (1,)")]
    assert list(specs[1].differences(specs[0])) == [("part", ("global_scale",), "float32 (1,)", "absent")]
    [*_, last] = specs[0].differences(specs[2])
    assert last == ("class", ("qdata",), "a plain tensor", f"{MX}.MXTensor")
    other = parts_of(capture_value(mx(qdata=mx(scale=torch.ones(9))), "w"))
    assert list(specs[2].differences(other)) == [("part_shape", ("qdata", "scale"), (4,), (9,))]


def test_a_part_of_another_kind_is_refused():
    sparse = torch.sparse_coo_tensor([[0]], [1.0], (2,), check_invariants=True)
    part = capture_value(sparse, "w")
    assert isinstance(part, CapturedSparse)
    with pytest.raises(InvalidRecord):
        parts_of(captured(tensors={"qdata": part}))
    elsewhere = dataclasses.replace(without("")["scale"], device="cuda:0")
    with pytest.raises(InvalidRecord):
        parts_of(captured(tensors={**without(""), "scale": elsewhere}))


def test_a_sparse_part_is_refused_by_who_asks_for_a_live_tensor():
    sparse = torch.sparse_coo_tensor(
        [[0, 1], [1, 1]], torch.ones(2, dtype=torch.uint8), (4, 4), check_invariants=True
    )
    whole = capture_value(state(), "w")
    lie = dataclasses.replace(whole, tensors={**whole.tensors, "codes": capture_value(sparse, "w")})
    with pytest.raises(InvalidRecord, match="can't stand there"):
        lie.to_host()
    with pytest.raises(InvalidRecord, match="can't stand there"):
        empty_like(lie, "cpu")


def test_the_lists_name_no_class_twice_and_none_of_torch():
    assert not TENSOR_CLASSES & CONTEXT_CLASSES
    assert all(name.startswith("torchao.") for name in TENSOR_CLASSES | CONTEXT_CLASSES)
