"""Memory that a component shares with the model, or with another component: a loss that holds a layer's weight.

Within one module, sharing is part of its contract. Across modules it is kept beside the component's tensors: every
tensor would come back right without it, but in a program that no longer shares, one of the two would stand still.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from segue._capture.memory import byte_range, storage_of
from segue._capture.naming import NamedTensor, named_tensors

_Place = tuple[str, str, torch.Tensor]


def shared_between(modules: Mapping[str, nn.Module]) -> dict[str, dict[str, Any] | None]:
    """Tell what each module shares with those before it.

    Args:
        modules: By scope, such as `model` or `component.loss`; the earlier ones own what is shared.

    Returns:
        By scope, a tree: from the module's own name of a tensor to its owner's scope and name, the offset in bytes
        from the owner's, and whether they are one object; `None` where nothing is shared.
    """
    objects: dict[int, _Place] = {}
    storages: dict[tuple[str, int], _Place] = {}
    found: dict[str, dict[str, Any] | None] = {}
    for scope, module in modules.items():
        items = [item for item in named_tensors(module, scope).values() if _has_memory(item)]
        shares = {}
        for item in items:
            assert item.tensor is not None
            owner = objects.get(id(item.tensor)) or storages.get(storage_of(item.tensor))
            if owner is not None:
                shares[item.name] = {
                    "with": (owner[0], owner[1]),
                    "offset": byte_range(item.tensor)[0] - byte_range(owner[2])[0],
                    "same": item.tensor is owner[2],
                }
        for item in items:
            assert item.tensor is not None
            place = (scope, item.name, item.tensor)
            objects.setdefault(id(item.tensor), place)
            storages.setdefault(storage_of(item.tensor), place)
        found[scope] = {"shares": shares} if shares else None
    return found


def _has_memory(item: NamedTensor) -> bool:
    tensor = item.tensor
    return tensor is not None and (
        # Anything else is refused where it is captured.
        type(tensor) in (torch.Tensor, nn.Parameter)
        and tensor.layout is torch.strided
        and tensor.device.type != "meta"
        and tensor.numel() > 0
    )
