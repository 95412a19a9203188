"""What of segue's own may stand in a tree beside plain values: records that a caller made, and rank-local ones.

The encoding of trees comes before the records in the order of imports, so they announce themselves here. A name that
a checkpoint gives is looked up in this table, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SINCE_VERSION = 3
"""The first version of the format whose trees may hold such values."""


@dataclass(frozen=True)
class Embedded:
    """A class of values that a tree may hold."""

    name: str
    """What it is called in a checkpoint."""
    take_apart: Callable[[Any], Any]
    """Returns the tree that it stands for."""
    build: Callable[[Any, tuple[str | int, ...]], Any]
    """Makes a value of a tree, which may be hostile, and of the path at which that was found."""
    is_opened: bool = False
    """Whether it holds live values where the tree around it does; a record is the same on both sides."""


_by_class: dict[type, Embedded] = {}
_by_name: dict[str, Embedded] = {}


def admit(cls: type, embedded: Embedded) -> None:
    """Let values of exactly this class stand in trees."""
    _by_class[cls] = _by_name[embedded.name] = embedded


def embedded_as(cls: type) -> Embedded | None:
    """Return how a tree holds values of a class; `None` if it doesn't."""
    return _by_class.get(cls)


def embedded_named(name: object) -> Embedded | None:
    """Return what a checkpoint means by a name; `None` if nothing."""
    return _by_name.get(name) if isinstance(name, str) else None
