"""Quantized values as bytes, with the exact arithmetic of how many there must be.

A quantized tensor is a scheme, a logical shape, and flat bytes: the values, and behind them, without padding, the
scales. The scheme is data from elsewhere, and so is the shape: counts are compared with the limits of the machine
words of the seeds at the points where those would overflow, since Python's integers never do.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, ClassVar, Self

import torch

from segue._record.composite import Composite, fields_of, invalid, is_shape
from segue._record.tensors import CapturedTensor, MemoryBytes
from segue.errors import InvalidRecord, SegueWarning

MAX_COUNT = 2**64 - 1
"""The largest count: `usize::MAX` of the seeds."""
MAX_BYTES = 2**63 - 1
"""The largest number of bytes in one allocation: `isize::MAX` of the seeds."""
_MAX_BLOCK_RANK = 5
_MAX_BLOCK_SIZE = 255


class QuantValue(Enum):
    """What one value is.

    The letter behind the bits of an integer says which range: `F` is the full one of two's complement, `S` the
    symmetric one without its least value. The others are floating-point codes: sign, exponent, mantissa.
    """

    Q8F = "q8f"
    Q8S = "q8s"
    Q4F = "q4f"
    Q4S = "q4s"
    Q2F = "q2f"
    Q2S = "q2s"
    E4M3 = "e4m3"
    E5M2 = "e5m2"
    E2M1 = "e2m1"

    @property
    def bits(self) -> int:
        """How many bits a value has."""
        return _BITS[self]


_BITS = {
    QuantValue.Q8F: 8, QuantValue.Q8S: 8, QuantValue.Q4F: 4, QuantValue.Q4S: 4, QuantValue.Q2F: 2, QuantValue.Q2S: 2,
    QuantValue.E4M3: 8, QuantValue.E5M2: 8, QuantValue.E2M1: 4,
}  # fmt: skip


class QuantScale(Enum):
    """What one scale is.

    `UE8M0` is an unsigned exponent, a power of two; `UE4M3` is E4M3 without a sign.
    """

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    UE8M0 = "ue8m0"
    UE4M3 = "ue4m3"

    @property
    def num_bytes(self) -> int:
        """How many bytes a scale has."""
        return _SCALE_BYTES[self]


_SCALE_BYTES = {
    QuantScale.F32: 4, QuantScale.F16: 2, QuantScale.BF16: 2, QuantScale.UE8M0: 1, QuantScale.UE4M3: 1,
}  # fmt: skip


class QuantStore(Enum):
    """How values lie in memory.

    `NATIVE` gives each value a byte of its own, those of four and two bits too. `PACKED_U32` puts as many as fit
    into words of four bytes, `PACKED_NATIVE` two E2M1 codes into a byte.
    """

    NATIVE = "native"
    PACKED_U32 = "packed_u32"
    PACKED_NATIVE = "packed_native"


@dataclass(frozen=True)
class QuantScheme:
    """How a tensor is quantized, symmetrically: value and scale kinds, store, and level.

    Two schemes are equal if all of it is. Whether a scheme fits a tensor depends on its shape: see `byte_counts`.

    Raises:
        InvalidRecord: If a field is of another type or out of range (`gradients.quantized.scheme`).
    """

    value: QuantValue
    scale: QuantScale = QuantScale.F32
    store: QuantStore = QuantStore.NATIVE
    packed_dim: int = 0
    """For a packed store, the dimension along which values share a word, counted from the innermost; else 0."""
    block: tuple[int, ...] | None = None
    """The shape that has a scale of its own; `None` for one scale per tensor.

    At most five sizes of 0 to 255. A shorter one than the tensor's rank is that of the last dimensions, with 1 for
    the others; of a longer one the leading sizes count. A size of 0 is refused where it counts."""

    def __post_init__(self) -> None:
        for name, kind in (("value", QuantValue), ("scale", QuantScale), ("store", QuantStore)):
            if type(getattr(self, name)) is not kind:
                raise _bad_scheme(f"not a kind of {name}", kind.__name__, getattr(self, name))
        if type(self.packed_dim) is not int or self.packed_dim < 0:
            raise _bad_scheme("bad packed dimension", "an integer that is not negative", self.packed_dim)
        if self.store is QuantStore.NATIVE and self.packed_dim != 0:
            # It would mean nothing, and keep two equal schemes from being equal.
            raise _bad_scheme("a native store has no packed dimension", 0, self.packed_dim)
        if self.block is not None and not _is_block(self.block):
            raise _bad_scheme("bad block", "None, or a tuple of at most 5 sizes of 0 to 255", self.block)

    @property
    def description(self) -> dict[str, Any]:
        """The scheme as plain values."""
        return {
            "value": self.value.value,
            "scale": self.scale.value,
            "store": self.store.value,
            "packed_dim": self.packed_dim,
            "block": self.block,
        }

    @property
    def values_per_unit(self) -> int:
        """How many values share a unit of the store: a word, or a byte."""
        if self.store is QuantStore.NATIVE:
            return 1
        return 8 * self.unit_bytes // self.value.bits

    @property
    def unit_bytes(self) -> int:
        """How many bytes a unit of the store has."""
        return 4 if self.store is QuantStore.PACKED_U32 else 1


def _is_block(value: Any) -> bool:
    return is_shape(value) and len(value) <= _MAX_BLOCK_RANK and max(value, default=0) <= _MAX_BLOCK_SIZE


def _bad_scheme(what: str, expected: Any, found: Any) -> InvalidRecord:
    return InvalidRecord(what, code="gradients.quantized.scheme", expected=expected, found=found)


@dataclass(frozen=True)
class ByteCounts:
    """How many bytes a quantized tensor consists of."""

    value_bytes: int
    num_scales: int
    scale_bytes: int
    exact: bool
    """Whether there must be exactly `required_bytes`; otherwise there may be more.

    The host containers of the seeds write scales of every kind as floats of four bytes, so data with a narrower
    kind may legitimately be longer than its scheme needs."""

    @property
    def required_bytes(self) -> int:
        """The bytes of the values, and of the scales behind them."""
        return self.value_bytes + self.scale_bytes


def num_elements(shape: tuple[int, ...], where: str | None = None) -> int:
    """Return how many elements a shape has, with the limit that the seeds have; 1 for rank 0.

    Args:
        shape: Data from elsewhere: anything.
        where: What has the shape, for the message.

    Raises:
        InvalidRecord: If it is no tuple of integers that are not negative (`gradients.shape`), or a product of
            its leading sizes is more than 2**64 - 1, even if a later size is 0 (`gradients.shape_overflow`).
    """
    if not is_shape(shape):
        raise InvalidRecord(
            "not a shape", code="gradients.shape", where=where, expected="a tuple of sizes", found=shape
        )
    count = _product(shape)
    if count is None:
        raise InvalidRecord(
            "the number of elements overflows", code="gradients.shape_overflow", where=where,
            expected="at most 2**64 - 1 elements", found=shape,
        )  # fmt: skip
    return count


def _product(sizes: Iterable[int]) -> int | None:
    """Multiply from left to right; `None` once a product is more than a machine word holds."""
    product = 1
    for size in sizes:
        product *= size
        if product > MAX_COUNT:
            return None
    return product


def packed_axis(scheme: QuantScheme, rank: int, where: str | None = None) -> int:
    """Return the dimension, counted from the outermost, along which a packed store packs.

    Raises:
        InvalidRecord: If a tensor of that rank has no such dimension (`gradients.quantized.pack_dim`), or the
            value kind can't be packed natively (`gradients.quantized.native_pack`); in that order.
    """
    if scheme.packed_dim >= rank:
        raise _refusal(
            "pack_dim", "the tensor has no such packed dimension", where,
            f"less than its rank, {rank}", scheme.packed_dim,
        )  # fmt: skip
    if scheme.store is QuantStore.PACKED_NATIVE and scheme.value is not QuantValue.E2M1:
        raise _refusal(
            "native_pack", "this kind of value is not packed natively", where, QuantValue.E2M1, scheme.value
        )
    return rank - 1 - scheme.packed_dim


def aligned_block(block: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Return the block sizes of each dimension: filled up with 1 on the left, or the leading ones of too many."""
    return (1,) * (rank - len(block)) + block[:rank]


