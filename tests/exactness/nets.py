"""A model with everything that a resume can forget in a model."""

from __future__ import annotations

import torch
from torch import nn

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
