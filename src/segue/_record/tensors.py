"""A captured tensor: dtype, shape, strides, device and the logical row-major bytes.

Strides are kept beside the bytes because memory layout is state: a channels-last gradient that comes back
contiguous changes the last bits of `clip_grad_norm_` (torch 2.13).
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from segue.errors import InvalidRecord

# The dtypes whose tensors can be cloned, viewed as integers and compared bit by bit (torch 2.13). Quantized
# and sub-byte shell dtypes (qint8, int4, bits8 and the like) can't, and are refused at capture.
DTYPES: dict[str, torch.dtype] = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32, torch.uint64,
        torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex32,
        torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2,
        torch.float8_e5m2fnuz, torch.float8_e8m0fnu, torch.float4_e2m1fn_x2,
    )
}  # fmt: skip
DTYPE_NAMES: dict[torch.dtype, str] = {dtype: name for name, dtype in DTYPES.items()}


@runtime_checkable
class ByteSource(Protocol):
    """Where the bytes of a captured tensor are: in memory, or in a stored file that is verified as it is read."""

    @property
    def num_bytes(self) -> int:
        """The exact length."""
        ...

    def read_into(self, target: memoryview) -> None:
        """Fill `target`, a writable byte view of exactly `num_bytes`; raise `StoreError` if the bytes are not right."""
        ...

    def verify(self) -> None:
        """Read everything once and raise `StoreError` if it does not match its checksums."""
        ...


class MemoryBytes:
    """Bytes in host memory, owned by the record alone."""

    __slots__ = ("_data",)

    def __init__(self, data: torch.Tensor) -> None:
        self._data = data

    @classmethod
    def copy_of(cls, data: bytes) -> MemoryBytes:
        """Own a copy of bytes that somebody else holds."""
        # `frombuffer` refuses an empty buffer (torch 2.13).
        return cls(
            torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else host_bytes(torch.empty(0))
        )

    @property
    def num_bytes(self) -> int:
        return self._data.numel()

    @property
    def view(self) -> memoryview:
        """A read-only view, without a copy."""
        return self._data.numpy().data.toreadonly()

    def read_into(self, target: memoryview) -> None:
        target[:] = self.view

    def verify(self) -> None:
        """Memory is trusted."""


def read_bytes(source: ByteSource) -> memoryview:
    """Return the bytes of a source: a view where they are in memory, else a verified copy."""
    if isinstance(source, MemoryBytes):
        return source.view
    buffer = np.empty(source.num_bytes, dtype=np.uint8).data
    source.read_into(buffer)
    return buffer.toreadonly()


def bit_view(tensor: torch.Tensor) -> torch.Tensor:
    """View a tensor as integers (or bytes) of its item size, so that copies move bits and never convert.

    Strides and storage are shared; conjugate and negative views must be resolved by the caller. Complex128 has
    no integer of its size and becomes a trailing dimension of two int64.
    """
    if tensor.dtype is torch.complex128:
        return torch.view_as_real(tensor).view(torch.int64)
    return tensor.view(_INTEGERS[tensor.element_size()])


_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def host_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """View a contiguous host tensor as its flat bytes, without a copy."""
    if not tensor.numel():
        return torch.empty(0, dtype=torch.uint8, device="cpu")
    # Not `reshape(-1)`: a single element counts as contiguous whatever its stride, and keeps it (torch 2.13).
    return tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the row-major strides of a shape, in elements, as torch computes them."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def overlaps_itself(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Tell whether two elements of a layout share memory, expanded dimensions (stride 0) aside."""
    if 0 in shape:
        return False
    reach = 0
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size > 1 and stride != 0:
            if stride <= reach:
                return True
            reach += stride * (size - 1)
    return False


@dataclass(frozen=True, eq=False)
class CapturedTensor:
    """One tensor as a value. Compare with `same_bits`; `==` is identity, as tensors have no one equality."""

    dtype: torch.dtype
    """The element type; one of `DTYPES`."""
    shape: tuple[int, ...]
    """The logical shape."""
    strides: tuple[int, ...]
    """The memory layout it had, in elements."""
    device: str
    """Where it lived, such as `cpu` or `cuda:0`; never a place that the record itself uses."""
    source: ByteSource
    """The logical row-major bytes."""

    @property
    def num_bytes(self) -> int:
        return self.source.num_bytes

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    def has_layout_of(self, tensor: torch.Tensor) -> bool:
        """Tell whether a strided tensor has the recorded dtype, shape and strides."""
        layout = (tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()))
        return layout == (self.dtype, self.shape, self.strides)

    def with_device(self, device: str) -> CapturedTensor:
        """Return the same value placed on another device."""
        return replace(self, device=device)

    def to_host(self) -> torch.Tensor:
        """Make a new host tensor with the recorded dtype, shape and strides, and its own memory."""
        tensor = empty_like_captured(self, "cpu")
        fill(tensor, self)
        return tensor


