"""Small models for optimizers, in which some parameters have gradients only now and then.

`once` only in the first window; `late` first in the middle of the second, so that a cut there finds a gradient and no
state; `later` first in the third, after all cuts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

WINDOW = 3
WORDS, CLASSES = 7, 5
_LATE, _LATER = WINDOW + 1, 2 * WINDOW


class Dense(nn.Module):
    """An embedding, a matrix, a bias, a matrix laid out by columns, and a buffer that training changes.

    Args:
        width: Features.
        matrices: Has parameters of two dimensions only.
        by_rows: Has parameters laid out by rows only.
        dropout: Its rate. Without it, the loss of a microbatch can be evaluated again.
        steady: `late` and `later` have gradients from the beginning.
    """

    def __init__(
        self,
        width: int = 6,
        *,
        matrices: bool = False,
        by_rows: bool = False,
        dropout: float = 0.2,
        steady: bool = False,
    ) -> None:
        super().__init__()
        self.late_from, self.later_from = (0, 0) if steady else (_LATE, _LATER)
        self.words = nn.Embedding(WORDS, width)
        self.mix = nn.Linear(width, width, bias=not matrices)
        for name in ("once", "late", "later"):
            self.register_parameter(name, nn.Parameter(torch.ones((1, width) if matrices else width)))
        head = 0.5 * torch.randn(CLASSES, width)
        self.head = nn.Parameter(head if by_rows else head.t().contiguous().t())
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.BatchNorm1d(width, affine=False)

    def forward(self, number: int) -> torch.Tensor:
        """Return the loss of a microbatch."""
        generator = torch.Generator().manual_seed(1000 + number)
        words = torch.randint(WORDS, (8,), generator=generator)
        hidden = self.words(words) * (self.once if number < WINDOW else 1)
        hidden = torch.tanh(self.mix(hidden)) * (self.late if number >= self.late_from else 1)
        hidden = self.dropout(self.norm(hidden)) * (self.later if number >= self.later_from else 1)
        return nn.functional.cross_entropy((hidden @ self.head.t()).float(), words % CLASSES)


class Sparse(nn.Module):
    """Embeddings alone, whose gradients are sparse, with words that come again and one that never comes."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("words", "places", "once", "late", "later"):
            self.add_module(name, nn.Embedding(WORDS, 4, sparse=True))
        self.register_buffer("head", torch.randn(4, CLASSES))

    def forward(self, number: int) -> torch.Tensor:
        """Return the loss of a microbatch."""
        words = torch.randint(WORDS - 1, (8,))
        present = {
            "words": True,
            "places": True,
            "once": number < WINDOW,
            "late": number >= _LATE,
            "later": number >= _LATER,
        }
        hidden = sum(getattr(self, name)(words) for name, is_present in present.items() if is_present)
        return nn.functional.cross_entropy((hidden @ self.head).float(), words % CLASSES)


def net_for(kind: str, dtype: torch.dtype) -> nn.Module:
    """Make the model of a kind in a dtype."""
    # Fused SGD in bf16 reads momentum beyond its memory where a parameter fills a vector register: two runs in one
    # process may differ then (torch 2.13 on a CPU; https://github.com/pytorch/pytorch/issues/191763).
    is_read_beyond = kind == "steady" and dtype is torch.bfloat16
    made: nn.Module = NETS["tiny" if is_read_beyond else kind]()
    return made.to(dtype)


NETS: dict[str, Callable[[], Any]] = {
    "dense": Dense,
    "flat": lambda: Dense(by_rows=True, dropout=0.0),
    "matrices": lambda: Dense(matrices=True),
    "rows": lambda: Dense(by_rows=True),
    "sparse": Sparse,
    "steady": lambda: Dense(steady=True),
    "tiny": lambda: Dense(1, steady=True),
    # What libraries quantize has at least 4096 elements.
    "wide": lambda: Dense(64),
}
