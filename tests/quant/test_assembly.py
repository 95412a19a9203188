"""Values and scales make a quantized tensor and come out of it again, bit by bit."""

import inspect
import math
import re
import struct
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import segue.quant
from segue._record import quantized as record
from segue._record.tensors import CapturedTensor, MemoryBytes, read_bytes
from segue.errors import InvalidRecord, SegueWarning, StoreError
from segue.quant import (
    QuantizedTensor,
    QuantScale,
    QuantScheme,
    QuantStore,
    QuantValue,
    assemble,
    byte_counts,
    dequantize,
    quantize,
    take_apart,
)
from tests._store.records import raw
from tests.quant import reference
from tests.quant.schemes import field_range, lists_for, shapes_and_schemes

SCALE_DTYPES = {
    QuantScale.F32: torch.float32,
    QuantScale.F16: torch.float16,
    QuantScale.BF16: torch.bfloat16,
    QuantScale.UE8M0: torch.float8_e8m0fnu,
    QuantScale.UE4M3: torch.float8_e4m3fn,
}
NARROW = [scale for scale in QuantScale if scale is not QuantScale.F32]
VALUE_DTYPES = {
    QuantValue.E4M3: torch.float8_e4m3fn,
    QuantValue.E5M2: torch.float8_e5m2,
    QuantValue.E2M1: torch.uint8,
}


def bytes_of(quantized):
    return bytes(read_bytes(quantized.data.source))


def tensor_of(raw_bytes, dtype, shape):
    return torch.tensor(list(raw_bytes), dtype=torch.uint8).view(dtype).reshape(shape)


def of_bytes(scheme, shape, data):
    data = torch.tensor(list(data), dtype=torch.uint8)
    return QuantizedTensor(
        scheme, shape, CapturedTensor(torch.uint8, (len(data),), (1,), "cpu", MemoryBytes(data))
    )


def refusal(call, *args):
    with pytest.raises(InvalidRecord) as caught:
        call(*args)
    return caught.value


@st.composite
def assemblies(draw):
    shape, scheme = draw(shapes_and_schemes(0, 7))
    numbers = draw(lists_for(shape, st.integers(*field_range(scheme))))
    num_scales = byte_counts(scheme, shape).num_scales
    size = draw(st.sampled_from([scheme.scale.num_bytes, 4]))
    return shape, scheme, numbers, draw(st.binary(min_size=size * num_scales, max_size=size * num_scales))


@settings(max_examples=100, deadline=None, database=None)
@given(assemblies())
def test_bytes_are_values_then_scales_and_come_apart_into_the_same_bits(case):
    shape, scheme, numbers, scale_bytes = case
    grid = record.scale_shape(scheme, shape)
    wide = len(scale_bytes) != scheme.scale.num_bytes * math.prod(grid)
    scale_dtype = torch.float32 if wide else SCALE_DTYPES[scheme.scale]
    values, scales = (
        torch.tensor(numbers, dtype=torch.int64).reshape(shape),
        tensor_of(scale_bytes, scale_dtype, grid),
    )
    quantized = assemble(scheme, values, scales)
    expected = reference.value_bytes(
        scheme.value.value, shape, scheme.store.value, scheme.packed_dim,
        dict(zip(reference.indices(shape), numbers, strict=True)),
    )  # fmt: skip
    assert bytes_of(quantized) == expected + scale_bytes
    assert (quantized.scheme, quantized.shape, quantized.device) == (scheme, shape, "cpu")
    back, back_scales = take_apart(quantized)
    assert (back.dtype, tuple(back.shape)) == (VALUE_DTYPES.get(scheme.value, torch.int8), shape)
    assert (back.view(torch.uint8).to(torch.int64) & 255).reshape(-1).tolist() == [
        number % 256 for number in numbers
    ]
    assert (back_scales.dtype, tuple(back_scales.shape)) == (scale_dtype, grid)
    assert bytes(back_scales.contiguous().reshape(-1).view(torch.uint8).tolist()) == scale_bytes
    assert bytes_of(assemble(scheme, back, back_scales)) == bytes_of(quantized)


def test_words_are_little_endian_and_scales_follow_without_padding():
    scheme = QuantScheme(QuantValue.Q8F, store=QuantStore.PACKED_U32)
    quantized = assemble(scheme, torch.tensor([-128, 2, -3, 127, 55]), torch.tensor(0.5))
    assert bytes_of(quantized) == bytes.fromhex("8002fd7f 37000000 0000003f")
    quantized = assemble(QuantScheme(QuantValue.Q8S), torch.tensor([1, -1, 2]), torch.tensor(0.5))
    assert bytes_of(quantized) == bytes.fromhex("01ff02 0000003f")
    assert take_apart(quantized)[1].item() == 0.5