@dataclass(frozen=True, eq=False)
class CapturedArray:
    """One NumPy array as a value: its dtype string (byte order included), shape, order and bytes in that order."""

    dtype: str
    """As `numpy.dtype.str`, such as `<f8`; never an object or structured dtype."""
    shape: tuple[int, ...]
    fortran: bool
    """Whether the bytes are in column-major order."""
    source: ByteSource

    @property
    def num_bytes(self) -> int:
        return self.source.num_bytes

    def to_host(self) -> np.ndarray[Any, Any]:
        """Make a new array with its own memory."""
        flat = np.empty(self.num_bytes, dtype=np.uint8)
        self.source.read_into(flat.data)
        return np.ndarray(
            self.shape, dtype=np.dtype(self.dtype), buffer=flat.data, order="F" if self.fortran else "C"
        )


Blob = CapturedTensor | CapturedArray


def empty_like_captured(captured: CapturedTensor, device: str | torch.device) -> torch.Tensor:
    """Allocate an uninitialised tensor with the recorded dtype, shape and strides.

    Raises:
        InvalidRecord: If there is no such device.
    """
    try:
        device = torch.device(device)
    except RuntimeError as error:
        raise InvalidRecord("there is no such device", code="record.device", found=device) from error
    return torch.empty_strided(captured.shape, captured.strides, dtype=captured.dtype, device=device)


def fill(target: torch.Tensor, captured: CapturedTensor, scratch: torch.Tensor | None = None) -> None:
    """Write the recorded bits into an existing tensor of the same dtype and shape, of any strides and device.

    Args:
        target: Written in place under `no_grad`; expanded dimensions are written once.
        captured: What to write.
        scratch: Flat uint8 host memory of at least `captured.num_bytes`, for targets that bytes can't be read
            into directly. Allocated when missing.

    Raises:
        InvalidRecord: If the target is of another dtype, shape or size; nothing is written then.
        StoreError: If the stored bytes turn out to be wrong; `target` may then be partly written.

    Cost:
        None beyond the read where the target is contiguous in host memory, else one copy through `scratch`.
    """
    if (target.dtype, tuple(target.shape)) != (
        captured.dtype,
        captured.shape,
    ) or target.nbytes != captured.num_bytes:
        # Whoever checked before was wrong; bytes are written to memory here, and must not go beyond it.
        raise InvalidRecord(
            "a tensor does not fit its target", code="record.target", expected=(captured.dtype, captured.shape),
            found=(target.dtype, tuple(target.shape)),
        )  # fmt: skip
    if captured.num_elements == 0:
        return
    with torch.no_grad():
        plain = not (target.is_conj() or target.is_neg())
        if plain and target.device.type == "cpu" and target.is_contiguous():
            captured.source.read_into(live_memory(target, captured.num_bytes))
            torch.autograd.graph.increment_version(target)
            return
        if scratch is None:
            scratch = torch.empty(captured.num_bytes, dtype=torch.uint8, device="cpu")
        raw = scratch[: captured.num_bytes]
        captured.source.read_into(raw.numpy().data)
        value = raw.view(captured.dtype).view(captured.shape)
        target, value = _without_expanded(target.detach(), value)
        if plain:
            bit_view(target).copy_(bit_view(value))
        else:
            target.copy_(value)


def live_memory(tensor: torch.Tensor, num_bytes: int) -> memoryview:
    """View the memory of a contiguous host tensor as bytes, for as long as the caller holds the tensor.

    Not by way of `Tensor.numpy()`, which marks the storage as one that can never be resized again (torch 2.13): the
    observers of quantization-aware training resize their buffers in place.
    """
    memory = (ctypes.c_uint8 * num_bytes).from_address(tensor.data_ptr())
    return np.frombuffer(memoryview(memory), dtype=np.uint8).data


def needs_scratch(target: torch.Tensor) -> bool:
    """Tell whether `fill` reads through scratch memory for this target."""
    return not (
        target.device.type == "cpu" and target.is_contiguous() and not (target.is_conj() or target.is_neg())
    )


def _without_expanded(target: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    for dim, stride in enumerate(target.stride()):
        if stride == 0 and target.shape[dim] > 1:
            target, value = target.narrow(dim, 0, 1), value.narrow(dim, 0, 1)
    return target, value


def same_bits(left: Blob, right: Blob) -> bool:
    """Tell whether two captured values are the same: type, layout and every byte; the device is not compared."""
    if isinstance(left, CapturedTensor) and isinstance(right, CapturedTensor):
        layout = (left.dtype, left.shape, left.strides) == (right.dtype, right.shape, right.strides)
    elif isinstance(left, CapturedArray) and isinstance(right, CapturedArray):
        layout = (left.dtype, left.shape, left.fortran) == (right.dtype, right.shape, right.fortran)
    else:
        return False
    return layout and read_bytes(left.source) == read_bytes(right.source)
