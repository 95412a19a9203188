"""Weights that are computed from others: by parametrizations, by hooks of older kinds, by masks.

Reading `layer.weight` of a spectral norm moves its vectors while it trains, so the loss reads weights too.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

import segue

WIDTH = 6
WINDOW = 2


class Symmetric(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.triu() + weight.triu(1).transpose(-1, -2)


class Scaled(nn.Module):
    """A parametrization with a parameter, a buffer that moves, and a parametrized layer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.rand(WIDTH))
        self.inner = parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.inner(weight) * self.gain


def of_weight(*modules: Callable[[], nn.Module]) -> Callable[[nn.Module], nn.Module]:
    def apply(layer: nn.Module) -> nn.Module:
        for module in modules:
            parametrize.register_parametrization(layer, "weight", module())
        return layer

    return apply


def hooked(name: str, **options: Any) -> Callable[[nn.Module], nn.Module]:
    def apply(layer: nn.Module) -> nn.Module:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of weight_norm, for the parametrization
            return getattr(nn.utils, name)(layer, **options)

    return apply


def fully_pruned(layer: nn.Module) -> nn.Module:
    prune.random_unstructured(layer, "weight", 0.3)
    prune.l1_unstructured(layer, "weight", 2)
    return prune.l1_unstructured(layer, "bias", 1)


CASES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "weight norm": parametrizations.weight_norm,
    "weight norm of the whole": lambda layer: parametrizations.weight_norm(layer, dim=None),
    "spectral norm": parametrizations.spectral_norm,
    "spectral norm, three iterations": lambda layer: parametrizations.spectral_norm(layer, n_power_iterations=3),
    "orthogonal": parametrizations.orthogonal,
    "orthogonal, cayley": lambda layer: parametrizations.orthogonal(layer, orthogonal_map="cayley"),
    "orthogonal, householder": lambda layer: parametrizations.orthogonal(
        layer, orthogonal_map="householder", use_trivialization=False
    ),
    "of one's own": of_weight(Symmetric),
    "with state of its own": of_weight(Scaled),
    "several of one weight": lambda layer: parametrizations.spectral_norm(of_weight(Symmetric, Scaled)(layer)),
    "weight norm by hooks": hooked("weight_norm"),
    "spectral norm by hooks": hooked("spectral_norm", n_power_iterations=2),
    "pruned": lambda layer: prune.random_unstructured(layer, "weight", 0.4),
    "pruned several times": fully_pruned,
    "pruned and normalised": lambda layer: parametrizations.weight_norm(prune.l1_unstructured(layer, "bias", 0.4)),
}  # fmt: skip


class Run:
    """The live objects of one process, and the loop."""

    def __init__(self, wrap: Callable[[nn.Module], nn.Module]) -> None:
        first, second = wrap(nn.Linear(WIDTH, WIDTH)), wrap(nn.Linear(WIDTH, WIDTH))
        self.layers = [first, second]
        self.model = nn.Sequential(first, nn.Tanh(), second, nn.Dropout(0.1), nn.Linear(WIDTH, 2))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        self.training = segue.Training(self.model, self.optimizer)

    def prepare(self, boundary: int) -> None:
        """Nothing is built otherwise as the run goes on."""

    def microbatch(self, number: int) -> float:
        x = torch.randn(4, WIDTH)
        if number % 3 == 1:  # weights are computed once, and used twice
            with parametrize.cached():
                loss = self.model(x).pow(2).mean() + self.model(x + 1).pow(2).mean()
                loss.backward()
        else:
            loss = self.model(x).pow(2).mean()
            if parametrize.is_parametrized(self.layers[0]):
                loss = loss + 0.1 * self.layers[0].weight.pow(2).sum()
            loss.backward()
        if number % 4 == 3:  # an evaluation, in which nothing moves
            self.model.eval()
            with torch.no_grad():
                self.model(x)
            self.model.train()
        if (number + 1) % WINDOW == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()
        return loss.item()


def seed(number: int) -> None:
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)
