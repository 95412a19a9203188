"""A torch optimizer: state by parameter name, groups by their members' names, options in place.

Wish: what an optimizer knows about a parameter comes back to that parameter, bit for bit.

`Optimizer.load_state_dict` can't do it (torch 2.13). It counts positions, so a re-ordered model gives one
parameter the moments of another; it casts float state to the parameter's dtype, so the fp32 state of bf16
parameters is destroyed; it turns a string into `<generator object>`; it shares memory with what it was given, so
the next step changes the snapshot; it replaces the group dictionaries that schedulers and wrappers hold; and saved
options silently win over constructed ones. Distributed state-dict helpers run a zero-gradient step to invent
missing state. So: no casts, no steps, direct assignment to `optimizer.state`, options set in place.

What we do about options: a program may change any option as it trains, so current values are state. What it asked
for is remembered the first time an optimizer is bound, and that is compared.

What it still loses: attributes an optimizer keeps outside `state` and `param_groups` are refused, not kept.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from segue._capture.plain import freeze
from segue._capture.staging import is_of_class, type_name
from segue._capture.writes import ObjectWrite, TensorWrite, Write
from segue._record.contract import moved
from segue._record.sections import GroupRecord, OptimizerRecord
from segue._record.tensors import CapturedTensor, empty_like_captured
from segue._record.tree import same, thaw
from segue.errors import Finding, OptimizerMismatch, UnsupportedState

# `params` is stored by name; `param_names` repeats the names as they were typed, wrappers included.
_NOT_OPTIONS = frozenset({"params", "param_names"})
# Options that a scheduler moves. Where one is attached, what the program asked for stands in other keys.
_DRIVEN: dict[str, str] = {"lr": "initial_lr", "momentum": "max_momentum", "betas": "max_momentum"}
# Two marks of fused optimizers, which follow from the option `fused` and from whether the first step has looked at
# devices; `step`, which schedulers wrap, and the mark that they leave.
_MARKS = frozenset(
    {"step", "_opt_called", "_step_supports_amp_scaling", "_need_device_dtype_check_for_fused"}
)
# Views of the groups that LBFGS keeps; nothing that isn't derived.
_DERIVED_ATTRIBUTES: dict[type, frozenset[str]] = {torch.optim.LBFGS: frozenset({"_params", "_numel_cache"})}


@functools.cache
def _base_attributes() -> frozenset[str]:
    """Return the attributes that every optimizer has, and the marks.

    Not at import: making the first optimizer of a process imports torch._dynamo, which takes a second (torch 2.13).
    """
    return frozenset(vars(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1))) | _MARKS


ParameterNames = Mapping[int, str]
"""Canonical names by `id` of the live parameter."""

_first_bound: weakref.WeakKeyDictionary[Optimizer, list[dict[str, Any]]] = weakref.WeakKeyDictionary()


def bind_optimizer(optimizer: Optimizer, scope: str) -> None:
    """Remember the options an optimizer is configured with, the first time it is seen in this process.

    Raises:
        UnsupportedState: If an option can't be kept.
    """
    if optimizer not in _first_bound:
        _first_bound[optimizer] = _options(optimizer, scope)


def _options(optimizer: Optimizer, scope: str) -> list[dict[str, Any]]:
    return [
        {
            key: freeze(value, f"{scope} group {index} {key}")
            for key, value in group.items()
            if key not in _NOT_OPTIONS
        }
        for index, group in enumerate(optimizer.param_groups)
    ]


def _configured(optimizer: Optimizer, scope: str) -> list[dict[str, Any]]:
    """Return the remembered options; a group that was added later counts as configured as it is now."""
    known = _first_bound.get(optimizer, [])
    return known + _options(optimizer, scope)[len(known) :]


def capture_optimizer(optimizer: Optimizer, names: ParameterNames, scope: str) -> OptimizerRecord:
    """Copy an optimizer's groups and state. State that doesn't exist yet stays absent.

    Raises:
        UnsupportedState: If it steps a parameter of no registered module, or keeps state that can't be kept.

    Cost:
        One copy of every state tensor.
    """
    refuse_unsupported_optimizer(optimizer, scope)
    groups = tuple(
        GroupRecord(tuple(members), options, configured)
        for members, options, configured in zip(
            group_names(optimizer, names, scope),
            _options(optimizer, scope),
            _configured(optimizer, scope),
            strict=True,
        )
    )
    members = {name for group in groups for name in group.parameters}
    state = dict(sorted(_state(optimizer, names, members, scope)))
    _refuse_shared_state(optimizer, names, scope)
    return OptimizerRecord(type_name(optimizer), groups, state)


def refuse_unsupported_optimizer(optimizer: Optimizer, scope: str) -> None:
    """Raise `UnsupportedState` if the optimizer keeps state where it can't be seen, or has its own way of saving."""
    cls = type(optimizer)
    if cls.state_dict is not Optimizer.state_dict or cls.load_state_dict is not Optimizer.load_state_dict:
        raise UnsupportedState(
            "an optimizer with its own `state_dict` or `load_state_dict` is not supported yet",
            where=scope, found=type_name(optimizer),
        )  # fmt: skip
    extra = vars(optimizer).keys() - _base_attributes() - _DERIVED_ATTRIBUTES.get(cls, frozenset())
    if extra:
        raise UnsupportedState(
            "an optimizer that keeps state in attributes of its own is not supported yet",
            where=scope, found=f"{type_name(optimizer)} with {', '.join(sorted(extra))}",
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
    spans: dict[tuple[str, int], list[tuple[int, int, str]]] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            _add_span(spans, parameter, names[id(parameter)])
    for parameter, slots in optimizer.state.items():
        for where, tensor in _tensors(dict(slots), f"{scope} state {names[id(parameter)]}"):
            other = _add_span(spans, tensor, where)
            if other is not None:
                raise UnsupportedState(
                    "optimizer state that shares memory is not supported yet",
                    where=where,
                    found=f"shared with {other}",
                )


def _add_span(
    spans: dict[tuple[str, int], list[tuple[int, int, str]]], tensor: torch.Tensor, where: str
) -> str | None:
    """Note what memory a tensor spans, and return what spans part of it already."""
    if tensor.numel() == 0:
        return None
    reach = (
        sum(int(stride) * (int(size) - 1) for stride, size in zip(tensor.stride(), tensor.shape, strict=True))
        + 1
    )
    start = int(tensor.storage_offset()) * tensor.element_size()
    end = start + reach * tensor.element_size()
    known = spans.setdefault((str(tensor.device), tensor.untyped_storage().data_ptr()), [])
    other = next((name for first, last, name in known if first < end and start < last), None)
    known.append((start, end, where))
    return other


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
    record: OptimizerRecord, optimizer: Optimizer, names: ParameterNames, scope: str
) -> Iterator[Finding]:
    """Yield what differs: class, groups, members, order, and options that the program asked for."""
    refuse_unsupported_optimizer(optimizer, scope)
    if not is_of_class(optimizer, record.class_name):
        yield _finding(
            scope, "class", "another class of optimizer", scope, record.class_name, type_name(optimizer)
        )
        return
    members = {name for group in record.groups for name in group.parameters}
    for name in sorted(record.state.keys() - members):
        yield _finding(
            scope,
            f"state.{name}",
            "the record has state of a parameter in no group",
            f"{scope} {name}",
            "",
            "",
        )
    live = group_names(optimizer, names, scope)
    places = match_groups(record, live)
    if places is None:
        yield from _membership_findings(record, live, scope)
        return
    # LBFGS keeps flat vectors over all parameters under the first of them: there the order *is* the state.
    by_name = not isinstance(optimizer, torch.optim.LBFGS)
    yield from _order_findings(record, live, places, scope, admissible=by_name)
    configured = _configured(optimizer, scope)
    for index, place in enumerate(places):
        yield from _option_findings(record.groups[place], configured[index], f"{scope} group {index}", scope)


