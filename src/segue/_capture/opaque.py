"""Optimizers that are not torch's: asked for their state like a component, and held to what they say that they step.

Which state belongs to which parameter only they know, so it goes back to them whole. What can be compared is the
class, and the members of `param_groups` where they have one: by name, and in order, since most such objects count.

Torch optimizers with a `state_dict` or `load_state_dict` of their own, or with hooks on them, go the same way.

An object around a torch optimizer keeps that one's state, and the options that have moved, only if its own `state_dict`
has them; and what it keeps in attributes likewise. That is looked for at capture. Whether its `load_state_dict` puts
them back, shows by asking again after the restore (`Asked`, `ObjectRestore`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from segue._capture.asked import Asked, state_with
from segue._capture.attributes import known_configuration, refuse_hidden_state, saves_as_known, unsaved_of
from segue._capture.beside import Beside, attributes_beside, remember_beside
from segue._capture.component import Component, capture_object
from segue._capture.deferred import deferring
from segue._capture.hidden import Hidden, attribute_findings, moved, refuse_hidden, why_unknown
from segue._capture.membership import membership_findings
from segue._capture.optimizer import ParameterNames
from segue._capture.options import bind_optimizer, configured_options, difference, options_of
from segue._capture.owners import inner_groups, inner_optimizers, own_groups
from segue._capture.plain import freeze
from segue._capture.registered import Registered, refuse_addresses
from segue._capture.saved import Saved
from segue._capture.scheduler import is_scheduler
from segue._capture.staging import is_of_class, type_name
from segue._record.contract import moved as moved_members
from segue._record.sections import ComponentRecord, OpaqueOptimizerRecord
from segue._record.tree import same, thaw
from segue.errors import ABSENT, Finding, OptimizerMismatch, UnsupportedState


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


def is_asked_whole(optimizer: object) -> bool:
    """Tell whether an optimizer is asked for its state, rather than read: one that isn't torch's, or saves in its own way."""
    return not isinstance(optimizer, Optimizer) or not saves_as_known(optimizer)


def bind_opaque(value: Any, names: ParameterNames, registered: Registered) -> None:
    """Remember what an optimizer keeps in attributes, and how the torch optimizers in it are configured, as it is first seen."""
    remember_beside(value, names, registered)
    for place, optimizer in torch_optimizers(value).items():
        try:
            bind_optimizer(optimizer, place)
        except UnsupportedState:  # told when it is captured, if its holder saves it
            continue


def torch_optimizers(value: Any, name: str = "") -> dict[str, Optimizer]:
    """Return the torch optimizers in an object by where they are, and it itself if it is one; only with groups and state."""
    own = {name: value} if isinstance(value, Optimizer) else {}
    found = {**own, **inner_optimizers(value, name)}
    return {place: each for place, each in found.items() if own_groups(each) is not None and _has_state(each)}


def _has_state(optimizer: Optimizer) -> bool:
    return isinstance(getattr(optimizer, "state", None), dict)  # some only look like one


def capture_opaque(
    value: Any, names: ParameterNames, scope: str, registered: Registered
) -> OpaqueOptimizerRecord:
    """Copy what an optimizer that is not torch's saves of itself.

    Args:
        value: The object.
        names: Of the parameters of all registered modules.
        scope: What it is called in messages.
        registered: What else a training restores.

    Raises:
        UnsupportedState: If part of it can't be kept, or its `state_dict` leaves out what an optimizer in it knows, or
            what it keeps in attributes.

    Cost:
        One copy of its state; where it holds torch optimizers, two copies of theirs, and a checksum of each tensor.
    """
    for place, optimizer in torch_optimizers(value).items():
        refuse_hidden_state(optimizer, _place(scope, place))
    state = capture_object(value, scope)
    attributes = None
    if state.kind == "state_dict":
        refuse_addresses(state.tree, registered, scope)
        saved = Saved(state.tree)
        _refuse_lost_state(value, saved, names, scope)
        _refuse_lost_options(value, saved, scope)
        attributes = _capture_attributes(value, saved, names, registered, scope)
    return OpaqueOptimizerRecord(state, _group_names(value, names), attributes)


def _capture_attributes(
    value: Any, saved: Saved, names: ParameterNames, registered: Registered, scope: str
) -> dict[str, Any] | None:
    """Tell what it keeps in attributes: as configured, moved and saved, or known to be state that it doesn't save.

    What can't be looked into, of an object that saves itself, is its own affair: only that there is such is told.
    """
    configured, told, hidden = _known_configurations(value, scope), dict[str, Any](), list[Hidden]()
    unseen = dict[str, Any]()
    for each in attributes_beside(value, names, registered):
        description = each.described()
        if isinstance(description, UnsupportedState):
            unseen[each.path] = type_name(each.value)
            if each.is_unsaved:
                hidden.append(each.hidden(why_unknown(description, each.value)))
        elif not each.has_moved(description):
            configured[each.path] = description.tree
        elif saved.has(each.name, description.leaves):
            told[each.path] = description.tree
        else:
            hidden.append(each.hidden(moved(each.first, each.value)))
    refuse_hidden(hidden, value, scope)
    kept = {name: freeze(item, f"{scope} {name}") for name, item in _kept(value).items()}
    found = {"configured": configured, "moved": told, "kept": kept, "unseen": unseen}
    return {kind: items for kind, items in found.items() if items} or None


def _known_configurations(value: Any, scope: str) -> dict[str, Any]:
    """Return what the torch optimizers in an object are configured with beside options, where the table knows their classes."""
    return {
        f"{place}.{name}".lstrip("."): tree
        for place, optimizer in torch_optimizers(value).items()
        for name, tree in (known_configuration(optimizer, scope) or {}).items()
    }


def _kept(value: Any) -> dict[str, Any]:
    names = unsaved_of(value).kept
    return {name: item for name, item in vars(value).items() if name in names} if names else {}


def ask(
    record: OpaqueOptimizerRecord, value: Any, names: ParameterNames, registered: Registered
) -> tuple[ComponentRecord, Any]:
    """Return what an optimizer is to take over, and what it is handed to: the object, or the object with its attributes.

    Args:
        record: The recorded optimizer, which fits.
        value: The live object.
        names: Of the parameters of all registered modules.
        registered: What else a training restores.
    """
    if record.state.kind != "state_dict":
        return record.state, value
    parts = record.attributes or {}
    asked_for = _asked_for(value, names, registered)
    as_it_was = {
        path: tree
        for path, tree in parts.get("configured", {}).items()
        if same(tree, asked_for.get(path, ABSENT))  # another was accepted: it stays as the program has it
    }
    told = {**as_it_was, **parts.get("moved", {})}

    def tell() -> dict[str, Any]:
        return _told_now(attributes_beside(value, names, registered), told)

    asked = Asked(value, tuple(parts.get("kept", {})), tell)
    tree = state_with(record.state.tree, parts.get("kept", {}), told)
    return replace(record.state, tree=tree), asked


def _told_now(attributes: Collection[Beside], told: Mapping[str, Any]) -> dict[str, Any]:
    found = {each.path: each.described() for each in attributes if each.path in told}
    return {path: item.tree for path, item in found.items() if not isinstance(item, UnsupportedState)}


def _asked_for(value: Any, names: ParameterNames, registered: Registered) -> dict[str, Any]:
    """Return what the attributes were when the object was first seen: what the program asks for."""
    found = {
        each.path: each.first.told
        for each in attributes_beside(value, names, registered)
        if each.first is not None
    }
    return {path: tree for path, tree in found.items() if tree is not ABSENT}


def _group_names(value: Any, names: ParameterNames) -> tuple[tuple[str, ...], ...] | None:
    groups = own_groups(value)
    if groups is None:
        groups = inner_groups(value)
    stranger = "a parameter of no registered module"
    return tuple(tuple(names.get(id(each), stranger) for each in group) for group in groups) or None


def _refuse_lost_state(value: Any, saved: Saved, names: ParameterNames, scope: str) -> None:
    """Raise if a tensor that a torch optimizer inside keeps is nowhere in what its holder saves."""
    for place, optimizer in torch_optimizers(value).items():
        for parameter, slots in optimizer.state.items():
            where = _place(scope, place, names.get(id(parameter), "a parameter"))
            if not all(saved.has_all_of(_frozen(tensor, where)) for tensor in _tensors(slots)):
                raise _lost("what the torch optimizer in it keeps", where, value)


def _refuse_lost_options(value: Any, saved: Saved, scope: str) -> None:
    """Raise if an option that has moved, as a learning rate does, is nowhere in what is saved, under its name."""
    for place, optimizer in torch_optimizers(value).items():
        try:
            began, now = configured_options(optimizer, scope), options_of(optimizer, scope)
        except UnsupportedState:
            continue
        for index, (before, options) in enumerate(zip(began, now, strict=True)):
            for key, option in options.items():
                is_as_built = key in before and same(before[key], option)
                if not is_as_built and not saved.has_entry(key, option):
                    raise _lost(
                        "an option that has moved", _place(scope, place, f"group {index} {key}"), value
                    )


def _place(*parts: str) -> str:
    return " ".join(filter(None, parts))


def _lost(what: str, where: str, value: object) -> UnsupportedState:
    return UnsupportedState(
        f"the `state_dict` of an optimizer leaves out {what}", code="capture.lost_state", where=where,
        found=type_name(value), hint="let it save that too, or give it `capture`, `check` and `restore`",
    )  # fmt: skip


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in what an optimizer keeps of a parameter, or under a name of its own, whatever keys it has."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple | deque):
        for item in value:
            yield from _tensors(item)


def _frozen(tensor: torch.Tensor, where: str) -> Any:
    with deferring(None):  # its bytes are read at once
        return freeze(tensor.detach(), where)


def check_opaque(
    record: OpaqueOptimizerRecord, value: Any, names: ParameterNames, scope: str, registered: Registered
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
    if before.kind == "state_dict":
        parts = record.attributes or {}
        for name in sorted(parts.get("kept", {}).keys() ^ _kept(value).keys()):
            sides = ("kept", "not kept") if name in parts.get("kept", {}) else ("not kept", "kept")
            what = "an attribute is state on one side only"
            yield difference(scope, f"attribute.{name}", what, f"{scope} {name}", *sides)
        asked_for = {**_known_configurations(value, scope), **_asked_for(value, names, registered)}
        others = parts.get("moved", {}).keys() | parts.get("unseen", {}).keys()
        live = {path: tree for path, tree in asked_for.items() if path not in others}
        yield from attribute_findings(parts.get("configured", {}), live, scope, lambda path: True)
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
                f"{scope} group {index}: {moved_members(recorded, live)}", recorded, live,
            )  # fmt: skip
