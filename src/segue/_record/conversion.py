"""Storing a tensor in another precision, and whether that loses anything.

Lossless or not is a property of the values, not of the pair of dtypes: fp64 gradients that happen to be fp32 numbers
survive fp32, and an fp16 NaN need not survive it. So it is tried, on the values, and written down beside them.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol, runtime_checkable

import torch

from segue._record.composite import FLOATS, INTEGERS, Composite, ConvertedTensor, is_expanded
from segue._record.converted_bytes import Workspace, convert, row_major, survives
from segue._record.tensors import CapturedTensor, MemoryBytes, bit_view, contiguous_strides, host_bytes
from segue.errors import InvalidRecord

Precision = Literal["native", "double", "full", "half"] | torch.dtype
"""What tensors are stored in; `native` is each its own. A dtype is for floats, and leaves integers as they are."""

_SETTINGS: dict[str, tuple[torch.dtype, torch.dtype]] = {
    "double": (torch.float64, torch.int64),
    "full": (torch.float32, torch.int32),
    "half": (torch.float16, torch.int16),
}
"""What floats and integers are stored in, as in the seeds."""
PRECISIONS = ("native", *_SETTINGS, *(str(dtype).removeprefix("torch.") for dtype in FLOATS))
"""What a record may call its precision."""


@runtime_checkable
class Convertible(Protocol):
    """A value in a caller-made section that has a converter of its own, which is asked once."""

    def converted(self, precision: Precision) -> Any:
        """Return the same value stored in a precision, or itself."""
        ...


def precision_name(precision: Precision) -> str:
    """Return what a record calls a precision.

    Raises:
        InvalidRecord: If there is no such precision.
    """
    if isinstance(precision, str) and precision in ("native", *_SETTINGS):
        return precision
    if not isinstance(precision, torch.dtype) or precision not in FLOATS:
        raise InvalidRecord(
            "no such precision", code="record.precision", expected=f"native, {', '.join(_SETTINGS)}, or a float dtype",
            found=precision,
        )  # fmt: skip
    return str(precision).removeprefix("torch.")


def converted(tensor: CapturedTensor | Composite, precision: Precision) -> CapturedTensor | Composite:
    """Return a captured tensor stored in a precision.

    What is no float and no integer of 32 or 64 bits stays as it is; so does what consists of other tensors, and what
    has no dimension: a tensor that is one number is a counter, a learning rate or a scale.

    Raises:
        InvalidRecord: If there is no such precision.

    Cost:
        A read of the tensor and two conversions.
    """
    precision_name(precision)
    if not isinstance(tensor, CapturedTensor | ConvertedTensor):
        return tensor
    dtype = _stored_dtype(tensor.dtype, precision)
    stored = tensor.stored if isinstance(tensor, ConvertedTensor) else tensor
    if (
        dtype is None
        or dtype is stored.dtype
        or not tensor.shape
        or is_expanded(tensor.shape, tensor.strides)
    ):
        return tensor
    own = tensor.restored() if isinstance(tensor, ConvertedTensor) else tensor
    elements, exact = convert(row_major(own), dtype)
    if isinstance(tensor, ConvertedTensor):
        exact = exact and tensor.exact
        if dtype is own.dtype and exact:
            return _with_elements(own, elements)
    return ConvertedTensor(own.dtype, _with_elements(own, elements), exact)


def _stored_dtype(own: torch.dtype, precision: Precision) -> torch.dtype | None:
    """Return what a precision stores a dtype in; `None` for as it is."""
    if precision == "native":
        return None
    floats, integers = (precision, None) if isinstance(precision, torch.dtype) else _SETTINGS[precision]
    if own in FLOATS:
        return floats
    return integers if own in INTEGERS else None


def _with_elements(like: CapturedTensor, flat: torch.Tensor) -> CapturedTensor:
    """Take over row-major elements in host memory that nobody else holds."""
    return CapturedTensor(flat.dtype, like.shape, like.strides, like.device, MemoryBytes(host_bytes(flat)))


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


def refuse_inexact(tensor: ConvertedTensor, where: str, workspace: Workspace) -> None:
    """Raise if a tensor that is said to come back exactly doesn't, here and now.

    Its elements are converted to their own dtype and back: one that changes on the way is none of that dtype, or
    this process converts otherwise, as one does that flushes denormals to zero.

    Args:
        tensor: Not changed.
        where: It stands, for messages.
        workspace: What to read it through.

    Raises:
        InvalidRecord: If an element changes.
        StoreError: If stored bytes do not match their checksums.

    Cost:
        A read of the tensor and two conversions.
    """
    if not tensor.exact or not tensor.stored.num_elements:
        return
    workspace.reserve(tensor.stored.num_bytes)
    if not survives(workspace.read(tensor.stored), tensor.dtype):
        raise InvalidRecord(
            "a converted tensor that is said to be exact does not come back exactly", code="record.inexact",
            where=where, expected=tensor.dtype, found=tensor.stored.dtype,
            hint="if this process flushes denormals (`torch.set_flush_denormal`), restore before that",
        )  # fmt: skip


def same_tensor_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Tell whether two tensors of one dtype and shape have equal bits."""
    return torch.equal(bit_view(left), bit_view(right))


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
    return ConvertedTensor(dtype, stored, widens and survives(row_major(stored), dtype))
