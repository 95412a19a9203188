"""Sparse gradients, as of `nn.Embedding(sparse=True)`: summed as torch sums them.

Casts, weights and divisions act on the values only. What was uncoalesced stays uncoalesced, duplicates and all, and
nothing becomes dense unless a dense gradient of the same parameter meets it. Every result is a new tensor.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def term_of(gradient: torch.Tensor, dtype: torch.dtype, weight: float) -> torch.Tensor:
    """Return a gradient of any layout in the work dtype, times its weight, in memory of its own."""
    if not gradient.is_sparse:
        return _times(gradient.to(dtype, copy=True), weight)
    values = _times(gradient._values().to(dtype, copy=True), weight)
    return with_values(gradient, gradient._indices().clone(), values)


def _times(values: torch.Tensor, weight: float) -> torch.Tensor:
    return (
        values
        if weight == 1.0
        else values.mul_(torch.tensor(weight, dtype=values.dtype, device=values.device))
    )


def sum_of(total: torch.Tensor | None, term: torch.Tensor) -> torch.Tensor:
    """Add a term to a sum, if there is one, where at least one of them is sparse."""
    if total is None:
        return term
    # Dense plus sparse is supported, sparse plus dense is not (torch 2.13).
    return term + total if total.is_sparse and not term.is_sparse else total + term


def finished(total: torch.Tensor, divisors: Sequence[float], dtype: torch.dtype) -> torch.Tensor:
    """Return a sparse sum divided by each divisor in turn, and then cast once."""
    values = total._values()
    for divisor in divisors:
        if divisor != 1.0:
            values = values / torch.tensor(divisor, dtype=values.dtype, device=values.device)
    return with_values(total, total._indices().clone(), values.to(dtype, copy=True))


def with_values(like: torch.Tensor, indices: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Make a sparse tensor that has the shape of another, and says of itself whether it is coalesced as that does."""
    return torch.sparse_coo_tensor(
        indices, values, like.shape, is_coalesced=like.is_coalesced(), check_invariants=False
    )
