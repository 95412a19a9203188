"""What an object saves of itself, searched for what would be lost."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import torch

from segue._record.composite import blobs
from segue._record.digest import tree_digest
from segue._record.tree import SCALARS, same

_PACKED = {"state", "param_groups"}
"""The entries of the dictionary that a torch optimizer saves."""


class Saved:
    """A captured tree, as a set of what is in it.

    Numbers and texts are looked for under any name, since objects save them under names of their own; but not among the
    groups and state of a torch optimizer, where they would be found by chance. Nor would flags be told apart: these are
    only looked for under their own name, as everything is in groups and state.

    Args:
        tree: What was captured.
    """

    def __init__(self, tree: Any) -> None:
        self._tree = tree

    def has(self, name: str, leaves: tuple[Any, ...]) -> bool:
        """Tell whether everything in an attribute of this name is there.

        Args:
            name: What it is called. A leading underscore does not count.
            leaves: The scalars in it, and the digests of its tensors.
        """
        return all(self._has_leaf(name.lstrip("_"), leaf) for leaf in leaves)

    def has_all_of(self, tree: Any) -> bool:
        """Tell whether every tensor of another captured tree is there."""
        return all(tree_digest(blob) in self._digests for blob in blobs(tree))

    def has_entry(self, key: Any, tree: Any) -> bool:
        """Tell whether some dictionary has this entry."""
        return any(same(item, tree) for item in self._entries.get(key, ()))

    def _has_leaf(self, name: str, leaf: Any) -> bool:
        if type(leaf) is str and leaf in self._digests:
            return True
        is_named = _key(leaf) in self._named.get(name, set())
        return is_named or (not isinstance(leaf, bool | None) and _key(leaf) in self._scalars)

    @cached_property
    def _digests(self) -> frozenset[str]:
        return frozenset(tree_digest(blob) for blob in blobs(self._tree))

    @cached_property
    def _scalars(self) -> frozenset[tuple[str, str]]:
        return frozenset(_key(value) for value in _leaves(self._tree, without_packed=True))

    @cached_property
    def _named(self) -> dict[str, set[tuple[str, str]]]:
        """Return the scalars under each name, in whatever holds them there."""
        found: dict[str, set[tuple[str, str]]] = {}
        for key, value in _all_entries(self._tree):
            if isinstance(key, str):
                found.setdefault(key.lstrip("_"), set()).update(_key(leaf) for leaf in _leaves(value))
        return found

    @cached_property
    def _entries(self) -> dict[Any, list[Any]]:
        found: dict[Any, list[Any]] = {}
        for key, value in _all_entries(self._tree):
            found.setdefault(key, []).append(value)
        return found


def _key(value: Any) -> tuple[str, str]:
    return type(value).__name__, repr(value)


def _items(tree: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(tree, dict):
        yield from tree.items()
    elif isinstance(tree, list | tuple | deque | set | frozenset) and not isinstance(tree, torch.Size):
        yield from enumerate(tree)


def _leaves(tree: Any, *, without_packed: bool = False) -> Iterator[Any]:
    if isinstance(tree, SCALARS):
        yield tree
    is_packed = without_packed and isinstance(tree, dict) and tree.keys() >= _PACKED
    for key, item in _items(tree):
        if not (is_packed and key in _PACKED):
            yield from _leaves(item, without_packed=without_packed)


def _all_entries(tree: Any) -> Iterator[tuple[Any, Any]]:
    for key, item in _items(tree):
        if isinstance(tree, dict):
            yield key, item
        yield from _all_entries(item)
