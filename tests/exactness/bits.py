"""Every bit of an optimizer and what it trains, without segue: a digest of each slot, option and tensor, by name."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.exactness.live import Look


class Values(Look):
    """Values alone, also of what isn't one dense tensor: sparse gradients, quantized state."""

    def __init__(self) -> None:
        super().__init__(placed=False)

    def tensor(self, tensor: torch.Tensor | None) -> Any:
        if tensor is not None and hasattr(tensor, "__tensor_flatten__"):
            names, context = tensor.__tensor_flatten__()
            whole = (type(tensor).__qualname__, tensor.dtype, tuple(tensor.shape), repr(context))
            return whole, [(name, self.tensor(getattr(tensor, name))) for name in names]
        if tensor is not None and tensor.is_sparse:
            parts = (tensor._indices(), tensor._values())
            return "sparse", tuple(tensor.shape), tensor.is_coalesced(), [self.tensor(part) for part in parts]
        return super().tensor(tensor)


VALUES = Values()
# How many numbers LBFGS steps, once it has counted; whether fused optimizers still look at devices; whether
# bitsandbytes has looked for what was asked for single parameters.
_OF_A_PROCESS = frozenset({"_numel_cache", "_need_device_dtype_check_for_fused", "initialized"})


def digests(net: nn.Module, optimizer: Any, losses: list[float]) -> dict[str, str]:
    """Digest everything, for another process to compare."""
    return {
        name: hashlib.sha256(repr(value).encode()).hexdigest()[:16]
        for name, value in everything(net, optimizer, losses)
    }


def everything(net: nn.Module, optimizer: Any, losses: list[float]) -> Iterator[tuple[str, Any]]:
    """Yield everything, by name; what first differs in a run that diverges tells most, so state comes first."""
    names = {id(parameter): name for name, parameter in net.named_parameters()}
    for parameter, slots in optimizer.state.items():
        for slot, value in slots.items():
            yield f"state {names[id(parameter)]} {slot}", VALUES.plain(value)
    # Also what has no slots yet, and the order in which state came to be: an optimizer may add up over it.
    yield "state", [(names[id(parameter)], list(slots)) for parameter, slots in optimizer.state.items()]
    for index, group in enumerate(optimizer.param_groups):
        for key, value in group.items():
            members = [names[id(parameter)] for parameter in value] if key == "params" else None
            yield f"group {index} {key}", VALUES.plain(value) if members is None else members
    yield "groups", [sorted(group) for group in optimizer.param_groups]
    yield "defaults", VALUES.plain(getattr(optimizer, "defaults", None))
    yield "shared options", _shared(optimizer)
    yield "attributes", VALUES.plain(_plain_attributes(optimizer))
    for name, tensor in (*net.named_parameters(), *net.named_buffers()):
        yield name, VALUES.tensor(tensor)
        yield f"gradient of {name}", VALUES.tensor(tensor.grad)
    yield "losses", [loss.hex() for loss in losses]
    yield "streams", (repr(random.getstate()), VALUES.plain([np.random.get_state(), torch.get_rng_state()]))


def _plain_attributes(optimizer: Any) -> dict[str, Any]:
    """Return what an optimizer keeps in attributes of its own, where that is a plain value or a tensor."""
    kinds = (bool, int, float, str, type(None), torch.Tensor)
    own = ((name, value) for name, value in vars(optimizer).items() if name not in _OF_A_PROCESS)
    return {name: value for name, value in own if isinstance(value, kinds)}


def _shared(optimizer: Any) -> list[list[str]]:
    """Name the options that are one tensor, two or more each."""
    places: dict[int, list[str]] = {}
    groups = [(f"group {index}", group) for index, group in enumerate(optimizer.param_groups)]
    for place, options in (*groups, ("defaults", getattr(optimizer, "defaults", {}))):
        for key, value in options.items():
            if key != "params":
                for index, item in enumerate(value if isinstance(value, tuple) else (value,)):
                    if isinstance(item, torch.Tensor):
                        places.setdefault(id(item), []).append(f"{place} {key} {index}")
    return [found for found in places.values() if len(found) > 1]
