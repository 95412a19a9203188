"""Pending gradients as a value: by parameter name, sorted, in their own dtype and layout, owned by the record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from segue._record.composite import Composite
from segue._record.tensors import CapturedTensor


@dataclass(frozen=True)
class GradientsRecord:
    """Gradients by canonical parameter name.

    A name that is missing had no gradient; that is neither a zero nor `None` in a table. The dtype may differ from
    the parameter's: fp32 sums for bf16 parameters keep their precision.
    """

    tensors: Mapping[str, CapturedTensor | Composite]
    """Sorted by name."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tensors", dict(sorted(self.tensors.items())))
