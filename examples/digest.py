"""One line that stands for a whole training, so that two runs can be compared by eye."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch


def digest(tree: Any) -> str:
    """Return a SHA-256 of nested values, tensors and arrays, every bit of them."""
    hasher = hashlib.sha256()
    _absorb(hasher, tree)
    return hasher.hexdigest()


def _absorb(hasher: Any, tree: Any) -> None:
    hasher.update(f"{type(tree).__name__} ".encode())
    if isinstance(tree, torch.Tensor):
        hasher.update(f"{tree.dtype} {tuple(tree.shape)} ".encode())
        hasher.update(tree.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(tree, np.ndarray):
        hasher.update(f"{tree.dtype} {tree.shape} ".encode() + tree.tobytes())
    elif isinstance(tree, dict):
        for key, value in tree.items():
            hasher.update(f"{key!r} ".encode())
            _absorb(hasher, value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            _absorb(hasher, value)
    else:
        hasher.update(f"{tree!r} ".encode())  # of a float, its shortest exact form
