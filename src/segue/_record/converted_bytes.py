"""Bytes of a tensor that is stored in another dtype than its own, converted while they are read.

So whoever reads tensors need not know of precision settings: live memory is filled through the same code.

Always from one contiguous memory to another, on the host. Other layouts, and devices, take other paths through torch;
numbers come out the same on all of them, but the bits of a NaN do not (torch 2.13).
"""

from __future__ import annotations

import torch

from segue._record.tensors import CapturedTensor, bit_view, host_bytes

_BLOCK = 1 << 15
"""Elements that are tried at once. What that needs stays in the processor's cache, and torch 2.13 takes one thread for so
few: waiting for others at the end of each operation takes ten times as long on a busy machine."""


class Workspace:
    """Host memory that stored bytes are read through, those of one tensor after another.

    It grows as tensors are announced, before the first is read: a restore that has begun to write needs no more.
    """

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8, device="cpu")

    def reserve(self, num_bytes: int) -> None:
        """Make room for a tensor of this size."""
        if num_bytes > self._memory.numel():
            self._memory = torch.empty(num_bytes, dtype=torch.uint8, device="cpu")

    def read(self, captured: CapturedTensor) -> torch.Tensor:
        """Return the elements of an announced tensor, row-major and flat, until the next call.

        Raises:
            StoreError: If stored bytes are not right.
        """
        raw = self._memory[: captured.num_bytes]
        captured.source.read_into(raw.numpy().data)
        return raw.view(captured.dtype)


class ConvertedBytes:
    """A byte source that reads stored elements and converts them."""

    def __init__(self, stored: CapturedTensor, dtype: torch.dtype, workspace: Workspace) -> None:
        workspace.reserve(stored.num_bytes)
        self._stored = stored
        self._dtype = dtype
        self._workspace = workspace

    @property
    def num_bytes(self) -> int:
        return self._stored.num_elements * self._dtype.itemsize

    def read_into(self, target: memoryview) -> None:
        if self._stored.num_elements:  # `frombuffer` refuses an empty buffer (torch 2.13)
            torch.frombuffer(target, dtype=self._dtype).copy_(self._workspace.read(self._stored))

    def verify(self) -> None:
        self._stored.source.verify()


def row_major(captured: CapturedTensor) -> torch.Tensor:
    """Read the elements of a tensor into new host memory, flat."""
    flat = torch.empty(captured.num_elements, dtype=captured.dtype, device="cpu")
    if flat.numel():
        captured.source.read_into(host_bytes(flat).numpy().data)
    return flat


def convert(value: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, bool]:
    """Return the elements of a flat host tensor in another dtype, and whether they would have their bits again."""
    result = torch.empty(value.numel(), dtype=dtype, device="cpu")
    exact = True
    for part, target in zip(torch.split(value, _BLOCK), torch.split(result, _BLOCK), strict=True):
        target.copy_(part)
        exact = exact and _comes_back(target, part)
    return result, exact


def survives(value: torch.Tensor, dtype: torch.dtype) -> bool:
    """Tell whether the elements of a flat host tensor have their bits again after a time in another dtype."""
    return all(_comes_back(part.to(dtype), part) for part in torch.split(value, _BLOCK))


def _comes_back(converted: torch.Tensor, own: torch.Tensor) -> bool:
    """Tell whether converted elements give the bits of their own again.

    No NaN does: what a conversion makes of its bits depends on the CPU, on the number of threads and on its place in
    the tensor (torch 2.13), and may be another in the process that reads it.
    """
    if own.dtype.is_floating_point and bool(own.isnan().any()):
        return False
    return torch.equal(bit_view(converted.to(own.dtype)), bit_view(own))
