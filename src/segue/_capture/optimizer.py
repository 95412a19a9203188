"""A torch optimizer: state by parameter name, groups by their members' names, options in place.

Wish: what an optimizer knows about a parameter comes back to that parameter, bit for bit.

`Optimizer.load_state_dict` can't do it (torch 2.13). It counts positions, so a re-ordered model gives one
parameter the moments of another; it casts float state to the parameter's dtype, so the fp32 state of bf16
parameters is destroyed; it turns a string into `<generator object>`; it shares memory with what it was given, so
the next step changes the snapshot; it replaces the group dictionaries that schedulers and wrappers hold; and saved
options silently win over constructed ones. Distributed state-dict helpers run a zero-gradient step to invent
missing state. So: no casts, no steps, direct assignment to `optimizer.state`, options set in place.

Options have a file of their own (`options`), and so have attributes outside of state and options (`hidden`). An
optimizer with its own `state_dict` or `load_state_dict`, or with hooks on them, is asked for its state whole (`opaque`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.optim import Optimizer

from segue._capture.attributes import own_attributes, refuse_hidden_state, saves_as_known, table_slots
from segue._capture.hidden import capture_attributes, check_attributes
from segue._capture.history import keeps_its_form
from segue._capture.membership import (
    are_strangers,
    match_groups,
    membership_findings,
    one_sided_findings,
    order_findings,
    own_options,
)
from segue._capture.memory import Memory
from segue._capture.options import (
    check_options,
    configured_options,
    difference,
    options_of,
    plan_options,
    shared_options,
)
from segue._capture.plain import freeze
from segue._capture.registered import Registered
from segue._capture.staging import is_of_class, type_name
from segue._capture.tables import LookupTables
from segue._capture.targets import empty_like, fill_writes, fits
from segue._capture.writes import ObjectWrite, Write
from segue._record.composite import CapturedSparse, CapturedSubclass
from segue._record.sections import GroupRecord, OptimizerRecord
from segue._record.tensors import CapturedTensor
from segue._record.tree import thaw
from segue.errors import Finding, UnsupportedState

ParameterNames = Mapping[int, str]
"""Canonical names by `id` of the live parameter."""


def capture_optimizer(
    optimizer: Optimizer, names: ParameterNames, scope: str, registered: Registered | None = None
) -> OptimizerRecord:
    """Copy an optimizer's groups and state. State that doesn't exist yet stays absent.

    Args:
        optimizer: The optimizer.
        names: Of the parameters of all registered modules.
        scope: What it is called in messages.
        registered: What else a training restores; `None` for an optimizer that is captured alone.

    Raises:
        UnsupportedState: If it steps a parameter of no registered module, or keeps state that can't be kept.

    Cost:
        One copy of every state tensor.
    """
    _refuse_own_saving(optimizer, scope)
    refuse_hidden_state(optimizer, scope)
    attributes = capture_attributes(optimizer, names, registered, scope)
    groups = tuple(
        GroupRecord(tuple(members), options, configured)
        for members, options, configured in zip(
            group_names(optimizer, names, scope),
            options_of(optimizer, scope),
            configured_options(optimizer, scope),
            strict=True,
        )
    )
    members = {name for group in groups for name in group.parameters}
    # In the order in which it came to be: an optimizer may add up over it.
    state = dict(_state(optimizer, names, members, scope))
    _refuse_shared_state(optimizer, names, scope)
    defaults = freeze(dict(optimizer.defaults), f"{scope} defaults")
    return OptimizerRecord(
        type_name(optimizer), groups, state, defaults, shared_options(optimizer), attributes
    )


def refuse_unsupported_optimizer(optimizer: Optimizer, scope: str) -> None:
    """Raise `UnsupportedState` if an optimizer has its own way of saving, or attributes of its own: for one that is part of another."""
    _refuse_own_saving(optimizer, scope)
    extra = own_attributes(optimizer)
    if extra:
        raise UnsupportedState(
            "an optimizer that keeps state in attributes of its own is not supported here",
            where=scope, found=f"{type_name(optimizer)} with {', '.join(sorted(extra))}",
        )  # fmt: skip
    refuse_hidden_state(optimizer, scope)


def _refuse_own_saving(optimizer: Optimizer, scope: str) -> None:
    if not saves_as_known(optimizer):
        raise UnsupportedState(
            "an optimizer with its own `state_dict` or `load_state_dict`, or with hooks on them, can only be asked for its "
            "state whole", code="capture.own_saving", where=scope, found=type_name(optimizer),
            hint="`Training(model, optimizer)` does so, if the hooks are registered before it is made",
        )  # fmt: skip


def group_names(optimizer: Optimizer, names: ParameterNames, scope: str) -> list[list[str]]:
    """Name the members of each group, in order.

    Raises:
        UnsupportedState: If a member belongs to no registered module.
    """
    return [
        [_name(parameter, names, f"{scope} group {index} parameter {position}") for position, parameter in enumerate(group["params"])]
        for index, group in enumerate(optimizer.param_groups)
    ]  # fmt: skip


def _name(parameter: Any, names: ParameterNames, where: str) -> str:
    name = names.get(id(parameter))
    if name is None:
        found = f"{type_name(parameter)} of shape {tuple(getattr(parameter, 'shape', ()))}"
        raise UnsupportedState(
            "an optimizer steps a parameter of no registered module", code="capture.unregistered_parameter",
            where=where, found=found, hint="hand its module in as one of `components=`",
        )  # fmt: skip
    return name


def _state(
    optimizer: Optimizer, names: ParameterNames, members: Collection[str], scope: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    for parameter, slots in optimizer.state.items():
        if not isinstance(parameter, torch.Tensor):
            raise UnsupportedState(
                "optimizer state that belongs to no parameter is not supported yet",
                where=f"{scope} state {parameter!r}", found=type_name(slots),
            )  # fmt: skip
        name = _name(parameter, names, f"{scope} state")
        if name not in members:
            raise UnsupportedState(
                "optimizer state of a parameter that is in no group",
                where=f"{scope} state {name}",
                found="no group",
            )
        yield name, freeze(dict(slots), f"{scope} state {name}")


def _refuse_shared_state(optimizer: Optimizer, names: ParameterNames, scope: str) -> None:
    """Raise `UnsupportedState` if two slots, or a slot and a parameter, are one memory: they would come back as two."""
    memory, tables = Memory(), table_slots(optimizer)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            memory.claim(parameter, names[id(parameter)])
    for parameter, slots in optimizer.state.items():
        own = {slot: value for slot, value in slots.items() if slot not in tables}
        for where, tensor in _tensors(own, f"{scope} state {names[id(parameter)]}"):
            other = memory.claim(tensor, where)
            if other is not None:
                raise UnsupportedState(
                    "optimizer state that shares memory is not supported yet",
                    where=where,
                    found=f"shared with {other}",
                )


def _tensors(value: Any, where: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield where, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _tensors(item, f"{where} {key}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _tensors(item, f"{where}[{index}]")


def check_optimizer(
    record: OptimizerRecord,
    optimizer: Optimizer,
    names: ParameterNames,
    scope: str,
    *,
    compares_requests: bool = True,
    one_sided: frozenset[str] = frozenset(),
    registered: Registered | None = None,
) -> Iterator[Finding]:
    """Yield what differs: class, groups, members, order, and options that the program asked for.

    Args:
        record: The recorded optimizer.
        optimizer: The live one.
        names: The names of its parameters.
        scope: What it is, for messages and codes.
        compares_requests: Whether the record knows what the program asked for, since it was bound as it was made.
        one_sided: Names of parameters that only the record has, or only the program, which is told of their modules.
        registered: What else a training restores; `None` for an optimizer that is restored alone.
    """
    _refuse_own_saving(optimizer, scope)
    refuse_hidden_state(optimizer, scope)
    if not is_of_class(optimizer, record.class_name):
        yield difference(
            scope, "class", "another class of optimizer", scope, record.class_name, type_name(optimizer)
        )
        return
    yield from check_attributes(record.attributes, optimizer, names, registered, scope)
    members = {name for group in record.groups for name in group.parameters}
    for name in sorted(record.state.keys() - members):
        yield difference(
            scope,
            f"state.{name}",
            "the record has state of a parameter in no group",
            f"{scope} {name}",
            "",
            "",
        )
    recorded, live = record.members, group_names(optimizer, names, scope)
    asked = [own_options(group.configured, record.defaults) for group in record.groups]
    places = match_groups(recorded, live)
    if places is None or are_strangers(recorded, live, one_sided):
        yield from membership_findings(recorded, live, scope, options=asked)
        return
    # LBFGS keeps flat vectors over all parameters under the first of them: there the order *is* the state.
    by_name = not isinstance(optimizer, torch.optim.LBFGS)
    yield from one_sided_findings(recorded, live, one_sided, scope, admissible=by_name, options=asked)
    yield from order_findings(recorded, live, places, scope, admissible=by_name)
    configured = configured_options(optimizer, scope)
    for index, place in enumerate(places if compares_requests else ()):
        if place is not None:
            found = check_options(record.groups[place], configured[index], f"{scope} group {index}", scope)
            yield from (_unless_of_another_form(record, finding, scope) for finding in found)


def _unless_of_another_form(record: OptimizerRecord, finding: Finding, scope: str) -> Finding:
    """Return the finding of an option, not to be accepted where a step would not find the state that it asks for."""
    if keeps_its_form(record, finding.code.removeprefix(f"{scope}."), finding.expected, finding.found):
        return finding
    hint = "the recorded state has no room for it: go on with the option that it was made with"
    return replace(finding, admissible=False, hint=hint)


def plan_optimizer(
    record: OptimizerRecord,
    optimizer: Optimizer,
    names: ParameterNames,
    scope: str,
    accept: Collection[str],
    *,
    begins: bool = False,
) -> list[Write]:
    """Allocate state and plan its writes; needs a record that `check_optimizer` admitted.

    A live state tensor of the same layout is filled in place, so that resuming in one process needs no more memory.
    """
    places = match_groups(record.members, group_names(optimizer, names, scope))
    assert places is not None, "check_optimizer admits only equal partitions"
    parameters = {names[id(p)]: p for group in optimizer.param_groups for p in group["params"]}
    writes: list[Write] = []
    tables = LookupTables(optimizer, writes)
    state: dict[torch.Tensor, dict[str, Any]] = {}
    for name, slots in record.state.items():
        if name not in parameters:
            continue  # it was accepted that it is gone
        parameter = parameters[name]
        current = optimizer.state.get(parameter, {})
        state[parameter] = {
            slot: tables.planned(value, f"{scope} {name} {slot}")
            if tables.holds(slot, value)
            else _plan_slot(value, current.get(slot), f"{scope} {name} {slot}", writes)
            for slot, value in slots.items()
        }
    # Of a new parameter, what its optimizer made as it was built; some need it at their first step.
    known = {name for group in record.groups for name in group.parameters}
    state |= {
        parameter: optimizer.state[parameter]
        for name, parameter in parameters.items()
        if name not in known and parameter in optimizer.state
    }
    writes.append(ObjectWrite(f"{scope} state", lambda: _replace_state(optimizer, state)))
    writes.append(plan_options(record, optimizer, places, scope, accept, begins=begins))
    return writes


def _plan_slot(value: Any, current: Any, where: str, writes: list[Write]) -> Any:
    """Return the live value of a slot, planning the writes of its tensors; containers are built anew."""
    if isinstance(value, CapturedTensor | CapturedSubclass):
        target = current if fits(current, value) else empty_like(value, value.device)
        writes.extend(fill_writes(where, target, value))
        return target
    if isinstance(value, CapturedSparse):
        return value.to_host().to(value.device)
    if type(value) in (list, tuple):
        return type(value)(_plan_slot(item, None, where, writes) for item in value)
    if type(value) is dict:
        return {key: _plan_slot(item, None, f"{where} {key}", writes) for key, item in value.items()}
    return thaw(value)


def _replace_state(optimizer: Optimizer, state: dict[torch.Tensor, dict[str, Any]]) -> None:
    optimizer.state.clear()
    optimizer.state.update(state)
