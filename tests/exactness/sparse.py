"""A training with sparse gradients: two embeddings, one of them stepped by SparseAdam, windows of three microbatches."""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path

import torch
from torch import nn
from torch.optim import SGD, SparseAdam

import segue

WINDOW, TOTAL = 3, 12


class Tower(nn.Module):
    """Words that come again within a microbatch, so that gradients have duplicates, and one that never comes."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 4, sparse=True)
        self.places = nn.Embedding(5, 4, sparse=True)
        self.head = nn.Linear(4, 1)

    def forward(self, words: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.words(words) + self.places(places))
        return out


def build(
    kind: str,
) -> tuple[
    Tower, dict[str, torch.optim.Optimizer], segue.GradientAccumulator | segue.WeightedAccumulator | None
]:
    """Make the training of a kind: gradients wait in `.grad`, or in an accumulator."""
    torch.manual_seed(5)
    model = Tower()
    optimizers = {
        "sparse": SparseAdam(list(model.words.parameters()), lr=0.1),
        "plain": SGD([*model.places.parameters(), *model.head.parameters()], lr=0.1),
    }
    windows = {
        "grad": lambda: None,
        "plain": lambda: segue.GradientAccumulator(model, torch.float64, WINDOW),
        "weighted": lambda: segue.WeightedAccumulator(model, microbatches=WINDOW),
    }
    return model, optimizers, windows[kind]()


def microbatch(model: Tower, number: int) -> int:
    """Take one microbatch; return its number of tokens."""
    generator = torch.Generator().manual_seed(number)
    tokens = 2 + number % 4
    words = torch.randint(0, 8, (tokens,), generator=generator)
    places = torch.randint(0, 5, (tokens,), generator=generator)
    model(words, places).pow(2).sum().backward()
    return tokens


def train(kind: str, folder: str, out: str, stop_after: int | None = None, seed: int = 0) -> None:
    """Go on from what the folder holds, to the end or to a kill, and write down what came out."""
    random.seed(seed)
    model, optimizers, window = build(kind)
    training = segue.Training(model, optimizers, accumulator=window)
    with segue.Checkpointer(training, folder) as checkpointer:
        state = checkpointer.resume(default={"at": 0})
        while state["at"] < TOTAL:
            tokens = microbatch(model, state["at"])
            state["at"] += 1
            if isinstance(window, segue.WeightedAccumulator):
                window.add_sum(tokens)
            elif window is not None:
                window.add()
            if state["at"] % WINDOW == 0:
                if window is not None:
                    window.finish_mean()
                for optimizer in optimizers.values():
                    optimizer.step()
                    optimizer.zero_grad()
            checkpointer.save(state)
            if state["at"] == stop_after:
                os.kill(os.getpid(), signal.SIGKILL)
    Path(out).write_text(json.dumps(ending(model, optimizers)))


def ending(model: Tower, optimizers: dict[str, torch.optim.Optimizer]) -> list[str]:
    """Return every bit of parameters and optimizer state, as text."""
    tensors = list(model.parameters())
    for optimizer in optimizers.values():
        for slots in optimizer.state.values():
            tensors += [value for value in slots.values() if isinstance(value, torch.Tensor)]
    return [bytes(tensor.detach().reshape(-1).view(torch.uint8).tolist()).hex() for tensor in tensors]
