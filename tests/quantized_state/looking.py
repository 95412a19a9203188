"""Everything live of a run with quantized state, looked at without segue: parts, their memory, versions, streams."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def everything(run: Any) -> Any:
    """Return all that a capture or a refused restore could change."""
    named = [*run.net.named_parameters(), *run.net.named_buffers()]
    optimizer = run.optimizer
    return (
        [(name, look(tensor)) for name, tensor in named],
        [(name, None if tensor.grad is None else look(tensor.grad)) for name, tensor in named],
        [(id(parameter), list(slots), look(dict(slots))) for parameter, slots in optimizer.state.items()],
        [look({key: value for key, value in group.items() if key != "params"}) for group in optimizer.param_groups],
        look({name: value for name, value in vars(optimizer).items() if isinstance(value, int | float | str | dict)}),
        random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist(),
    )  # fmt: skip


def look(value: Any) -> Any:
    """Return a value's bits, and which objects and memory it consists of."""
    if isinstance(value, torch.Tensor) and hasattr(value, "__tensor_flatten__"):
        names, context = value.__tensor_flatten__()
        flags = (id(value), value.requires_grad, value._version, value.dtype, tuple(value.shape))
        return flags, repr(context), [(name, look(getattr(value, name))) for name in names]
    if isinstance(value, torch.Tensor):
        raw = bytes(value.detach().contiguous().reshape(-1).view(torch.uint8).tolist())
        return id(value), value.data_ptr(), value._version, value.requires_grad, value.stride(), raw
    if isinstance(value, dict):
        return [(repr(key), look(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [look(item) for item in value]
    return repr(value)
