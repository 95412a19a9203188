"""Marks of values: small, comparable, and equal as long as a value is what it was. Taken at every save, so they are cheap.

Of a number or text it is the value; of a tensor or array a digest, of a large one a digest of some elements; of a container
the marks of what is in it, of a large one its size and both ends. What is none of these gets its mark from whoever walks.
Nothing of the program runs: containers are read as Python's own classes tell them.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import torch
import xxhash

from segue._capture.layouts import base_in
from segue._capture.sampling import sample
from segue._capture.staging import is_plain, plain_parts, type_name
from segue._record.tensors import bit_view
from segue.errors import shown

Mark = Any
"""Compared by `==`, shown by `text_of`."""
Other = Callable[[Any, str], Mark]
"""Returns the mark of what is neither number, text, tensor, array nor container, given its place, such as `[0]['a']`."""

ATOMS: Final = frozenset({
    type(None), bool, int, float, complex, str, bytes, range, torch.dtype, torch.device, torch.Size,
})  # fmt: skip
PASSING: Final = ("passing",)
"""Of what a graph of autograd made: it can't outlive the backward that follows, and is no state at a boundary."""

_CONTAINERS = (list, tuple, dict, set, frozenset, deque)
_EXACTLY = frozenset(_CONTAINERS)
_SEQUENCES = (list, tuple)
_KEYS = (str, int, float, bool)
_WHOLE_BYTES = 64 << 10
_SAMPLED = 256
_MAX_ITEMS = 128
_MAX_DEPTH = 6
_MAX_SHOWN = 60
_NAMES = {
    each: str(each).removeprefix("torch.") for each in vars(torch).values() if isinstance(each, torch.dtype)
}
_OF_NUMPY = frozenset({
    torch.float16, torch.float32, torch.float64, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool,
})  # fmt: skip


def mark_of(value: Any, other: Other, place: str = "", depth: int = 0) -> Mark:
    """Return the mark of a value.

    Args:
        value: The value.
        other: Marks what is of none of the kinds above.
        place: Where it is in the container that is looked at.
        depth: How deep that is.
    """
    cls = type(value)
    if cls in ATOMS:
        return (cls, "nan") if value != value else (cls, value)
    if issubclass(cls, torch.Tensor):
        return _tensor_mark(value, other, place)
    if issubclass(cls, np.ndarray):
        return _array_mark(value)
    if issubclass(cls, np.generic):
        return cls, value.tobytes()
    base = cls if cls in _EXACTLY else base_in(cls, _CONTAINERS)
    return other(value, place) if base is None else _container_mark(value, base, other, place, depth)


def _container_mark(value: Any, base: Any, other: Other, place: str, depth: int) -> Mark:
    size = base.__len__(value)
    if depth >= _MAX_DEPTH:
        return base, size
    marks: list[Mark] = []
    for name, item in items_of(value, base):
        mark = mark_of(item, other, place + name, depth + 1)
        if mark is PASSING:
            return PASSING
        marks.append((name, mark) if base is dict else mark)
    if base in (set, frozenset):
        marks.sort(key=repr)
    return (base, size, *marks)


def items_of(value: Any, base: Any) -> Iterator[tuple[str, Any]]:
    """Yield what is in a container, with its place there; of a large one what is at its ends."""
    size = base.__len__(value)
    if base is dict:
        for index, (key, item) in enumerate(_first(dict.items(value), size)):
            yield (f"[{key!r}]" if type(key) in _KEYS else f"[#{index}]"), item
    elif base in _SEQUENCES and size > _MAX_ITEMS:
        half = _MAX_ITEMS // 2
        for index in (*range(half), *range(size - half, size)):
            yield f"[{index}]", base.__getitem__(value, index)
    else:
        for index, item in enumerate(_first(base.__iter__(value), size)):
            yield f"[{index}]", item


def _first(items: Any, size: int) -> Any:
    return items if size <= _MAX_ITEMS else itertools.islice(items, _MAX_ITEMS)


def _tensor_mark(tensor: torch.Tensor, other: Other, place: str) -> Mark:
    if not is_plain(tensor):
        return _parts_mark(tensor, other, place)
    if tensor.grad_fn is not None:
        return PASSING
    known = other(tensor, place)
    return known if known is not None else ("tensor", *_bits_mark(tensor))


def _parts_mark(tensor: torch.Tensor, other: Other, place: str) -> Mark:
    with torch._C.DisableTorchFunctionSubclass():
        if tensor.grad_fn is not None:
            return PASSING
    known = other(tensor, place)
    if known is not None:
        return known
    parts = [part for _, part in plain_parts(tensor)]
    if not all(map(is_plain, parts)):  # of a class that nobody knows how to take apart
        return "tensor", type_name(tensor)
    return "tensor", type_name(tensor), *(_bits_mark(part) for part in parts)


def _bits_mark(tensor: torch.Tensor) -> Mark:
    layout = _NAMES[tensor.dtype], tuple(tensor.shape)
    if tensor.numel() == 0 or tensor.device.type == "meta":
        return layout
    is_small = tensor.numel() * tensor.element_size() <= _WHOLE_BYTES
    if is_small and tensor.dtype in _OF_NUMPY and tensor.device.type == "cpu" and tensor.is_contiguous():
        return *layout, _digest(tensor.detach().numpy())  # ten times as fast as what follows
    with torch.no_grad():
        if is_small:
            bits = bit_view(tensor.detach().resolve_conj().resolve_neg().contiguous())
        else:
            bits = sample(tensor, _SAMPLED).contiguous()
        return *layout, _digest(bits.cpu().reshape(-1).view(torch.uint8).numpy())


def _digest(array: Any) -> int:
    return xxhash.xxh3_64_intdigest(array)


def _array_mark(array: np.ndarray[Any, Any]) -> Mark:
    layout = array.dtype.str, array.shape
    if array.dtype.hasobject or array.size == 0:
        return "array", *layout
    if array.nbytes > _WHOLE_BYTES:
        step = max(1, array.size // _SAMPLED)
        array = array.reshape(-1)[::step] if array.flags.c_contiguous else array[(slice(0, 8),) * array.ndim]
    return "array", *layout, xxhash.xxh3_64_intdigest(np.ascontiguousarray(array).tobytes())


def text_of(mark: Mark) -> str:
    """Show what a value was by its mark, in few characters."""
    kind = mark[0]
    if kind in ATOMS:
        text = shown(mark[1]) if mark[1] is not None else "None"
        return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."
    if kind in _CONTAINERS:
        return f"{kind.__name__} of {mark[1]}"
    if kind in ("tensor", "array"):
        return (
            f"{mark[1]} {kind} of shape {mark[2]}"
            if len(mark) > 2 and type(mark[2]) is tuple
            else f"a {kind}"
        )
    if isinstance(kind, type):
        return kind.__name__
    return str(mark[1]) if len(mark) > 1 else str(kind)
