"""Weights that can be part of a base, and nothing else: those of bitsandbytes in 4 bits, under the adapters of QLoRA.

Such a tensor shows its packed codes alone. What they mean (scales, code book, block size) hangs on it as an object, and on
the layer as the same one; so it is read for the base's identity, and refused where it would have to be captured.
bitsandbytes' 8-bit weights move what they mean from the tensor to the layer as they first run (0.50), and stay refused.
"""

from __future__ import annotations

from typing import Any

import torch

from segue._capture.staging import class_name, type_name
from segue.errors import UnsupportedState

_CLASSES = frozenset({"bitsandbytes.nn.modules.Params4bit"})
_STATE = "bitsandbytes.functional.QuantState"
_PLAIN = (type(None), bool, int, float, str)


def is_packed(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor is of a class that can stand in a base though it can't be captured."""
    return class_name(type(tensor)) in _CLASSES


def meaning_of(tensor: torch.Tensor, where: str) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """Return the live tensors that say what the codes of a packed one mean, and everything else about them.

    Raises:
        UnsupportedState: If something hangs on it that this code does not know.
    """
    tensors: list[torch.Tensor] = []
    described = {"class": type_name(tensor), **_walked(getattr(tensor, "quant_state", None), tensors, where)}
    return tensors, described


def _walked(state: Any, tensors: list[torch.Tensor], where: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in sorted(vars(state).items()) if state is not None else ():
        if isinstance(value, torch.Tensor):
            tensors.append(value)
            found[name] = [str(value.dtype), *value.shape]
        elif type_name(value) == _STATE:
            found[name] = _walked(value, tensors, f"{where} {name}")
        elif isinstance(value, torch.dtype | torch.Size):
            found[name] = str(value)
        elif type(value) in _PLAIN:
            found[name] = value
        else:
            raise UnsupportedState(
                "a packed weight has something unknown beside it", code="base.unreadable", where=f"{where} {name}",
                found=type_name(value),
            )  # fmt: skip
    return found
