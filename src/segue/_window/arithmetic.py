"""The arithmetic of a window, many tensors at a time: cast to the work dtype, times the weight, add.

Each of the three is rounded by itself, in this order, for each element; never fused (`alpha=`), so that the bits
don't depend on how tensors are batched, on the memory they are in, or on the kernel. Factors are tensors of the work
dtype: on accelerators a division by a Python number is a multiplication by its reciprocal (torch 2.13).

Casts and multiples go through a scratch that stays in the cache, block by block: a mixed addition would allocate a
cast copy of the whole gradient.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

# Large enough that a block takes ten times as long as the calls for it, small enough to stay in the cache: half a
# megabyte took twice as long on a common server, 2 to 8 the same. An accelerator wants few and large kernels.
_HOST_BYTES = 1 << 21
_DEVICE_BYTES = 1 << 25

Tensors = list[torch.Tensor]


class Arithmetic:
    """Multi-tensor kernels in one work dtype, with the scratch they need; all tensors strided."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._scratches: dict[torch.device, Scratch] = {}

    def begin(self, totals: Tensors, gradients: Tensors, weight: float) -> None:
        """Set each sum to its first term. A sum may be the gradient itself."""
        copied = [place for place, total in enumerate(totals) if total is not gradients[place]]
        copy_each([totals[place] for place in copied], [gradients[place] for place in copied])
        if weight != 1.0:
            for device, (group, _) in _by_device(totals, totals).items():
                torch._foreach_mul_(group, self._factor(weight, device))

    def add(self, totals: Tensors, gradients: Tensors) -> None:
        """Add a gradient of the work dtype to each sum."""
        if totals:
            torch._foreach_add_(totals, gradients)

    def add_terms(self, totals: Tensors, gradients: Tensors, weight: float) -> None:
        """Add to each sum a gradient that is first cast, and multiplied by its weight."""
        for device, (group, of_gradients) in _by_device(totals, gradients).items():
            if device not in self._scratches:
                self._scratches[device] = Scratch(self.dtype, device)
            factor = self._factor(weight, device)
            for terms, some_totals, some_gradients in self._scratches[device].blocks(group, of_gradients):
                torch._foreach_copy_(terms, some_gradients)
                if weight != 1.0:
                    torch._foreach_mul_(terms, factor)
                torch._foreach_add_(some_totals, terms)

    def divide(self, totals: Tensors, divisor: float) -> None:
        """Divide each sum in place."""
        if divisor != 1.0:
            for device, (group, _) in _by_device(totals, totals).items():
                torch._foreach_div_(group, self._factor(divisor, device))

    def _factor(self, value: float, device: torch.device) -> torch.Tensor:
        return torch.tensor(value, dtype=self.dtype, device=device)


def copy_each(targets: Tensors, sources: Tensors) -> None:
    """Copy each tensor into its target, with one rounding where dtypes differ."""
    if targets:
        torch._foreach_copy_(targets, sources)


def _by_device(firsts: Tensors, seconds: Tensors) -> dict[torch.device, tuple[Tensors, Tensors]]:
    groups: dict[torch.device, tuple[Tensors, Tensors]] = {}
    for first, second in zip(firsts, seconds, strict=True):
        device = first.device
        if device not in groups:
            groups[device] = ([], [])
        group = groups[device]
        group[0].append(first)
        group[1].append(second)
    return groups


class Scratch:
    """A small memory for terms, seen as tensors of the shapes that are asked for, block by block."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        num_bytes = _HOST_BYTES if device.type == "cpu" else _DEVICE_BYTES
        self._memory = torch.empty(num_bytes // dtype.itemsize, dtype=dtype, device=device)
        self._shapes: list[torch.Size] = []
        self._batches: list[Tensors] = []

    def blocks(self, totals: Tensors, gradients: Tensors) -> Iterator[tuple[Tensors, Tensors, Tensors]]:
        """Yield views of the scratch with the parts of sums and gradients that are to go through them."""
        room = self._memory.numel()
        sizes = [total.numel() for total in totals]
        small = [place for place, size in enumerate(sizes) if size <= room]
        begin = 0
        for batch in self._views([totals[place].shape for place in small]):
            places = small[begin : begin + len(batch)]
            yield batch, [totals[place] for place in places], [gradients[place] for place in places]
            begin += len(batch)
        for total, gradient, size in zip(totals, gradients, sizes, strict=True):
            if size > room:
                for part, of_gradient in _parts(total, gradient, room):
                    yield [self._memory[: part.numel()].view(part.shape)], [part], [of_gradient]

    def _views(self, shapes: list[torch.Size]) -> list[Tensors]:
        # Making a view takes as long as adding a small tensor, and every microbatch asks for the same ones.
        if shapes != self._shapes:
            self._shapes, self._batches = shapes, list(self._make_views(shapes))
        return self._batches

    def _make_views(self, shapes: list[torch.Size]) -> Iterator[Tensors]:
        batch: Tensors = []
        begin = 0
        for shape in shapes:
            size = shape.numel()
            if begin + size > self._memory.numel():
                yield batch
                batch, begin = [], 0
            batch.append(self._memory[begin : begin + size].view(shape))
            begin += size
        if batch:
            yield batch


def _parts(
    total: torch.Tensor, gradient: torch.Tensor, room: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Cut a large sum and its gradient, alike, into parts of at most `room` elements."""
    rows = room
    if total.is_contiguous() and gradient.is_contiguous():
        total, gradient = total.view(-1), gradient.view(-1)
    else:
        rows = max(1, room * total.shape[0] // total.numel())
    for begin in range(0, total.shape[0], rows):
        part, of_gradient = total[begin : begin + rows], gradient[begin : begin + rows]
        if part.numel() <= room:
            yield part, of_gradient
        else:
            yield from _parts(part[0], of_gradient[0], room)
