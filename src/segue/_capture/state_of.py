"""State that an object keeps in attributes, or that stands in a dictionary: a component made of these.

Wish: a counter in an attribute of an optimizer, or in a dictionary that a function closes over, comes back, and its
owner need not learn to save itself.

The values are captured as plain state. At restore containers and tensors of the same layout are filled in place, since
others may hold them; everything else is set. What is one object, or one memory, at two places would come back as two:
that is refused at capture.

What it still loses: that a value here is also held elsewhere, where it is of another layout than it was, or was not
there yet: then it is set here, and there not.
"""

from __future__ import annotations

import inspect
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from dataclasses import is_dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from segue._capture.generators import holds_only_generators
from segue._capture.memory import byte_range
from segue._capture.plain import refuse_depth
from segue._capture.staging import is_of_class, is_plain, plain_parts, type_name
from segue.errors import ABSENT, UnsupportedState

_Path = tuple[Any, ...]
_MUTABLE = (list, dict, OrderedDict, Counter, deque, set, bytearray)
_MAX_SHOWN = 20


class StateOf:
    """A component made of attributes of an object, or of entries of a dictionary.

    For state that its owner does not save: a counter that an optimizer keeps in an attribute, or what a function
    closes over. Hand it in as one of `components=`.

    Args:
        owner: The object, or a dictionary. It is kept, not copied.
        *names: The attributes, or the entries; all that there are at each capture, if none is named.

    Raises:
        UnsupportedState: If there is no such attribute or entry, or it can't be set.

    Guarantees:
        Values come back bit for bit. Containers, and tensors and arrays of the same layout, stay the objects that they
        are, and are filled; everything else is set. Random generators stay, and are restored among the private streams. Of an owner without named attributes, those that were not there
        when it was captured are gone after a restore.
    """

    _called_in_paths: ClassVar[dict[str, str | None]] = {"_owner": "", "_names": None}

    def __init__(self, owner: object, *names: str) -> None:
        if not all(isinstance(name, str) for name in names):
            raise TypeError(f"attributes and entries are named by strings, not {names!r}")
        if isinstance(owner, StateOf):
            raise TypeError("the state of a StateOf is that of its owner: hand in the owner")
        self._owner = owner
        self._names = tuple(dict.fromkeys(names))
        _refuse_owner(owner, self._names)

    @property
    def owner(self) -> object:
        """The object whose attributes, or the dictionary whose entries these are."""
        return self._owner

    @property
    def names(self) -> tuple[str, ...]:
        """The attributes or entries; empty for all of them."""
        return self._names

    def capture(self) -> dict[str, Any]:
        """Return what the owner holds by name, not copied: the capture of a training copies it.

        Raises:
            UnsupportedState: If one is gone, or if two share memory, or are one object.
        """
        named = {name: self._value(name) for name in self._names or all_names(self._owner)}
        # Random generators are captured by themselves, wherever they are.
        values = {name: value for name, value in named.items() if not holds_only_generators(value)}
        claims, devices = _Claims(), dict[_Path, str]()
        for path, value in _walk(values, ()):
            refuse_depth(value, _shown(path), len(path))
            other = claims.claim(value, path)
            if other is not None:
                raise UnsupportedState(
                    "state that shares memory, or is one object at two places, is not supported: it would come back as "
                    "two", code="capture.shared_state", where=f"{_shown_owner(self._owner)} {_shown(path)}",
                    found=f"shared with {_shown(other)}", hint="register one of them",
                )  # fmt: skip
            if isinstance(value, torch.Tensor) and value.device.type != "cpu":
                devices[path] = str(value.device)
        return {
            "owner": _shown_owner(self._owner),
            "all": not self._names,
            "values": values,
            "devices": devices,
        }

    def check(self, state: Any) -> Iterator[str]:
        """Yield what keeps `restore(state)` from working: another class of owner, other names, a device that is missing."""
        if not _is_told(state):
            yield "it is not what a StateOf captures"
            return
        if not _is_owned_by(self._owner, state["owner"]):
            yield f"its owner is of another class: {state['owner']} in the record, {_shown_owner(self._owner)} in the program"
        if state["all"] != (not self._names):
            yield f"it names {_told(self._names)}, and {_told(state['values'] if not state['all'] else ())} in the record"
        elif self._names:
            streams = {name for name in self._names if holds_only_generators(_get(self._owner, name))}
            for name in sorted(state["values"].keys() ^ (set(self._names) - streams)):
                side = "the record" if name in state["values"] else "the program"
                yield f"only {side} registers {name!r}"
        if not _has_entries(self._owner) and any(_is_pythons(name) for name in map(str, state["values"])):
            yield "it has attributes that are Python's own"
        for device in sorted(set(state["devices"].values())):
            if not _is_there(device):
                yield f"it was on device {device}, which is not there"

    def restore(self, state: Any) -> None:
        """Take over the state; what is no longer held elsewhere is set, everything else filled in place."""
        placing = _Placing(state["devices"])
        owner, values = self._owner, state["values"]
        if not self._names:
            for name in all_names(owner):
                if name not in values and not holds_only_generators(_get(owner, name)):
                    _delete(owner, name)
        for name, value in values.items():
            live = _get(owner, name)
            placed = placing.place(live, value, (name,))
            if placed is not live or live is ABSENT:
                _set(owner, name, placed)

    def _value(self, name: str) -> Any:
        value = _get(self._owner, name)
        if value is ABSENT:
            raise _missing(self._owner, [name])
        return value

    def __repr__(self) -> str:
        """Show the class of the owner, and the names."""
        return f"StateOf({', '.join([_shown_owner(self._owner), *map(repr, self._names)])})"


