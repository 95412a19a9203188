"""State dicts of model, optimizer and scheduler by `torch.save`: what a competent user does today.

Written to a temporary name and renamed, so that a kill leaves the old file or the new one. What it leaves out is what
`state_dict` leaves out: random streams, gradients of an unfinished window, and the window's token count.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


def save_state_dicts(
    path: Path, model: nn.Module, optimizer: Optimizer, scheduler: LRScheduler, step: int
) -> None:
    """Replace the file at `path` by one that holds the training's state dicts and its step."""
    temporary = path.with_name(path.name + ".tmp")
    torch.save(
        {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "step": step,
        },
        temporary,
    )
    os.replace(temporary, path)


def load_state_dicts(path: Path, model: nn.Module, optimizer: Optimizer, scheduler: LRScheduler) -> int:
    """Load what `save_state_dicts` wrote and return its step; 0 where there is no file yet."""
    if not path.exists():
        return 0
    saved = torch.load(path, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    scheduler.load_state_dict(saved["scheduler"])
    return int(saved["step"])
