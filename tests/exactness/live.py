"""Everything live, looked at without segue: bits and layouts, and also storages, versions and identities."""

from __future__ import annotations

import hashlib
import random
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.exactness.trainings import Run


def everything(run: Run) -> dict[str, Any]:
    """Return all that capture or a refused restore could change: values, objects and memory."""
    return Look(placed=True).sections(run)


def digests(run: Run) -> dict[str, str]:
    """Digest the values alone, by section: the same in any process."""
    sections = VALUES.sections(run)
    return {
        f"live {name}": hashlib.sha256(repr(value).encode()).hexdigest() for name, value in sections.items()
    }


class Look:
    """One way to look at live objects.

    Args:
        placed: Whether to see objects' identities, tensors' memory and their version counters too.
    """

    def __init__(self, *, placed: bool) -> None:
        self.placed = placed

    def sections(self, run: Run) -> dict[str, Any]:
        return {
            "model": self.module(run.net),
            "ema": self.module(run.ema),
            "optimizers": {name: self.optimizer(value) for name, value in run.optimizers.items()},
            "schedulers": {name: self.scheduler(value) for name, value in run.schedulers.items()},
            "window": self.window(run.window, run.net),
            # Copies, which are other objects each time.
            "scaler": VALUES.plain(run.scaler.state_dict()),
            "order": VALUES.plain(run.order.capture()),
            "streams": VALUES.plain([random.getstate(), np.random.get_state(), torch.get_rng_state()]),
        }

    def identity(self, value: object) -> int | None:
        return id(value) if self.placed else None

    def tensor(self, tensor: torch.Tensor | None) -> Any:
        if tensor is None:
            return None
        flat = tensor.detach().contiguous().reshape(-1)
        raw = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
        value = (raw, tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.requires_grad)
        return (value, id(tensor), tensor.data_ptr(), tensor._version) if self.placed else value

    def module(self, module: nn.Module) -> Any:
        tensors = [*module.named_parameters(), *module.named_buffers()]
        gradients = [(name, parameter.grad) for name, parameter in module.named_parameters()]
        return (
            [(name, self.tensor(tensor)) for name, tensor in tensors],
            [(name, self.tensor(gradient)) for name, gradient in gradients],
            [(name, child.training, self.identity(child)) for name, child in module.named_modules()],
            [(name, list(child._buffers)) for name, child in module.named_modules()],
        )

    def optimizer(self, optimizer: torch.optim.Optimizer) -> Any:
        groups = [
            (
                self.identity(group),
                [self.identity(parameter) for parameter in group["params"]],
                self.entries(group, "params"),
            )
            for group in optimizer.param_groups
        ]
        state = [
            (self.identity(parameter), self.plain(slots)) for parameter, slots in optimizer.state.items()
        ]
        objects = (
            optimizer.param_groups,
            optimizer.state,
            optimizer.defaults,
            optimizer.__dict__.get("step"),
        )
        return groups, state, self.plain(optimizer.defaults), [self.identity(value) for value in objects]

    def scheduler(self, scheduler: Any) -> Any:
        nested = [self.scheduler(child) for child in getattr(scheduler, "_schedulers", ())]
        return self.entries(vars(scheduler), "optimizer", "_schedulers"), nested

    def window(self, window: Any, net: nn.Module) -> Any:
        if window is None:
            return None
        names = {id(parameter): name for name, parameter in net.named_parameters()}
        sums = [(names[id(parameter)], self.tensor(total)) for parameter, total in window.sums()]
        return window.window_state(), sums, [names[id(parameter)] for parameter in window.handed_out()]

    def entries(self, mapping: dict[Any, Any], *skipped: str) -> Any:
        return [(repr(key), self.plain(item)) for key, item in mapping.items() if key not in skipped]

    def plain(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if isinstance(value, np.ndarray):
            return value.tobytes(), value.dtype.str, value.shape
        if isinstance(value, dict):
            return self.entries(value), self.identity(value)
        if isinstance(value, list | tuple):
            return type(value).__name__, [self.plain(item) for item in value]
        if hasattr(value, "func"):
            return "partial", self.plain(value.func), self.plain(value.args), self.plain(value.keywords)
        if callable(value):
            return getattr(value, "__qualname__", type(value).__qualname__), self.plain(vars(value))
        return repr(value)


VALUES = Look(placed=False)