@pytest.mark.parametrize("scale", NARROW)
def test_narrow_scales_may_have_four_bytes_as_in_the_host_containers_of_the_seeds(scale):
    scheme = QuantScheme(QuantValue.Q8S, scale, block=(2,))
    values = torch.tensor([10, 20, 30, -40])
    wide = assemble(scheme, values, torch.tensor([0.5, 0.3]))
    assert bytes_of(wide) == struct.pack("<bbbbff", 10, 20, 30, -40, 0.5, 0.3)
    assert take_apart(wide)[1].dtype is torch.float32
    assert take_apart(wide)[1].tolist() == torch.tensor([0.5, 0.3]).tolist()
    assert (
        dequantize(wide).tolist()
        == (torch.tensor([10.0, 20, 30, -40]) * torch.tensor([0.5, 0.5, 0.3, 0.3])).tolist()
    )
    narrow = assemble(scheme, values, torch.tensor([0.5, 2.0]).to(SCALE_DTYPES[scale]))
    assert narrow.num_bytes == 4 + 2 * scale.num_bytes
    assert take_apart(narrow)[1].dtype is SCALE_DTYPES[scale]
    assert dequantize(narrow).tolist() == [5.0, 10.0, 60.0, -80.0]


@pytest.mark.parametrize("scale", NARROW)
def test_other_lengths_are_kept_in_a_record_and_refused_when_it_is_taken_apart(scale):
    scheme, shape = QuantScheme(QuantValue.Q8S, scale, block=(2,)), (4,)
    needed, wide = 4 + 2 * scale.num_bytes, 4 + 2 * 4
    for num_bytes in (needed + 1, wide - 1, wide + 1, wide + 100):
        quantized = of_bytes(scheme, shape, raw(num_bytes).tolist())
        for call in (take_apart, dequantize):
            error = refusal(call, quantized)
            assert (error.code, error.found) == ("quant.length", num_bytes)
            assert error.expected == f"{needed} bytes, or {wide} with scales of four bytes"


def test_a_tensor_without_blocks_has_no_scales():
    scheme = QuantScheme(QuantValue.E2M1, QuantScale.UE4M3, block=(4,))
    values, scales = take_apart(of_bytes(scheme, (0, 8), b""))
    assert (values.shape, scales.shape, scales.dtype) == ((0, 8), (0, 2), torch.float8_e4m3fn)
    assert dequantize(of_bytes(scheme, (0, 8), b"")).shape == (0, 8)
    assert refusal(take_apart, of_bytes(scheme, (0, 8), b"1")).code == "quant.length"


def test_scales_of_another_shape_are_refused():
    scheme, values = QuantScheme(QuantValue.Q8S, block=(2,)), torch.tensor([1, 2, 3])
    for scales in (torch.ones(3), torch.ones(1, 2), torch.tensor(1.0)):
        error = refusal(assemble, scheme, values, scales)
        assert (error.code, error.expected) == ("quant.scales", (2,))
    assert refusal(assemble, QuantScheme(QuantValue.Q8S), values, torch.ones(1)).code == "quant.scales"


@pytest.mark.parametrize("scale", QuantScale)
def test_scales_of_another_dtype_are_refused_and_not_converted(scale):
    dtypes = {*SCALE_DTYPES.values(), torch.float64, torch.uint8, torch.int64, torch.bool}
    for dtype in dtypes - {SCALE_DTYPES[scale], torch.float32}:
        scales = torch.ones((), dtype=torch.float32).to(dtype)
        assert (
            refusal(assemble, QuantScheme(QuantValue.Q8S, scale), torch.tensor([1]), scales).code
            == "quant.scales"
        )
    meta = torch.ones((), device="meta")
    assert (
        refusal(assemble, QuantScheme(QuantValue.Q8S, scale), torch.tensor([1]), meta).code == "quant.scales"
    )


def test_a_scheme_that_does_not_fit_is_refused():
    values, scale = torch.tensor([[1, 2]]), torch.tensor(1.0)
    of = QuantScheme(QuantValue.Q8S, store=QuantStore.PACKED_U32, packed_dim=2)
    assert refusal(assemble, of, values, scale).code == "gradients.quantized.pack_dim"
    assert (
        refusal(assemble, QuantScheme(QuantValue.Q8S, block=(0,)), values, scale).code
        == "gradients.quantized.block_zero"
    )
    assert refusal(assemble, QuantScheme(QuantValue.Q8S), values * 200, scale).code == "quant.value"
    assert refusal(assemble, QuantScheme(QuantValue.Q8S), values / 2, scale).code == "quant.dtype"


