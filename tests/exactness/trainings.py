"""A small, nasty training in many modes: everything that a resume can forget, in a few milliseconds a microbatch.

Tied embedding and head, a channels-last convolution, BatchNorm in both modes, dropout, a frozen part, a parameter
that only some microbatches use, a non-persistent buffer, an average of the weights, microbatches of unequal size,
and draws from all streams, Gaussians among them, of which Python and NumPy keep every second one back.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch._dynamo  # the first optimizer of a process imports it, which takes longer than all else here
from torch import nn
from torch.optim import SGD, Adam, AdamW, lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import segue
from segue._record.digest import digests

torch.set_num_threads(1)

WINDOW = 4
TOTAL = 3 * WINDOW + 2
VOCABULARY, WIDTH = 17, 12


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.convolution = nn.Conv2d(3, 4, 3, padding=1).to(memory_format=torch.channels_last)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.frozen = (
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)).requires_grad_(False).eval()
        )
        self.mix = nn.Linear(4, WIDTH)
        self.occasional = nn.Parameter(torch.full((WIDTH,), 0.1))
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("num_forwards", torch.zeros((), dtype=torch.int64), persistent=False)
        self.register_buffer("nothing", None)

    def forward(self, tokens: torch.Tensor, image: torch.Tensor, use_occasional: bool) -> torch.Tensor:
        self.num_forwards += 1
        pooled = self.convolution(image).mean(dim=(2, 3))
        hidden = self.norm(self.embedding(tokens)) + self.mix(pooled)
        hidden = hidden + 0.1 * self.frozen(hidden)
        if use_occasional:
            hidden = hidden * (1 + self.occasional)
        return self.head(self.dropout(torch.tanh(hidden)))


class Ramp:
    """A schedule with state of its own."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, epoch: int) -> float:
        self.calls += 1
        return min(1.0, 0.1 * self.calls)


def warmup_then_cosine(optimizer: torch.optim.Optimizer) -> lr_scheduler.LRScheduler:
    parts = [
        lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2),
        lr_scheduler.CosineAnnealingLR(optimizer, 6),
    ]
    return lr_scheduler.SequentialLR(optimizer, parts, [2])


@dataclass(frozen=True)
class Mode:
    """One way to train."""

    optimizer: Callable[..., torch.optim.Optimizer]
    scheduler: Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler] | None = None
    dtype: torch.dtype = torch.float32
    pending: str = "weighted"
    autocast: torch.dtype | None = None
    background: bool = False


def one_cycle(optimizer: torch.optim.Optimizer) -> lr_scheduler.LRScheduler:
    return lr_scheduler.OneCycleLR(optimizer, max_lr=0.02, total_steps=8)


MODES = {
    "adamw-foreach-fp32": Mode(partial(AdamW, foreach=True), one_cycle),
    "adamw-fused-fp32": Mode(partial(AdamW, fused=True), warmup_then_cosine),
    "adamw-loop-fp32": Mode(partial(AdamW, foreach=False), warmup_then_cosine, pending="grad"),
    "adamw-foreach-bf16": Mode(partial(AdamW, foreach=True), one_cycle, torch.bfloat16),
    "adamw-fused-bf16": Mode(partial(AdamW, fused=True), one_cycle, torch.bfloat16, pending="plain"),
    "adamw-loop-bf16": Mode(partial(AdamW, foreach=False), one_cycle, torch.bfloat16, pending="grad"),
    "adam-amsgrad-tensor-lr": Mode(
        partial(Adam, amsgrad=True, lr=torch.tensor(0.01)),
        partial(lr_scheduler.StepLR, step_size=1, gamma=0.7),
    ),
    "sgd-nesterov": Mode(
        partial(SGD, momentum=0.9, nesterov=True),
        partial(lr_scheduler.CosineAnnealingLR, T_max=6),
        pending="plain",
    ),
    "sgd-one-cycle": Mode(partial(SGD, momentum=0.9), one_cycle, pending="grad"),
    "adamw-stateful-lambda": Mode(
        AdamW, lambda optimizer: lr_scheduler.LambdaLR(optimizer, [Ramp(), Ramp()])
    ),
    "adamw-function": Mode(AdamW, partial(lr_scheduler.LambdaLR, lr_lambda=lambda epoch: 1 / (1 + epoch))),
    "autocast-bf16": Mode(AdamW, warmup_then_cosine, autocast=torch.bfloat16, background=True),
    "autocast-fp16-scaler": Mode(AdamW, warmup_then_cosine, autocast=torch.float16, pending="grad"),
}


def seed(number: int) -> None:
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


