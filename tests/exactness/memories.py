"""What an object holds that can be written to: memory of tensors and arrays, and containers, followed by reference."""

from __future__ import annotations

import gc
import types
import weakref
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

_CODE = (
    type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.CodeType,
    types.FrameType, types.CellType, weakref.ReferenceType, property, classmethod, staticmethod, torch.dtype, torch.device,
)  # fmt: skip
_MUTABLE = (dict, list, set, bytearray, deque)


@dataclass(frozen=True)
class Memories:
    """Ranges of memory, and mutable containers by `id`."""

    ranges: tuple[tuple[int, int], ...]
    containers: dict[int, Any]

    def shared_with(self, other: Memories) -> list[Any]:
        """Return what both hold."""
        found: list[Any] = [self.containers[key] for key in self.containers.keys() & other.containers.keys()]
        events = sorted([(*span, 0) for span in self.ranges] + [(*span, 1) for span in other.ranges])
        reach = [0, 0]
        for start, end, side in events:
            if start < reach[1 - side]:
                found.append((start, end))
            reach[side] = max(reach[side], end)
        return found


def memories(*roots: Any, without: Iterable[Any] = ()) -> Memories:
    """Follow every reference from some objects.

    Args:
        roots: Where to begin.
        without: What not to enter.
    """
    ranges: set[tuple[int, int]] = set()
    containers: dict[int, Any] = {}
    seen = {id(each) for each in without}
    left = list(roots)
    kept = list(roots)  # an id is of one object for as long as that lives
    while left:
        value = left.pop()
        if id(value) in seen or isinstance(value, _CODE):
            continue
        seen.add(id(value))
        kept.append(value)
        if isinstance(value, torch.Tensor):
            left += _of_tensor(value, ranges)
        elif isinstance(value, np.ndarray):
            if value.nbytes:
                start, end = np.lib.array_utils.byte_bounds(value)
                ranges.add((start, end))
        else:
            if isinstance(value, _MUTABLE):
                containers[id(value)] = value
            if isinstance(value, memoryview):
                value = np.asarray(value)
                ranges.add((value.ctypes.data, value.ctypes.data + value.nbytes))
                continue
            left += gc.get_referents(value)
    return Memories(tuple(ranges), containers)


def _of_tensor(tensor: torch.Tensor, ranges: set[tuple[int, int]]) -> list[Any]:
    """Note a tensor's memory; return what hangs on it."""
    held = [vars(tensor), tensor.grad if tensor.is_leaf else None]
    if hasattr(tensor, "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        return held + [getattr(tensor, name) for name in names]
    if tensor.layout is not torch.strided:
        return [*held, tensor._indices(), tensor._values()]
    storage = tensor.untyped_storage()
    if storage.nbytes():
        ranges.add((storage.data_ptr(), storage.data_ptr() + storage.nbytes()))
    return held