def _is_told(state: Any) -> bool:
    """Tell whether a tree is what `capture` returns: it may come from a file that lies."""
    return (
        type(state) is dict
        and state.keys() == {"owner", "all", "values", "devices"}
        and type(state["owner"]) is str
        and type(state["all"]) is bool
        and type(state["values"]) is dict
        and (state["all"] or all(type(name) is str for name in state["values"]))
        and type(state["devices"]) is dict
        and all(type(device) is str for device in state["devices"].values())
    )


def _told(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "everything"


def _is_there(device: str) -> bool:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):  # torch has no one error for it
        return False
    return True


# The owner: attributes of an object, entries of a dictionary.


def _has_entries(owner: object) -> bool:
    return isinstance(owner, MutableMapping) and not isinstance(owner, nn.Module)


def _shown_owner(owner: object) -> str:
    return f"class {owner.__qualname__}" if isinstance(owner, type) else type_name(owner)


def _is_owned_by(owner: object, name: str) -> bool:
    return name == _shown_owner(owner) if isinstance(owner, type) else is_of_class(owner, name)


def all_names(owner: Any) -> list[Any]:
    if _has_entries(owner):
        return list(owner)
    slots = [slot for cls in type(owner).__mro__ for slot in _slots(cls) if hasattr(owner, slot)]
    return [name for name in [*getattr(owner, "__dict__", {}), *slots] if not _is_pythons(name)]


def _is_pythons(name: str) -> bool:
    """Tell whether an attribute is one of Python's own, such as `__orig_class__`."""
    return name.startswith("__") and name.endswith("__")


def _slots(cls: type) -> Iterator[str]:
    slots = vars(cls).get("__slots__", ())
    for slot in [slots] if isinstance(slots, str) else slots:
        if slot not in ("__dict__", "__weakref__"):
            private = slot.startswith("__") and not slot.endswith("__")
            yield f"_{cls.__name__.lstrip('_')}{slot}" if private else slot


def _get(owner: Any, name: str) -> Any:
    return owner.get(name, ABSENT) if _has_entries(owner) else getattr(owner, name, ABSENT)


def _set(owner: Any, name: str, value: Any) -> None:
    if _has_entries(owner):
        owner[name] = value
    else:
        setattr(owner, name, value)


def _delete(owner: Any, name: str) -> None:
    if _has_entries(owner):
        del owner[name]
    else:
        delattr(owner, name)


