"""Objects that the caller registers by name: modules, objects with `state_dict`, and components.

A ladder of promises. A *module* is captured like the model: checked completely, filled in place. A *component* has
`capture`, `check` and `restore`: it says what would not fit before anything changes. An object with `state_dict`
and `load_state_dict` can only be loaded and refuse then; so it is loaded early, and put back from an undo copy if
it, or a later one, refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

from segue._capture.data.classes import NODE, NODES_LOADER, STATEFUL_LOADER, STREAMED_DATASET, is_a
from segue._capture.data.position import DataPosition
from segue._capture.deferred import deferring
from segue._capture.extra_state import ExtraState
from segue._capture.lazily import built_class
from segue._capture.module import capture_module, check_module
from segue._capture.plain import freeze
from segue._capture.scaler import check_factors, configured_factors
from segue._capture.scheduler import is_scheduler
from segue._capture.staging import class_name, is_called, type_name
from segue._capture.state_of import StateOf, all_names
from segue._capture.wrappers import unwrapped, wrappers_of
from segue._record.sections import ComponentRecord
from segue._record.tree import same, thaw
from segue.errors import (
    ABSENT,
    ComponentMismatch,
    ContractMismatch,
    Finding,
    MismatchError,
    NotAtBoundary,
    OptimizerMismatch,
    RestoreInterrupted,
    UnsupportedState,
)

STREAMS_NAME = "rng"
"""The component of this name stands in for the global random streams."""


@runtime_checkable
class Component(Protocol):
    """An object that takes part in capture and restore with promises of its own."""

    def capture(self) -> Any:
        """Return the state as plain values, tensors and arrays. Must not change anything."""
        ...

    def check(self, state: Any) -> Iterable[str]:
        """Return what would keep `restore(state)` from working, as clauses; nothing if it would. Change nothing."""
        ...

    def restore(self, state: Any) -> None:
        """Take over the state; can't fail if `check` returned nothing."""
        ...


class Stateful(Protocol):
    """An object with a state dictionary: torch's optimizers, and much that is written after them."""

    def state_dict(self) -> Any:
        """Return the state."""
        ...

    def load_state_dict(self, state: Any, /) -> Any:
        """Take over the state."""
        ...


def kind_of(value: object, name: str) -> str:
    """Classify an object: `module`, `component` or `state_dict`.

    Raises:
        UnsupportedState: If it is none of them, or has a place of its own in `Training`.
    """
    where = f"component.{name}"
    _refuse_misplaced(value, where)
    if isinstance(value, Component):
        return "component"
    if isinstance(value, nn.Module):
        return "module"
    if callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None)):
        return "state_dict"
    raise UnsupportedState(
        "a component needs `state_dict` and `load_state_dict`, or `capture`, `check` and `restore`",
        code="capture.component", where=where, found=type_name(value), hint=_state_of_hint(value, name),
    )  # fmt: skip


def _state_of_hint(value: object, name: str) -> str | None:
    """Name the attributes that a `StateOf` can keep: without names it keeps no attributes of a class of the program."""
    names = [each for each in all_names(value) if _is_kept_by_state_of(value, each)]
    if isinstance(value, dict):
        return f'`components={{"{name}": segue.StateOf({name})}}` keeps its entries'
    if not names:
        return None
    quoted = ", ".join(f'"{each}"' for each in names)
    return (
        f'`components={{"{name}": segue.StateOf({name}, {quoted})}}` keeps these; leave out what is no state'
    )


def _is_kept_by_state_of(value: object, name: Any) -> bool:
    if not isinstance(name, str) or not name.isidentifier():
        return False
    try:
        freeze(StateOf(value, name).capture(), name)
    except (UnsupportedState, TypeError):
        return False
    return True


def _refuse_misplaced(value: object, where: str) -> None:
    if isinstance(value, Optimizer):
        hint = "hand it in as one of the optimizers: `Training(model, {name: optimizer})`"
    elif is_scheduler(value):
        hint = "hand it in as one of the schedulers: `Training(model, optimizer, {name: scheduler})`"
    elif is_a(value, STATEFUL_LOADER, NODES_LOADER, NODE, STREAMED_DATASET):
        hint = 'register its position, and iterate over that: `data = segue.DataPosition(loader)`, `components={"data": data}`'
    elif isinstance(value, DataLoader):
        hint = _loader_hint(value)
    else:
        return
    raise UnsupportedState("this object can't be a component", code="capture.component", where=where,
                           found=type_name(value), hint=hint)  # fmt: skip


