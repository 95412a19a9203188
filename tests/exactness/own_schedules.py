"""Schedules that people write themselves: functions, objects with state, and classes over other options than the rate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


def inverse(epoch: int, slope: float = 0.3) -> float:
    return 1 / (1 + slope * epoch)


def shrink(_epoch: int) -> float:
    return 0.9


def capped(cap: float, steps: tuple[int, ...]) -> Callable[[int], float]:
    """Return a function over closed-over plain values, and over a function that holds one."""
    base = {"slope": 0.2}

    def slope(epoch: int) -> float:
        return 1 / (1 + base["slope"] * epoch)

    return lambda epoch: min(cap, slope(epoch)) * 0.5 ** sum(epoch >= step for step in steps)


class Walk:
    """A factor that goes its own way: it depends on all calls before, not on the epoch."""

    def __init__(self, factor: float = 0.9) -> None:
        self.factor = factor
        self.value = torch.tensor(1.0, dtype=torch.float64)
        self.past: list[tuple[int, float]] = []
        self.notes = {"calls": 0, ("odd", 1): None}

    def __call__(self, epoch: int, lift: float = 0.0) -> float:
        self.notes["calls"] += 1
        self.value = self.value * self.factor if self.notes["calls"] % 3 else self.value * 1.3
        self.past.append((int(epoch), self.value.item()))
        return self.value.item() + lift


class ScaleWalk:
    """A scale function of CyclicLR with state of its own."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, _position: float) -> float:
        self.calls += 1
        return 0.95**self.calls


class WeightDecayRamp(LRScheduler):
    """Moves `weight_decay` from what it was to another value, and leaves the rate alone."""

    def __init__(self, optimizer: Optimizer, final: float, steps: int) -> None:
        self.final, self.steps = final, steps
        for group in optimizer.param_groups:
            group.setdefault("initial_weight_decay", group["weight_decay"])
        super().__init__(optimizer)

    def get_lr(self) -> list[Any]:
        share = min(1.0, self.last_epoch / self.steps)
        for group in self.optimizer.param_groups:
            first = group["initial_weight_decay"]
            group["weight_decay"] = first + (self.final - first) * share
        return [group["lr"] for group in self.optimizer.param_groups]


class OwnClock(LRScheduler):
    """Keeps its position in an attribute of its own, and nothing of torch's base class: weight decay and rate."""

    def __init__(self, optimizer: Optimizer, decays: tuple[float, ...]) -> None:
        self.optimizer = optimizer
        self.decays = decays
        self.moves = 0
        self.history: dict[int, float] = {}
        self._apply()

    def _apply(self) -> None:
        decay = self.decays[min(self.moves, len(self.decays) - 1)]
        self.history[self.moves] = decay
        for index, group in enumerate(self.optimizer.param_groups):
            group["weight_decay"] = decay * (1 + index)

    def step(self, _epoch: int | None = None) -> None:
        self.moves += 1
        self._apply()
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].mul_(0.9)
            else:
                group["lr"] *= 0.9
