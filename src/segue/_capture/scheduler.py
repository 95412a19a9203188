"""A learning-rate scheduler: its position restored, its configuration compared.

`LRScheduler.load_state_dict` is `__dict__.update`: it accepts the state of another class, silently takes back a
changed horizon, and forgets functions (torch 2.13). Here every attribute is captured; those that never move by
themselves are compared with what the program built, and the rest is put back. The optimizer's groups are rewritten
by `optimizer`, so the order in which a program builds and restores things doesn't matter.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from segue._capture.callables import callable_state, fingerprint, is_stream, restore_callable_state
from segue._capture.function_changes import (
    changes,
    describes_callable,
    reads_registered,
    registering,
    with_unregistered,
    without_registered,
)
from segue._capture.generators import is_generator
from segue._capture.plain import freeze
from segue._capture.registered import NOTHING
from segue._capture.staging import is_of_class, type_name
from segue._capture.writes import ObjectWrite, Write
from segue._record.sections import SchedulerRecord
from segue._record.tree import copied, same, thaw
from segue.errors import Finding, SchedulerMismatch, UnsupportedState, some

if TYPE_CHECKING:
    from segue._capture.description import References

# What moves as a schedule runs; every other attribute of torch's 15 schedulers stays as constructed (torch 2.13).
_POSITION = frozenset({
    "last_epoch", "_step_count", "_last_lr", "_get_lr_called_within_step", "_is_initial", "T_cur", "T_i", "best",
    "num_bad_epochs", "cooldown_counter",
})  # fmt: skip
_STRUCTURE = frozenset({"optimizer", "_schedulers"})
# Lists with an entry for each group of the optimizer (torch 2.13).
_BY_GROUP = frozenset({
    "base_lrs", "_last_lr", "lr_lambdas", "max_lrs", "base_momentums", "max_momentums", "min_lrs",
})  # fmt: skip

_first_bound: weakref.WeakKeyDictionary[LRScheduler, dict[str, Any]] = weakref.WeakKeyDictionary()


def is_scheduler(value: object) -> bool:
    """Tell whether an object is a torch learning-rate scheduler."""
    return isinstance(value, LRScheduler | ReduceLROnPlateau)


def children(scheduler: LRScheduler) -> list[LRScheduler]:
    """Return the nested schedulers of a SequentialLR or ChainedScheduler."""
    return list(getattr(scheduler, "_schedulers", ()))


def family(scheduler: LRScheduler) -> Iterator[LRScheduler]:
    """Yield a scheduler and all that are nested in it."""
    yield scheduler
    for child in children(scheduler):
        yield from family(child)


def optimizer_of(scheduler: LRScheduler) -> Optimizer:
    """Return the optimizer that a scheduler drives."""
    return scheduler.optimizer


def bind_scheduler(scheduler: LRScheduler, scope: str, registered: References = NOTHING) -> None:
    """Remember how a scheduler is configured, the first time it is seen in this process.

    Args:
        scheduler: The scheduler.
        scope: What it is called in messages.
        registered: What else is restored: functions may read it.

    Raises:
        UnsupportedState: If an attribute can't be kept.
    """
    for index, member in enumerate(family(scheduler)):
        now = _configuration(member, f"{scope} {index}" if index else scope, registered)
        first = _first_bound.get(member, now)
        functions = {key: with_unregistered(first[key], now[key]) for key in _functions(member, first)}
        _first_bound[member] = {**first, **functions}


def _attributes(scheduler: LRScheduler) -> dict[str, Any]:
    return {key: value for key, value in vars(scheduler).items() if key not in _STRUCTURE}


def _is_callables(value: Any) -> bool:
    return callable(value) or (
        type(value) is list and bool(value) and all(callable(item) or item is None for item in value)
    )


def _functions(scheduler: LRScheduler, configuration: Mapping[str, Any]) -> list[str]:
    """Return the names of attributes that are functions, among those of a configuration."""
    return [
        key for key, value in _attributes(scheduler).items() if _is_callables(value) and key in configuration
    ]


def _configuration(scheduler: LRScheduler, scope: str, registered: References = NOTHING) -> dict[str, Any]:
    return {
        key: _fingerprints(value, f"{scope} {key}", registered)
        if _is_callables(value)
        else freeze(value, f"{scope} {key}")
        for key, value in _attributes(scheduler).items()
        if key not in _POSITION and not is_stream(value, registered)
    }


def _as_it_is(scheduler: LRScheduler, scope: str, registered: References) -> dict[str, Any]:
    """Return the configuration that a scheduler has: as it was first seen, but its functions as they are now.

    What a function reads decides what it does from here on, whenever it changed.
    """
    now = _configuration(scheduler, scope, registered)
    first = _first_bound.get(scheduler, now)
    configuration: dict[str, Any] = copied(
        {**first, **{key: now[key] for key in _functions(scheduler, first)}}
    )
    return configuration


def depends_on_registered(scheduler: LRScheduler, scope: str, registered: References) -> bool:
    """Tell whether a function of a scheduler, or of one nested in it, reads state that is kept elsewhere."""
    return any(
        reads_registered(value)
        for member in family(scheduler)
        for value in _configuration(member, scope, registered).values()
    )


def _fingerprints(value: Any, where: str, registered: References) -> Any:
    if type(value) is list:
        return [None if item is None else fingerprint(item, where, registered) for item in value]
    return fingerprint(value, where, registered)


def _position(scheduler: LRScheduler, scope: str, registered: References = NOTHING) -> dict[str, Any]:
    return {
        key: _callable_states(value, f"{scope} {key}", registered)
        if _is_callables(value)
        else freeze(value, f"{scope} {key}")
        for key, value in _attributes(scheduler).items()
        if not is_stream(value, registered)
    }


def _callable_states(value: Any, where: str, registered: References) -> Any:
    if type(value) is list:
        return [None if item is None else callable_state(item, where, registered) for item in value]
    return callable_state(value, where, registered)


def capture_scheduler(
    scheduler: LRScheduler,
    optimizer_name: str,
    outstanding: int,
    usual: int | None,
    scope: str,
    registered: References = NOTHING,
) -> SchedulerRecord:
    """Copy a scheduler's position and configuration, nested ones included.

    Args:
        scheduler: The scheduler.
        optimizer_name: What the optimizer is called that it drives.
        outstanding: Optimizer steps since it last moved.
        usual: Optimizer steps between its last two moves.
        scope: What it is called in messages.
        registered: What else is restored: functions may read it.

    Raises:
        UnsupportedState: If an attribute or a callable can't be kept, or a function has changed since it was bound.
    """
    nested = tuple(
        capture_scheduler(child, optimizer_name, 0, None, f"{scope}.{index}", registered)
        for index, child in enumerate(children(scheduler))
    )
    now = _as_it_is(scheduler, scope, registered)
    _refuse_changed_functions(scheduler, _first_bound.get(scheduler, now), now, scope)
    return SchedulerRecord(
        type_name(scheduler),
        optimizer_name,
        now,
        _position(scheduler, scope, registered),
        nested,
        outstanding,
        usual,
    )


def _refuse_changed_functions(
    scheduler: LRScheduler, first: Mapping[str, Any], now: Mapping[str, Any], scope: str
) -> None:
    """Raise if what a function closes over or reads has moved: that is state, and a function's state can't be put back."""
    for key in _functions(scheduler, first):
        found = changes(without_registered(first[key], now[key]), now[key])
        if found:
            register = registering(found)
            raise UnsupportedState(
                f"a function has changed since the scheduler was bound: {some([str(change) for change in found])}",
                code="capture.changed_function", where=f"{scope} {key}", hint="use an object with `__call__`: its attributes are captured"
                + (f"; or register what it reads: `Training(..., {register})`" if register else ""),
            )  # fmt: skip


def arranged(
    record: SchedulerRecord,
    scheduler: LRScheduler,
    places: Sequence[int | None],
    scope: str,
    registered: References = NOTHING,
) -> SchedulerRecord:
    """Return the record with its lists by group in the order of the program's groups.

    Args:
        record: Of the scheduler.
        scheduler: The live one, whose own entries stand for groups that the record does not have.
        places: For each live group, the recorded one that it is; `None` for a new one.
        scope: What it is called in messages.
        registered: What else is restored: functions may read it.
    """
    configuration = _as_it_is(scheduler, scope, registered)
    return replace(
        record,
        configuration=_arranged(record.configuration, configuration, places),
        position=_arranged(record.position, _position(scheduler, scope, registered), places),
        children=tuple(
            arranged(before, child, places, f"{scope}.{index}", registered)
            for index, (before, child) in enumerate(
                zip(record.children, children(scheduler), strict=False)
            )
        ) + record.children[len(children(scheduler)) :],
    )  # fmt: skip


def _arranged(
    recorded: Mapping[str, Any], live: Mapping[str, Any], places: Sequence[int | None]
) -> dict[str, Any]:
    found = dict(recorded)
    for key in _BY_GROUP & recorded.keys() & live.keys():
        before, now = recorded[key], live[key]
        reach = max([-1, *(place for place in places if place is not None)])
        if type(before) is list and type(now) is list and reach < len(before) and len(now) == len(places):
            pairs = zip(places, now, strict=True)
            found[key] = [own if place is None else before[place] for place, own in pairs]
    return found


def check_scheduler(
    record: SchedulerRecord,
    scheduler: LRScheduler,
    optimizer_names: Mapping[int, str],
    scope: str,
    registered: References = NOTHING,
) -> Iterator[Finding]:
    """Yield what differs: class, driven optimizer, nesting, configuration, callables."""
    if not is_of_class(scheduler, record.class_name):
        yield _finding(
            scope, "class", "another class of scheduler", scope, record.class_name, type_name(scheduler)
        )
        return
    driven = optimizer_names.get(id(optimizer_of(scheduler)), "an unregistered one")
    if record.optimizer != driven:
        yield _finding(scope, "optimizer", "it drives another optimizer", scope, record.optimizer, driven)
    live = _as_it_is(scheduler, scope, registered)
    asked: dict[str, Any] = record.configuration
    functions = _functions(scheduler, live)
    for key in [*asked, *(key for key in live if key not in asked)]:
        sides = (asked.get(key, "absent"), live.get(key, "absent"))
        known = key in asked and key in live
        if known and (key in functions or describes_callable(asked[key])):
            yield from _function_findings(*sides, scope, key)
        elif not same(*sides) and not same(record.position.get(key), live.get(key)):
            yield _finding(
                scope, key, "its configuration differs", f"{scope} {key}", *sides, admissible=known
            )
    for key in sorted((_POSITION & vars(scheduler).keys()) - record.position.keys()):
        yield _finding(
            scope, key, "where it stood is not told in full: a field is missing", f"{scope} {key}", "absent",
            vars(scheduler)[key], admissible=True,
        )  # fmt: skip
    nested = children(scheduler)
    if len(nested) != len(record.children):
        yield _finding(
            scope, "children", "another number of nested schedulers", scope, len(record.children), len(nested)
        )
        return
    for index, (before, child) in enumerate(zip(record.children, nested, strict=True)):
        yield from check_scheduler(before, child, optimizer_names, f"{scope}.{index}", registered)


def _function_findings(before: Any, now: Any, scope: str, key: str) -> Iterator[Finding]:
    found = changes(before, now)
    if found:
        yield _finding(
            scope, key, f"a function differs: {some([str(change) for change in found])}", f"{scope} {key}",
            "; ".join(change.before for change in found if change.before) or "as it was recorded",
            "; ".join(change.now for change in found if change.now) or "as the program has it", admissible=True,
        )  # fmt: skip


def _finding(
    scope: str, aspect: str, what: str, where: str, expected: Any, found: Any, *, admissible: bool = False
) -> Finding:
    return Finding(
        SchedulerMismatch, f"{scope}.{aspect}", what, where, expected, found, admissible=admissible
    )


def plan_scheduler(
    record: SchedulerRecord, scheduler: LRScheduler, scope: str, accept: Collection[str]
) -> list[Write]:
    """Plan to put the position back; what was accepted as changed stays as the program built it."""
    values = {
        key: value if _is_callables(vars(scheduler).get(key)) else thaw(value)
        for key, value in record.position.items()
        if f"{scope}.{key}" not in accept and key not in _STRUCTURE
    }

    def assign() -> None:
        for key in _attributes(scheduler).keys() - record.position.keys():
            if f"{scope}.{key}" not in accept and not is_generator(vars(scheduler)[key]):
                del vars(scheduler)[key]  # made since: where the record stands it did not exist
        for key, value in values.items():
            current = vars(scheduler).get(key)
            if _is_callables(current):
                _restore_callables(current, value)
            else:
                vars(scheduler)[key] = value
        if record.outstanding_steps:
            # Otherwise the first `step()` warns that the optimizer has not been stepped (torch 2.13).
            optimizer_of(scheduler)._opt_called = True  # type: ignore[attr-defined]

    writes: list[Write] = [ObjectWrite(scope, assign)]
    for index, (before, child) in enumerate(zip(record.children, children(scheduler), strict=True)):
        writes += plan_scheduler(before, child, f"{scope}.{index}", accept)
    return writes


def _restore_callables(current: Any, value: Any) -> None:
    if type(current) is not list:
        restore_callable_state(current, value)
        return
    for function, state in zip(current, value, strict=True):
        if function is not None:
            restore_callable_state(function, state)


def refuse_unregistered(
    optimizers: Mapping[str, Optimizer], schedulers: Collection[LRScheduler], alive: Collection[object]
) -> None:
    """Raise if a scheduler drives one of these optimizers and isn't registered.

    Args:
        optimizers: The registered optimizers by name.
        schedulers: The registered schedulers.
        alive: Objects to search for schedulers that are attached but unknown, as from `gc.get_objects()`.

    Raises:
        UnsupportedState: Naming the optimizer and the scheduler's class.
    """
    registered = {id(member) for scheduler in schedulers for member in family(scheduler)}
    driven = {id(optimizer_of(scheduler)) for scheduler in schedulers}
    names = {id(optimizer): name for name, optimizer in optimizers.items()}
    # Not isinstance: it asks `__class__`, which proxies answer with an import or an error. By class first, since a
    # process has hundreds of thousands of objects, of a few thousand classes.
    classes = {cls for cls in set(map(type, alive)) if issubclass(cls, LRScheduler | ReduceLROnPlateau)}
    for value in alive if classes else ():
        if type(value) in classes and id(value) not in registered:
            name = names.get(id(vars(value).get("optimizer")))
            if name is not None:
                raise _unregistered(name, type_name(value))
    for name, optimizer in optimizers.items():
        # What torch's schedulers leave behind. `initial_lr` alone does not tell: others write it too.
        if hasattr(optimizer.step, "_wrapped_by_lr_sched") and id(optimizer) not in driven:
            raise _unregistered(name, "some scheduler, by the mark that it left on `step`")


def _unregistered(optimizer: str, found: str) -> UnsupportedState:
    return UnsupportedState(
        "a scheduler is attached to an optimizer but not registered", code="capture.unregistered_scheduler",
        where=f"optimizer.{optimizer}", found=found, hint="hand it in: `Training(model, optimizer, scheduler)`; if it is an old one, let go of it "
        "(a notebook keeps it in `sys.last_value` after an error)",
    )  # fmt: skip