def packed_shape(scheme: QuantScheme, shape: tuple[int, ...], where: str | None = None) -> tuple[int, ...]:
    """Return the shape that the units of the store have: each row along the packed dimension is padded alone.

    Raises:
        InvalidRecord: As `packed_axis`.
    """
    if scheme.store is QuantStore.NATIVE:
        return shape
    axis = packed_axis(scheme, len(shape), where)
    return (*shape[:axis], _ceil_div(shape[axis], scheme.values_per_unit), *shape[axis + 1 :])


def scale_shape(scheme: QuantScheme, shape: tuple[int, ...], where: str | None = None) -> tuple[int, ...]:
    """Return the shape that the scales have: `()` for one per tensor, else the blocks along each dimension.

    Raises:
        InvalidRecord: If a block size that counts is 0 (`gradients.quantized.block_zero`).
    """
    if scheme.block is None:
        return ()
    block = aligned_block(scheme.block, len(shape))
    if 0 in block:
        raise _refusal("block_zero", "a block size is zero", where, "sizes of 1 to 255", scheme.block)
    return tuple(_ceil_div(*sizes) for sizes in zip(shape, block, strict=True))


def _ceil_div(size: int, by: int) -> int:
    return -(-size // by)


def byte_counts(scheme: QuantScheme, shape: tuple[int, ...], where: str | None = None) -> ByteCounts:
    """Count the bytes that a scheme needs for a shape.

    Args:
        scheme: Any.
        shape: The logical shape, as `num_elements` accepts it.
        where: What has them, for messages.

    Raises:
        InvalidRecord: In this order: if the packed dimension does not exist (`gradients.quantized.pack_dim`); the
            value kind can't be packed natively (`.native_pack`); the number of units of a packed store
            (`.count_overflow`; of a native one `gradients.shape_overflow`) or their bytes (`.bytes_overflow`)
            overflow 2**64 - 1; a block size that counts is 0 (`.block_zero`); the number of scales
            (`.scale_overflow`) or the bytes of all (`.total_overflow`) overflow; or those are more than 2**63 - 1
            (`.too_large`).
    """
    value_bytes = _value_bytes(scheme, shape, where)
    num_scales = _product(scale_shape(scheme, shape, where))
    if num_scales is None:
        raise _overflow("scale_overflow", "the number of scales overflows", where, shape)
    counts = ByteCounts(
        value_bytes, num_scales, num_scales * scheme.scale.num_bytes, scheme.scale is QuantScale.F32
    )
    if counts.required_bytes > MAX_COUNT:
        raise _overflow("total_overflow", "the bytes of values and scales overflow", where, shape)
    if counts.required_bytes > MAX_BYTES:
        raise _refusal(
            "too_large", "values and scales are too large to be addressed", where,
            "at most 2**63 - 1 bytes", counts.required_bytes,
        )  # fmt: skip
    return counts


def _value_bytes(scheme: QuantScheme, shape: tuple[int, ...], where: str | None) -> int:
    if scheme.store is QuantStore.NATIVE:
        return num_elements(shape, where)
    num_units = _product(packed_shape(scheme, shape, where))
    if num_units is None:
        raise _overflow("count_overflow", "the number of packed values overflows", where, shape)
    if num_units * scheme.unit_bytes > MAX_COUNT:
        raise _overflow("bytes_overflow", "the bytes of packed values overflow", where, shape)
    return num_units * scheme.unit_bytes


def _overflow(code: str, what: str, where: str | None, shape: tuple[int, ...]) -> InvalidRecord:
    return _refusal(code, what, where, "at most 2**64 - 1", shape)


def _refusal(code: str, what: str, where: str | None, expected: Any, found: Any) -> InvalidRecord:
    return InvalidRecord(
        what, code=f"gradients.quantized.{code}", where=where, expected=expected, found=found
    )


def check_quantized(
    scheme: QuantScheme, shape: tuple[int, ...], num_bytes: int, where: str | None = None
) -> None:
    """Refuse a quantized tensor whose bytes can't be right, before anything is made of it.

    Args:
        scheme: Any.
        shape: The logical shape.
        num_bytes: How many bytes there are, of values and scales together.
        where: What has them, for messages.

    Raises:
        InvalidRecord: As `num_elements`; then as `byte_counts`; then if `num_bytes` is not what the scheme needs
            (`gradients.quantized.bytes`): the exact number with scales of F32, at least that number otherwise.

    Warns:
        SegueWarning: If the block has more dimensions than the tensor, so that not all of it counts.
    """
    _check(scheme, shape, num_bytes, where)
    _warn_of_unused_sizes(scheme, shape, where, stacklevel=2)


def _check(scheme: QuantScheme, shape: tuple[int, ...], num_bytes: int, where: str | None) -> None:
    num_elements(shape, where)
    if type(scheme) is not QuantScheme:
        raise _refusal("scheme", "not a scheme", where, "QuantScheme", scheme)
    counts = byte_counts(scheme, shape, where)
    if num_bytes < counts.required_bytes or (counts.exact and num_bytes != counts.required_bytes):
        rule = "exactly" if counts.exact else "at least"
        raise _refusal(
            "bytes", "the number of bytes does not fit scheme and shape", where,
            f"{rule} {counts.required_bytes}", num_bytes,
        )  # fmt: skip


def _warn_of_unused_sizes(
    scheme: QuantScheme, shape: tuple[int, ...], where: str | None, stacklevel: int
) -> None:
    if scheme.block is not None and len(scheme.block) > len(shape):
        subject = "a quantized tensor" if where is None else where
        warnings.warn(
            f"{subject} has {len(shape)} dimensions and a block of {len(scheme.block)}: only its leading sizes count,"
            f" {scheme.block[: len(shape)]} of {scheme.block}",
            SegueWarning,
            stacklevel=stacklevel + 1,
        )


@dataclass(frozen=True, eq=False)
class QuantizedTensor(Composite):
    """A quantized tensor: its values' bytes, and behind them those of its scales.

    The bytes are kept as they are, those behind the last scale too: nothing is ever dequantized or quantized
    again on the way. `segue.quant` makes them of values and scales, and takes them apart.

    Raises:
        InvalidRecord: If `data` is not flat bytes (`gradients.quantized.data`), and as `check_quantized`.

    Warns:
        SegueWarning: If the block has more dimensions than the tensor, so that not all of it counts.
    """

    tag: ClassVar[str] = "quantized"

    scheme: QuantScheme
    shape: tuple[int, ...]
    """The logical shape: that of the values, however they are packed."""
    data: CapturedTensor
    """Flat uint8."""

    def __post_init__(self) -> None:
        _check_data(self.scheme, self.shape, self.data)
        # Past the constructor that dataclass writes, to who called it.
        _warn_of_unused_sizes(self.scheme, self.shape, None, stacklevel=3)

    @property
    def device(self) -> str:
        """Where it lived."""
        return self.data.device

    @property
    def parts(self) -> Mapping[str, CapturedTensor]:
        return {"data": self.data}

    @property
    def description(self) -> dict[str, Any]:
        return {**self.scheme.description, "shape": self.shape}

    @classmethod
    def from_parts(cls, description: Mapping[str, Any], parts: Mapping[str, Any]) -> Self:
        value, scale, store, packed_dim, block, shape = fields_of(
            description, value=str, scale=str, store=str, packed_dim=int, block=object, shape=tuple
        )
        kinds = _kind(QuantValue, value), _kind(QuantScale, scale), _kind(QuantStore, store)
        scheme = QuantScheme(*kinds, packed_dim, block)
        if type(parts) is not dict or parts.keys() != {"data"}:
            raise invalid("bad parts of a quantized tensor", ("data",), parts)
        _check_data(scheme, shape, parts["data"])
        # Not by the constructor, which warns: who made the tensor has been told, and where warnings are errors a
        # stored record must not be refused with one.
        made = object.__new__(cls)
        for name, field in (("scheme", scheme), ("shape", shape), ("data", parts["data"])):
            object.__setattr__(made, name, field)
        return made

    def to_host(self) -> QuantizedTensor:
        """Make a quantized tensor with the same bytes in memory of its own.

        Raises:
            StoreError: If stored bytes turn out to be wrong.
        """
        copied = replace(self.data, source=MemoryBytes(self.data.to_host()))
        return self.from_parts(self.description, {"data": copied})


def _kind(kinds: type[Enum], name: str) -> Any:
    try:
        return kinds(name)
    except ValueError:
        raise _bad_scheme("unknown kind", [kind.value for kind in kinds], name) from None


def _check_data(scheme: QuantScheme, shape: tuple[int, ...], data: CapturedTensor) -> None:
    flat = type(data) is CapturedTensor and data.dtype is torch.uint8 and data.strides == (1,)
    if not flat or data.shape != (data.num_bytes,):
        found = (data.dtype, data.shape, data.strides) if type(data) is CapturedTensor else type(data)
        raise _refusal("data", "a quantized tensor consists of flat bytes", None, "one row of uint8", found)
    _check(scheme, shape, data.num_bytes, None)
