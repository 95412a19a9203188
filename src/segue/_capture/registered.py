"""What of a training is restored by a part of its own, so that something else may point to it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from torch import nn

from segue._capture.generators import is_generator, is_global, source_of
from segue._capture.private_streams import PrivateStreams
from segue._capture.state_of import StateOf
from segue.errors import UnsupportedState

_STREAM = "a random stream"


class Registered:
    """The objects of a training by what they are called, and the attributes and entries that are components of their own.

    Args:
        objects: Everything that was handed in, by name: `model`, `optimizer.adamw`, `component.ema`.
        tensors: Names of the tensors of all registered modules, by `id`.
        roots: Where random generators of the program are looked for, which are captured by themselves.
    """

    def __init__(
        self,
        objects: Mapping[str, object],
        tensors: Mapping[int, str],
        roots: Mapping[str, object] | None = None,
    ) -> None:
        self._objects = objects
        self._tensors = tensors
        self._roots = roots or {}

    def name(self, value: object) -> str | None:
        """Return what a registered object, module or tensor is called, or a random stream; `None` for any other."""
        return self._names.get(id(value)) or self.stream(value)

    def stream(self, value: object) -> str | None:
        """Return the same for every random generator that is captured by itself; `None` for anything else."""
        if not self._roots or not is_generator(value):
            return None
        return _STREAM if is_global(value) or id(source_of(value)) in self._sources else None

    @cached_property
    def _sources(self) -> frozenset[int]:
        return frozenset(id(source_of(stream.value)) for stream in PrivateStreams(self._roots).streams)

    def at(self, address: int) -> str | None:
        """Return what is called what has this `id`: some dictionaries are keyed by it."""
        return self._names.get(address)

    def keeps(self, owner: object, name: str) -> bool:
        """Tell whether an attribute of an object, or an entry of a dictionary, is a component of its own."""
        return self.keeps_at(id(owner), name)

    def keeps_at(self, address: int, name: str) -> bool:
        """Tell the same of what has this `id`."""
        return any(not names or name in names for names in self._kept.get(address, ()))

    @cached_property
    def _names(self) -> dict[int, str]:
        return {id(value): name for name, value in self._all()} | dict(self._tensors)

    def _all(self) -> Iterator[tuple[str, object]]:
        for name, value in self._objects.items():
            if isinstance(value, nn.Module):
                yield from value.named_modules(prefix=name)
            elif not isinstance(value, StateOf):
                yield name, value
            elif not value.names:
                yield name, value.owner

    @cached_property
    def _kept(self) -> dict[int, list[tuple[str, ...]]]:
        found: dict[int, list[tuple[str, ...]]] = {}
        for value in self._objects.values():
            if isinstance(value, StateOf):
                found.setdefault(id(value.owner), []).append(value.names)
        return found


def refuse_addresses(tree: Any, registered: Registered, scope: str) -> None:
    """Raise `UnsupportedState` if captured state tells objects apart by `id`, which is another in each process.

    Args:
        tree: The captured state.
        registered: The objects.
        scope: Whose state it is, for messages.
    """
    for value in _numbers(tree):
        name = registered.at(value)
        if name is not None:
            raise UnsupportedState(
                "state that tells objects apart by `id`, which is another in each process", code="capture.address",
                where=scope, found=f"the id of {name}", hint="key it by names, or by positions",
            )  # fmt: skip


def _numbers(tree: Any) -> Iterator[int]:
    if type(tree) is int and tree > 1 << 20:
        yield tree
    elif isinstance(tree, dict):
        for key, item in tree.items():
            yield from _numbers(key)
            yield from _numbers(item)
    elif type(tree) in (list, tuple, deque, set, frozenset):
        for item in tree:
            yield from _numbers(item)


NOTHING = Registered({}, {})
"""Of an optimizer that is captured alone."""
