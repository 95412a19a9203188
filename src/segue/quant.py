"""Quantized tensors as values: make them of numbers or of bits, and take them apart again.

A record keeps a quantized tensor as bytes and never looks at its numbers. The functions here are for who makes such
tensors, or wants to read them:

- `pack` and `unpack` move integers and codes into the units of a store and back, bit by bit;
- `assemble` and `take_apart` do that for a whole tensor with its scales, still bit by bit;
- `quantize` and `dequantize` compute, with the rounding that they state.

Values are int8 for the integer kinds, `torch.float8_e4m3fn` and `torch.float8_e5m2` for E4M3 and E5M2, and uint8
codes for E2M1, which torch 2.13 has only two to a byte. Scales are float32, float16, bfloat16,
`torch.float8_e8m0fnu`, and for UE4M3 `torch.float8_e4m3fn`, of which it is the half without a sign. Words are
little-endian, as hosts are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from segue._record.composite import FLOATS
from segue._record.quantized import (
    ByteCounts,
    QuantizedTensor,
    QuantScale,
    QuantScheme,
    QuantStore,
    QuantValue,
    aligned_block,
    byte_counts,
    check_quantized,
    packed_axis,
    packed_shape,
    scale_shape,
)
from segue._record.tensors import CapturedTensor, MemoryBytes, contiguous_strides, host_bytes
from segue.errors import InvalidRecord

__all__ = [
    "assemble", "byte_counts", "ByteCounts", "check_quantized", "dequantize", "pack", "quantize", "QuantizedTensor",
    "QuantScale", "QuantScheme", "QuantStore", "QuantValue", "take_apart", "unpack",
]  # fmt: skip


@dataclass(frozen=True)
class _Float:
    """A floating-point format with gradual underflow, as far as its finite numbers go."""

    mantissa_bits: int
    min_exponent: int
    """Of the numbers that are not subnormal."""
    largest: float

    @property
    def least(self) -> float:
        """The smallest number that is not zero."""
        return 2.0 ** (self.min_exponent - self.mantissa_bits)


_E4M3 = _Float(3, -6, 448.0)
_FLOAT_VALUES = {
    QuantValue.E4M3: _E4M3,
    QuantValue.E5M2: _Float(2, -14, 57344.0),
    QuantValue.E2M1: _Float(1, 0, 6.0),
}
_SCALES = {
    QuantScale.F32: _Float(23, -126, torch.finfo(torch.float32).max),
    QuantScale.F16: _Float(10, -14, torch.finfo(torch.float16).max),
    QuantScale.BF16: _Float(7, -126, torch.finfo(torch.bfloat16).max),
    QuantScale.UE8M0: _Float(0, -127, 2.0**127),
    QuantScale.UE4M3: _E4M3,
}
_RANGES = {
    QuantValue.Q8F: (-128, 127), QuantValue.Q8S: (-127, 127), QuantValue.Q4F: (-8, 7), QuantValue.Q4S: (-7, 7),
    QuantValue.Q2F: (-2, 1), QuantValue.Q2S: (-1, 1),
}  # fmt: skip
_E2M1_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""By code; 8 more is the same with a minus."""

_CODE_DTYPES = {QuantValue.E4M3: torch.float8_e4m3fn, QuantValue.E5M2: torch.float8_e5m2}
_SCALE_DTYPES = {
    QuantScale.F32: torch.float32,
    QuantScale.F16: torch.float16,
    QuantScale.BF16: torch.bfloat16,
    QuantScale.UE8M0: torch.float8_e8m0fnu,
    QuantScale.UE4M3: torch.float8_e4m3fn,
}
_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)


def pack(values: torch.Tensor, scheme: QuantScheme) -> torch.Tensor:
    """Put integers or codes into the units of a store; the inverse of `unpack`.

    A native store has a byte for each value, of whatever kind. A packed one packs each row along the packed
    dimension by itself: the first value stands in the lowest bits of the first unit, and the last unit of a row is
    filled up with zeros. Integers are in two's complement. Two E2M1 codes share a byte: the first one is its lower
    half.

    Args:
        values: Any shape. Integers, for E4M3 and E5M2 also their torch dtype; of int8, int16, int32, int64 or uint8.
        scheme: Of it, the value kind, the store and the packed dimension matter.

    Returns:
        New host memory: uint32 for words, else uint8, in the shape of the values but for the packed dimension, which
        is divided by the values per unit and rounded up.

    Raises:
        InvalidRecord: If the packed dimension does not exist, or the kind is not packed natively
            (`gradients.quantized.pack_dim`, `.native_pack`); if the values are of another dtype (`quant.dtype`); or
            one does not fit its bits, which are eight in a native store (`quant.value`, with its index): it is not
            cut off.

    Cost:
        A few times eight bytes for each value, meanwhile; more where rows are much shorter than a unit.
    """
    shape = tuple(values.shape)
    packed = packed_shape(scheme, shape)
    codes = _codes(values, scheme)
    if scheme.store is not QuantStore.NATIVE:
        rows = _in_groups(codes, packed_axis(scheme, len(shape)), scheme.values_per_unit)
        codes = (rows << _shifts(scheme)).sum(2).reshape(packed)
    return codes.to(_unit_dtype(scheme))


