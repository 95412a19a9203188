"""Storing a floating-point tensor in another precision, and whether that loses anything.

Lossless or not is a property of the values, not of the pair of dtypes: fp64 gradients that happen to be fp32 numbers
survive fp32, and an fp16 NaN need not survive fp32, whose conversion makes it quiet (torch 2.13). So it is tried.
"""

from __future__ import annotations

from typing import Any, Literal

import torch

from segue._record.composite import FLOATS, Composite, ConvertedTensor, is_expanded
from segue._record.tensors import (
    CapturedTensor,
    MemoryBytes,
    bit_view,
    cast,
    contiguous_strides,
    host_bytes,
)
from segue.errors import InvalidRecord

Precision = Literal["native", "double", "full", "half"] | torch.dtype
"""What floating-point tensors are stored in; `native` is each its own."""

_DTYPES: dict[str, torch.dtype] = {"double": torch.float64, "full": torch.float32, "half": torch.float16}


def converted(tensor: CapturedTensor | Composite, precision: Precision) -> CapturedTensor | Composite:
    """Return a captured tensor stored in a precision; what is no strided float stays as it is.

    Raises:
        InvalidRecord: If there is no such precision.

    Cost:
        A read of the tensor and two conversions.
    """
    dtype = _dtype_of(precision)
    own = tensor.dtype if isinstance(tensor, CapturedTensor | ConvertedTensor) else None
    stored = tensor.stored.dtype if isinstance(tensor, ConvertedTensor) else own
    if dtype is None or own not in FLOATS or dtype is stored:
        return tensor
    assert isinstance(tensor, CapturedTensor | ConvertedTensor)
    value = host_tensor(tensor)
    if is_expanded(value.shape, value.stride()):
        return tensor
    narrow = cast(value, dtype)
    exact = same_tensor_bits(cast(narrow, value.dtype), value)
    if isinstance(tensor, ConvertedTensor):
        exact = exact and tensor.exact
        if dtype is tensor.dtype and exact:
            return _captured(value, tensor.device)
    return ConvertedTensor(value.dtype, _captured(narrow, tensor.device), exact)


def host_tensor(captured: CapturedTensor | Composite) -> Any:
    """Make a live value in host memory.

    Raises:
        InvalidRecord: If torch has no such tensor: beside a size of 0, others may be beyond what it can count.
    """
    try:
        return captured.to_host()
    except TypeError as error:
        raise InvalidRecord(
            "torch has no tensor of this shape",
            code="record.layout",
            found=captured.shape,  # type: ignore[union-attr]
        ) from error


def _dtype_of(precision: Precision) -> torch.dtype | None:
    if precision == "native":
        return None
    dtype = _DTYPES.get(precision) if isinstance(precision, str) else precision
    if dtype not in FLOATS:
        raise InvalidRecord(
            "no such precision", code="record.precision", expected=f"native, {', '.join(_DTYPES)}, or a float dtype",
            found=precision,
        )  # fmt: skip
    return dtype


def same_tensor_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Tell whether two tensors of one dtype and shape have equal bits."""
    return torch.equal(bit_view(left), bit_view(right))


def _captured(tensor: torch.Tensor, device: str) -> CapturedTensor:
    """Take over a host tensor that nobody else holds."""
    flat = host_bytes(tensor.contiguous())
    return CapturedTensor(
        tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()), device, MemoryBytes(flat)
    )


def from_raw(
    dtype: torch.dtype, stored_dtype: torch.dtype, shape: tuple[int, ...], data: bytes
) -> CapturedTensor | ConvertedTensor:
    """Make a captured tensor from little-endian row-major bytes that were checked to be as many as they must be.

    What was stored in a wider dtype is exact if every value is one of its own dtype; what was stored in a narrower
    one was something else before, which nobody can tell.
    """
    stored = CapturedTensor(stored_dtype, shape, contiguous_strides(shape), "cpu", MemoryBytes.copy_of(data))
    if dtype is stored_dtype:
        return stored
    widens = torch.promote_types(dtype, stored_dtype) is stored_dtype
    if not data:  # the shape may be one that torch has no tensor of
        return ConvertedTensor(dtype, stored, widens)
    value = stored.to_host()
    return ConvertedTensor(
        dtype, stored, widens and same_tensor_bits(value.to(dtype).to(stored_dtype), value)
    )
