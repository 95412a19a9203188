"""What the attributes of an optimizer were when it was first seen in this process: what has moved since, is state."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim import Optimizer

from segue._capture.description import without_owners
from segue._capture.staging import type_name
from segue._capture.views import Views, described
from segue._record.tree import SCALARS, same
from segue.errors import ABSENT, UnsupportedState, shown

_MAX_SHOWN = 60


@dataclass(frozen=True)
class First:
    """What an attribute was when its owner was first seen."""

    identity: int
    tree: Any
    """As this process tells it, by the identity of what is captured elsewhere."""
    text: str
    """For people."""
    told: Any
    """As a record tells it; `ABSENT` for what can't be looked into."""


@dataclass
class Seen:
    """What is remembered of an optimizer."""

    attributes: dict[str, First] = field(default_factory=dict)
    has_state: bool = False
    """Whether it had stepped by then: what has moved before, nobody knows."""


class _Memory:
    """Remembers by identity, for as long as an object lives: some can't be hashed."""

    def __init__(self) -> None:
        self._by_id: dict[int, tuple[weakref.ref[Any], Seen]] = {}

    def get(self, owner: object) -> Seen | None:
        found = self._by_id.get(id(owner))
        return found[1] if found is not None and found[0]() is owner else None

    def put(self, owner: object, seen: Seen) -> None:
        key = id(owner)
        try:
            reference = weakref.ref(owner, lambda _: self._by_id.pop(key, None))
        except TypeError:  # an object with `__slots__`: it is seen for the first time each time
            return
        self._by_id[key] = (reference, seen)


_memory = _Memory()


def seen_of(owner: object) -> Seen | None:
    """Return what is remembered of an object; `None` before it is first seen."""
    return _memory.get(owner)


def remembered(owner: object, attributes: Mapping[str, Any], views: Views, *, has_state: bool) -> Seen:
    """Return what is remembered of an object's attributes; now is the first time, if there was none before."""
    seen = _memory.get(owner)
    if seen is None:
        firsts = {name: _first(name, value, views) for name, value in attributes.items()}
        seen = Seen(firsts, has_state)
        _memory.put(owner, seen)
    return seen


def has_stepped(optimizer: Optimizer) -> bool:
    """Tell whether an optimizer has state that a step has made: some make theirs as they are built, with a count of 0."""
    if "_opt_called" in vars(optimizer):
        return True
    return any(slots and not _is_new(slots) for slots in optimizer.state.values())


def _is_new(slots: Any) -> bool:
    step = slots.get("step") if isinstance(slots, dict) else None
    return step is not None and float(step) == 0


def _first(name: str, value: Any, views: Views) -> First:
    told = described(name, value, views.told)
    tree = ABSENT if isinstance(told, UnsupportedState) else told.tree
    return First(id(value), _as_it_is(name, value, views), text_of(value), tree)


def _as_it_is(name: str, value: Any, views: Views) -> Any:
    found = described(name, value, views.identities, tells_owners=True)
    return {"reference": f"id {id(value)}"} if isinstance(found, UnsupportedState) else found.tree


def has_moved(first: First | None, name: str, value: Any, tree: Any, views: Views) -> bool:
    """Tell whether an attribute is another than it was.

    Args:
        first: What it was; `None` if it was not there.
        name: What it is called.
        value: What it is.
        tree: How a record tells that.
        views: How it is looked at.
    """
    if first is None:
        return True
    if is_reference(tree):
        return first.identity != id(value)
    names = views.registered
    before, now = (
        without_owners(each, names.at, names.keeps_at) for each in (first.tree, _as_it_is(name, value, views))
    )
    return not same(before, now)


def is_reference(tree: Any) -> bool:
    """Tell whether a description only names what is restored elsewhere."""
    return type(tree) is dict and tree.keys() == {"reference"}


def text_of(value: Any) -> str:
    """Show what an attribute is, in few characters."""
    if isinstance(value, torch.Tensor) and value.numel() > 4:
        return f"{str(value.dtype).removeprefix('torch.')} tensor of shape {tuple(value.shape)}"
    if type(value) in SCALARS or isinstance(value, torch.Tensor | list | tuple | dict):
        text = shown(value.tolist() if isinstance(value, torch.Tensor) else value)
        if len(text) <= _MAX_SHOWN:
            return text
    return type_name(value)
