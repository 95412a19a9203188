"""What differs between two records: by section and path, with counts and distances in ulps for tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from segue._record.digest import STATE_SECTIONS
from segue._record.precision import in_own_dtypes
from segue._record.tensors import CapturedArray, CapturedTensor, read_bytes
from segue._record.training import TrainingRecord
from segue._record.tree import leaves, same, shown_path
from segue.errors import shown


@dataclass(frozen=True)
class Difference:
    """One leaf that differs."""

    section: str
    path: str
    left: str
    right: str
    num_elements: int | None = None
    """Elements of the tensor; `None` where the leaf is no tensor or the layouts differ."""
    num_differing: int | None = None
    """Elements with other bits."""
    first_index: tuple[int, ...] | None = None
    """The first differing element, row-major; `left` and `right` show its values."""
    max_absolute: float | None = None
    """The largest absolute difference, as a float64; `nan` where only one side is NaN."""
    max_ulps: int | None = None
    """The largest distance in representable values of the dtype; `None` for other than floating types."""


@dataclass(frozen=True)
class RecordDiff:
    """All differences between two records, in the order of the sections."""

    differences: tuple[Difference, ...]

    @property
    def identical(self) -> bool:
        """Whether nothing differs."""
        return not self.differences

    @property
    def first(self) -> Difference | None:
        """The first difference."""
        return self.differences[0] if self.differences else None

    @property
    def worst(self) -> Difference | None:
        """The tensor with the largest distance in ulps, else in absolute value; else the first difference."""
        tensors = [item for item in self.differences if item.num_differing]
        return max(
            tensors, key=lambda item: (item.max_ulps or 0, item.max_absolute or 0.0), default=self.first
        )


def diff(left: TrainingRecord, right: TrainingRecord) -> RecordDiff:
    """Compare the state of two records bit by bit, each tensor in its own dtype, as a restore would see it.

    Environment, lineage and step counts are not state, nor is the precision in which it is stored.

    Raises:
        StoreError: If a loaded record's bytes do not match their checksums.
    """
    lefts, rights = in_own_dtypes(left).sections(), in_own_dtypes(right).sections()
    found = [item for name in STATE_SECTIONS for item in _section(name, lefts.get(name), rights.get(name))]
    return RecordDiff(tuple(found))


def _section(section: str, left: Any, right: Any) -> Iterator[Difference]:
    before, after = dict(leaves(left)), dict(leaves(right))
    for path in [*before, *(path for path in after if path not in before)]:
        if path not in before or path not in after:
            sides = (_shown(before.get(path, _MISSING)), _shown(after.get(path, _MISSING)))
            yield Difference(section, shown_path(path), *sides)
        elif not same(before[path], after[path]):
            yield _leaf(section, shown_path(path), before[path], after[path])


class _Missing:
    def __repr__(self) -> str:
        return "absent"


_MISSING = _Missing()


def _shown(leaf: Any) -> str:
    if isinstance(leaf, CapturedTensor):
        return f"{str(leaf.dtype).removeprefix('torch.')} {leaf.shape}"
    if isinstance(leaf, CapturedArray):
        return f"array {leaf.dtype} {leaf.shape}"
    try:
        return repr(leaf)
    except ValueError:  # CPython refuses to write out an integer of more than 4300 digits
        return shown(leaf)


def _leaf(section: str, path: str, left: Any, right: Any) -> Difference:
    tensors = isinstance(left, CapturedTensor) and isinstance(right, CapturedTensor)
    if tensors and (left.dtype, left.shape) == (right.dtype, right.shape):
        return _tensor(section, path, left, right)
    return Difference(section, path, _shown(left), _shown(right))


def _tensor(section: str, path: str, left: CapturedTensor, right: CapturedTensor) -> Difference:
    size = left.dtype.itemsize
    ours = np.frombuffer(read_bytes(left.source), dtype=np.uint8).reshape(-1, size)
    theirs = np.frombuffer(read_bytes(right.source), dtype=np.uint8).reshape(-1, size)
    differing = np.flatnonzero((ours != theirs).any(axis=1))
    if differing.size == 0:
        return Difference(
            section, path, f"strides {left.strides}", f"strides {right.strides}", left.num_elements, 0
        )
    first = int(differing[0])
    before, after = left.to_host().reshape(-1), right.to_host().reshape(-1)
    # By bytes: float4_e2m1fn_x2 can't be indexed (torch 2.13).
    changed = [torch.from_numpy(side[differing].reshape(-1)).view(left.dtype) for side in (ours, theirs)]
    absolute, ulps = _distance(*changed)
    return Difference(
        section, path, _element(before, first), _element(after, first), left.num_elements, int(differing.size),
        tuple(int(index) for index in np.unravel_index(first, left.shape)), absolute, ulps,
    )  # fmt: skip


def _element(flat: torch.Tensor, index: int) -> str:
    try:
        return repr(flat[index].item())
    except (RuntimeError, NotImplementedError):  # float4_e2m1fn_x2 has no scalar conversion in torch 2.13
        return "0x" + bytes(flat[index : index + 1].view(torch.uint8).tolist()).hex()


# Signed-magnitude floats of each size, as integers, put into one order by `_ordered`.
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _distance(before: torch.Tensor, after: torch.Tensor) -> tuple[float | None, int | None]:
    if before.is_complex():
        before, after = (torch.view_as_real(side.resolve_conj()).reshape(-1) for side in (before, after))
    if before.dtype in (torch.float8_e8m0fnu, torch.float4_e2m1fn_x2):
        return None, None
    wide = [side.to(torch.float64) for side in (before, after)]
    finite = (wide[0] - wide[1]).abs()
    absolute = float(finite.nan_to_num(nan=float("inf")).max()) if finite.numel() else 0.0
    if not before.dtype.is_floating_point:
        return absolute, None
    both = ~(wide[0].isnan() | wide[1].isnan())
    if not bool(both.any()):
        return absolute, None
    left, right = (_ordered(side[both]) for side in (before, after))
    return absolute, max(abs(a - b) for a, b in zip(left, right, strict=True))


def _ordered(flat: torch.Tensor) -> list[int]:
    """Map floats to integers so that neighbours differ by one; both zeros are 0."""
    bits = flat.contiguous().view(_INTEGERS[flat.element_size()]).to(torch.int64)
    width = 8 * flat.element_size()
    magnitude = bits & ((1 << (width - 1)) - 1)
    return torch.where(bits < 0, -magnitude, magnitude).tolist()
