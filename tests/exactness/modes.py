"""The ways to train: optimizers, schedules, dtypes, and where the gradients of an open window stand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.optim import SGD, Adam, AdamW, Muon, NAdam, Optimizer, RMSprop, lr_scheduler

from segue.optim import FP32Master
from tests.exactness.strangers import Lookahead, OwnMomentum

Schedule = Callable[[Optimizer], lr_scheduler.LRScheduler]


@dataclass(frozen=True)
class Mode:
    """One way to train."""

    optimizer: Callable[..., Any]
    """Makes an optimizer of torch, or an object like one."""
    scheduler: Schedule | None = None
    dtype: torch.dtype = torch.float32
    pending: str = "weighted"
    """Where gradients wait: in `.grad` ("grad"), or in an accumulator ("plain", "weighted", "loss"); with "loss" the
    accumulator runs the backward, under a loss scale, and some microbatches are empty."""
    autocast: torch.dtype | None = None
    scale: float = 2.0**10
    """What the gradient scaler of fp16 begins with."""
    zeroed: bool = False
    """Keep the gradients' memory between windows, as zeros."""
    matrices: tuple[Callable[..., Any], Schedule | None] | None = None
    """Another optimizer with a schedule of its own, for parameters of two dimensions."""
    background: bool = False


class Ramp:
    """A schedule with state of its own."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, epoch: int, slope: float = 0.1) -> float:
        self.calls += 1
        return min(1.0, slope * self.calls)


def amsgrad_with_a_tensor_rate(groups: list[dict[str, Any]], lr: float) -> Optimizer:
    # A tensor of its own for each optimizer: a schedule fills it in place.
    return Adam(groups, lr=torch.tensor(lr), amsgrad=True)


def one_cycle(optimizer: Optimizer) -> lr_scheduler.LRScheduler:
    return lr_scheduler.OneCycleLR(optimizer, max_lr=0.02, total_steps=8)


def warmup_then_cosine(optimizer: Optimizer) -> lr_scheduler.LRScheduler:
    parts = [
        lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2),
        lr_scheduler.CosineAnnealingLR(optimizer, 6),
    ]
    return lr_scheduler.SequentialLR(optimizer, parts, [2])


def ramps(optimizer: Optimizer) -> lr_scheduler.LRScheduler:
    return lr_scheduler.LambdaLR(optimizer, [Ramp(), partial(Ramp(), slope=0.2)])


def plateau(optimizer: Optimizer) -> lr_scheduler.LRScheduler:
    return lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5, cooldown=1)


MODES = {
    "adamw-foreach-fp32": Mode(partial(AdamW, foreach=True), one_cycle),
    "adamw-fused-fp32": Mode(partial(AdamW, fused=True), warmup_then_cosine),
    "adamw-loop-fp32": Mode(partial(AdamW, foreach=False), warmup_then_cosine, pending="grad"),
    "adamw-foreach-bf16": Mode(partial(AdamW, foreach=True), one_cycle, torch.bfloat16),
    "adamw-fused-bf16": Mode(partial(AdamW, fused=True), one_cycle, torch.bfloat16, pending="plain"),
    "adamw-loop-bf16": Mode(partial(AdamW, foreach=False), one_cycle, torch.bfloat16, pending="grad"),
    "bf16-token-windows": Mode(partial(AdamW, foreach=True), one_cycle, torch.bfloat16, pending="loss"),
    "adam-amsgrad-tensor-lr": Mode(
        amsgrad_with_a_tensor_rate,
        partial(lr_scheduler.StepLR, step_size=1, gamma=0.7),
    ),
    # Its state is fp32 beside bf16 moments, which `load_state_dict` would cast (torch 2.13).
    "nadam-foreach-bf16": Mode(partial(NAdam, foreach=True), one_cycle, torch.bfloat16),
    "sgd-nesterov": Mode(
        partial(SGD, momentum=0.9, nesterov=True),
        partial(lr_scheduler.CosineAnnealingLR, T_max=6),
        pending="plain",
    ),
    "sgd-one-cycle": Mode(partial(SGD, momentum=0.9), one_cycle, pending="grad"),
    "rmsprop-plateau-zeroed": Mode(partial(RMSprop, centered=True), plateau, pending="grad", zeroed=True),
    "muon-beside-adamw": Mode(AdamW, one_cycle, matrices=(Muon, warmup_then_cosine)),
    "masters-of-bf16-muon-beside-adamw": Mode(
        partial(FP32Master, inner=AdamW, max_norm=0.5),
        one_cycle,
        torch.bfloat16,
        matrices=(partial(FP32Master, inner=Muon), warmup_then_cosine),
    ),
    "lookahead-beside-own-momentum": Mode(Lookahead, one_cycle, matrices=(OwnMomentum, None)),
    # Gradients are fp32, so the scaler divides them in fp32; the scale overflows in every second update.
    "masters-of-fp16-scaler": Mode(
        partial(FP32Master, inner=AdamW, fused=True),
        warmup_then_cosine,
        torch.float16,
        autocast=torch.float16,
        pending="grad",
        scale=2.0**16,
    ),
    "adamw-stateful-lambda": Mode(AdamW, ramps),
    "adamw-function": Mode(AdamW, partial(lr_scheduler.LambdaLR, lr_lambda=lambda epoch: 1 / (1 + epoch))),
    "autocast-bf16": Mode(AdamW, warmup_then_cosine, autocast=torch.bfloat16, background=True),
    "autocast-fp16-scaler": Mode(AdamW, warmup_then_cosine, autocast=torch.float16, pending="grad"),
    # The scale overflows in every second update, which then changes nothing but the scale.
    "autocast-fp16-fused-skipping": Mode(
        partial(AdamW, fused=True), one_cycle, autocast=torch.float16, pending="grad", scale=2.0**16
    ),
}
