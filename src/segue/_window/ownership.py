"""Whether a gradient belongs to the window alone, so that its memory may become the sum.

Wish: the first gradient of a window becomes the sum without a copy. But whoever still holds it, or a view of it, or a
bucket that it is a part of, would see the sum grow in it, or spoil the sum. A look at the reference counts tells:
autograd itself takes a gradient over by the same rule. In doubt it is copied.
"""

from __future__ import annotations

import sys
from collections.abc import Container, Sequence

import torch


def are_ours_alone(gradients: Sequence[torch.Tensor], dtypes: Container[torch.dtype]) -> list[bool]:
    """Tell for each strided gradient whether only its `.grad` and this sequence refer to it or to its memory.

    Args:
        gradients: Held by nothing else than this sequence, not even by a variable of the caller.
        dtypes: Those of no other are not looked at.
    """
    # What the counts are then depends on the interpreter, so it is measured by a probe that is held just as these are.
    probe = torch.nn.Parameter(torch.empty(1, device="cpu"))
    probe.grad = torch.empty(1, device="cpu")
    held = [probe.grad]
    [alone] = [_holders(gradient) for gradient in held]
    return [
        gradient.dtype in dtypes and _holders(gradient) == alone and _can_be_written(gradient)
        for gradient in gradients
    ]


def _holders(gradient: torch.Tensor) -> tuple[int, int, int, int, bool]:
    storage = gradient.untyped_storage()
    return (
        sys.getrefcount(gradient),
        gradient._use_count(),  # type: ignore[attr-defined]  # not in the stubs (torch 2.13)
        sys.getrefcount(storage),
        torch._C._storage_Use_Count(storage._cdata),
        storage.resizable(),  # memory of NumPy or another program is not
    )


def _can_be_written(gradient: torch.Tensor) -> bool:
    """Tell whether it can be updated in place for as long as the window lasts."""
    return not (gradient.is_inference() or gradient.is_neg()) and (
        gradient.is_contiguous() or _is_dense(gradient)
    )


def _is_dense(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor fills its memory without gaps or overlaps, in any order of its dims."""
    # Only then `empty_like` keeps the strides (torch 2.13).
    return torch.empty_like(tensor, device="meta").stride() == tensor.stride()
