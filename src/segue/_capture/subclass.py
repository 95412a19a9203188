"""Live tensors of an admitted subclass: taken apart into what they consist of.

Always through `__tensor_flatten__`. What the wrapper itself says of its memory is not true of it: it has no storage,
its pointer is 0, and `detach` makes a copy of some parts and forgets its dtype (torchao 0.18).
"""

from __future__ import annotations

from typing import Any

import torch

from segue._record.subclass import context_tree, is_admitted
from segue.errors import UnsupportedState

PLAIN_CLASSES = frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer})
"""The classes whose tensors hold their bits themselves."""


def is_admitted_subclass(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor is of a class that segue takes apart."""
    cls = type(tensor)
    return cls not in PLAIN_CLASSES and is_admitted(cls)  # asked several times of each of 20,000 tensors


def flattened(tensor: Any, where: str) -> tuple[dict[str, torch.Tensor], Any]:
    """Return the live parts of a tensor of an admitted class, in its order, and its context as a tree.

    Raises:
        UnsupportedState: If its context holds what has no encoding, or if a part can't be kept as part of it.
    """
    names, context = tensor.__tensor_flatten__()
    parts = {name: getattr(tensor, name) for name in names}
    for name, part in parts.items():
        _refuse_part(tensor, part, f"{where} {name}")
    return parts, context_tree(context, f"{where} context")


def _refuse_part(whole: torch.Tensor, part: torch.Tensor, where: str) -> None:
    if part.device != whole.device:
        raise UnsupportedState(
            "a tensor subclass whose parts are on several devices is not supported", where=where,
            found=f"{part.device} in a tensor on {whole.device}",
        )  # fmt: skip
    if part.requires_grad:
        raise UnsupportedState(
            "a part of a tensor subclass that requires grad can't be kept: its gradient or graph would be lost",
            where=where, found="requires_grad",
        )  # fmt: skip