class Run:
    """The live objects of one process, and the loop."""

    def __init__(self, mode: Mode) -> None:
        self.mode = mode
        self.net = Net().to(mode.dtype)
        decayed = [p for p in self.net.parameters() if p.requires_grad and p.dim() > 1]
        others = [p for p in self.net.parameters() if p.requires_grad and p.dim() <= 1]
        groups = [{"params": decayed}, {"params": others, "weight_decay": 0.0, "tag": "no decay"}]
        options = {} if "lr" in getattr(mode.optimizer, "keywords", {}) else {"lr": 0.01}
        self.optimizer = mode.optimizer(groups, **options)
        self.scheduler = None if mode.scheduler is None else mode.scheduler(self.optimizer)
        self.ema = AveragedModel(self.net, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
        self.window = self.make_window()
        components: dict[str, Any] = {"ema": self.ema}
        if mode.autocast is torch.float16:
            components["scaler"] = self.scaler
        self.training = segue.Training(
            self.net, self.optimizer, self.scheduler, accumulator=self.window, components=components
        )

    def make_window(self) -> segue.GradientAccumulator | segue.WeightedAccumulator | None:
        if self.mode.pending == "weighted":
            return segue.WeightedAccumulator(self.net, microbatches=WINDOW)
        return (
            segue.GradientAccumulator(self.net, microbatches=WINDOW) if self.mode.pending == "plain" else None
        )

    def microbatch(self, number: int) -> float:
        """Do one microbatch, and the update at the end of a window; return the loss."""
        num_tokens = random.randint(2, 6)
        scale = 1 + 0.01 * random.gauss(0, 1) + 0.01 * np.random.normal()
        tokens, targets = torch.randint(0, VOCABULARY, (2, num_tokens))
        image = (torch.randn(num_tokens, 3, 5, 5) * scale).to(self.mode.dtype)
        image = image.to(memory_format=torch.channels_last)
        with torch.autocast(
            "cpu", self.mode.autocast or torch.bfloat16, enabled=self.mode.autocast is not None
        ):
            logits = self.net(tokens, image, use_occasional=number % 3 == 1)
        reduction = "sum" if self.mode.pending == "weighted" else "mean"
        loss = nn.functional.cross_entropy(logits.float(), targets, reduction=reduction)
        scaled = self.scaler.scale(loss) if self.mode.autocast is torch.float16 else loss
        scaled.backward()
        self.gather(num_tokens)
        if (number + 1) % WINDOW == 0:
            self.update()
        return loss.item()

    def gather(self, num_tokens: int) -> None:
        if isinstance(self.window, segue.WeightedAccumulator):
            self.window.add_sum(num_tokens)
        elif self.window is not None:
            self.window.add()

    def update(self) -> None:
        if self.window is not None:
            self.window.finish_mean()
        scaled = self.mode.autocast is torch.float16
        if scaled:
            self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        if scaled:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        self.optimizer.zero_grad()
        ends = getattr(self.scheduler, "total_steps", None)
        if self.scheduler is not None and (ends is None or self.scheduler.last_epoch < ends - 1):
            self.scheduler.step()
        self.ema.update_parameters(self.net)


@dataclass(frozen=True)
class Plan:
    """What one process does."""

    mode: str
    root: str
    seed: int
    stop_after: int | None = None
    """Kill this process at this boundary, after `save_if_due`."""
    save_every: int | None = 1
    """`None` never saves, and never captures before the end."""
    total: int = TOTAL


def carry_out(plan: Plan) -> None:
    """Train by a plan; write digests and losses of every boundary to `trace-<pid>.jsonl` in the run's folder."""
    seed(plan.seed)
    mode = MODES[plan.mode]
    run = Run(mode)
    root = Path(plan.root)
    root.mkdir(parents=True, exist_ok=True)
    trace = root / f"trace-{os.getpid()}.jsonl"
    state: dict[str, Any] = {"microbatch": 0, "losses": [], "epoch": (0, "train"), "ids": torch.arange(5)}
    if plan.save_every is None:
        for number in range(plan.total):
            state["losses"].append(run.microbatch(number))
            state["microbatch"] = number + 1
        note(trace, run, state)
        return
    checkpointer = segue.Checkpointer(
        run.training, root / "run", every_microbatches=plan.save_every, background=mode.background
    )
    with checkpointer:
        state = checkpointer.resume(default=state)
        for number in range(state["microbatch"], plan.total):
            state["losses"].append(run.microbatch(number))
            state["microbatch"] = number + 1
            checkpointer.save_if_due(state)
            note(trace, run, state)
            if state["microbatch"] == plan.stop_after:
                if mode.background:
                    checkpointer.close()  # or the last save may be lost, and which is left to chance
                os.kill(os.getpid(), signal.SIGKILL)


def note(trace: Path, run: Run, state: dict[str, Any]) -> None:
    entry = {
        "microbatch": state["microbatch"],
        "losses": [loss.hex() for loss in state["losses"]],
        **digests(run.training.capture(state)),
    }
    with trace.open("a") as file:
        file.write(json.dumps(entry) + "\n")


if __name__ == "__main__":
    carry_out(Plan(**json.loads(sys.argv[1])))
