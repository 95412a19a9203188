"""Dataclasses to trees and back, guided by their type hints, so that every section is validated the same way.

`structure` is what stands between a hostile manifest and the rest of segue: it accepts exactly what `unstructure`
makes, and names the path of anything else.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from segue._record.composite import CAPTURED, Composite
from segue._record.embedded import SINCE_VERSION, Embedded, admit, embedded_as
from segue._record.tensors import CapturedArray, CapturedTensor
from segue._record.tree import Path, shown_path
from segue.errors import InvalidRecord

T = TypeVar("T")

SINCE = "since"
"""The key, in a field's metadata, of the first version of the format that has it. Such a field has a default, and is
written only where it differs from that: a record that needs nothing new is written as it always was."""


def added(since: int, default: Any = None) -> Any:
    """Declare a field that a version of the format after the first one added."""
    return dataclasses.field(default=default, metadata={SINCE: since})


def _is_unused(field: dataclasses.Field[Any], value: Any) -> bool:
    if SINCE not in field.metadata:
        return False
    current = getattr(value, field.name)
    # The type first: a caller's value may compare in any way, an array element by element.
    return type(current) is type(field.default) and bool(current == field.default)


def embeddable(name: str) -> Callable[[type[T]], type[T]]:
    """Let values of a dataclass also stand in trees, under a name that checkpoints give them."""

    def admitted(cls: type[T]) -> type[T]:
        admit(cls, Embedded(name, unstructure, lambda tree, path: structure(cls, tree, path)))
        return cls

    return admitted


def needed_version(value: Any, *, in_tree: bool = True) -> int:
    """Return the oldest version of the format that can hold a record, or part of one.

    Args:
        value: The record, or the part.
        in_tree: Whether it stands in a tree, and not in a field of its own type.

    Cost:
        A look at everything in it, a few microseconds for each tensor: types are told apart by cheap questions first.
    """
    kind = type(value)
    if kind in _OF_THE_FIRST_VERSION:
        return 1
    if kind is dict:
        return max((needed_version(item, in_tree=in_tree) for item in value.values()), default=1)
    if isinstance(value, Composite):
        return max(value.needed_version, *map(needed_version, value.parts.values()))
    if dataclasses.is_dataclass(kind):
        least = SINCE_VERSION if in_tree and embedded_as(kind) is not None else 1
        return max([least, *(_version_of_field(field, value) for field in _fields(kind))])
    if isinstance(value, Mapping):
        return max((needed_version(item, in_tree=in_tree) for item in value.values()), default=1)
    if isinstance(value, list | tuple | deque):
        return max((needed_version(item, in_tree=in_tree) for item in value), default=1)
    return 1


# The most of a record by far; and tensors and arrays hold nothing further.
_OF_THE_FIRST_VERSION = frozenset({type(None), bool, int, float, str, CapturedTensor, CapturedArray})


def _version_of_field(field: dataclasses.Field[Any], value: Any) -> int:
    if _is_unused(field, value):
        return 1
    since: int = field.metadata.get(SINCE, 1)
    cls: type = type(value)
    in_tree = field.name in _tree_fields(cls)
    return max(since, needed_version(getattr(value, field.name), in_tree=in_tree))


@functools.cache
def _tree_fields(cls: type) -> frozenset[str]:
    """Return the fields that are trees, or hold them."""
    return frozenset(name for name, hint in _hints(cls).items() if _is_of_trees(hint))


def _is_of_trees(hint: Any) -> bool:
    return hint is Any or any(_is_of_trees(part) for part in typing.get_args(hint))


@functools.cache
def _fields(cls: type) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(cls)


def unstructure(value: Any) -> Any:
    """Turn a dataclass into a tree of dictionaries and lists, guided by its type hints.

    Whatever is annotated `Any` is a tree already and passes through untouched: there a tuple is state, and must
    not become a list.
    """
    return _take_apart(type(value), value)


def _take_apart(hint: Any, value: Any) -> Any:
    origin = typing.get_origin(hint)
    if hint is Any or value is None:
        return value
    if origin in (typing.Union, types.UnionType):
        present = [choice for choice in typing.get_args(hint) if choice is not type(None)]
        return _take_apart(present[0], value) if len(present) == 1 else value
    if origin is not None and issubclass(origin, Mapping):
        _, item_hint = typing.get_args(hint)
        return {key: _take_apart(item_hint, item) for key, item in value.items()}
    if origin is tuple:
        item_hint = typing.get_args(hint)[0]
        return [_take_apart(item_hint, item) for item in value]
    if _is_section(hint):
        hints = _hints(typing.cast(type, hint))
        return {
            field.name: _take_apart(hints[field.name], getattr(value, field.name))
            for field in dataclasses.fields(hint)
            if not _is_unused(field, value)
        }
    return value


def _is_section(hint: Any) -> bool:
    """Tell whether a type hint is a dataclass to take apart; captured tensors are leaves."""
    return dataclasses.is_dataclass(hint) and not (isinstance(hint, type) and issubclass(hint, CAPTURED))


def structure(cls: type[Any], tree: Any, path: Path = ()) -> Any:
    """Build a dataclass from a tree, checking every type: the inverse of `unstructure`.

    Raises:
        InvalidRecord: If a field is missing, unknown, or of another type.
    """
    return _build(cls, tree, path)


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _build(hint: Any, tree: Any, path: Path) -> Any:
    origin = typing.get_origin(hint)
    if hint is Any:
        return tree
    if origin in (typing.Union, types.UnionType):
        return _build_union(hint, tree, path)
    if origin is not None and issubclass(origin, Mapping):
        return _build_mapping(hint, tree, path)
    if origin is tuple:
        return _build_tuple(hint, tree, path)
    if _is_section(hint):
        return _build_dataclass(typing.cast(type, hint), tree, path)
    if type(tree) is not hint:
        raise _wrong(path, hint, tree)
    return tree


def _build_union(hint: Any, tree: Any, path: Path) -> Any:
    choices = typing.get_args(hint)
    if tree is None and type(None) in choices:
        return None
    present = [choice for choice in choices if choice is not type(None)]
    if len(present) == 1:
        return _build(present[0], tree, path)
    if type(tree) not in present and not (Composite in present and isinstance(tree, Composite)):
        raise _wrong(path, hint, tree)
    return tree


def _build_mapping(hint: Any, tree: Any, path: Path) -> dict[str, Any]:
    if type(tree) is not dict or not all(type(key) is str for key in tree):
        raise _wrong(path, "an object", tree)
    _, item_hint = typing.get_args(hint)
    return {key: _build(item_hint, item, (*path, key)) for key, item in tree.items()}


def _build_tuple(hint: Any, tree: Any, path: Path) -> tuple[Any, ...]:
    if type(tree) is not list:
        raise _wrong(path, "a list", tree)
    item_hint = typing.get_args(hint)[0]
    return tuple(_build(item_hint, item, (*path, str(index))) for index, item in enumerate(tree))


def _build_dataclass(cls: type, tree: Any, path: Path) -> Any:
    fields = dataclasses.fields(cls)
    needed = {field.name for field in fields if SINCE not in field.metadata}
    if type(tree) is not dict or not needed <= tree.keys() <= {field.name for field in fields}:
        found = sorted(map(str, tree)) if type(tree) is dict else tree
        raise _wrong(path, f"fields {', '.join(field.name for field in fields)}", found)
    hints = _hints(cls)
    made = cls(**{name: _build(hints[name], tree[name], (*path, name)) for name in hints if name in tree})
    # Written out, a default would be a field that a reader of the version before does not know.
    for field in fields:
        if field.name in tree and _is_unused(field, made):
            raise _wrong((*path, field.name), "absent, as it is no other than the default", tree[field.name])
    return made


def _wrong(path: Path, expected: Any, found: Any) -> InvalidRecord:
    name = getattr(expected, "__name__", str(expected))
    return InvalidRecord(
        "a field is not of its type", code="record.field", where=shown_path(path), expected=name, found=found
    )
