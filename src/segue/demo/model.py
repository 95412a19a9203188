"""The model of the demo: a small decoder-only transformer over bytes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

VOCABULARY = 256


@dataclass(frozen=True)
class ModelSize:
    """What decides how long a microbatch takes."""

    width: int = 96
    num_layers: int = 2
    num_heads: int = 4
    context: int = 64
    dropout: float = 0.1


class Decoder(nn.Module):
    """Predict the next byte. The output projection is the embedding itself, so two names share one parameter."""

    def __init__(self, size: ModelSize) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, size.width)
        self.positions = nn.Parameter(torch.randn(size.context, size.width) * 0.02)
        self.dropout = nn.Dropout(size.dropout)
        self.blocks = nn.ModuleList(_Block(size) for _ in range(size.num_layers))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, VOCABULARY, bias=False)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits.

        Args:
            tokens: int64 of shape (batch, length), length at most the context.

        Returns:
            float32 of shape (batch, length, 256).
        """
        hidden = self.dropout(self.embedding(tokens) + self.positions[: tokens.shape[1]])
        for block in self.blocks:
            hidden = block(hidden)
        logits: torch.Tensor = self.head(self.norm(hidden))
        return logits


class _Block(nn.Module):
    def __init__(self, size: ModelSize) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(size.width)
        self.attention = Attention(size)
        self.mlp_norm = nn.LayerNorm(size.width)
        self.mlp = nn.Sequential(
            nn.Linear(size.width, 4 * size.width),
            nn.GELU(),
            nn.Linear(4 * size.width, size.width),
            nn.Dropout(size.dropout),
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = hidden + self.attention(self.attention_norm(hidden))
        mixed: torch.Tensor = hidden + self.mlp(self.mlp_norm(hidden))
        return mixed


class Attention(nn.Module):
    """Causal self-attention; its two projections are what an adapter is put on."""

    def __init__(self, size: ModelSize) -> None:
        super().__init__()
        self.num_heads = size.num_heads
        self.dropout = size.dropout
        self.project_in = nn.Linear(size.width, 3 * size.width)
        self.project_out = nn.Linear(size.width, size.width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Mix each place with those before it; (batch, length, width) in and out."""
        batch, length, width = hidden.shape
        heads = self.project_in(hidden).view(batch, length, 3, self.num_heads, width // self.num_heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        projected: torch.Tensor = self.project_out(mixed.transpose(1, 2).reshape(batch, length, width))
        return projected
