"""A shuffled order of the data, drawn from generators of its own: a component that checks before it restores."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch


class Order:
    """Yields every index once an epoch, in an order that two private generators decide."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.numpy = np.random.default_rng(random.getrandbits(64))
        self.torch = torch.Generator().manual_seed(random.getrandbits(63))
        self.rest: list[int] = []

    def next(self) -> int:
        if not self.rest:
            shift = int(self.numpy.integers(self.size))
            order = torch.randperm(self.size, generator=self.torch)
            self.rest = [(index + shift) % self.size for index in order.tolist()]
        return self.rest.pop()

    def capture(self) -> dict[str, Any]:
        return {
            "size": self.size,
            "numpy": self.numpy.bit_generator.state,
            "torch": self.torch.get_state(),
            "rest": self.rest,
        }

    def check(self, state: dict[str, Any]) -> Iterator[str]:
        if state["size"] != self.size:
            yield f"the data had {state['size']} elements and now has {self.size}"

    def restore(self, state: dict[str, Any]) -> None:
        self.numpy.bit_generator.state = state["numpy"]
        self.torch.set_state(state["torch"])
        self.rest = state["rest"]
