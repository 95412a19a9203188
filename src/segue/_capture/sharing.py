"""Memory that a component shares with the model, or with another component: a loss that holds a layer's weight.

Within one module, sharing is part of its contract. Across modules it is kept beside the component's tensors: every
tensor would come back right without it, but in a program that no longer shares, one of the two would stand still.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from segue._capture.memory import byte_range, storage_of
from segue._capture.naming import NamedTensor, named_tensors
from segue._capture.staging import plain_parts

_Place = tuple[str, str, torch.Tensor]


def shared_between(modules: Mapping[str, nn.Module]) -> dict[str, dict[str, Any] | None]:
    """Tell what each module shares with those before it.

    Args:
        modules: By scope, such as `model` or `component.loss`; the earlier ones own what is shared.

    Returns:
        By scope, a tree: from the module's own name of a tensor to its owner's scope and name, the offset in bytes
        from the owner's, and whether they are one object; `None` where nothing is shared. Of a tensor subclass that
        is not one object, the parts are told, as `name.part`.
    """
    objects: dict[int, _Place] = {}
    storages: dict[tuple[str, int], _Place] = {}
    found: dict[str, dict[str, Any] | None] = {}
    for scope, module in modules.items():
        items = [item for item in named_tensors(module, scope).values() if item.tensor is not None]
        shares: dict[str, Any] = {}
        for item in items:
            shares.update(_shares_of(item, objects, storages))
        for item in items:
            assert item.tensor is not None
            objects.setdefault(id(item.tensor), (scope, item.name, item.tensor))
            for name, part in _memory_of(item):
                storages.setdefault(storage_of(part), (scope, name, part))
        found[scope] = {"shares": shares} if shares else None
    return found


def _shares_of(
    item: NamedTensor, objects: Mapping[int, _Place], storages: Mapping[tuple[str, int], _Place]
) -> Iterator[tuple[str, dict[str, Any]]]:
    owner = objects.get(id(item.tensor))
    if owner is not None:
        if any(_memory_of(item)):
            yield item.name, {"with": owner[:2], "offset": 0, "same": True}
        return
    for name, part in _memory_of(item):
        owner = storages.get(storage_of(part))
        if owner is not None:
            offset = byte_range(part)[0] - byte_range(owner[2])[0]
            yield name, {"with": owner[:2], "offset": offset, "same": False}


def _memory_of(item: NamedTensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield what has memory of a registered tensor: itself, or its parts as `name.part`."""
    assert item.tensor is not None
    for part, tensor in plain_parts(item.tensor):
        if (
            # Anything else is refused where it is captured.
            type(tensor) in (torch.Tensor, nn.Parameter)
            and tensor.layout is torch.strided
            and tensor.device.type != "meta"
            and tensor.numel() > 0
        ):
            yield f"{item.name}.{part}" if part else item.name, tensor
