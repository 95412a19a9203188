"""The options of an optimizer: current values are state, what the program asked for is contract.

A program may change any option as it trains: schedulers write learning rates, people write weight decay by hand. So
current values are captured and put back in place. What the program asked for is remembered the first time an
optimizer, or a group that it adds later, is seen; and that is compared, so that an edited program is noticed and an
unchanged one is never refused (ADR 0003).

Tensor options are filled in place, since compiled steps and schedulers hold them. Which of them are one tensor is
kept too: torch hands one tensor learning rate to all groups and to `defaults` (torch 2.13).
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from torch.optim import Optimizer

from segue._capture.plain import freeze
from segue._capture.writes import ObjectWrite, Write
from segue._record.sections import GroupRecord, OptimizerRecord
from segue._record.tensors import CapturedTensor, empty_like_captured, fill
from segue._record.tree import copied, same, thaw
from segue.errors import Finding, OptimizerMismatch, UnsupportedState

# `params` is stored by name; `param_names` repeats the names as they were typed, wrappers included.
_NOT_OPTIONS = frozenset({"params", "param_names"})
# Options that a scheduler moves. Where one is attached, what the program asked for stands in other keys.
_DRIVEN: dict[str, str] = {"lr": "initial_lr", "momentum": "max_momentum", "betas": "max_momentum"}

# Each group itself, with the options that it had: a program may take groups out, or sort them.
_first_seen: weakref.WeakKeyDictionary[Optimizer, list[tuple[dict[str, Any], dict[str, Any]]]] = (
    weakref.WeakKeyDictionary()
)
# What was written to an optimizer that was restored alone, until it is bound.
_written: weakref.WeakKeyDictionary[Optimizer, list[dict[str, Any]]] = weakref.WeakKeyDictionary()
_watched: weakref.WeakSet[Optimizer] = weakref.WeakSet()


def bind_optimizer(optimizer: Optimizer, scope: str) -> None:
    """Remember the options an optimizer is configured with, the first time it is seen in this process.

    A group that is added in mid-run is seen at the next `step`: a schedule moves what it asks for soon after.

    Raises:
        UnsupportedState: If an option can't be kept.
    """
    if optimizer not in _watched and hasattr(optimizer, "_optimizer_step_pre_hooks"):
        optimizer.register_step_pre_hook(_new_groups_hook(len(optimizer.param_groups)))
        _watched.add(optimizer)
    known, written = _first_seen.setdefault(optimizer, []), _written.pop(optimizer, None)
    configured_options(optimizer, scope)
    for (_, asked), restored, now in zip(known, written or (), options_of(optimizer, scope), strict=False):
        # Written since that restore, or not asked for before: by a schedule that was made after it.
        asked |= {
            key: value
            for key, value in now.items()
            if key not in asked or key not in restored or not same(value, restored[key])
        }


@contextlib.contextmanager
def keeping_the_request(optimizer: Optimizer, scope: str) -> Iterator[None]:
    """Remember what the program asks for while an optimizer is restored alone, unless it is bound already.

    Its schedule may be made only then, and asks for options too; `bind_optimizer` adds these.
    """
    if optimizer in _first_seen and optimizer not in _written:
        yield
        return
    asked = options_of(optimizer, scope)
    yield
    _first_seen.setdefault(optimizer, list(zip(optimizer.param_groups, asked, strict=True)))
    _written[optimizer] = options_of(optimizer, scope)


def _new_groups_hook(num_groups: int) -> Callable[[Optimizer, Any, Any], None]:
    # A compiled step runs its hooks too (torch 2.13).
    see = torch.compiler.disable(configured_options)  # type: ignore[no-untyped-call]

    def hook(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        nonlocal num_groups
        if len(optimizer.param_groups) != num_groups:
            num_groups = len(optimizer.param_groups)
            with contextlib.suppress(UnsupportedState):  # capture tells
                see(optimizer, "optimizer")

    return hook


def options_of(optimizer: Optimizer, scope: str) -> list[dict[str, Any]]:
    """Copy the current options of each group.

    Raises:
        UnsupportedState: If an option can't be kept.
    """
    return [
        {
            key: freeze(value, f"{scope} group {index} {key}")
            for key, value in group.items()
            if key not in _NOT_OPTIONS
        }
        for index, group in enumerate(optimizer.param_groups)
    ]


def configured_options(optimizer: Optimizer, scope: str) -> list[dict[str, Any]]:
    """Return the options of each group as they were when it was first seen; as they are, if it was never bound.

    Raises:
        UnsupportedState: If an option can't be kept.
    """
    known, groups = _first_seen.get(optimizer), optimizer.param_groups
    if known is None:
        return options_of(optimizer, scope)
    seen = {id(group): options for group, options in known}
    if not any(id(group) in seen for group in groups):
        # `load_state_dict` puts other dictionaries in the place of all (torch 2.13).
        seen = {id(group): options for group, (_, options) in zip(groups, known, strict=False)}
    if any(id(group) not in seen for group in groups):
        current = options_of(optimizer, scope)
        seen = {id(group): current[index] for index, group in enumerate(groups)} | seen
    # Of one that is gone nothing is kept.
    known[:] = [(group, seen[id(group)]) for group in groups]
    return [copied(options) for _, options in known]


def shared_options(optimizer: Optimizer) -> tuple[tuple[str, ...], ...]:
    """Name the places of options that are one tensor, two or more each, such as `0/lr` and `defaults/betas/0`."""
    places: dict[int, list[str]] = {}
    for holder, label in _holders(optimizer):
        for key, value in holder.items():
            for place, tensor in _tensors(value, f"{label}/{key}") if key not in _NOT_OPTIONS else ():
                places.setdefault(id(tensor), []).append(place)
    return tuple(tuple(names) for names in places.values() if len(names) > 1)


def _holders(optimizer: Optimizer) -> Iterator[tuple[dict[str, Any], str]]:
    for index, group in enumerate(optimizer.param_groups):
        yield group, str(index)
    yield optimizer.defaults, "defaults"


def check_options(record: GroupRecord, live: dict[str, Any], where: str, scope: str) -> Iterator[Finding]:
    """Yield the options that the program asks for otherwise than it did.

    Args:
        record: The recorded group.
        live: What the program asks for.
        where: The group, for messages.
        scope: The optimizer, for codes.
    """
    asked: dict[str, Any] = record.configured
    for key in [*asked, *(key for key in live if key not in asked)]:
        if key not in live:
            yield difference(
                scope, key, "an option of the record is unknown to the program", f"{where} {key}", asked[key],
                "absent", admissible=True, when_accepted="drops it",
            )  # fmt: skip
        elif key not in asked:
            yield difference(
                scope, key, "an option of the program is not in the record", f"{where} {key}", "absent",
                live[key], admissible=True,
            )  # fmt: skip
        elif not _same_request(key, record, live):
            yield difference(
                scope,
                _aspect(key),
                "an option differs",
                f"{where} {key}",
                asked[key],
                live[key],
                admissible=True,
            )


def _aspect(key: str) -> str:
    """Name an option in codes: where a scheduler has taken over, the rate that was asked for stands in `initial_lr`."""
    return "lr" if key == "initial_lr" else key


def difference(
    scope: str,
    aspect: str,
    what: str,
    where: str,
    expected: Any,
    found: Any,
    *,
    hint: str | None = None,
    admissible: bool = False,
    when_accepted: str = Finding.when_accepted,
) -> Finding:
    """Make the finding of something that differs in an optimizer."""
    return Finding(
        OptimizerMismatch, f"{scope}.{aspect}", what, where, expected, found, hint, admissible, when_accepted
    )


def _same_request(key: str, record: GroupRecord, live: dict[str, Any]) -> bool:
    """Tell whether the program asks for what it asked for then, or for what the run has arrived at since.

    The second is what a program asks that is built again around an optimizer in mid-run (a notebook cell).
    """
    asked = record.configured
    if _is_driven(key, asked, live):
        before, now = _undriven(key, asked[key]), _undriven(key, live[key])
        present = _undriven(key, record.options.get(key, asked[key]))
        return type(asked[key]) is type(live[key]) and (same(before, now) or same(present, now))
    if key == "lr":  # of a program with a schedule, and one without
        before, now = (options.get("initial_lr", options["lr"]) for options in (asked, live))
    else:
        before, now = asked[key], live[key]
    return same(before, now) or (key in record.options and same(record.options[key], live[key]))


def _is_driven(key: str, asked: dict[str, Any], live: dict[str, Any]) -> bool:
    """Tell whether a scheduler moves an option on both sides."""
    driver = _DRIVEN.get(key)
    return driver is not None and driver in asked and driver in live


def _with_rest(present: Any, asked: Any) -> Any:
    """Return betas whose first is where its scheduler has brought it, and whose others are those that are asked for."""
    return type(asked)([*present[:1], *asked[1:]])


def _undriven(key: str, value: Any) -> Any:
    """Return the part of a driven option that its scheduler leaves alone: all of Adam's betas but the first."""
    return value[1:] if key == "betas" else None


