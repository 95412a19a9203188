"""What a test sees of a training, without segue: every bit, type and order of it by section, and what shares memory."""

from __future__ import annotations

import hashlib
import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from tests.exactness.live import Look


class _Values(Look):
    """Values alone: what is equal in two processes."""

    def __init__(self) -> None:
        super().__init__(placed=False)

    def tensor(self, tensor: torch.Tensor | None) -> Any:
        if tensor is not None and tensor.is_sparse:
            parts = (tensor._indices(), tensor._values())
            return "sparse", tuple(tensor.shape), tensor.is_coalesced(), [self.tensor(part) for part in parts]
        return super().tensor(tensor)

    def plain(self, value: Any) -> Any:
        if isinstance(value, types.BuiltinFunctionType):
            return "builtin", value.__module__, value.__qualname__
        if type(value).__module__.startswith(("tests.", "transformers.")) and not callable(value):
            return type(value).__qualname__, self.plain(vars(value))
        return (
            (type(value).__name__, super().plain(value)) if isinstance(value, dict) else super().plain(value)
        )


_VALUES = _Values()


def sections(
    model: nn.Module,
    optimizers: Mapping[str, Optimizer],
    schedulers: Mapping[str, Any],
    more: Any = None,
) -> dict[str, Any]:
    """Return everything by section, as values that compare by `==`."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    tensors = [*model.named_parameters(), *model.named_buffers()]
    found: dict[str, Any] = {
        "model": [(name, _VALUES.tensor(tensor)) for name, tensor in tensors],
        "gradients": [(name, _VALUES.tensor(item.grad)) for name, item in model.named_parameters()],
        "shared": _shared(optimizers, schedulers, names),
        "more": _VALUES.plain(more),
    }
    for name, optimizer in optimizers.items():
        found[f"state of {name}"] = [
            (names[id(parameter)], _VALUES.plain(dict(slots))) for parameter, slots in optimizer.state.items()
        ]
        found[f"options of {name}"] = (
            [
                ([names[id(member)] for member in group["params"]], _VALUES.entries(group, "params"))
                for group in optimizer.param_groups
            ],
            _VALUES.plain(optimizer.defaults),
        )
    for name, scheduler in schedulers.items():
        found[f"scheduler {name}"] = _VALUES.scheduler(scheduler)
    return found


def digests(found: Mapping[str, Any]) -> dict[str, str]:
    """Digest each section, for another process to compare."""
    return {name: hashlib.sha256(repr(value).encode()).hexdigest() for name, value in found.items()}


def _shared(
    optimizers: Mapping[str, Optimizer], schedulers: Mapping[str, Any], names: Mapping[int, str]
) -> list[list[str]]:
    """Name the places whose tensors lie in one memory, two or more each."""
    places: dict[int, list[str]] = {}
    for place, tensor in _held(optimizers, schedulers, names):
        places.setdefault(tensor.untyped_storage().data_ptr(), []).append(place)
    return sorted(sorted(found) for found in places.values() if len(found) > 1)


def _held(
    optimizers: Mapping[str, Optimizer], schedulers: Mapping[str, Any], names: Mapping[int, str]
) -> Iterator[tuple[str, torch.Tensor]]:
    for name, optimizer in optimizers.items():
        for index, group in enumerate(optimizer.param_groups):
            options = {key: value for key, value in group.items() if key != "params"}
            yield from _tensors(options, f"{name} group {index}")
        yield from _tensors(optimizer.defaults, f"{name} defaults")
        for parameter, slots in optimizer.state.items():
            yield f"{name} {names[id(parameter)]}", parameter
            yield from _tensors(dict(slots), f"{name} state {names[id(parameter)]}")
    for name, scheduler in schedulers.items():
        yield from _of_scheduler(scheduler, name)


def _of_scheduler(scheduler: Any, place: str) -> Iterator[tuple[str, torch.Tensor]]:
    # A SequentialLR has the list of last rates of its child. Nobody writes into it: each move makes another.
    skipped = ("optimizer", "_schedulers", "_last_lr")
    attributes = {key: value for key, value in vars(scheduler).items() if key not in skipped}
    yield from _tensors(attributes, place)
    for index, child in enumerate(getattr(scheduler, "_schedulers", ())):
        yield from _of_scheduler(child, f"{place}.{index}")


def _tensors(value: Any, place: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield place, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _tensors(item, f"{place} {key}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _tensors(item, f"{place}[{index}]")