def unpack(units: torch.Tensor, scheme: QuantScheme, shape: Sequence[int]) -> torch.Tensor:
    """Take integers or codes out of the units of a store; the inverse of `pack`.

    Args:
        units: What `pack` returns: uint32 for words, else uint8. The bits that fill up rows do not count.
        scheme: Of it, the value kind, the store and the packed dimension matter.
        shape: The logical shape.

    Returns:
        New host memory of that shape: int8 with the sign extended, `torch.float8_e4m3fn`, `torch.float8_e5m2`, or
        for E2M1 uint8 codes. A native byte is given back whole, even if it is no value of its kind.

    Raises:
        InvalidRecord: As `pack` about the packed dimension and kind; if the units have another dtype (`quant.dtype`)
            or shape (`quant.shape`) than the scheme has; or torch has no tensor of that shape (`quant.shape`).

    Cost:
        A few times eight bytes for each value, meanwhile; more where rows are much shorter than a unit.
    """
    shape = tuple(shape)
    packed = packed_shape(scheme, shape)
    if tuple(units.shape) != packed:
        raise InvalidRecord(
            "not the shape of the units", code="quant.shape", expected=packed, found=units.shape
        )
    codes = _on_host(units, (_unit_dtype(scheme),)).to(torch.int64)
    if scheme.store is not QuantStore.NATIVE and 0 not in shape:
        axis = packed_axis(scheme, len(shape))
        rows = (_in_groups(codes, axis, 1) >> _shifts(scheme)) & ((1 << scheme.value.bits) - 1)
        outer, _, _, inner = rows.shape
        codes = rows.reshape(outer, -1, inner)[:, : shape[axis]]
    return _values(codes.reshape(_checked(shape)), scheme)


def assemble(scheme: QuantScheme, values: torch.Tensor, scales: torch.Tensor) -> QuantizedTensor:
    """Make a quantized tensor of its values and scales, bit by bit; the inverse of `take_apart`.

    Args:
        scheme: Any.
        values: In the logical shape; as `pack` takes them. Copied.
        scales: One per block, `()` for one per tensor; in the dtype of the scheme's scale kind, or in float32, as
            the host containers of the seeds have them. Not converted: float32 is written with four bytes. Copied.

    Returns:
        A quantized tensor; it lived where `values` lives.

    Raises:
        InvalidRecord: As `pack`; if scales have another dtype or shape (`quant.scales`); or the scheme does not fit
            (`gradients.quantized.*`).

    Warns:
        SegueWarning: If the block has more dimensions than the tensor.
    """
    return _assembled(scheme, values, scales, str(values.device))


