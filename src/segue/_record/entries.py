"""Gradients as raw data, from whoever wrote them: checked entry by entry, in the order of the seeds.

Order matters to whoever reads the message: the first entry's missing byte is told before the second one's name is
found to be the first one's again; and nothing is allocated for a shape before it is known to be countable.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from segue._record.composite import FLOATS, Composite
from segue._record.conversion import from_raw
from segue._record.quantized import (
    MAX_BYTES,
    MAX_COUNT,
    QuantizedTensor,
    QuantScheme,
    check_quantized,
    num_elements,
)
from segue._record.tensors import CapturedTensor, MemoryBytes
from segue.errors import InvalidRecord


@dataclass(frozen=True)
class GradientEntry:
    """One gradient as raw data; nothing of it is checked until `GradientsRecord.from_entries` does."""

    name: str
    """The parameter's canonical name."""
    dtype: torch.dtype | QuantScheme
    """What the gradient is."""
    shape: tuple[int, ...]
    """Its logical shape."""
    data: bytes
    """Its values, row-major and little-endian; for a quantized one, values and scales as `segue.quant` lays them out."""
    stored_dtype: torch.dtype | QuantScheme | None = None
    """What the data is, where that is not the gradient's own dtype."""

    @property
    def stored(self) -> torch.dtype | QuantScheme:
        """What the data is."""
        return self.dtype if self.stored_dtype is None else self.stored_dtype


def refuse_invalid(entries: Iterable[GradientEntry]) -> None:
    """Raise `InvalidRecord` at the first entry that is not what it says; nothing is made of any before."""
    names: set[str] = set()
    for entry in entries:
        _refuse_no_entry(entry)
        where = f"gradient of {entry.name}"
        if entry.name in names:
            raise InvalidRecord("two gradients of one parameter", code="gradients.duplicate", where=where)
        names.add(entry.name)
        if not _go_together(entry.dtype, entry.stored):
            raise InvalidRecord(
                "a gradient's dtype and that of its data do not go together", code="gradients.dtype", where=where,
                expected=_shown_dtype(entry.dtype), found=_shown_dtype(entry.stored),
            )  # fmt: skip
        count = num_elements(entry.shape, where)
        if isinstance(entry.stored, QuantScheme):
            check_quantized(entry.stored, entry.shape, len(entry.data), where)
        else:
            assert isinstance(entry.dtype, torch.dtype), "schemes go together with schemes alone"
            _check_float(entry.dtype, entry.stored, count, len(entry.data), where)


def _refuse_no_entry(entry: object) -> None:
    """Raise `InvalidRecord` for what is no entry at all, before anything in it is looked at."""
    if not isinstance(entry, GradientEntry) or not isinstance(entry.name, str):
        raise InvalidRecord(
            "not a gradient entry", code="gradients.entry", expected="GradientEntry with a name", found=entry
        )
    if not isinstance(entry.data, bytes | bytearray | memoryview):
        raise InvalidRecord(
            "the data of a gradient must be bytes", code="gradients.data", where=f"gradient of {entry.name}",
            expected="bytes", found=type(entry.data).__name__, hint="`numpy.ndarray.tobytes()`",
        )  # fmt: skip


def _go_together(own: torch.dtype | QuantScheme, stored: torch.dtype | QuantScheme) -> bool:
    """Tell whether data can become a gradient: one whole scheme on both sides, or any two real floats."""
    if isinstance(own, QuantScheme) or isinstance(stored, QuantScheme):
        return own == stored
    return own in FLOATS and stored in FLOATS


def _shown_dtype(dtype: object) -> str:
    if isinstance(dtype, QuantScheme):
        return ", ".join(f"{name} {value}" for name, value in dtype.description.items())
    return str(dtype) if dtype in FLOATS else f"{dtype!r}, which is no floating torch.dtype"


def _check_float(own: torch.dtype, stored: torch.dtype, count: int, num_bytes: int, where: str) -> None:
    stored_bytes, own_bytes = count * stored.itemsize, count * own.itemsize
    if stored_bytes > MAX_COUNT:
        raise _too_many("the stored bytes overflow", "stored_overflow", where, MAX_COUNT, stored_bytes)
    if num_bytes != stored_bytes:
        raise InvalidRecord(
            "not as many bytes as its shape has", code="gradients.bytes", where=where, expected=stored_bytes,
            found=num_bytes,
        )  # fmt: skip
    if own_bytes > MAX_COUNT:
        raise _too_many(
            "the bytes of the gradient overflow", "restored_overflow", where, MAX_COUNT, own_bytes
        )
    if own_bytes > MAX_BYTES:
        raise _too_many("the gradient is too large to be addressed", "too_large", where, MAX_BYTES, own_bytes)


def _too_many(what: str, code: str, where: str, limit: int, found: int) -> InvalidRecord:
    return InvalidRecord(
        what, code=f"gradients.{code}", where=where, expected=f"at most {limit}", found=found
    )


def gradient_of(entry: GradientEntry) -> CapturedTensor | Composite:
    """Make the captured value of an entry that was checked; its bytes are copied."""
    if isinstance(entry.stored, QuantScheme):
        data = CapturedTensor(torch.uint8, (len(entry.data),), (1,), "cpu", MemoryBytes.copy_of(entry.data))
        # Not by the constructor, which would warn of a long block once more.
        return QuantizedTensor.from_parts({**entry.stored.description, "shape": entry.shape}, {"data": data})
    assert isinstance(entry.dtype, torch.dtype)
    return from_raw(entry.dtype, entry.stored, entry.shape, entry.data)
