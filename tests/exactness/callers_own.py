"""A run whose model and optimizers the caller captures: fp32 masters of bf16 layers beside SGD, in windows of four."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch
from torch import nn

import segue
from segue.optim import FP32Master

WINDOW = 4


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 8)).bfloat16()
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x.bfloat16()).float())


def optimizers_of(model: Net) -> dict[str, torch.optim.Optimizer]:
    return {
        "adamw": FP32Master(model.body.parameters(), torch.optim.AdamW, lr=0.01, max_norm=1.0),
        "sgd": torch.optim.SGD(model.head.parameters(), lr=0.05, momentum=0.9),
    }


def schedulers_of(optimizers: dict[str, torch.optim.Optimizer]) -> dict[str, object]:
    return {
        "adamw": torch.optim.lr_scheduler.OneCycleLR(optimizers["adamw"], max_lr=0.02, total_steps=50),
        "sgd": torch.optim.lr_scheduler.CosineAnnealingLR(optimizers["sgd"], T_max=10),
    }


def window_of(model: Net, kind: str) -> object:
    if kind == "weighted":
        return segue.WeightedAccumulator(model, dtype=torch.float32, microbatches=WINDOW, loss_scale=8.0)
    return segue.GradientAccumulator(model, microbatches=WINDOW) if kind == "plain" else None


def microbatch(model: Net, window: object, index: int) -> None:
    generator = torch.Generator().manual_seed(1000 + index)
    size = 2 + index % 3
    loss = model(torch.randn(size, 6, generator=generator)).pow(2).sum()
    if isinstance(window, segue.WeightedAccumulator):
        (loss * 8.0).backward()
        window.add_sum(weight=size)
        return
    loss.backward()
    if window is not None:
        window.add()


def go(model, optimizers, schedulers, window, begin: int, end: int) -> None:
    for index in range(begin, end):
        microbatch(model, window, index)
        if (index + 1) % WINDOW == 0:
            if window is not None:
                window.finish_mean()
            for optimizer in optimizers.values():
                optimizer.step()
                optimizer.zero_grad()
            for scheduler in schedulers.values():
                scheduler.step()


def digest(model, optimizers, schedulers) -> str:
    hasher = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        hasher.update(name.encode() + parameter.detach().reshape(-1).view(torch.uint8).numpy().tobytes())
    for name, optimizer in optimizers.items():
        record = segue.capture_optimizer(optimizer, model)
        for parameter, slots in sorted(record.state.items()):
            for slot, value in sorted(slots.items()):
                hasher.update(
                    f"{name} {parameter} {slot}".encode()
                    + value.to_host().reshape(-1).view(torch.uint8).numpy().tobytes()
                )
        hasher.update(
            repr([{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]).encode()
        )
        hasher.update(repr(schedulers[name].get_last_lr()).encode())
    hasher.update(torch.get_rng_state().numpy().tobytes())
    return hasher.hexdigest()


def begin(kind: str, cuts: list[int], end: int, folder: str) -> None:
    """Run from the beginning to the end, and store a record at each cut; write down the last digest."""
    model = Net()
    optimizers = optimizers_of(model)
    schedulers = schedulers_of(optimizers)
    window = window_of(model, kind)
    torch.manual_seed(5)
    at = 0
    for cut in [*cuts, end]:
        go(model, optimizers, schedulers, window, at, cut)
        at = cut
        if cut != end:
            record = segue.TrainingRecord.capture(
                model,
                model_state=segue.capture_module(model),
                groups={name: segue.capture_optimizer(item, model) for name, item in optimizers.items()},
                scheduler=schedulers,
                accumulator=window,
                state={"microbatch": cut, "rng": torch.get_rng_state()},
            )
            segue.save(record, Path(folder) / f"cut-{cut}")
    Path(folder, "whole.json").write_text(json.dumps(digest(model, optimizers, schedulers)))


def resume(kind: str, cut: int, end: int, folder: str) -> None:
    """Restore what was stored at a cut, go on to the end, and write down the digest."""
    torch.manual_seed(77 + cut)

    def restore_groups(model, groups):
        optimizers = optimizers_of(model)
        for name, optimizer in optimizers.items():
            segue.restore_optimizer(groups[name], optimizer, model)
        return model, optimizers

    record = segue.load(Path(folder) / f"cut-{cut}")
    restore = record.restore_weighted if kind == "weighted" else record.restore
    restored = restore(
        Net(),
        schedulers_of,
        restore_model=lambda state, model: segue.restore_module(state, model),
        restore_groups=restore_groups,
    )
    torch.set_rng_state(restored.state["rng"])
    at = restored.state["microbatch"]
    go(restored.model, restored.optimizer, restored.scheduler, restored.accumulator, at, end)
    found = digest(restored.model, restored.optimizer, restored.scheduler)
    Path(folder, f"resumed-{cut}.json").write_text(json.dumps(found))