def _loader_hint(loader: DataLoader[Any]) -> str:
    if isinstance(loader.sampler, SequentialSampler):
        return 'register its position, and iterate over that: `data = segue.DataPosition(loader)`, `components={"data": data}`'
    shuffles = "shuffles" if isinstance(loader.sampler, RandomSampler) else "draws its own order"
    return (
        f"it {shuffles} anew at each start and knows no position; "
        "`loader = DataLoader(dataset, sampler=segue.ExactSampler(dataset), ...)`, then register "
        "`data = segue.DataPosition(loader)` and iterate over that"
    )


def capture_component(value: Any, name: str, shares: Any = None) -> ComponentRecord:
    """Copy the state of a registered object.

    Args:
        value: The object.
        name: Its name.
        shares: What it shares with other modules, as from `shared_between`; `None` for nothing.

    Raises:
        UnsupportedState: If part of it can't be kept.
        NotAtBoundary: If it is a gradient scaler between `unscale_` and `update`.
    """
    kind, scope = kind_of(value, name), f"component.{name}"
    if kind == "module":
        name = class_name(built_class(unwrapped(value)))
        return ComponentRecord(kind, name, capture_module(value, scope), shares)
    return capture_object(value, scope)


def capture_object(value: Any, scope: str) -> ComponentRecord:
    """Copy the state of an object that is asked for it: by its `capture`, or else its `state_dict`.

    Args:
        value: The object.
        scope: What it is called in messages, such as `component.ema`.

    Raises:
        UnsupportedState: If part of it can't be kept.
        NotAtBoundary: If it is a gradient scaler between `unscale_` and `update`.
    """
    refuse_scaler_in_flight(value, scope)
    with deferring(None):  # the object's own code may capture by itself, and read what it got
        if isinstance(value, Component):
            return ComponentRecord("component", type_name(value), None, freeze(value.capture(), scope))
        tree = freeze(value.state_dict(), scope)
        return ComponentRecord("state_dict", type_name(value), None, tree, configured_factors(value, tree))


def refuse_scaler_in_flight(value: object, scope: str) -> None:
    """Raise `NotAtBoundary` for a gradient scaler that has unscaled and not updated yet.

    Which optimizers it has unscaled is in no state dict: resuming would unscale twice (torch 2.13).
    """
    if not isinstance(value, torch.amp.GradScaler):
        return
    for state in getattr(value, "_per_optimizer_states", {}).values():
        stage = getattr(state.get("stage"), "name", "READY")
        if stage != "READY":
            raise NotAtBoundary("a gradient scaler is between `unscale_` and `update`", where=scope, found=stage,
                                hint="save after `scaler.update()`")  # fmt: skip


def check_component(record: ComponentRecord, value: Any, name: str, shares: Any = None) -> Iterator[Finding]:
    """Yield what keeps the record from fitting this object, as far as its kind can tell."""
    scope = f"component.{name}"
    if not _is_of_recorded_class(value, record.class_name):
        yield Finding(
            ComponentMismatch,
            f"{scope}.class",
            "another class of component",
            scope,
            record.class_name,
            type_name(value),
        )
        return
    if record.module is not None and isinstance(value, nn.Module):
        yield from check_module(record.module, value, scope)
        if not same(record.tree, shares):
            yield Finding(
                ContractMismatch, f"{scope}.shared", "it shares memory with other modules differently", scope,
                _shown_shares(record.tree), _shown_shares(shares), "build the modules with the same ties as when it was captured",
            )  # fmt: skip
    elif isinstance(value, torch.amp.GradScaler) and value.is_enabled() != bool(record.tree):
        # A disabled one saves an empty dictionary, and drops whatever it is given without a word (torch 2.13).
        sides = ("enabled", "disabled") if record.tree else ("disabled", "enabled")
        yield Finding(
            ComponentMismatch,
            f"{scope}.enabled",
            "the gradient scaler is enabled on one side only",
            scope,
            *sides,
        )
    elif isinstance(value, torch.amp.GradScaler) and record.kind == "state_dict":
        yield from check_factors(record, value, scope)
    elif isinstance(value, DataPosition):
        yield from value.findings(thaw(record.tree), scope)
    elif record.kind == "component":
        for clause in value.check(thaw(record.tree)) or ():
            yield Finding(ComponentMismatch, f"{scope}.check", clause, scope)