def match_groups(record: OptimizerRecord, live: list[list[str]]) -> list[int] | None:
    """Find for each live group the recorded one with the same members; `None` if the partition differs."""
    if len(record.groups) != len(live):
        return None
    by_members: dict[frozenset[str], list[int]] = {}
    for index, group in enumerate(record.groups):
        by_members.setdefault(frozenset(group.parameters), []).append(index)
    places = []
    for members in live:
        candidates = by_members.get(frozenset(members))
        if not candidates or len(record.groups[candidates[0]].parameters) != len(members):
            return None
        places.append(candidates.pop(0))
    return places


def _finding(
    scope: str, aspect: str, what: str, where: str, expected: Any, found: Any, *, admissible: bool = False
) -> Finding:
    return Finding(
        OptimizerMismatch, f"{scope}.{aspect}", what, where, expected, found, admissible=admissible
    )


def _membership_findings(record: OptimizerRecord, live: list[list[str]], scope: str) -> Iterator[Finding]:
    before = {name: index for index, group in enumerate(record.groups) for name in group.parameters}
    after = {name: index for index, members in enumerate(live) for name in members}
    if len(record.groups) != len(live):
        yield _finding(scope, "groups", "another number of groups", scope, len(record.groups), len(live))
    for name in sorted(before.keys() | after.keys()):
        if name not in after or name not in before:
            what = "a parameter is in no group" if name not in after else "a parameter was in no group"
            code = "missing" if name not in after else "extra"
            sides = (
                (f"group {before.get(name)}", "absent")
                if name not in after
                else ("absent", f"group {after[name]}")
            )
            yield _finding(scope, f"{code}.{name}", what, f"{scope} {name}", *sides)
        elif before[name] != after[name]:
            where = f"{scope} {name}"
            yield _finding(scope, f"group.{name}", "it is in another group", where, before[name], after[name])


