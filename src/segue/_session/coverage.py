"""State that segue can see and that is not captured: told once, with the line that registers it, or refused.

Wish: whoever forgot to register something is told so at the first save, by the name that it has in the program, and with
the line to paste; and whoever forgot nothing is never told anything.

A warning that cries wolf is not read. So only what has moved is told, only where nothing that is captured tells the same,
and each only once. What is no state, though it moves, is named in `not_state`.
"""

from __future__ import annotations

import fnmatch
import time
import warnings
import weakref
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from segue._capture.component import Component, kind_of
from segue._capture.extra_state import has_extra_state
from segue._capture.layouts import Layouts
from segue._capture.memory import storage_of
from segue._capture.registered import Registered
from segue._capture.settings import is_setting
from segue._capture.staging import is_plain, plain_parts
from segue._capture.uncovered import Moved, Walk, is_flag_of_library, is_new, moved, remembered, seen_of
from segue._capture.uncovered_frames import caller, stacklevel
from segue._capture.uncovered_kinds import Kind, is_position
from segue._capture.uncovered_kinds import kind_of as kind_in_program
from segue._capture.uncovered_loose import Visible
from segue._capture.uncovered_moves import Looking, LooseMemory
from segue._capture.uncovered_saved import OwnState
from segue._capture.uncovered_weights import Weights, tensors_below
from segue._capture.wrappers import is_adapter_layer
from segue._session.coverage_draws import told_of_draws
from segue._session.coverage_lines import Told, message, told_of_moved, told_of_object
from segue._session.live import LiveTraining
from segue._session.refusals import strings_in
from segue.errors import UncoveredStateWarning, UnsupportedState

_all: weakref.WeakSet[Coverage] = weakref.WeakSet()