def _both_ask(key: str, record: GroupRecord, live: dict[str, Any]) -> bool:
    return key in live and key in record.configured and _same_request(key, record, live)


def plan_options(
    record: OptimizerRecord,
    optimizer: Optimizer,
    places: list[int | None],
    scope: str,
    accept: Collection[str],
    *,
    begins: bool = False,
) -> Write:
    """Plan to put options back; one that was accepted as changed stays, in the groups where it was.

    Args:
        record: The recorded optimizer.
        optimizer: The live one.
        places: For each live group, the recorded one that has its members; `None` for a new one, which stays as it is.
        scope: The optimizer, for codes.
        accept: The accepted codes.
        begins: Whether a schedule that the record does not have begins here: what it has written stays.
    """
    configured = configured_options(optimizer, scope)
    assignments: list[tuple[dict[str, Any], str, dict[str, Any], set[str]]] = []
    kept_anywhere: set[str] = set()
    for index, (group, place) in enumerate(zip(optimizer.param_groups, places, strict=True)):
        if place is None:
            continue
        recorded, live = record.groups[place], configured[index]
        kept = {
            key
            for key in live.keys() | recorded.configured.keys()
            if not {f"{scope}.{key}", f"{scope}.{_aspect(key)}"}.isdisjoint(accept)
            and not _both_ask(key, recorded, live)
        }
        if begins:
            kept |= {key for key, driver in _DRIVEN.items() if key in live and driver in live}
        kept_anywhere |= kept
        values = recorded.options
        if "betas" in kept and not begins and _is_driven("betas", recorded.configured, live):
            kept.remove("betas")
            values = {**values, "betas": _with_rest(values["betas"], live["betas"])}
        assignments.append((group, str(place), values, kept))
    if not assignments:  # all groups are new, and begin as the program made them
        kept_anywhere.update(optimizer.defaults, record.defaults)
    assignments.append((optimizer.defaults, "defaults", record.defaults, kept_anywhere))
    return ObjectWrite(f"{scope} options", lambda: _assign(assignments, record.shared_options))