@pytest.mark.parametrize("make", [assemble, quantize])
def test_who_makes_a_tensor_with_a_longer_block_than_its_rank_is_warned(make):
    # (57)
    scheme, numbers, scales = (
        QuantScheme(QuantValue.Q8S, block=(2, 3)),
        torch.tensor([1, 2, 3]),
        torch.ones(2),
    )
    arguments = (scheme, numbers, scales) if make is assemble else (numbers.float(), scheme, scales)
    with pytest.warns(SegueWarning, match="leading sizes count"):
        quantized = make(*arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert dequantize(quantized).tolist() == [1.0, 2.0, 3.0]


def test_values_and_scales_are_copied_both_ways():
    values, scales = torch.tensor([1, 2, 3], dtype=torch.int8), torch.ones(3)
    quantized = assemble(QuantScheme(QuantValue.Q8S, block=(1,)), values, scales)
    before = bytes_of(quantized)
    values.zero_()
    scales.zero_()
    for part in take_apart(quantized):
        part.zero_()
    dequantize(quantized).zero_()
    assert bytes_of(quantized) == before


def test_neither_strides_nor_negative_views_nor_graphs_matter():
    scheme = QuantScheme(QuantValue.Q8S, block=(1, 2))
    values, scales = torch.tensor([[1, 2], [3, 4], [5, 6]]).t(), torch.arange(4.0).reshape(2, 2)
    negative = torch.complex(scales, -scales).conj().imag
    assert negative.is_neg()
    expected = bytes_of(assemble(scheme, values.contiguous(), scales))
    assert bytes_of(assemble(scheme, values, scales.t().contiguous().t())) == expected
    assert bytes_of(assemble(scheme, values, negative)) == expected
    assert bytes_of(assemble(scheme, values, scales.clone().requires_grad_())) == expected


def test_a_shape_that_torch_can_t_have_is_refused_when_it_is_taken_apart():
    quantized = of_bytes(QuantScheme(QuantValue.Q8S), (0, 2**63, 2**63), bytes(4))
    for call in (take_apart, dequantize):
        assert refusal(call, quantized).code == "quant.shape"
    assert dequantize(of_bytes(QuantScheme(QuantValue.Q8S), (0, 2**62), bytes(4))).shape == (0, 2**62)


def test_many_dimensions_are_no_obstacle():
    shape = (*[1] * 70, 3, 4)
    numbers = torch.arange(-6.0, 6.0).reshape(shape)
    for block in (None, (2, 2)):
        scheme = QuantScheme(QuantValue.Q4S, store=QuantStore.PACKED_U32, packed_dim=1, block=block)
        quantized = quantize(numbers, scheme)
        flat = dequantize(quantize(numbers.reshape(3, 4), scheme))
        assert torch.equal(dequantize(quantized).flatten(), flat.flatten())


def test_wrong_stored_bytes_are_reported_as_such():
    class Broken:
        num_bytes = 7

        def read_into(self, target):
            raise StoreError("wrong bytes")

        def verify(self):
            raise StoreError("wrong bytes")

    stored = CapturedTensor(torch.uint8, (7,), (1,), "cpu", Broken())
    quantized = QuantizedTensor(QuantScheme(QuantValue.Q8S), (3,), stored)
    for call in (take_apart, dequantize):
        with pytest.raises(StoreError):
            call(quantized)


def test_the_default_device_and_dtype_of_the_program_do_not_matter():
    scheme = QuantScheme(QuantValue.E2M1, QuantScale.UE4M3, QuantStore.PACKED_NATIVE, 0, (2,))
    numbers = torch.arange(12.0).reshape(3, 4)
    expected = quantize(numbers, scheme)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            quantized = quantize(numbers, scheme)
            again = dequantize(quantized)
            empty = dequantize(quantize(torch.zeros(0, 4, device="cpu"), scheme))
    finally:
        torch.set_default_dtype(torch.float32)
    assert bytes_of(quantized) == bytes_of(expected)
    assert (again.dtype, again.device.type) == (torch.float32, "cpu")
    assert (empty.dtype, empty.device.type) == (torch.float32, "cpu")


# The public module.


def test_the_names_are_sorted_and_those_of_the_record():
    assert sorted(segue.quant.__all__, key=str.lower) == segue.quant.__all__
    assert segue.quant.QuantizedTensor is record.QuantizedTensor
    assert {name for name in segue.quant.__all__ if not hasattr(segue.quant, name)} == set()


@pytest.mark.parametrize("name", segue.quant.__all__)
def test_every_name_is_documented_with_every_argument_and_error(name):
    value = getattr(segue.quant, name)
    text = inspect.getdoc(value)
    assert text.split("\n\n")[0].endswith(".")
    assert text.isascii()
    if inspect.isfunction(value):
        for argument in inspect.signature(value).parameters:
            assert re.search(rf"^    {argument}:", text, re.MULTILINE), argument
        assert re.search(r"^Raises:$", text, re.MULTILINE)
