"""Whether what moved in an object is in what the object saves of itself: then it is captured, under whatever name."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from segue._capture.layouts import base_in
from segue._capture.uncovered_marks import ATOMS, Mark, items_of, mark_of

_CONTAINERS = (list, tuple, dict)
_MAX_LEAVES = 20_000
_COMMON = (type(None), bool)


class OwnState:
    """What an object saves of itself, as it returns it.

    A value counts as saved if it stands there under the name of its attribute; and one that is not found anywhere by
    chance, as a number or a tensor may be, under any name. A flag is only looked for under its own.

    Args:
        state: The state.
    """

    def __init__(self, state: Any) -> None:
        self._named: dict[str, list[Mark]] = {}
        self._leaves: set[Any] = set()
        self._memories: set[int] = set()
        self._count = 0
        self._read(state, 0)

    def has(self, name: str, value: Any) -> bool:
        """Tell whether the value of an attribute is there."""
        mark = mark_of(value, _nothing)
        if any(mark == each for each in self._named.get(name.lstrip("_"), ())):
            return True
        return self._has_all(value)

    def _has_all(self, value: Any) -> bool:
        base = base_in(type(value), _CONTAINERS)
        if base is not None:
            items = [item for _, item in items_of(value, base)]
            return bool(items) and all(self._has_all(item) for item in items)
        if (
            isinstance(value, torch.Tensor)
            and value.layout is torch.strided
            and value.data_ptr() in self._memories
        ):
            return True
        return type(value) not in _COMMON and _key(value) in self._leaves

    def _read(self, value: Any, depth: int) -> None:
        self._count += 1
        if self._count > _MAX_LEAVES or depth > 16:
            return
        base: Any = base_in(type(value), _CONTAINERS)
        if base is None:
            self._leaves.add(_key(value))
            if isinstance(value, torch.Tensor) and value.layout is torch.strided and value.numel():
                self._memories.add(value.data_ptr())
            return
        if base is dict:
            for key, item in dict.items(value):
                if isinstance(key, str):
                    self._named.setdefault(key.lstrip("_"), []).append(mark_of(item, _nothing))
                self._read(item, depth + 1)
            return
        for item in base.__iter__(value):
            self._read(item, depth + 1)


def _key(value: Any) -> Any:
    if type(value) in ATOMS or isinstance(value, torch.Tensor | np.ndarray | np.generic):
        return mark_of(value, _nothing)
    return type(value), id(value)


def _nothing(_value: Any, _place: str) -> None:
    return None
