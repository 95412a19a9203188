"""The arithmetic of a window, many tensors at a time: cast to the work dtype, times the weight, add.

Each of the three is rounded by itself, in this order, for each element; never fused (`alpha=`), so that the bits
don't depend on how tensors are batched, on the memory they are in, or on the kernel. Factors are tensors of the work
dtype: on accelerators a division by a Python number is a multiplication by its reciprocal (torch 2.13).

Casts and multiples go through a scratch that stays in the cache, block by block: a mixed addition would allocate a
cast copy of the whole gradient.
"""

from __future__ import annotations

import torch

from segue._window.scratch import Scratch, Tensors

Group = tuple[Scratch, Tensors, Tensors]
"""A scratch, and sums and gradients that go through it."""


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

    def grouped(self, totals: Tensors, gradients: Tensors) -> list[Group]:
        """Return sums and gradients by device, with the scratch of each."""
        groups = _by_device(totals, gradients)
        for device in groups.keys() - self._scratches.keys():
            self._scratches[device] = Scratch(self.dtype, device)
        return [(self._scratches[device], *group) for device, group in groups.items()]

    def add_terms(self, groups: list[Group], weight: float) -> None:
        """Add to each sum a gradient that is first cast, and multiplied by its weight."""
        for scratch, totals, gradients in groups:
            factor = self._factor(weight, scratch.device)
            for terms, some_totals, some_gradients in scratch.blocks(totals, gradients):
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
