"""Optimizers that are not torch's: asked for their state like a component, and held to what they say that they step.

Which state belongs to which parameter only they know, so it goes back to them whole. What can be compared is the
class, and the members of `param_groups` where they have one: by name, and in order, since most such objects count.

An object around a torch optimizer keeps that one's state only if its own `state_dict` has it, and puts it back only
if its `load_state_dict` casts nothing, which torch's does (torch 2.13). Both are checked: the first at capture, the
second by asking again after the restore (`ObjectRestore`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from segue._capture.component import Component, capture_object
from segue._capture.deferred import deferring
from segue._capture.membership import membership_findings
from segue._capture.optimizer import ParameterNames
from segue._capture.options import difference
from segue._capture.owners import inner_groups, inner_optimizers, own_groups
from segue._capture.plain import freeze
from segue._capture.scheduler import is_scheduler
from segue._capture.staging import is_of_class, type_name
from segue._record.composite import blobs
from segue._record.contract import moved
from segue._record.digest import tree_digest
from segue._record.sections import OpaqueOptimizerRecord
from segue._record.tree import thaw
from segue.errors import Finding, OptimizerMismatch, UnsupportedState


def refuse_no_optimizer(value: object, scope: str) -> None:
    """Raise `UnsupportedState` for what is handed in as an optimizer and can't be one, or has a place of its own."""
    saves = isinstance(value, Component) or all(
        callable(getattr(value, name, None)) for name in ("state_dict", "load_state_dict")
    )
    misplaced = isinstance(value, type | torch.amp.GradScaler) or is_scheduler(value)
    is_module = isinstance(value, nn.Module) and not isinstance(value, Component)
    if not saves or misplaced or is_module:
        hint = "hand it in as one of `components=`" if saves and not isinstance(value, type) else None
        hint = "hand it in as one of the schedulers" if is_scheduler(value) else hint
        if isinstance(value, list | tuple):
            hint = 'give several by name, `{"a": ..., "b": ...}`: names are how a checkpoint knows them'
        raise UnsupportedState(
            "an optimizer must be a torch.optim.Optimizer, or have `state_dict` and `load_state_dict`, or `capture`, "
            "`check` and `restore`", where=scope, found=type_name(value), hint=hint,
        )  # fmt: skip


def capture_opaque(value: Any, names: ParameterNames, scope: str) -> OpaqueOptimizerRecord:
    """Copy what an optimizer that is not torch's saves of itself.

    Args:
        value: The object.
        names: Of the parameters of all registered modules.
        scope: What it is called in messages.

    Raises:
        UnsupportedState: If part of it can't be kept, or its `state_dict` leaves out what an optimizer in it knows.

    Cost:
        One copy of its state; where it holds torch optimizers, two copies of theirs, and a checksum of each tensor.
    """
    state = capture_object(value, scope)
    if state.kind == "state_dict":
        _refuse_lost_state(value, state.tree, names, scope)
    return OpaqueOptimizerRecord(state, _group_names(value, names))


def _group_names(value: Any, names: ParameterNames) -> tuple[tuple[str, ...], ...] | None:
    groups = own_groups(value)
    if groups is None:
        groups = inner_groups(value)
    stranger = "a parameter of no registered module"
    return tuple(tuple(names.get(id(each), stranger) for each in group) for group in groups) or None


def _refuse_lost_state(value: Any, tree: Any, names: ParameterNames, scope: str) -> None:
    """Raise if a tensor that a torch optimizer inside keeps is nowhere in what its holder saves."""
    inner = {place: optimizer for place, optimizer in inner_optimizers(value).items() if optimizer.state}
    kept = {tree_digest(blob) for blob in blobs(tree)} if inner else set()
    for place, optimizer in inner.items():
        for parameter, slots in optimizer.state.items():
            where = f"{scope} {place} {names.get(id(parameter), 'a parameter')}"
            for blob in blobs(_frozen(slots, where)):
                if tree_digest(blob) not in kept:
                    raise UnsupportedState(
                        "the `state_dict` of an optimizer leaves out what the torch optimizer in it keeps",
                        code="capture.lost_state", where=where, found=type_name(value),
                        hint="let it save that too, or give it `capture`, `check` and `restore`",
                    )  # fmt: skip


def _frozen(slots: Mapping[str, Any], where: str) -> Any:
    with deferring(None):  # their bytes are read at once
        return freeze(dict(slots), where)


def check_opaque(
    record: OpaqueOptimizerRecord, value: Any, names: ParameterNames, scope: str
) -> Iterator[Finding]:
    """Yield what differs: class, members of groups and their order, and what the object itself says."""
    before, now = record.state, "component" if isinstance(value, Component) else "state_dict"
    if not is_of_class(value, before.class_name):
        yield difference(
            scope, "class", "another class of optimizer", scope, before.class_name, type_name(value)
        )
        return
    if before.kind != now:
        yield difference(scope, "kind", "its class saves it otherwise than it did", scope, before.kind, now)
        return
    yield from _group_findings(record.groups, _group_names(value, names), scope)
    if before.kind == "component":
        for clause in value.check(thaw(before.tree)) or ():
            yield Finding(OptimizerMismatch, f"{scope}.check", clause, scope)


def _group_findings(
    before: tuple[tuple[str, ...], ...] | None, now: tuple[tuple[str, ...], ...] | None, scope: str
) -> Iterator[Finding]:
    if before == now:
        return
    left, right = before or (), now or ()
    if [set(group) for group in left] != [set(group) for group in right]:
        yield from membership_findings(left, right, scope, "opaque_optimizers")
        return
    for index, (recorded, live) in enumerate(zip(left, right, strict=True)):
        if recorded != live:
            yield difference(
                scope, "order", "the parameters are in another order",
                f"{scope} group {index}: {moved(recorded, live)}", recorded, live,
            )  # fmt: skip
