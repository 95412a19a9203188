"""A small memory for terms on their way into sums, so that casts and multiples stay in the cache."""

from __future__ import annotations

from collections.abc import Iterator

import torch

# Large enough that a block takes ten times as long as the calls for it, small enough to stay in the cache: half a
# megabyte took twice as long on a common server, 2 to 8 the same. An accelerator wants few and large kernels.
_HOST_BYTES = 1 << 21
_DEVICE_BYTES = 1 << 25

Tensors = list[torch.Tensor]


class Scratch:
    """A small memory for terms, seen as tensors of the shapes that are asked for, block by block."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.device = device
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
