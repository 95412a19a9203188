"""A restore's second half as data: what will be written where, with all memory allocated already."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from segue._record.tensors import CapturedTensor, fill, needs_scratch


@dataclass(frozen=True)
class TensorWrite:
    """Bits into an existing tensor."""

    where: str
    target: torch.Tensor
    captured: CapturedTensor

    @property
    def scratch_bytes(self) -> int:
        return self.captured.num_bytes if needs_scratch(self.target) else 0

    def run(self, scratch: torch.Tensor) -> None:
        fill(self.target, self.captured, scratch)


@dataclass(frozen=True)
class ObjectWrite:
    """An assignment to live Python objects that has nothing left to refuse."""

    where: str
    assign: Callable[[], None]
    scratch_bytes: int = 0

    def run(self, scratch: torch.Tensor) -> None:
        self.assign()


Write = TensorWrite | ObjectWrite
