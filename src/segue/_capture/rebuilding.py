"""Schedulers that are made for optimizers which have been restored already.

Wish: a program makes optimizers, restores them, and makes its schedulers then, as it did at its beginning.

Every scheduler of torch takes a first step as it is made (torch 2.13): it takes the learning rate that it finds for
the initial one, and writes what its schedule begins with, momentum and betas too. On a restored optimizer it would
so begin from a decayed rate, and undo what was restored. So while schedulers are made, rates are the initial ones; and
afterwards every option is what it was.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from segue._capture.owners import inner_optimizers

Group = dict[str, Any]


def optimizers_in(live: object) -> list[Optimizer]:
    """Return the torch optimizers in what a caller calls its live optimizers: in containers, and inside other objects."""
    if isinstance(live, Optimizer):
        return [live]
    if isinstance(live, Mapping):
        return [found for value in live.values() for found in optimizers_in(value)]
    if isinstance(live, list | tuple):
        return [found for value in live for found in optimizers_in(value)]
    return list(inner_optimizers(live).values())


@contextlib.contextmanager
def as_they_began(optimizers: list[Optimizer]) -> Iterator[None]:
    """Set learning rates to the initial ones, for schedulers to be made; put every option back at the end."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    before = [_options(group) for group in groups]
    for group in groups:
        if "initial_lr" in group:
            _set(group, "lr", group["initial_lr"])
    try:
        yield
    finally:
        for group, options in zip(groups, before, strict=True):
            for key, (value, bits) in options.items():
                group[key] = value
                if bits is not None:
                    _set(group, key, bits)


def _options(group: Group) -> dict[str, tuple[Any, torch.Tensor | None]]:
    """Return the options, and of those that are tensors, which schedulers write in place, their values."""
    return {
        key: (value, value.detach().clone() if isinstance(value, torch.Tensor) else None)
        for key, value in group.items()
        if key != "params"
    }


def _set(group: Group, key: str, value: Any) -> None:
    if isinstance(group[key], torch.Tensor):
        with torch.no_grad():
            group[key].copy_(torch.as_tensor(value))
    else:
        group[key] = float(value) if isinstance(value, torch.Tensor) else value
