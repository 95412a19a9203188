"""Which objects that nobody registered hold state: what has moved since it was first seen, or is under way."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from segue._capture.layouts import Layouts
from segue._capture.registered import Registered
from segue._capture.staging import class_name, type_name
from segue._capture.uncovered import Seen, Walk, moved, remembered
from segue._capture.uncovered_frames import locals_of
from segue._capture.uncovered_kinds import (
    Kind,
    is_global_stream,
    is_over,
    is_position,
    is_under_way,
    mark_of_kind,
    module_mark,
    tensors_of,
)
from segue._capture.uncovered_loose import Loose, loader_of, passes_under_way, shuffles
from segue._capture.uncovered_marks import Mark, text_of
from segue._capture.uncovered_weights import Copies, Weights, numbers_of
from segue.errors import ABSENT

_POSITIONS = (Kind.LOADER, Kind.PASS)
_STATEFUL_LOADER = "torchdata.stateful_dataloader.stateful_dataloader.StatefulDataLoader"


class Uncaptured(NamedTuple):
    """An object that nobody registered, and that holds state."""

    path: str
    expression: str
    value: Any
    kind: Kind
    why: str
    names: tuple[str, ...] = ()
    """The attributes that have moved, where they are known."""


class _First(NamedTuple):
    reference: Callable[[], Any]
    mark: Any


class LooseMemory:
    """Remembers what objects that nobody registered were when they were first seen.

    Args:
        is_captured: Tells whether a tensor is captured.
    """

    def __init__(self) -> None:
        self._first: dict[int, _First] = {}
        self._looks = 0
        self._weights: dict[str, dict[str, Copies]] = {}
        self._last: dict[str, Copies] = {}
        self._numbers: dict[str, dict[str, Mark]] = {}

    def remember(self, found: list[Loose], looking: Looking) -> None:
        """See objects for the first time: what they are now they were before the training began."""
        for loose in found:
            if loose.kind is Kind.WEIGHTS:
                self._moved_weights(loose, looking)
            elif loose.kind not in _POSITIONS:
                self._put(loose, looking.mark(loose))

    def told(self, found: list[Loose], looking: Looking) -> Iterator[Uncaptured]:
        """Yield what holds state, of the objects that a program can see."""
        loaders = [each.value for each in found if each.kind is Kind.LOADER]
        yield from self._read_loaders(found, loaders, looking)
        for loose in found:
            if loose.kind in _POSITIONS:
                continue
            if loose.kind is Kind.WEIGHTS:
                names = self._moved_weights(loose, looking)
                if names is not None:
                    told = (
                        f"{type_name(loose.value)}, whose tensors of the shapes of the parameters have moved"
                    )
                    yield Uncaptured(loose.path, loose.expression, loose.value, loose.kind, told, names)
                continue
            if loose.is_anothers:
                if self._get(loose) is ABSENT:
                    self._put(loose, looking.mark(loose))
                continue
            mark, first = looking.mark(loose), self._get(loose)
            if first is ABSENT:
                self._put(loose, mark)
            why = looking.why(loose, first, mark, loaders)
            if why is not None:
                yield Uncaptured(loose.path, loose.expression, loose.value, loose.kind, why)

    def _read_loaders(self, found: list[Loose], loaders: list[Any], looking: Looking) -> Iterator[Uncaptured]:
        reading: dict[int, str] = {}
        for loader in loaders:
            why = looking.position_of(loader)
            if why is not None:
                reading[id(loader)] = why
        passes = [each for each in found if each.kind is Kind.PASS and not is_over(each.value)]
        for each in passes:
            loader = loader_of(each.value, loaders)
            if loader is None and looking.counts(True):
                yield Uncaptured(each.path, each.expression, each.value, Kind.PASS, "under way")
            elif loader is not None and looking.counts(not shuffles(loader)):
                reading.setdefault(id(loader), _delivered(each.value))
        for loader, batches in self._in_loops([each for each in loaders if id(each) not in reading], looking):
            reading.setdefault(id(loader), _delivered(batches))
        for each in found:
            if id(each.value) in reading:
                yield Uncaptured(each.path, each.expression, each.value, Kind.LOADER, reading[id(each.value)])

    def _in_loops(self, loaders: list[Any], looking: Looking) -> Iterator[tuple[Any, Any]]:
        """Yield what a `for` is reading: at the first look and ever more rarely, since all objects are looked at."""
        plain = [
            each for each in loaders if not is_position(type(each)) and looking.counts(not shuffles(each))
        ]
        if not plain:
            return
        self._looks += 1
        if self._looks & (self._looks - 1):
            return
        for loader, batches in passes_under_way(plain):
            if not is_over(batches):
                yield loader, batches

    def _moved_weights(self, loose: Loose, looking: Looking) -> tuple[str, ...] | None:
        """Return what has moved in one that holds weights, and remember it; `None` for nothing."""
        now = {name: (value, looking.weights.seen(value)) for name, value in looking.copies_in(loose)}
        first = self._weights.setdefault(loose.path, {})
        numbers = looking.numbers_in(loose)
        first_numbers = self._numbers.setdefault(loose.path, numbers)
        moved = []
        for name, (value, seen) in now.items():
            begun = first.setdefault(name, seen)
            last = self._last.get(f"{loose.path}.{name}", seen)
            if looking.weights.have_moved(value, begun, last, seen):
                moved.append(name)
            self._last[f"{loose.path}.{name}"] = seen
        if not moved or loose.is_anothers:
            return None
        return (*moved, *(name for name, mark in numbers.items() if first_numbers.get(name) != mark))

    def _get(self, loose: Loose) -> Any:
        first = self._first.get(id(loose.value))
        return ABSENT if first is None or first.reference() is not loose.value else first.mark

    def _put(self, loose: Loose, mark: Mark) -> None:
        try:
            self._first[id(loose.value)] = _First(weakref.ref(loose.value), mark)
        except TypeError:  # some can't be referred to weakly: iterators of Python's, which are small
            self._first[id(loose.value)] = _First(functools.partial(_itself, loose.value), mark)


def _itself(value: Any) -> Any:
    return value


def _delivered(batches: Any) -> str:
    return f"{vars(batches).get('_num_yielded', 0)} batches were fetched of the pass under way"


class Looking:
    """How objects that nobody registered are looked at, at one moment.

    Args:
        registered: What is captured.
        is_captured: Tells whether a tensor is captured.
        layouts: Where objects of each class keep what they hold.
        weights: What containers of copies of the parameters look like.
        has_caller_state: Whether the program keeps state of its own with the capture.
    """

    def __init__(
        self, registered: Registered, is_captured: Callable[[torch.Tensor], bool], layouts: Layouts, weights: Weights,
        *, has_caller_state: bool,
    ) -> None:  # fmt: skip
        self._registered = registered
        self._is_captured = is_captured
        self._layouts = layouts
        self.weights = weights
        self._has_caller_state = has_caller_state

    def copies_in(self, loose: Loose) -> Iterator[tuple[str, Any]]:
        """Yield the containers of copies of the parameters that an object holds and that no component keeps."""
        value = loose.value
        if isinstance(value, list | tuple | dict):
            kept = isinstance(value, dict) and any(self._registered.keeps(value, each) for each in value)
            if not kept:
                yield "", value
            return
        for name, item in self._layouts.of(type(value)).parts(value):
            if not self._registered.keeps(value, name) and self.weights.are_in(item):
                yield name, item

    def numbers_in(self, loose: Loose) -> dict[str, Mark]:
        """Return the marks of the numbers beside them."""
        if isinstance(loose.value, list | tuple | dict):
            return {}
        parts = dict(self._layouts.of(type(loose.value)).parts(loose.value))
        return {
            name: mark
            for name, mark in numbers_of(parts).items()
            if not self._registered.keeps(loose.value, name)
        }

    def counts(self, is_counted: bool) -> bool:
        """Tell whether a position is told of: one that a count in the caller's state keeps, only where there is none."""
        return not (is_counted and self._has_caller_state)

    def mark(self, loose: Loose) -> Any:
        """Return what tells whether an object has moved."""
        if loose.kind is Kind.OBJECT:
            return remembered(self._walked(loose).held)
        if loose.kind is Kind.MODULE:
            return module_mark([each for each in tensors_of(loose.value) if not self._is_captured(each)])
        return mark_of_kind(loose.value, loose.kind)

    def why(self, loose: Loose, first: Any, mark: Any, loaders: list[Any]) -> str | None:
        """Say in what way an object holds state; `None` if it doesn't."""
        has_moved = first is not ABSENT and first != mark
        value, is_new = loose.value, first is ABSENT
        if loose.kind is Kind.OBJECT:
            return None if is_new else self._what_moved(loose, first)
        if loose.kind is Kind.MODULE:
            has_gradients = is_new and any(
                each.grad is not None for each in tensors_of(value) if each.is_leaf
            )
            return f"{type_name(value)}, trained beside the model" if has_moved or has_gradients else None
        if loose.kind is Kind.OPTIMIZER:
            return f"{type_name(value)}, which has stepped" if has_moved or (is_new and value.state) else None
        if loose.kind is Kind.SCHEDULER:
            return f"{type_name(value)}, which has moved" if has_moved else None
        if loose.kind is Kind.SCALER:
            is_used = value.is_enabled() and vars(value).get("_scale") is not None
            return "a gradient scaler in use" if is_used and (has_moved or is_new) else None
        if loose.kind is Kind.STREAM:
            return (
                "a random generator that has been drawn from"
                if has_moved and not is_global_stream(value)
                else None
            )
        if loose.kind is Kind.GENERATOR:
            return self._why_under_way(value, loaders)
        return "an iterator under way" if has_moved and self.counts(True) else None

    def _why_under_way(self, generator: Any, loaders: list[Any]) -> str | None:
        if not is_under_way(generator):
            return None
        held = locals_of(generator.gi_frame).values()
        draws = any(each is loader and shuffles(loader) for each in held for loader in loaders)
        return "a generator under way" if self.counts(not draws) else None

    def position_of(self, loader: Any) -> str | None:
        """Say where a loader stands that knows it; `None` for one that doesn't, or stands at its beginning."""
        if is_position(type(loader)):
            begun = loader.epoch or loader.delivered
            return f"{loader.delivered} batches were delivered of pass {loader.epoch}" if begun else None
        if not any(class_name(cls) == _STATEFUL_LOADER for cls in type(loader).__mro__):
            return None
        batches = vars(loader).get("_iterator")
        return None if batches is None or is_over(batches) else _delivered(batches)

    def _walked(self, loose: Loose) -> Walk:
        walk = Walk(self._registered, self._layouts)
        walk.program_object(loose.value, loose.path, loose.path)
        return walk

    def _what_moved(self, loose: Loose, first: dict[str, Seen]) -> str | None:
        for each in moved(first, self._walked(loose).held):
            if not self._registered.keeps(each.held.owner, each.name):
                place = f"{each.path}.{each.name}".removeprefix(f"{loose.path}.")
                now = "absent" if each.part is None else text_of(each.part.mark)
                before = "absent" if each.before is ABSENT else text_of(each.before)
                return f"{type_name(loose.value)}, whose {place} has moved: {before} -> {now}"
        return None
