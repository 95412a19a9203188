"""A small, nasty training: everything that a resume can forget, in a few milliseconds a microbatch.

Tied embedding and head, a channels-last convolution, BatchNorm in both modes, dropout, a frozen part, a parameter
that only some microbatches use, a non-persistent buffer, an average of the weights, microbatches of unequal size,
an order of the data with generators of its own, and draws from all streams. All three keep a Gaussian back: each
is asked for an odd number.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
import torch._dynamo  # the first optimizer of a process imports it, which takes longer than all else here
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import segue
from tests.exactness.modes import MODES, Mode
from tests.exactness.nets import VOCABULARY, Net
from tests.exactness.orders import Order

torch.set_num_threads(1)

WINDOW = 4
TOTAL = 3 * WINDOW + 2
# What the accumulator that runs the backward has: a scale that is no power of two, and microbatches without a token.
LOSS_SCALE = 3.0
EMPTY = (3, 4, 9)

__all__ = ["MODES", "TOTAL", "WINDOW", "Run", "seed"]


def seed(number: int) -> None:
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


class Run:
    """The live objects of one process, and the loop."""

    def __init__(self, mode: Mode) -> None:
        self.mode = mode
        self.net = Net().to(mode.dtype)
        self.order = Order(VOCABULARY)
        self.make_optimizers()
        self.ema = AveragedModel(self.net, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        self.scaler = torch.amp.GradScaler("cpu", init_scale=mode.scale, growth_interval=1)
        self.window = self.make_window()
        components: dict[str, Any] = {"ema": self.ema, "order": self.order}
        if mode.autocast is torch.float16:
            components["scaler"] = self.scaler
        self.training = segue.Training(
            self.net, self.optimizers, self.schedulers, accumulator=self.window, components=components
        )

    def make_optimizers(self) -> None:
        mode = self.mode
        trainable = [p for p in self.net.parameters() if p.requires_grad]
        matrices = [p for p in trainable if mode.matrices and p.dim() == 2]
        taken = {id(parameter) for parameter in matrices}
        decayed = [p for p in trainable if p.dim() > 1 and id(p) not in taken]
        others = [p for p in trainable if p.dim() <= 1]
        groups = [{"params": decayed}, {"params": others, "weight_decay": 0.0, "tag": "no decay"}]
        self.optimizer = mode.optimizer(groups, lr=0.01)
        self.optimizers = {"optimizer": self.optimizer}
        self.scheduler = None if mode.scheduler is None else mode.scheduler(driven(self.optimizer))
        self.schedulers = {} if self.scheduler is None else {"scheduler": self.scheduler}
        if mode.matrices:
            make, schedule = mode.matrices
            self.optimizers["matrices"] = make(matrices, lr=0.02)
            if schedule is not None:
                self.schedulers["matrices"] = schedule(self.optimizers["matrices"])

    def make_window(self) -> segue.GradientAccumulator | segue.WeightedAccumulator | None:
        if self.mode.pending == "weighted":
            return segue.WeightedAccumulator(self.net, microbatches=WINDOW)
        if self.mode.pending == "loss":
            return segue.WeightedAccumulator(self.net, microbatches=WINDOW, loss_scale=LOSS_SCALE)
        return (
            segue.GradientAccumulator(self.net, microbatches=WINDOW) if self.mode.pending == "plain" else None
        )

    def microbatch(self, number: int) -> float:
        """Do one microbatch, and the update at the end of a window; return the loss."""
        num_tokens = random.randint(2, 6)
        scale = 1 + 0.01 * (random.gauss(0, 1) + np.random.normal() + torch.randn(3).sum().item())
        shift = self.order.next()
        tokens, targets = (torch.randint(0, VOCABULARY, (2, num_tokens)) + shift) % VOCABULARY
        image = (torch.randn(num_tokens, 3, 5, 5) * scale).to(self.mode.dtype)
        image = image.to(memory_format=torch.channels_last)
        with torch.autocast(
            "cpu", self.mode.autocast or torch.bfloat16, enabled=self.mode.autocast is not None
        ):
            logits = self.net(tokens, image, use_occasional=number % 3 == 1)
        reduction = "sum" if self.mode.pending in ("weighted", "loss") else "mean"
        loss = nn.functional.cross_entropy(logits.float(), targets, reduction=reduction)
        if self.mode.pending == "loss":
            weight = 0 if number in EMPTY else num_tokens
            self.window.backward_sum(loss.reshape(1), torch.tensor([float(weight)]))
        else:
            scaled = self.scaler.scale(loss) if self.mode.autocast is torch.float16 else loss
            scaled.backward()
            self.gather(num_tokens)
        if (number + 1) % WINDOW == 0:
            self.update(loss.item())
        return loss.item()

    def gather(self, num_tokens: int) -> None:
        if isinstance(self.window, segue.WeightedAccumulator):
            self.window.add_sum(num_tokens)
        elif self.window is not None:
            self.window.add()

    def update(self, loss: float) -> None:
        if self.window is not None:
            self.window.finish_mean()
        scaled = self.mode.autocast is torch.float16
        for optimizer in self.optimizers.values():
            if scaled:
                self.scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        for optimizer in self.optimizers.values():
            if scaled:
                self.scaler.step(optimizer)
            else:
                optimizer.step()
            optimizer.zero_grad(set_to_none=not self.mode.zeroed)
        if scaled:
            self.scaler.update()
        for scheduler in self.schedulers.values():
            advance(scheduler, loss)
        self.ema.update_parameters(self.net)


def driven(optimizer: Any) -> torch.optim.Optimizer:
    """Return what a schedule drives: an optimizer of torch, or the one that an object holds."""
    return getattr(optimizer, "optimizer", optimizer)


def advance(scheduler: lr_scheduler.LRScheduler, loss: float) -> None:
    """Step a schedule, if it has not come to its end."""
    ends = getattr(scheduler, "total_steps", None)
    if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
        scheduler.step(loss)
    elif ends is None or scheduler.last_epoch < ends - 1:
        scheduler.step()
