"""Gradients that an update has used already and that still stand in `.grad`, as in loops that clear at their start.

They are state all the same: nobody but the loop knows that it will clear them before it adds. So they are stored; but
it can be told what they cost. A step hook looks at a few of them, and a capture looks whether those are still the
same tensors, at the same version: a backward that added to one has moved its counter (torch 2.13).
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.optim import Optimizer

_LOOKED_AT = 8


class ConsumedGradients:
    """Knows which gradients the last `step` of each optimizer has used.

    Args:
        optimizers: Those of torch, by name.
    """

    def __init__(self, optimizers: Mapping[str, Optimizer]) -> None:
        self._optimizers = dict(optimizers)
        self._used: weakref.WeakKeyDictionary[
            Optimizer, list[tuple[weakref.ref[torch.Tensor], weakref.ref[torch.Tensor], int]]
        ] = weakref.WeakKeyDictionary()
        # The hook outlives this object in the optimizer; it must not keep a whole training alive.
        this = weakref.ref(self)
        for optimizer in self._optimizers.values():
            handle = optimizer.register_step_post_hook(_hook(this))
            weakref.finalize(self, handle.remove).atexit = False

    def stepped(self, optimizer: Optimizer) -> None:
        """Remember a few of the gradients that were used just now."""
        self._used[optimizer] = [
            (weakref.ref(parameter), weakref.ref(gradient), gradient._version)
            for parameter, gradient in itertools.islice(_standing(optimizer), _LOOKED_AT)
            if not gradient.is_inference()
        ]

    def standing(self) -> dict[str, int]:
        """Return the bytes of used gradients that stand in `.grad`, by the name of their optimizer."""
        return {
            name: sum(_num_bytes(gradient) for _, gradient in _standing(optimizer))
            for name, optimizer in self._optimizers.items()
            if self._are_standing(optimizer)
        }

    def _are_standing(self, optimizer: Optimizer) -> bool:
        used = self._used.get(optimizer)
        return bool(used) and all(
            (parameter := of()) is not None
            and parameter.grad is not None
            and parameter.grad is gradient()
            and parameter.grad._version == version
            for of, gradient, version in used or ()
        )


def _standing(optimizer: Optimizer) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                yield parameter, parameter.grad


def _num_bytes(gradient: torch.Tensor) -> int:
    if gradient.layout is torch.strided:
        return gradient.numel() * gradient.element_size()
    if gradient.layout is torch.sparse_coo:
        return _num_bytes(gradient._indices()) + _num_bytes(gradient._values())
    return 0


def _hook(this: weakref.ref[ConsumedGradients]) -> Any:
    def remember(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if (
            torch.compiler.is_compiling()
        ):  # a compiled step runs its hooks too; weak references break its graph
            return
        consumed = this()
        if consumed is not None:
            consumed.stepped(optimizer)

    return remember
