"""A captured tensor is a value: compared by dtype, shape, strides and every byte."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from segue._record.composite import blobs
from segue._record.tensors import (
    DTYPE_NAMES,
    DTYPES,
    ByteSource,
    CapturedTensor,
    MemoryBytes,
    bit_view,
    contiguous_strides,
    empty_like_captured,
    fill,
    host_bytes,
    needs_scratch,
    read_bytes,
    same_bits,
)
from segue.errors import InvalidRecord
from tests._store.records import array, captured, raw, tensor


def test_dtypes_and_their_names_are_inverse():
    assert {DTYPE_NAMES[dtype]: dtype for dtype in DTYPES.values()} == DTYPES
    assert all(name == str(dtype).removeprefix("torch.") for name, dtype in DTYPES.items())


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("name", DTYPES)
def test_a_host_tensor_has_the_recorded_bytes(name):
    captured = tensor(name, (2, 3))
    live = captured.to_host()
    assert live.dtype is DTYPES[name]
    assert live.reshape(-1).view(torch.uint8).tolist() == list(read_bytes(captured.source))


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("name", DTYPES)
def test_bits_are_viewed_as_integers_of_the_same_memory(name):
    live = tensor(name, (2, 4)).to_host()
    view = bit_view(live)
    assert view.untyped_storage().data_ptr() == live.untyped_storage().data_ptr()
    assert not view.dtype.is_floating_point
    assert not view.is_complex()
    assert view.numel() * view.element_size() == live.numel() * live.element_size()


@settings(max_examples=100, deadline=None, database=None)
@given(st.lists(st.integers(0, 4), max_size=5))
def test_contiguous_strides_are_those_of_torch(shape):
    assert contiguous_strides(shape) == torch.empty(shape).stride()


@settings(max_examples=100, deadline=None, database=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4).flatmap(lambda shape: st.tuples(st.just(shape), st.permutations(range(len(shape))))))  # fmt: skip
def test_any_dense_layout_is_filled_by_logical_position(case):
    shape, order = case
    strides = [0] * len(shape)
    step = 1
    for dim in order:
        strides[dim] = step
        step *= shape[dim]
    count = math.prod(shape)
    data = torch.arange(count, dtype=torch.float32).view(torch.uint8)
    live = CapturedTensor(torch.float32, tuple(shape), tuple(strides), "cpu", MemoryBytes(data)).to_host()
    assert live.stride() == tuple(strides)
    assert live.flatten().tolist() == list(range(count))


def test_equality_is_of_bits_dtype_shape_and_strides_but_not_of_place():
    one = tensor(shape=(2, 3))
    assert same_bits(one, tensor(shape=(2, 3)))
    assert same_bits(one, one.with_device("cuda:0"))
    assert not same_bits(one, tensor(shape=(2, 3), seed=1))
    assert not same_bits(one, tensor(shape=(3, 2)))
    assert not same_bits(one, tensor(shape=(2, 3), strides=(1, 2)))
    assert not same_bits(one, tensor("int32", (2, 3)))
    assert one != tensor(shape=(2, 3))


def test_zeros_of_either_sign_and_nans_are_compared_as_bits():
    def of(*words):
        data = torch.tensor(words, dtype=torch.int32).view(torch.uint8)
        return CapturedTensor(torch.float32, (len(words),), (1,), "cpu", MemoryBytes(data))

    assert same_bits(of(0x7FC00123), of(0x7FC00123))
    assert not same_bits(of(0x7FC00123), of(0x7FC00000))
    assert not same_bits(of(0), of(-(2**31)))


def test_bytes_in_memory_are_read_without_a_copy_and_cannot_be_written():
    source = MemoryBytes(raw(8))
    assert isinstance(source, ByteSource)
    view = read_bytes(source)
    assert view.readonly
    assert bytes(view) == bytes(raw(8).tolist())
    target = bytearray(8)
    source.read_into(memoryview(target))
    assert target == bytes(view)


class Elsewhere:
    """Bytes that are not in memory, as those of a stored file."""

    num_bytes = 3

    def read_into(self, target):
        target[:] = b"abc"

    def verify(self):
        pass


def test_bytes_elsewhere_are_read_into_memory_of_the_reader():
    view = read_bytes(Elsewhere())
    assert bytes(view) == b"abc"
    assert view.readonly


def test_an_empty_tensor_has_no_bytes_and_reads_none():
    class Unreadable(Elsewhere):
        num_bytes = 0

        def read_into(self, target):
            raise AssertionError("read")

    live = CapturedTensor(torch.float32, (0, 3), (3, 1), "cpu", Unreadable()).to_host()
    assert live.shape == (0, 3)
    assert host_bytes(live).tolist() == []


def test_what_was_filled_can_still_be_resized():
    captured = tensor()
    live = torch.empty(captured.shape, dtype=captured.dtype)
    fill(live, captured)
    assert host_bytes(live).tolist() == list(read_bytes(captured.source))
    live.resize_(2 * live.numel() + 1)
    captured.to_host().resize_(2 * live.numel())


def test_scratch_is_needed_where_bytes_cannot_be_read_into_place():
    assert not needs_scratch(torch.zeros(2, 3))
    assert needs_scratch(torch.zeros(2, 3).t())
    assert needs_scratch(torch.zeros(2, dtype=torch.complex64).conj())


def test_arrays_come_back_in_their_order_and_byte_order():
    for values in (np.arange(6, dtype=">i2").reshape(2, 3), np.asfortranarray(np.arange(6.0).reshape(2, 3))):
        again = array(values).to_host()
        assert again.dtype == values.dtype
        assert again.flags.f_contiguous == values.flags.f_contiguous
        assert again.tolist() == values.tolist()


def test_every_blob_of_a_tree_is_found_in_order():
    one, two, three = tensor(), array(np.arange(2)), tensor(seed=1)
    assert list(blobs({"a": [one, 1], "b": (two, {"c": three})})) == [one, two, three]


@pytest.mark.parametrize("own_scratch", [True, False])
def test_a_conjugate_or_negative_view_is_filled_by_value(own_scratch):
    values = torch.tensor([1 + 2j, -3j])
    scratch = torch.empty(values.nbytes, dtype=torch.uint8) if own_scratch else None
    for view in (torch.conj, torch._neg_view):
        target = view(torch.zeros(2, dtype=torch.complex64))
        fill(target, captured(values), scratch)
        assert target.tolist() == values.tolist()


def test_a_layout_is_that_of_a_tensor_of_its_dtype_shape_and_strides():
    live = torch.zeros(2, 3)
    assert captured(live).has_layout_of(live)
    for other in (live.t(), live.double(), torch.zeros(3, 2), torch.zeros(3, 2).t()):
        assert not captured(live).has_layout_of(other)


@pytest.mark.parametrize(
    "target",
    [
        torch.zeros(3),
        torch.zeros(2, dtype=torch.float64),
        torch.zeros(1, 2),
        torch.zeros(8, dtype=torch.uint8),
    ],
)
def test_what_does_not_fit_its_target_is_never_written(target):
    before = target.clone()
    with pytest.raises(InvalidRecord, match="does not fit"):
        fill(target, tensor(shape=(2,)))
    assert torch.equal(target, before)


def test_bytes_beyond_the_shape_are_never_written():
    with pytest.raises(InvalidRecord, match="does not fit"):
        fill(torch.zeros(2), CapturedTensor(torch.float32, (2,), (1,), "cpu", MemoryBytes(raw(12))))


def test_a_device_that_is_none_is_told():
    with pytest.raises(InvalidRecord, match="no such device"):
        empty_like_captured(tensor(), "nowhere:1")


def test_a_single_element_with_a_stride_is_viewed_as_its_bytes():
    element = torch.arange(60, dtype=torch.float32).as_strided((1, 1), (30, 7), 5)
    assert bytes(host_bytes(element).tolist()) == element.clone().numpy().tobytes()
