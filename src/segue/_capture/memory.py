"""Which tensors lie over each other: what shares memory when it is captured would come back apart."""

from __future__ import annotations

import bisect

import torch

from segue._capture.staging import is_plain, plain_parts


class Memory:
    """Remembers the byte ranges of tensors by what they are called."""

    def __init__(self) -> None:
        self._spans: dict[tuple[str, int], list[tuple[int, int, str]]] = {}

    def claim(self, tensor: torch.Tensor, where: str) -> str | None:
        """Add a tensor; return what was there first if it overlaps it, else `None`.

        Ranges are compared, not elements: interleaved views count as overlapping.
        """
        if is_plain(tensor):  # nearly all are
            return self._claim(tensor, where)
        found = [self._claim(part, where) for _, part in plain_parts(tensor)]
        return next((other for other in found if other is not None), None)

    def _claim(self, tensor: torch.Tensor, where: str) -> str | None:
        if tensor.layout is not torch.strided or tensor.numel() == 0 or tensor.device.type == "meta":
            return None
        start, end = byte_range(tensor)
        spans = self._spans.setdefault(storage_of(tensor), [])
        position = bisect.bisect(spans, (start, end, ""))
        # Sorted and disjoint, so only the neighbours can overlap.
        for other_start, other_end, other in spans[max(position - 1, 0) : position + 1]:
            if start < other_end and other_start < end:
                return other
        spans.insert(position, (start, end, where))
        return None


def storage_of(tensor: torch.Tensor) -> tuple[str, int]:
    """Return what is equal for tensors that lie in one storage."""
    return str(tensor.device), tensor.untyped_storage().data_ptr()


def byte_range(tensor: torch.Tensor) -> tuple[int, int]:
    """Return where a non-empty strided tensor begins and ends in its storage, in bytes."""
    item, first = tensor.element_size(), int(tensor.storage_offset())
    if tensor.is_contiguous():
        return first * item, (first + tensor.numel()) * item
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return first * item, (first + int(last) + 1) * item