def take_apart(quantized: QuantizedTensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the values and scales of a quantized tensor, bit by bit; the inverse of `assemble`.

    Args:
        quantized: With scales of its scheme's kind, or with four bytes for each, as the host containers of the seeds
            have them whatever the kind.

    Returns:
        The values in the logical shape, as from `unpack`, and the scales: in the dtype of the scale kind, or
        float32 where they have four bytes; one per block, or `()` for one per tensor. New host memory.

    Raises:
        InvalidRecord: If as many bytes are neither of these (`quant.length`): a record keeps them, but nothing
            says what they are. As `unpack` if torch has no tensor of the shape.
        StoreError: If stored bytes turn out to be wrong.
    """
    scheme, shape = quantized.scheme, _checked(quantized.shape)
    counts = byte_counts(scheme, shape)
    scale_dtype = _scale_dtype_of(quantized, counts)
    data = quantized.data.to_host()
    units = data[: counts.value_bytes].view(_unit_dtype(scheme)).reshape(packed_shape(scheme, shape))
    # Behind an odd number of bytes they are not aligned, and torch refuses to view them.
    scales = data[counts.value_bytes :].clone().view(scale_dtype).reshape(scale_shape(scheme, shape))
    return unpack(units, scheme, shape), scales


def quantize(
    tensor: torch.Tensor, scheme: QuantScheme, scales: torch.Tensor | None = None
) -> QuantizedTensor:
    """Round a tensor to a quantized one.

    Each number is divided by its scale in float64, and the quotient rounded to the nearest value of the kind, halves
    to the even one. Beyond the largest value it saturates; it never becomes infinite. For numbers up to float32
    that is the exact quotient rounded once. Floating kinds keep the sign of a zero.

    Args:
        tensor: Any shape; float64, float32, float16 or bfloat16. Not changed, and not kept.
        scheme: Any that fits the shape.
        scales: One per block, `()` for one per tensor, in the dtype of the scale kind or in float32; positive. Left
            out, each is the smallest number of its kind (for UE8M0 a power of two, for UE4M3 without a sign) with
            which the largest magnitude of the block does not saturate, and 1 for a block of zeros. The largest
            values are 127, 7 and 1 for eight, four and two bits, 448 for E4M3, 57344 for E5M2, and 6 for E2M1.

    Returns:
        A quantized tensor with scales of the scheme's kind, or of four bytes where float32 was given; it lived where
        `tensor` lives.

    Raises:
        InvalidRecord: If the scheme does not fit the shape (`gradients.quantized.*`); the dtype is another one
            (`quant.dtype`); a number is infinite or NaN (`quant.not_finite`, with the first index); given scales have
            another shape or dtype (`quant.scales`), or one is not positive and finite (`quant.scale`); or a block
            needs a scale beyond the largest of its kind (`quant.scale_range`).

    Warns:
        SegueWarning: If the block has more dimensions than the tensor.

    Cost:
        A few times eight bytes for each number, meanwhile. Computed on the host.
    """
    shape = tuple(tensor.shape)
    byte_counts(scheme, shape)
    numbers = _on_host(tensor, FLOATS).to(torch.float64)
    _refuse_where(
        ~numbers.isfinite(), numbers, "quant.not_finite", "a number is not finite", "finite numbers"
    )
    if scales is None:
        scales = _fitting_scales(_block_maxima(numbers, scheme), scheme)
    divisors = _scale_numbers(scales, scheme, shape)
    _refuse_where(divisors == 0, divisors, "quant.scale", "a scale is zero", "a positive number")
    quotients = numbers / _per_value(divisors.to(torch.float64), scheme, shape)
    return _assembled(scheme, _rounded(quotients, scheme.value), scales, str(tensor.device))


def dequantize(quantized: QuantizedTensor) -> torch.Tensor:
    """Compute the numbers that a quantized tensor stands for.

    Each is its value times its scale, rounded once to the nearest float32, halves to even. Codes for NaN and infinity
    give those, and a product beyond float32 is infinite. An integer outside of its kind's range but within its bits
    (-128 of Q8S) is taken for what it is.

    Args:
        quantized: As `take_apart` takes it.

    Returns:
        float32 in the logical shape, in new host memory.

    Raises:
        InvalidRecord: As `take_apart`; if a native byte holds no value of its kind (`quant.value`); or a scale is
            infinite, NaN, or has a sign (`quant.scale`).
        StoreError: If stored bytes turn out to be wrong.
    """
    scheme, shape = quantized.scheme, quantized.shape
    values, scales = take_apart(quantized)
    factors = _scale_numbers(scales, scheme, shape)
    return _decoded(values, scheme) * _per_value(factors, scheme, shape)


def _assembled(
    scheme: QuantScheme, values: torch.Tensor, scales: torch.Tensor, device: str
) -> QuantizedTensor:
    shape = tuple(values.shape)
    byte_counts(scheme, shape)
    parts = pack(values, scheme), _checked_scales(scales, scheme, shape)
    data = torch.cat([host_bytes(part.contiguous()) for part in parts])
    return QuantizedTensor(
        scheme, shape, CapturedTensor(torch.uint8, tuple(data.shape), (1,), device, MemoryBytes(data))
    )


def _on_host(
    tensor: torch.Tensor, dtypes: tuple[torch.dtype, ...], code: str = "quant.dtype"
) -> torch.Tensor:
    if tensor.dtype not in dtypes or tensor.layout is not torch.strided or tensor.is_meta:
        found = f"{tensor.dtype}, {tensor.layout} on {tensor.device}"
        raise InvalidRecord("not a tensor that can stand here", code=code, expected=dtypes, found=found)
    return tensor.detach().cpu().resolve_neg().contiguous()


def _refuse_where(wrong: torch.Tensor, numbers: torch.Tensor, code: str, what: str, expected: Any) -> None:
    # Flat, since torch 2.13 reduces at most 64 dimensions.
    flat = wrong.reshape(-1)
    if bool(flat.any()):
        first, shape = int(flat.nonzero()[0]), tuple(wrong.shape)
        strides = contiguous_strides(shape)
        index = tuple(first // stride % size for stride, size in zip(strides, shape, strict=True))
        raise InvalidRecord(
            what, code=code, where=f"index {index}", expected=expected, found=numbers[index].item()
        )


def _checked(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Refuse a shape whose strides overflow: a record may have one, beside a dimension of size 0."""
    if math.prod(max(size, 1) for size in shape) >= 2**63:
        raise InvalidRecord("torch has no tensor of this shape", code="quant.shape", found=shape)
    return shape


def _in_groups(tensor: torch.Tensor, axis: int, size: int) -> torch.Tensor:
    """View a dimension as groups, the last one filled up with zeros: (outer, group, within it, inner)."""
    outer, length = math.prod(tensor.shape[:axis]), tensor.shape[axis]
    inner = math.prod(tensor.shape[axis + 1 :])
    padding = (0, 0, 0, -length % size)
    rows = torch.nn.functional.pad(tensor.reshape(outer, length, inner), padding)
    return rows.view(outer, rows.shape[1] // size, size, inner)


def _shifts(scheme: QuantScheme) -> torch.Tensor:
    per_unit = torch.arange(scheme.values_per_unit, dtype=torch.int64, device="cpu")
    return (per_unit * scheme.value.bits).view(-1, 1)


def _unit_dtype(scheme: QuantScheme) -> torch.dtype:
    return torch.uint32 if scheme.store is QuantStore.PACKED_U32 else torch.uint8


def _field_bits(scheme: QuantScheme) -> int:
    return 8 if scheme.store is QuantStore.NATIVE else scheme.value.bits


def _code_range(kind: QuantValue, bits: int) -> tuple[int, int]:
    if kind not in _RANGES:
        return 0, (1 << bits) - 1
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


def _codes(values: torch.Tensor, scheme: QuantScheme) -> torch.Tensor:
    """Return what stands in the bits of each value, as int64."""
    kind, bits = scheme.value, _field_bits(scheme)
    own = _CODE_DTYPES.get(kind)
    host = _on_host(values, _INTEGERS if own is None else (*_INTEGERS, own))
    numbers = (host.view(torch.uint8) if host.dtype is own else host).to(torch.int64)
    low, high = _code_range(kind, bits)
    outside = (numbers < low) | (numbers > high)
    _refuse_where(outside, numbers, "quant.value", "a value does not fit its bits", f"{low} to {high}")
    return numbers & ((1 << bits) - 1)


def _values(codes: torch.Tensor, scheme: QuantScheme) -> torch.Tensor:
    if scheme.value in _RANGES:
        sign = 1 << (_field_bits(scheme) - 1)
        return ((codes ^ sign) - sign).to(torch.int8)
    return codes.to(torch.uint8).view(_CODE_DTYPES.get(scheme.value, torch.uint8))


def _decoded(values: torch.Tensor, scheme: QuantScheme) -> torch.Tensor:
    """Return what values stand for, without their scales, as float32."""
    if scheme.value in _CODE_DTYPES:
        return values.to(torch.float32)
    low, high = _code_range(scheme.value, scheme.value.bits)
    outside = (values < low) | (values > high)
    _refuse_where(outside, values, "quant.value", "a byte holds no value of its kind", f"{low} to {high}")
    if scheme.value in _RANGES:
        return values.to(torch.float32)
    magnitudes = torch.tensor(_E2M1_MAGNITUDES, dtype=torch.float32, device="cpu")
    return torch.cat([magnitudes, -magnitudes])[values.to(torch.int64)]


def _rounded(quotients: torch.Tensor, kind: QuantValue) -> torch.Tensor:
    if kind in _RANGES:
        return quotients.round().clamp(*_RANGES[kind]).to(torch.int8)
    nearest = _nearest(quotients, _FLOAT_VALUES[kind])
    if kind in _CODE_DTYPES:
        return nearest.to(torch.float32).to(_CODE_DTYPES[kind])
    magnitudes = torch.tensor(_E2M1_MAGNITUDES, dtype=torch.float64, device="cpu")
    return (torch.searchsorted(magnitudes, nearest.abs()) + 8 * nearest.signbit()).to(torch.uint8)


def _nearest(numbers: torch.Tensor, form: _Float) -> torch.Tensor:
    """Round float64 to the nearest number of a format, halves to even, saturating at its largest.

    Not by torch's casts: in torch 2.13 a cast to float8_e4m3fn saturates and one to float8_e5m2 gives infinity, and
    one from float64 to a half type rounds twice.
    """
    numbers = numbers.clamp(-form.largest, form.largest)
    quantum = _quantum(numbers, form)
    return torch.round(numbers / quantum) * quantum


def _quantum(numbers: torch.Tensor, form: _Float) -> torch.Tensor:
    """Return the distance between the numbers of a format around each number: a power of two, in float64."""
    exponents = (torch.frexp(numbers).exponent - 1).clamp(min=form.min_exponent).to(torch.int64)
    # By its bits, since pow need not be exact.
    return ((exponents - form.mantissa_bits + 1023) << 52).view(torch.float64)


def _block_maxima(numbers: torch.Tensor, scheme: QuantScheme) -> torch.Tensor:
    """Return the largest magnitude of each block, 0 for an empty tensor with one scale."""
    numbers = numbers.abs()
    if scheme.block is None:
        return numbers.reshape(-1).max() if numbers.numel() else numbers.new_zeros(())
    for axis, size in enumerate(aligned_block(scheme.block, numbers.dim())):
        # A block that is longer than its dimension is not filled up: that could take 255 times the memory.
        maxima = _in_groups(numbers, axis, min(size, max(numbers.shape[axis], 1))).amax(2)
        numbers = maxima.reshape(*numbers.shape[:axis], maxima.shape[1], *numbers.shape[axis + 1 :])
    return numbers


def _fitting_scales(maxima: torch.Tensor, scheme: QuantScheme) -> torch.Tensor:
    """Return the smallest scale of its kind with which each maximum does not saturate; 1 for a maximum of 0."""
    kind, form = scheme.value, _SCALES[scheme.scale]
    largest = float(_RANGES[kind][1]) if kind in _RANGES else _FLOAT_VALUES[kind].largest
    quotients = maxima / largest
    quantum = _quantum(quotients, form)
    # The float64 that follows `largest` times a scale has a quotient more than half an ulp above that scale, so the
    # division never rounds down to a scale that is too small; it can only vanish.
    numbers = (torch.ceil(quotients / quantum) * quantum).clamp(min=form.least)
    numbers = numbers.masked_fill(maxima == 0, 1.0)
    _refuse_where(
        numbers > form.largest, numbers, "quant.scale_range", "a block needs too large a scale", form.largest
    )
    return numbers.to(torch.float32).to(_SCALE_DTYPES[scheme.scale])


def _checked_scales(scales: torch.Tensor, scheme: QuantScheme, shape: tuple[int, ...]) -> torch.Tensor:
    expected = scale_shape(scheme, shape)
    if tuple(scales.shape) != expected:
        raise InvalidRecord(
            "not the shape of the scales", code="quant.scales", expected=expected, found=scales.shape
        )
    return _on_host(scales, (_SCALE_DTYPES[scheme.scale], torch.float32), "quant.scales")


def _scale_numbers(scales: torch.Tensor, scheme: QuantScheme, shape: tuple[int, ...]) -> torch.Tensor:
    numbers = _checked_scales(scales, scheme, shape).to(torch.float32)
    wrong = ~numbers.isfinite() | numbers.signbit()
    _refuse_where(wrong, numbers, "quant.scale", "a scale is not finite, or has a sign", "a positive number")
    return numbers


def _scale_dtype_of(quantized: QuantizedTensor, counts: ByteCounts) -> torch.dtype:
    num_bytes, wide = quantized.data.num_bytes, counts.value_bytes + 4 * counts.num_scales
    if num_bytes == counts.required_bytes:
        return _SCALE_DTYPES[quantized.scheme.scale]
    if num_bytes == wide:
        return torch.float32
    raise InvalidRecord(
        "the bytes behind the values are no scales", code="quant.length",
        expected=f"{counts.required_bytes} bytes, or {wide} with scales of four bytes", found=num_bytes,
    )  # fmt: skip


def _per_value(scales: torch.Tensor, scheme: QuantScheme, shape: tuple[int, ...]) -> torch.Tensor:
    """Repeat scales so that each value has its own; a single one is left to broadcasting."""
    if scheme.block is None or 0 in shape:
        return scales.reshape(()) if scheme.block is None else scales.new_empty(shape)
    for axis, size in enumerate(aligned_block(scheme.block, len(shape))):
        block_of = torch.arange(shape[axis], device="cpu") // size
        outer, inner = math.prod(scales.shape[:axis]), math.prod(scales.shape[axis + 1 :])
        rows = scales.reshape(outer, -1, inner).index_select(1, block_of)
        scales = rows.reshape(*scales.shape[:axis], shape[axis], *scales.shape[axis + 1 :])
    return scales
