"""Plain Python state by value: the live side of `_record.tree`.

What has no exact encoding is refused here, by path and type, so that nothing is dropped and nothing is pickled.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from typing import Any

import numpy as np
import torch

from segue._capture.staging import capture_array, capture_value, type_name
from segue._record.embedded import embedded_as
from segue._record.quantized import QuantizedTensor
from segue._record.tree import MAX_DEPTH, SCALARS
from segue.errors import UnsupportedState

_HINTS: dict[type, str] = {
    torch.Generator: "store `generator.get_state()` and restore it with `set_state`",
    np.random.Generator: "store `generator.bit_generator.state`, a plain dictionary",
    np.random.RandomState: "store `state.get_state()`",
}


def freeze(value: Any, where: str) -> Any:
    """Copy live state into a tree that shares nothing with it.

    Args:
        value: Containers (list, tuple, dict with any plain keys, set, frozenset, deque, OrderedDict, Counter),
            scalars (None, bool, int, float, complex, str, bytes, bytearray, range, NumPy scalars, torch dtypes,
            devices and sizes), tensors (sparse and quantized ones too) and arrays, to a depth of 64; records of
            segue's own, and `RankLocal` with such state inside.
        where: What this is, for messages.

    Raises:
        UnsupportedState: For anything else, naming path and type: subclasses and named tuples too, since a class
            can't be rebuilt without importing a name that came from data.
    """
    return _freeze(value, where, 0)


def _freeze(value: Any, where: str, depth: int) -> Any:
    kind = type(value)
    if kind in SCALARS:
        return value
    refuse_depth(value, where, depth)
    if isinstance(value, torch.Tensor):
        return _freeze_tensor(value, where)
    if isinstance(value, QuantizedTensor):
        return value.to_host()
    if isinstance(value, np.ndarray):
        return capture_array(value, where)
    if isinstance(value, np.generic) and not isinstance(value, np.void | np.object_):
        return value
    if kind in (list, tuple):
        return kind(_freeze(item, f"{where}[{index}]", depth + 1) for index, item in enumerate(value))
    if kind is deque:
        return deque(
            (_freeze(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)), value.maxlen
        )
    if kind in (set, frozenset):
        return kind(_freeze_key(item, f"{where}{{}}", depth + 1) for item in value)
    if kind in (dict, OrderedDict, Counter):
        return _freeze_mapping(value, where, depth)
    if kind is bytearray:
        return bytearray(value)
    if (embedded := embedded_as(kind)) is not None:
        if not embedded.is_opened:
            return value
        return embedded.build(_freeze(embedded.take_apart(value), f"{where}.inner", depth + 1), ())
    raise UnsupportedState(
        "this type has no exact encoding", where=where, found=type_name(value), hint=_hint(value)
    )


def refuse_depth(value: Any, where: str, depth: int) -> None:
    """Raise `UnsupportedState` for a value that is deeper in a tree than can be stored."""
    if depth > MAX_DEPTH - 8:  # the section's own levels come on top
        raise UnsupportedState(
            "state is nested too deeply, or contains itself", where=where[:200], found=type_name(value)
        )


def _freeze_tensor(tensor: torch.Tensor, where: str) -> Any:
    if tensor.requires_grad:
        raise UnsupportedState(
            "a tensor that requires grad can't be kept as plain state", where=where, found=type_name(tensor),
            hint="register the module that holds it, or store `tensor.detach()`",
        )  # fmt: skip
    return capture_value(tensor, where)


def _freeze_mapping(value: dict[Any, Any], where: str, depth: int) -> Any:
    items = [
        (_freeze_key(key, f"{where} key", depth + 1), _freeze(item, entry(where, key), depth + 1))
        for key, item in value.items()
    ]
    return Counter(dict(items)) if type(value) is Counter else type(value)(items)


def entry(where: str, key: Any) -> str:
    """Return the path of an entry of a dictionary, for messages."""
    try:
        return f"{where}[{key!r}]"
    except ValueError:  # CPython refuses to write out an integer of more than 4300 digits
        return f"{where}[...]"


def _freeze_key(key: Any, where: str, depth: int) -> Any:
    if type(key) in (tuple, frozenset):
        refuse_depth(key, where, depth)
    if type(key) is tuple:
        return tuple(_freeze_key(item, where, depth + 1) for item in key)
    if type(key) is frozenset:
        return frozenset(_freeze_key(item, where, depth + 1) for item in key)
    if type(key) in SCALARS or (isinstance(key, np.generic) and not isinstance(key, np.void | np.object_)):
        return key
    raise UnsupportedState("this type of key has no exact encoding", where=where, found=type_name(key))


def _hint(value: Any) -> str:
    for kind, hint in _HINTS.items():
        if isinstance(value, kind):
            return hint
    if isinstance(value, tuple):
        return "named tuples are classes; store `tuple(value)` or `value._asdict()`"
    if callable(getattr(value, "state_dict", None)):
        return "hand the object in as one of `components=`, or store its `state_dict()`"
    return "store it as plain values"