def _assign(
    assignments: list[tuple[dict[str, Any], str, dict[str, Any], set[str]]],
    shared: tuple[tuple[str, ...], ...],
) -> None:
    tensors = _Tensors(shared)
    for holder, label, values, kept in assignments:
        for key, value in values.items():
            if key not in kept:
                holder[key] = tensors.live(value, holder.get(key), f"{label}/{key}")
        for key in [
            key for key in holder if key not in values and key not in _NOT_OPTIONS and key not in kept
        ]:
            del holder[key]


class _Tensors:
    """Tensors among the options that are put back: filled where they lie, and one again where they were one.

    Args:
        shared: Places that are one tensor.
    """

    def __init__(self, shared: tuple[tuple[str, ...], ...]) -> None:
        self._first_place = {place: places[0] for places in shared for place in places}
        self._made: dict[str, torch.Tensor] = {}
        self._taken: set[int] = set()

    def live(self, value: Any, current: Any, place: str) -> Any:
        """Return the live value of an option, or of a part of one; containers are built anew."""
        if isinstance(value, CapturedTensor):
            place = self._first_place.get(place, place)
            if place not in self._made:
                self._made[place] = self._filled(current, value)
            return self._made[place]
        kind = type(value)
        if kind is dict:
            now = current if type(current) is dict else {}
            return {
                thaw(key): self.live(item, now.get(key), f"{place}/{index}")
                for index, (key, item) in enumerate(value.items())
            }
        if kind in (list, tuple):
            parts = current if type(current) is kind and len(current) == len(value) else [None] * len(value)
            return kind(
                self.live(item, part, f"{place}/{index}")
                for index, (item, part) in enumerate(zip(value, parts, strict=True))
            )
        return thaw(value)

    def _filled(self, current: Any, value: CapturedTensor) -> torch.Tensor:
        """Fill the live tensor, unless it is of another layout or another option has it already."""
        fits = (
            isinstance(current, torch.Tensor)
            and (current.dtype, tuple(current.shape), str(current.device))
            == (value.dtype, value.shape, value.device)
            and current.untyped_storage().data_ptr() not in self._taken
        )
        target = current if fits else empty_like_captured(value, value.device)
        self._taken.add(target.untyped_storage().data_ptr())
        fill(target, value)
        return target


def _tensors(value: Any, place: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of an option with their places: that of the option, or with the position of each part."""
    if isinstance(value, torch.Tensor):
        yield place, value
    elif type(value) in (dict, list, tuple):
        for index, item in enumerate(value.values() if type(value) is dict else value):
            yield from _tensors(item, f"{place}/{index}")
