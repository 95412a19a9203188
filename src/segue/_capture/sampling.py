"""A few elements of a tensor, to notice writes that no version counter shows: `.data`, NumPy, fused kernels (torch 2.13).

Chosen by chance, the same ones in each process: at even distances they would all lie in one column of a matrix whose
width is a power of two, and miss a write to the others.
"""

from __future__ import annotations

import functools

import torch

from segue._record.tensors import bit_view


@functools.lru_cache(maxsize=1024)
def positions(elements: int, sampled: int) -> torch.Tensor:
    """Choose among so many elements; all of them where there are few."""
    if elements <= sampled:
        return torch.arange(elements, device="cpu")
    chance = torch.Generator("cpu").manual_seed(elements)
    return torch.randint(elements, (sampled,), generator=chance, device="cpu").sort().values


def sample(tensor: torch.Tensor, sampled: int) -> torch.Tensor:
    """Return some elements of a strided tensor, as integers, in new memory on its device.

    Cost:
        One look at each of them; nothing of the size of the tensor.
    """
    bits = bit_view(_physical(tensor.detach()))
    chosen = positions(bits.numel(), sampled).to(bits.device)
    if torch.ops.aten.is_non_overlapping_and_dense(bits):
        return bits.as_strided((bits.numel(),), (1,))[chosen]
    return bits[torch.unravel_index(chosen, bits.shape)]


def _physical(tensor: torch.Tensor) -> torch.Tensor:
    """Return what is in memory, of a view that only says that it is the conjugate or the negative of it."""
    tensor = tensor.conj() if tensor.is_conj() else tensor
    return tensor._neg_view() if tensor.is_neg() else tensor