def _order_findings(
    record: OptimizerRecord, live: list[list[str]], places: list[int], scope: str, *, admissible: bool
) -> Iterator[Finding]:
    if places != sorted(places):
        yield _finding(
            scope, "group_order", "the groups are in another order; each one's options follow its members",
            scope, list(range(len(places))), places, admissible=admissible,
        )  # fmt: skip
    for index, place in enumerate(places):
        before, after = list(record.groups[place].parameters), live[index]
        if before != after:
            what = "the parameters are in another order" + ("; state follows the name" if admissible else "")
            yield _finding(
                scope, "order", what,
                f"{scope} group {index}: {moved(before, after)}", before, after, admissible=admissible,
            )  # fmt: skip


def _option_findings(record: GroupRecord, live: dict[str, Any], where: str, scope: str) -> Iterator[Finding]:
    asked: dict[str, Any] = record.configured
    for key in [*asked, *(key for key in live if key not in asked)]:
        if key not in live:
            yield _finding(
                scope, key, "an option of the record is unknown to the program", where, asked[key], "absent"
            )
        elif key not in asked:
            yield _finding(
                scope, key, "an option of the program is not in the record", where, "absent", live[key]
            )
        elif not _same_request(key, record, live):
            yield _finding(
                scope, key, "an option differs", f"{where} {key}", asked[key], live[key], admissible=True
            )


def _same_request(key: str, record: GroupRecord, live: dict[str, Any]) -> bool:
    """Tell whether the program asks for what it asked for then, or for what the run has arrived at since.

    The second is what a program asks that is built again around an optimizer in mid-run (a notebook cell).
    """
    driver = _DRIVEN.get(key)
    if driver is not None and driver in record.configured and driver in live:
        return type(record.configured[key]) is type(live[key])
    return same(record.configured[key], live[key]) or (
        key in record.options and same(record.options[key], live[key])
    )


def plan_optimizer(
    record: OptimizerRecord, optimizer: Optimizer, names: ParameterNames, scope: str, accept: Collection[str]
) -> list[Write]:
    """Allocate state and plan its writes; needs a record that `check_optimizer` admitted.

    A live state tensor of the same layout is filled in place, so that resuming in one process needs no more memory.
    """
    live = group_names(optimizer, names, scope)
    places = match_groups(record, live)
    assert places is not None, "check_optimizer admits only equal partitions"
    parameters = {names[id(p)]: p for group in optimizer.param_groups for p in group["params"]}
    writes: list[Write] = []
    state: dict[torch.Tensor, dict[str, Any]] = {}
    for name, slots in record.state.items():
        parameter = parameters[name]
        current = optimizer.state.get(parameter, {})
        state[parameter] = {slot: _plan_slot(value, current.get(slot), f"{scope} {name} {slot}", writes)
                            for slot, value in slots.items()}  # fmt: skip
    writes.append(ObjectWrite(f"{scope} state", lambda: _replace_state(optimizer, state)))
    for group, place in zip(optimizer.param_groups, places, strict=True):
        writes.append(_plan_options(group, record.groups[place].options, scope, accept))
    return writes


def _plan_slot(value: Any, current: Any, where: str, writes: list[Write]) -> Any:
    """Return the live value of a slot, planning the writes of its tensors; containers are built anew."""
    if isinstance(value, CapturedTensor):
        target = current if _reusable(current, value) else empty_like_captured(value, value.device)
        writes.append(TensorWrite(where, target, value))
        return target
    if type(value) in (list, tuple):
        return type(value)(_plan_slot(item, None, where, writes) for item in value)
    if type(value) is dict:
        return {key: _plan_slot(item, None, f"{where} {key}", writes) for key, item in value.items()}
    return thaw(value)


def _reusable(tensor: Any, captured: CapturedTensor) -> bool:
    return (
        type(tensor) is torch.Tensor
        and (tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()), str(tensor.device))
        == (captured.dtype, captured.shape, captured.strides, captured.device)
        # A slot that is a view of something else may share memory with another slot.
        and not tensor._is_view()
        and not tensor.is_inference()
    )


def _replace_state(optimizer: Optimizer, state: dict[torch.Tensor, dict[str, Any]]) -> None:
    optimizer.state.clear()
    optimizer.state.update(state)


def _plan_options(
    group: dict[str, Any], options: dict[str, Any], scope: str, accept: Collection[str]
) -> Write:
    kept = {key for key in {*group, *options} if f"{scope}.{key}" in accept}
    # A scheduler that was changed on purpose computes the options it drives from their present values.
    values = {key: thaw(value) for key, value in options.items() if key not in kept}

    def assign() -> None:
        filled: set[int] = set()
        for key, value in values.items():
            group[key] = _into(group.get(key), value, filled)
        for key in [
            key for key in group if key not in options and key not in _NOT_OPTIONS and key not in kept
        ]:
            del group[key]

    return ObjectWrite(f"{scope} options", assign)


def _into(current: Any, value: Any, filled: set[int]) -> Any:
    """Fill a tensor option in place, since compiled steps and schedulers hold it, unless another option shares it."""
    if not (isinstance(value, torch.Tensor) and isinstance(current, torch.Tensor)):
        return value
    pointer = current.untyped_storage().data_ptr()
    if (current.dtype, current.shape) != (value.dtype, value.shape) or pointer in filled:
        return value.to(current.device)
    filled.add(pointer)
    with torch.no_grad():
        current.copy_(value)
    return current