def _is_of_recorded_class(value: Any, name: str) -> bool:
    if not isinstance(value, nn.Module):
        return is_called(type(value), name)
    # Older records name a wrapper of peft's, or a subclass of one of torch's: names and layouts decide then.
    is_wrapper = name.startswith("peft.peft_model.") or any(
        is_called(type(wrapper), name) for wrapper, _ in wrappers_of(value)
    )
    return is_wrapper or is_called(built_class(unwrapped(value)), name)


def _shown_shares(tree: Any) -> Any:
    if tree is None:
        return "nothing"
    return {name: "/".join(share["with"]) for name, share in tree["shares"].items()}


def streams_last(names: Iterable[str], values: Mapping[str, Any]) -> list[str]:
    """Sort components by name; positions in data behind all others, and `rng` behind these, since building an iterator draws."""
    return sorted(
        names, key=lambda name: (name == STREAMS_NAME, isinstance(values.get(name), DataPosition), name)
    )


class ObjectRestore:
    """Restores objects that can only be asked to, with an undo.

    Made before the first write: it takes the undo copies then.

    Args:
        records: What each is to take over, by scope (`component.ema`), in the order in which they are asked.
        values: The objects by scope.
        reread: The scopes of those that must say afterwards exactly what they were told.
    """

    def __init__(
        self, records: Mapping[str, ComponentRecord], values: Mapping[str, Any], reread: Collection[str] = ()
    ) -> None:
        self._records = records
        self._values = values
        self._reread = reread
        self._undo = {scope: capture_object(values[scope], scope) for scope in records}
        self._done: list[str] = []

    def run(self) -> None:
        """Restore every object, in order.

        Raises:
            MismatchError: If one refuses; all have been put back, and nothing else was changed.
            RestoreInterrupted: If one refuses and could not be put back.
        """
        for scope, record in self._records.items():
            value = self._values[scope]
            self._done.append(scope)
            try:
                _restorer(value, record.kind)(thaw(record.tree))
                now = capture_object(value, scope).tree if scope in self._reread else record.tree
            except BaseException as error:
                self.undo(error)
                if not isinstance(error, Exception):  # Ctrl-C
                    raise
                raise _refusal(scope, value, "refused", f"refused its state: {error}", error) from error
            if not same(record.tree, now):
                what = "does not give back the state that it was given"
                refusal = _refusal(scope, value, "altered", what, getattr(value, "asked", value))
                if hasattr(value, "advice"):
                    refusal.hint = value.advice(record.tree, now)
                self.undo(refusal)
                raise refusal

    def undo(self, cause: BaseException) -> None:
        """Put back every object that was touched.

        Raises:
            RestoreInterrupted: If an object can't be put back as it was.
        """
        for scope in reversed(self._done):
            before = self._undo[scope]
            try:
                _restorer(self._values[scope], before.kind)(thaw(before.tree))
                intact = same(before.tree, capture_object(self._values[scope], scope).tree)
            except Exception:
                intact = False
            if not intact:
                raise RestoreInterrupted(
                    "an object refused its state and could not be put back; rebuild this training",
                    where=scope,
                ) from cause
        self._done.clear()


def _refusal(scope: str, value: object, aspect: str, what: str, found: object) -> MismatchError:
    error: type[MismatchError] = ComponentMismatch
    kind = "a component"
    if scope.startswith("optimizer."):
        error, kind = OptimizerMismatch, "an optimizer"
    elif isinstance(value, ExtraState):
        error, kind = ContractMismatch, "a module with extra state"
    return error(f"{kind} {what}", code=f"{scope}.{aspect}", where=scope, found=type(found).__name__)


def _restorer(value: Any, kind: str) -> Callable[[Any], None]:
    if isinstance(value, torch.amp.GradScaler):
        return lambda state: _load_scaler(value, state)
    restore: Callable[[Any], None] = value.restore if kind == "component" else value.load_state_dict
    return restore


def _load_scaler(scaler: torch.amp.GradScaler, state: Any) -> None:
    """Load a gradient scaler so that its next call may be `step`, over gradients that were scaled before the capture.

    `load_state_dict` of one that has not scaled yet leaves its scale to be made by the next `scale` (torch 2.13).
    """
    scaler.load_state_dict(state)
    if state and getattr(scaler, "_scale", ABSENT) is None:
        scaler._lazy_init_scale_growth_tracker(torch.device(scaler._device))