def _refuse_owner(owner: Any, names: tuple[str, ...]) -> None:
    """Raise `UnsupportedState` for what has no such attributes or entries, or does not let them be set."""
    if _has_entries(owner):
        missing = [name for name in names if name not in owner]
        if missing:
            raise _missing(owner, missing)
        return
    if not names and not hasattr(owner, "__dict__") and not all_names(owner):
        raise _unsupported("an object without attributes", owner, "none", "hand in the object that holds it")
    if is_dataclass(owner) and getattr(owner, "__dataclass_params__").frozen:  # noqa: B009  (no attribute that typing knows)
        raise _unsupported(
            "attributes of a frozen dataclass can't be set", owner, "frozen",
            "hand in the object that holds it, or its mutable parts",
        )  # fmt: skip
    missing = [name for name in names if not hasattr(owner, name)]
    if missing:
        raise _missing(owner, missing)
    for name in names:
        _refuse_unsettable(owner, name)


def _refuse_unsettable(owner: Any, name: str) -> None:
    static = inspect.getattr_static(owner, name, ABSENT)
    if static is ABSENT:
        raise _unsupported(
            "an attribute that its owner only passes on, from another object", owner, name,
            "hand in the object that holds it",
        )  # fmt: skip
    if isinstance(owner, type) or name in getattr(owner, "__dict__", {}):
        return
    setter = static.fset if isinstance(static, property) else getattr(type(static), "__set__", None)
    if setter is None and hasattr(type(static), "__get__"):
        raise _unsupported(
            "an attribute that can't be set", owner, name, "name the attributes that it is computed from"
        )


def _missing(owner: object, names: list[str]) -> UnsupportedState:
    what = "an entry" if _has_entries(owner) else "an attribute"
    existing = sorted(
        map(str, all_names(owner)), key=lambda name: (name.startswith("_"), name)
    )  # the private ones last
    more = f" and {len(existing) - _MAX_SHOWN} more" if len(existing) > _MAX_SHOWN else ""
    listed = ", ".join(existing[:_MAX_SHOWN]) or "nothing"
    return _unsupported(f"{what} that is not there", owner, ", ".join(names), f"there is {listed}{more}")


def _unsupported(what: str, owner: object, found: str, hint: str) -> UnsupportedState:
    return UnsupportedState(
        what, code="capture.state_of", where=f"StateOf({_shown_owner(owner)})", found=found, hint=hint
    )


# The values: walked when they are captured, placed when they are restored, by the same paths.


def _items(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, list | tuple | deque):
        yield from enumerate(value)


def _walk(values: dict[Any, Any], path: _Path) -> Iterator[tuple[_Path, Any]]:
    """Yield everything in a dictionary by its path, depth first, a container before what is in it.

    A container that contains itself is yielded again; whoever walks has to stop there.
    """
    for key, value in _items(values):
        yield (*path, key), value
        yield from _walk(value, (*path, key))


def _shown(path: _Path) -> str:
    first, *others = path
    return str(first) + "".join(f"[{part!r}]" for part in others)


class _Claims:
    """Remembers mutable objects, and the memory of tensors and arrays, by their path."""

    def __init__(self) -> None:
        self._objects: dict[int, _Path] = {}
        self._spans: dict[str, list[tuple[int, int, _Path]]] = {}

    def claim(self, value: Any, path: _Path) -> _Path | None:
        """Add a value; return the path of what was there first if it is that, or overlaps it, else `None`."""
        if isinstance(value, torch.Tensor):
            spans = [_tensor_span(part) for _, part in plain_parts(value) if _has_memory(part)]
        elif isinstance(value, np.ndarray):
            spans = [_array_span(value)] if value.nbytes else []
        elif type(value) in _MUTABLE:
            other = self._objects.setdefault(id(value), path)
            return None if other is path else other
        else:
            return None
        found = [self._claim_span(*span, path) for span in spans]
        return next((other for other in found if other is not None), None)

    def _claim_span(self, device: str, start: int, end: int, path: _Path) -> _Path | None:
        spans = self._spans.setdefault(device, [])
        for other_start, other_end, other in spans:
            if start < other_end and other_start < end:
                return other
        spans.append((start, end, path))
        return None