class Coverage:
    """Sees what a training does not capture.

    Args:
        live: The training.
        registered: What it captures now.
        not_state: Paths of what is no state, though it moves; `*` stands for anything.
        strict: Refuse, instead of warning.

    Raises:
        TypeError: If `not_state` is no collection of paths.
    """

    def __init__(
        self, live: LiveTraining, registered: Registered, not_state: Collection[str], *, strict: bool
    ) -> None:
        self._live = live
        self._not_state = strings_in(not_state, "not_state", "paths")
        self._strict = strict
        self._layouts = Layouts()
        self._told: set[str] = set()
        self._began = _clocks()
        self._own = {id(each) for each in _roots(live)}
        self._loose = LooseMemory()
        walk = self._walk(registered)
        self._first = remembered(walk.held)
        visible, looking = self._see(registered, walk, has_caller_state=False)
        self._loose.remember(visible.found, looking)
        _all.add(self)

    def look(self, registered: Registered, *, has_caller_state: bool, state: Any = None) -> None:
        """Tell of what has moved since it was first seen, and is not captured.

        Args:
            registered: What is captured.
            has_caller_state: Whether the program keeps state of its own with the capture.
            state: That state.

        Raises:
            UnsupportedState: If there is any, and the training is strict.
        """
        walk = self._walk(registered)
        visible, looking = self._see(registered, walk, has_caller_state=has_caller_state, state=state)
        told = [*self._of_moved(walk, registered, visible), *self._of_objects(visible, looking)]
        told += told_of_draws(self._live.components)
        for path, held in walk.held.items():
            if is_new(self._first.get(path), held):
                self._first[path] = seen_of(held)
        left = [each for each in told if not self._is_no_state(each.path)]
        if self._strict and left:
            raise UnsupportedState(
                message(left), code="capture.uncovered", where="training", found=f"{len(left)} paths",
                hint="register what is state, name what is none in `not_state`",
            )  # fmt: skip
        new = [each for each in left if each.path not in self._told]
        if new:
            self._told.update(each.path for each in new)
            warnings.warn(message(new), UncoveredStateWarning, stacklevel=stacklevel())

    def _walk(self, registered: Registered) -> Walk:
        walk = Walk(registered, self._layouts)
        live = self._live
        walk.module(live.model, "model", "model")
        for name, value in live.components.items():
            self._walk_component(walk, name, value)
        for name, optimizer in {**live.optimizers, **live.opaque}.items():
            walk.optimizer(optimizer, f"optimizer.{name}")
        for value in [*live.driven().values(), *live.held_schedulers(), *live.schedulers.values()]:
            walk.leave_out(value)
        return walk

    def _walk_component(self, walk: Walk, name: str, value: Any) -> None:
        path = f"component.{name}"
        if isinstance(value, nn.Module) and not isinstance(value, Component):
            walk.module(value, path, path)
        elif is_position(type(value)):
            walk.position(value, path, path)
        elif kind_in_program(value) is Kind.OBJECT:
            walk.program_object(value, path, path)
        else:
            walk.leave_out(value)

    def _see(
        self, registered: Registered, walk: Walk, *, has_caller_state: bool, state: Any = None
    ) -> tuple[Visible, Looking]:
        def is_covered(value: object) -> bool:
            return walk.has_reached(value) or registered.name(value) is not None

        def is_captured(tensor: torch.Tensor) -> bool:
            return registered.name(tensor) is not None

        def captured() -> Iterator[torch.Tensor]:
            tensors = [item.tensor for _, item in self._live.tensors() if item.tensor is not None]
            yield from (each for each in tensors if not is_lazy(each))
            yield from (each.grad for each in tensors if each.is_leaf and each.grad is not None)
            yield from tensors_below(state)
            for held in walk.held.values():
                for part in held.parts.values():
                    yield from tensors_below(part.value)

        trainable = [
            each for each in self._live.model.parameters() if each.requires_grad and not is_lazy(each)
        ]
        weights = Weights(trainable, captured)
        visible = Visible(is_covered, is_captured, self._is_of_another, self._layouts, weights.are_in)
        visible.look(caller())
        return visible, Looking(
            registered, is_captured, self._layouts, weights, has_caller_state=has_caller_state
        )

    def _is_of_another(self, value: object) -> bool:
        return any(id(value) in each._own for each in _all if each is not self)

    def _of_moved(self, walk: Walk, registered: Registered, visible: Visible) -> Iterator[Told]:
        own_states: dict[str, OwnState] = {}
        roots = {"model": visible.name_of(self._live.model) or "model"}
        for name, value in self._live.components.items():
            roots[f"component.{name}"] = visible.name_of(value) or name
        for each in moved(self._first, walk.held):
            if not self._is_accounted_for(each, registered, own_states):
                yield told_of_moved(each, roots, visible.name_of)

    def _is_accounted_for(self, each: Moved, registered: Registered, own_states: dict[str, OwnState]) -> bool:
        owner, part = each.held.owner, each.part
        if registered.keeps(owner, each.name) or is_flag_of_library(each):
            return True
        if isinstance(owner, nn.Module) and (is_setting(owner, each.name) or is_adapter_layer(owner)):
            return (
                True  # of an adapter's layer, which one is active and what is merged are compared, or refused
            )
        if part is None:
            return False
        return (
            registered.name(part.value) is not None
            or self._is_of_an_optimizer(part.value)
            or self._is_a_clock(part.value)
            or _is_view(part.value, self._live)
            or self._is_saved(each, own_states)
        )

    def _is_of_an_optimizer(self, value: Any) -> bool:
        """Tell whether it is a list of groups, a group or the state of an optimizer, which are captured with that."""
        if not isinstance(value, list | dict):
            return False
        parts = (
            part
            for optimizer in self._live.driven().values()
            for part in (*vars(optimizer).values(), *getattr(optimizer, "param_groups", ()))
        )
        return any(value is part for part in parts)

    def _is_a_clock(self, value: Any) -> bool:
        now = _clocks()
        return type(value) is float and any(
            began <= value <= at for began, at in zip(self._began, now, strict=True)
        )

    def _is_saved(self, each: Moved, own_states: dict[str, OwnState]) -> bool:
        """Tell whether the component that holds an attribute saves it."""
        owner = each.held.owner
        if isinstance(owner, nn.Module) and has_extra_state(owner) and each.part is not None:
            key = f"{id(owner)}"
            if key not in own_states:
                own_states[key] = OwnState(owner.get_extra_state())
            if own_states[key].has(each.name, each.part.value):
                return True
        name = next(
            (name for name in self._live.components if f"{each.path}.".startswith(f"component.{name}.")), None
        )
        if name is None or each.part is None:
            return False
        value: Any = self._live.components[name]
        if is_position(type(value)):
            return False
        if kind_of(value, name) == "module":
            return False
        if name not in own_states:
            own_states[name] = OwnState(
                value.capture() if isinstance(value, Component) else value.state_dict()
            )
        return own_states[name].has(each.name, each.part.value)

    def _of_objects(self, visible: Visible, looking: Looking) -> Iterator[Told]:
        registered: dict[str, dict[str, Any]] = {
            "optimizers": {**self._live.optimizers, **self._live.opaque},
            "schedulers": dict(self._live.schedulers),
        }
        names = {
            kind: {name: visible.name_of(value) or "..." for name, value in values.items()}
            for kind, values in registered.items()
        }
        for found in self._loose.told(visible.found, looking):
            yield told_of_object(found, names)

    def _is_no_state(self, path: str) -> bool:
        return any(
            fnmatch.fnmatchcase(path, entry)
            or fnmatch.fnmatchcase(path, f"{entry}.*")
            or fnmatch.fnmatchcase(path, f"{entry}[[]*")
            for entry in self._not_state
        )


def _roots(live: LiveTraining) -> Iterator[object]:
    yield from live.modules().values()
    for module in live.modules().values():
        yield from module.modules()
    yield from [*live.components.values(), *live.optimizers.values(), *live.opaque.values()]
    yield from [*live.schedulers.values(), live.accumulator]


def _clocks() -> tuple[float, ...]:
    return time.time(), time.monotonic(), time.perf_counter()


def _is_view(value: Any, live: LiveTraining) -> bool:
    """Tell whether a tensor lies in the memory of one that is captured."""
    if not isinstance(value, torch.Tensor) or not is_plain(value) or value.numel() == 0:
        return False
    return any(
        storage_of(part) == storage_of(value)
        for _, item in live.tensors()
        if item.tensor is not None and not is_lazy(item.tensor)
        for _, part in plain_parts(item.tensor)
        if is_plain(part) and part.device.type != "meta"
    )
