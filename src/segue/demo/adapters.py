"""Low-rank adapters of the demo's own, as one writes them without a library: the base is frozen, they alone are trained."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from segue.demo.base import read_base
from segue.demo.model import Attention, Decoder
from segue.demo.settings import AdapterSettings


class LowRank(nn.Module):
    """Compute `base(x) + scale * up(down(dropout(x)))`; at first the same as the base, since `up` is zero."""

    def __init__(self, base: nn.Linear, settings: AdapterSettings) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, settings.rank, bias=False)
        self.up = nn.Linear(settings.rank, base.out_features, bias=False)
        self.dropout = nn.Dropout(settings.dropout)
        self.scale = settings.scale
        nn.init.zeros_(self.up.weight)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the base's output plus the adapter's share."""
        added: torch.Tensor = self.base(hidden) + self.scale * self.up(self.down(self.dropout(hidden)))
        return added


def adapted(model: Decoder, settings: AdapterSettings) -> Decoder:
    """Give a model the values of the base, freeze it, and put an adapter on each projection of its attention."""
    read_base(model, Path(settings.base))
    model.requires_grad_(False)
    for attention in [module for module in model.modules() if isinstance(module, Attention)]:
        for name in ("project_in", "project_out"):
            setattr(attention, name, LowRank(getattr(attention, name), settings))
    return model
