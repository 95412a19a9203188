"""A fingerprint of everything live, taken without segue: bits, storages, versions, identities, flags, streams."""

from __future__ import annotations

import pickle  # of values that never leave this process: the point is to share no code with what is tested
import random
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.exactness.trainings import Run


def bits(tensor: torch.Tensor | None) -> Any:
    if tensor is None:
        return None
    flat = tensor.detach().contiguous().reshape(-1)
    raw = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    return raw, tensor.dtype, tensor.shape, tensor.stride(), tensor.requires_grad


def place(tensor: torch.Tensor | None) -> Any:
    return None if tensor is None else (id(tensor), tensor.data_ptr(), tensor._version)


def module(value: nn.Module) -> Any:
    tensors = [*value.named_parameters(), *value.named_buffers()]
    gradients = [(name, p.grad) for name, p in value.named_parameters()]
    return (
        [(name, bits(tensor), place(tensor)) for name, tensor in tensors],
        [(name, bits(gradient), place(gradient)) for name, gradient in gradients],
        [(name, child.training) for name, child in value.named_modules()],
    )


def plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return bits(value), place(value)
    if isinstance(value, dict):
        return [(repr(key), plain(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return type(value).__name__, [plain(item) for item in value]
    return repr(value)


def optimizer(value: torch.optim.Optimizer) -> Any:
    groups = [
        (
            id(group),
            [id(p) for p in group["params"]],
            plain({k: v for k, v in group.items() if k != "params"}),
        )
        for group in value.param_groups
    ]
    state = [(id(parameter), plain(slots)) for parameter, slots in value.state.items()]
    return id(value.param_groups), groups, id(value.state), state


def scheduler(value: Any) -> Any:
    if value is None:
        return None
    nested = [scheduler(child) for child in getattr(value, "_schedulers", ())]
    skipped = ("optimizer", "_schedulers")
    return plain({key: item for key, item in vars(value).items() if key not in skipped}), nested


def streams() -> Any:
    numpy_state = np.random.get_state()
    return random.getstate(), pickle.dumps(numpy_state), bits(torch.get_rng_state())[0]


def everything(run: Run) -> Any:
    window = None
    if run.window is not None:
        sums = [(id(parameter), bits(total), place(total)) for parameter, total in run.window.sums()]
        window = (run.window.window_state(), sums)
    return {
        "model": module(run.net),
        "ema": module(run.ema),
        "optimizer": optimizer(run.optimizer),
        "scheduler": scheduler(run.scheduler),
        "window": window,
        "scaler": plain(run.scaler.state_dict()),
        "streams": streams(),
    }
