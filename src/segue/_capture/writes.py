"""A restore's second half as data: what will be written where, with all memory allocated already."""

from __future__ import annotations

from collections.abc import Callable, Iterable
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


def scratch_for(writes: Iterable[Write]) -> torch.Tensor:
    """Allocate the memory that the largest of these writes reads through."""
    needed = max((write.scratch_bytes for write in writes), default=0)
    return torch.empty(needed, dtype=torch.uint8, device="cpu")


def run_all(writes: list[Write]) -> None:
    """Run planned writes, over one scratch memory."""
    scratch = scratch_for(writes)
    for write in writes:
        write.run(scratch)
