"""The training of the demo, as a user would write it; how it is kept is the keeper's affair."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, SequentialLR

import segue
from segue.demo.adapters import adapted
from segue.demo.model import Decoder
from segue.demo.settings import RunSettings
from segue.demo.text import PADDING, Corpus

State = dict[str, int]


@dataclass(frozen=True)
class Parts:
    """The live objects of one process, bound together."""

    model: nn.Module
    optimizer: Optimizer
    scheduler: LRScheduler
    window: segue.WeightedAccumulator
    training: segue.Training


class Keeper(Protocol):
    """A way to keep a training over the death of its process."""

    def resume(self, default: State) -> State:
        """Bring the training to where it is to go on, and return the state there."""
        ...

    def at_boundary(self, state: State) -> None:
        """Be told that a microbatch is done; save now or not."""
        ...


class Observer(Protocol):
    """What watches the loop from outside."""

    def after_backward(self, microbatch: int, loss: float) -> None:
        """Be told the loss of a microbatch, counted from 1, before its gradients are summed."""
        ...

    def before_boundary(self, microbatch: int) -> None:
        """Be told that a microbatch is done, before it is saved."""
        ...


def build(run: RunSettings) -> Parts:
    """Seed everything and build the training from scratch, as each new process does."""
    random.seed(run.seed)
    np.random.seed(run.seed)
    torch.manual_seed(run.seed)
    model, model_state = _model(run)
    optimizer = AdamW(_groups(model), lr=4e-3, betas=(0.9, 0.95))
    scheduler = _warmup_then_cosine(optimizer, run.num_steps)
    window = segue.WeightedAccumulator(model, dtype=torch.float32, microbatches=run.window_microbatches)
    training = segue.Training(model, optimizer, scheduler, accumulator=window, model_state=model_state)
    return Parts(model, optimizer, scheduler, window, training)


def _model(run: RunSettings) -> tuple[nn.Module, segue.FullModel | segue.TrainableOnly]:
    """Return the model, and what of it a checkpoint is to hold."""
    model = Decoder(run.model)
    if run.adapter is None:
        return model, segue.FullModel()
    model = adapted(model, run.adapter)
    return model, segue.TrainableOnly(base=segue.base_identity(model))


def _groups(model: nn.Module) -> list[dict[str, object]]:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices = [parameter for parameter in parameters if parameter.dim() >= 2]
    vectors = [parameter for parameter in parameters if parameter.dim() < 2]
    groups = ((matrices, 0.1), (vectors, 0.0))
    return [{"params": params, "weight_decay": decay} for params, decay in groups if params]


def _warmup_then_cosine(optimizer: Optimizer, num_steps: int) -> LRScheduler:
    warmup = max(2, num_steps // 10)
    return SequentialLR(
        optimizer,
        [
            LinearLR(optimizer, start_factor=0.1, total_iters=warmup),
            CosineAnnealingLR(optimizer, T_max=num_steps - warmup),
        ],
        milestones=[warmup],
    )


def train(
    parts: Parts,
    run: RunSettings,
    corpus: Corpus,
    keeper: Keeper,
    observer: Observer,
    began: Callable[[State], None],
) -> State:
    """Train from where the keeper says to the end.

    Args:
        parts: From `build`.
        run: How long, and how the windows are.
        corpus: The data; the place in it is `state["microbatch"]`.
        keeper: Saves and resumes.
        observer: Watches.
        began: Called once with the state resumed from.

    Returns:
        The final state.
    """
    state = keeper.resume({"microbatch": 0, "step": 0})
    began(state)
    while state["microbatch"] < run.num_microbatches:
        batch = corpus.microbatch(state["microbatch"])
        logits = parts.model(batch.tokens)
        loss_sum = functional.cross_entropy(
            logits.flatten(0, 1), batch.targets.flatten(), ignore_index=PADDING, reduction="sum"
        )
        loss_sum.backward()  # type: ignore[no-untyped-call]
        observer.after_backward(state["microbatch"] + 1, loss_sum.item() / batch.num_tokens)
        parts.window.add_sum(weight=batch.num_tokens)
        if parts.window.is_full:
            _update(parts)
            state["step"] += 1
        state["microbatch"] += 1
        observer.before_boundary(state["microbatch"])
        keeper.at_boundary(state)
    return state


def _update(parts: Parts) -> None:
    parts.window.finish_mean()
    nn.utils.clip_grad_norm_(parts.model.parameters(), 1.0)
    parts.optimizer.step()
    parts.optimizer.zero_grad()
    parts.scheduler.step()