def _has_memory(tensor: torch.Tensor) -> bool:
    return is_plain(tensor) and tensor.numel() > 0 and tensor.device.type != "meta"


def _tensor_span(tensor: torch.Tensor) -> tuple[str, int, int]:
    start, end = byte_range(tensor)
    address = tensor.untyped_storage().data_ptr()
    return str(tensor.device), address + start, address + end


def _array_span(array: np.ndarray[Any, Any]) -> tuple[str, int, int]:
    address = array.__array_interface__["data"][0]
    reach = [(size - 1) * stride for size, stride in zip(array.shape, array.strides, strict=True)]
    end = address + sum(each for each in reach if each > 0) + array.itemsize
    return "cpu", address + sum(each for each in reach if each < 0), end


class _Placing:
    """Puts values where live ones are: into them where they fit, or else in their place."""

    def __init__(self, devices: dict[_Path, str]) -> None:
        self._devices = devices
        self._claims = _Claims()

    def place(self, live: Any, value: Any, path: _Path) -> Any:
        """Return what stands at this path from now on: the live object, filled, or the value."""
        if isinstance(value, torch.Tensor):
            return self._place_tensor(live, value, path)
        if isinstance(value, np.ndarray):
            return self._place_array(live, value, path)
        kind = type(value)
        items = dict(_items(live)) if type(live) is kind else {}
        if kind is tuple:
            return tuple(self.place(items.get(key), item, (*path, key)) for key, item in _items(value))
        if kind not in _MUTABLE:
            return value
        placed = {key: self.place(items.get(key), item, (*path, key)) for key, item in _items(value)}
        fits = type(live) is kind and self._claims.claim(live, path) is None
        if kind is deque:
            fits = fits and live.maxlen == value.maxlen
        target = live if fits else _emptied(value)
        _FILL[kind](target, placed if placed else value)
        return target

    def _place_tensor(self, live: Any, value: torch.Tensor, path: _Path) -> torch.Tensor:
        device = self._devices.get(path, "cpu")
        if _is_alike(live, value, device) and self._claims.claim(live, path) is None:
            with torch.no_grad():
                live.copy_(value)
            filled: torch.Tensor = live
            return filled
        if device == "cpu":
            return value
        if not is_plain(value):
            return value.to(device)
        moved = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
        return moved.copy_(value)

    def _place_array(self, live: Any, value: Any, path: _Path) -> Any:
        alike = (
            type(live) is np.ndarray
            and (live.dtype.str, live.shape, live.strides) == (value.dtype.str, value.shape, value.strides)
            and live.flags.writeable
        )
        if not alike or self._claims.claim(live, path) is not None:
            return value
        live[...] = value
        return live


def _is_alike(live: Any, value: torch.Tensor, device: str) -> bool:
    """Tell whether a live tensor can take over the bits of another: both plain, of one layout."""
    return (
        isinstance(live, torch.Tensor)
        and is_plain(live)
        and is_plain(value)
        and type(live) is type(value)
        and not live.requires_grad
        and not live.is_inference()
        and (live.dtype, live.shape, live.stride(), str(live.device))
        == (value.dtype, value.shape, value.stride(), device)
        and not (live.is_conj() or live.is_neg())
    )


def _emptied(value: Any) -> Any:
    return deque(maxlen=value.maxlen) if type(value) is deque else type(value)()


def _refill(target: Any, placed: Any) -> None:
    target.clear()
    target.update(placed)


def _refill_sequence(target: Any, placed: Any) -> None:
    target.clear()
    target.extend(placed.values() if isinstance(placed, dict) else placed)


_FILL: dict[type, Callable[[Any, Any], None]] = {
    list: _refill_sequence, deque: _refill_sequence, bytearray: _refill_sequence,
    dict: _refill, OrderedDict: _refill, Counter: _refill, set: _refill,
}  # fmt: skip
