"""State that optimizers keep in attributes, where no dictionary has it.

Wish: no optimizer forgets anything by being resumed, and one that keeps something to itself says so when it is saved,
not when it is too late.

No rule can tell what an attribute means, but one can tell whether it moves. So what each attribute was is remembered
when an optimizer is first seen, as its options are, and each is one of these:

- *Registered*: a `StateOf` among the components keeps it.
- *Derived*: it only points to what is restored where it is: groups, parameters, state, registered objects.
- *Configuration*: it is what it was when the optimizer was first seen. Recorded, and compared at restore.
- *Hidden* is everything else: what has changed since, and what can't be looked into. Refused at capture.

What it still loses: attributes of the class, globals, and what a function closes over; and an attribute that will move
for the first time after the last save.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from segue._capture.attributes import known_attributes, known_configuration
from segue._capture.description import Description, References, describe, without_owners
from segue._capture.plain import freeze
from segue._capture.registered import NOTHING, Identities, Registered
from segue._capture.scheduler import is_scheduler
from segue._capture.staging import type_name
from segue._capture.state_of import all_names
from segue._record.tree import SCALARS, same
from segue.errors import ABSENT, Finding, OptimizerMismatch, UnsupportedState, shown

# Two marks of fused optimizers, which follow from the option `fused` and from whether the first step has looked at
# devices; `step`, which schedulers wrap, and the mark that they leave.
MARKS = frozenset({"step", "_opt_called", "_step_supports_amp_scaling", "_need_device_dtype_check_for_fused"})
# Views of the groups that LBFGS keeps; nothing that isn't derived.
_DERIVED: dict[type, frozenset[str]] = {torch.optim.LBFGS: frozenset({"_params", "_numel_cache"})}
_MAX_SHOWN = 60


@functools.cache
def base_attributes() -> frozenset[str]:
    """Return the attributes that every torch optimizer has, and the marks.

    Not at import: making the first optimizer of a process imports torch._dynamo, which takes a second (torch 2.13).
    """
    return frozenset(vars(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1))) | MARKS


def own_attributes(optimizer: Optimizer) -> dict[str, Any]:
    """Return the attributes of an optimizer that neither torch gives it, nor a class that is known."""
    derived = _DERIVED.get(type(optimizer), frozenset())
    ours = base_attributes() | derived | known_attributes(optimizer)
    return {name: getattr(optimizer, name) for name in all_names(optimizer) if name not in ours}


@dataclass(frozen=True)
class First:
    """What an attribute was when its owner was first seen."""

    identity: int
    tree: Any
    """As this process tells it, by the identity of what is captured elsewhere."""
    text: str
    """For people."""
    told: Any
    """As a record tells it; `ABSENT` for what can't be looked into."""


@dataclass
class Seen:
    """What is remembered of an optimizer."""

    attributes: dict[str, First] = field(default_factory=dict)
    has_state: bool = False
    """Whether it had stepped by then: what has moved before, nobody knows."""


class _Memory:
    """Remembers by identity, for as long as an object lives: some can't be hashed."""

    def __init__(self) -> None:
        self._by_id: dict[int, tuple[weakref.ref[Any], Seen]] = {}

    def get(self, owner: object) -> Seen | None:
        found = self._by_id.get(id(owner))
        return found[1] if found is not None and found[0]() is owner else None

    def put(self, owner: object, seen: Seen) -> None:
        key = id(owner)
        try:
            reference = weakref.ref(owner, lambda _: self._by_id.pop(key, None))
        except TypeError:  # an object with `__slots__`: it is seen for the first time each time
            return
        self._by_id[key] = (reference, seen)


_memory = _Memory()


def seen_before(owner: object) -> bool:
    """Tell whether an object's attributes are remembered already."""
    return _memory.get(owner) is not None


def remembered(owner: object, attributes: Mapping[str, Any], views: Views, *, has_state: bool) -> Seen:
    """Return what is remembered of an object's attributes; now is the first time, if there was none before."""
    seen = _memory.get(owner)
    if seen is None:
        firsts = {name: _first(name, value, views) for name, value in attributes.items()}
        seen = Seen(firsts, has_state)
        _memory.put(owner, seen)
    return seen


def has_stepped(optimizer: Optimizer) -> bool:
    """Tell whether an optimizer has state that a step has made: some make theirs as they are built, with a count of 0."""
    if "_opt_called" in vars(optimizer):
        return True
    return any(slots and not _is_new(slots) for slots in optimizer.state.values())


def _is_new(slots: Any) -> bool:
    step = slots.get("step") if isinstance(slots, dict) else None
    return step is not None and float(step) == 0


@dataclass(frozen=True)
class Views:
    """How the attributes of one optimizer are looked at: within this process, and for a record."""

    identities: References
    told: References
    registered: Registered


def views_of(optimizers: Mapping[str, Any], names: Mapping[int, str], registered: Registered) -> Views:
    """Make the views of the attributes of optimizers.

    Args:
        optimizers: Torch optimizers, or objects that have `param_groups` and `state` as they have, by where they are: that
            which was handed in is at the empty place.
        names: Of the parameters of all registered modules, by `id`.
        registered: What else a training restores.
    """
    places = {key: f"parameter {name}" for key, name in names.items()}
    if len(optimizers) == 1:  # others inside it are among them, and have places of their own
        places |= _passing_on(next(iter(optimizers.values())))
    # What is one object is called by its first place.
    for place, optimizer in reversed(list(optimizers.items())):
        prefix = f"{place} " if place else ""
        places |= {key: prefix + name for key, name in _places(optimizer, names)}
    kinds = (nn.Module, Optimizer, nn.Parameter)
    groups = frozenset(id(group) for optimizer in optimizers.values() for group in _groups(optimizer))
    return Views(Identities(kinds, places, groups), _Told(places, groups, registered), registered)


class _Told:
    def __init__(self, places: Mapping[int, str], groups: Container[int], registered: Registered) -> None:
        self._places = places
        self._groups = groups
        self._registered = registered

    def name(self, value: object) -> str | None:
        return self._places.get(id(value)) or self._registered.name(value)

    def at(self, address: int) -> str | None:
        return self._places.get(address) or self._registered.at(address)

    def keeps(self, owner: object, name: str) -> bool:
        is_members = name == "params" and id(owner) in self._groups  # which are compared by name
        return is_members or self._registered.keeps(owner, name)


def _groups(optimizer: Any) -> list[Any]:
    """Return the groups of an optimizer, or of an object that has such."""
    groups = getattr(optimizer, "param_groups", ())
    return list(groups) if isinstance(groups, list | tuple) else []


def _places(optimizer: Any, names: Mapping[int, str]) -> Iterator[tuple[int, str]]:
    """Yield everything in an optimizer that stays where it is, by `id`."""
    yield id(optimizer), "itself"
    if not isinstance(optimizer, Optimizer):  # the groups and state of another object are attributes like any
        return
    for attribute in ("param_groups", "defaults", "state"):
        held = getattr(optimizer, attribute, None)
        if isinstance(held, dict | list):
            yield id(held), attribute
    state = getattr(optimizer, "state", {})
    for index, group in enumerate(_groups(optimizer)):
        if isinstance(group, dict):
            yield id(group), f"group {index}"
            yield id(group.get("params")), f"members of group {index}"
            yield from _tensors(group, f"group {index}")
    for parameter, slots in state.items() if isinstance(state, dict) else ():
        if isinstance(slots, dict):
            name = names.get(id(parameter), "a parameter")
            yield id(slots), f"state of {name}"
            yield from _tensors(slots, f"state of {name}")


def _passing_on(optimizer: Any) -> dict[int, str]:
    """Return the optimizers that one holds which step its own groups, and keep nothing to themselves."""
    return {
        id(held): f"{type_name(held)} over its groups"
        for held in getattr(optimizer, "__dict__", {}).values()
        if isinstance(held, Optimizer)
        and held.param_groups is getattr(optimizer, "param_groups", None)
        and (not held.state or held.state is getattr(optimizer, "state", None))
        and not own_attributes(held)
        and not known_attributes(held)
    }


def _tensors(holder: dict[Any, Any], where: str) -> Iterator[tuple[int, str]]:
    for key, value in holder.items():
        if isinstance(value, torch.Tensor):
            yield id(value), f"{where} {key}"


def _first(name: str, value: Any, views: Views) -> First:
    told = described(name, value, views.told)
    tree = ABSENT if isinstance(told, UnsupportedState) else told.tree
    return First(id(value), _as_it_is(name, value, views), text_of(value), tree)


def _as_it_is(name: str, value: Any, views: Views) -> Any:
    found = described(name, value, views.identities, tells_owners=True)
    return {"reference": f"id {id(value)}"} if isinstance(found, UnsupportedState) else found.tree


def described(
    name: str, value: Any, references: References, *, tells_owners: bool = False
) -> Description | UnsupportedState:
    """Describe an attribute; return the error if it can't be looked into."""
    if is_scheduler(value) and references.name(value) is None:
        return UnsupportedState("it has state, and is not registered", where=name, found=type_name(value))
    try:
        return describe(value, name, references, tells_owners=tells_owners)
    except UnsupportedState as error:
        return error
    except Exception as error:  # code of others runs here: `__getattr__`, properties of slots
        return UnsupportedState(
            f"it can't be looked into: {type(error).__name__}", where=name, found=type_name(value)
        )


def has_moved(first: First | None, name: str, value: Any, tree: Any, views: Views) -> bool:
    """Tell whether an attribute is another than it was.

    Args:
        first: What it was; `None` if it was not there.
        name: What it is called.
        value: What it is.
        tree: How a record tells that.
        views: How it is looked at.
    """
    if first is None:
        return True
    if is_reference(tree):
        return first.identity != id(value)
    names = views.registered
    before, now = (
        without_owners(each, names.at, names.keeps_at) for each in (first.tree, _as_it_is(name, value, views))
    )
    return not same(before, now)


def is_reference(tree: Any) -> bool:
    """Tell whether a description only names what is restored elsewhere."""
    return type(tree) is dict and tree.keys() == {"reference"}


def text_of(value: Any) -> str:
    """Show what an attribute is, in few characters."""
    if isinstance(value, torch.Tensor) and value.numel() > 4:
        return f"{str(value.dtype).removeprefix('torch.')} tensor of shape {tuple(value.shape)}"
    if type(value) in SCALARS or isinstance(value, torch.Tensor | list | tuple | dict):
        text = shown(value.tolist() if isinstance(value, torch.Tensor) else value)
        if len(text) <= _MAX_SHOWN:
            return text
    return type_name(value)


@dataclass(frozen=True)
class Hidden:
    """An attribute that would be lost."""

    owner: object
    name: str
    path: str
    """What it is called from the optimizer that was handed in."""
    why: str


def refuse_hidden(hidden: list[Hidden], found: object, scope: str) -> None:
    """Raise `UnsupportedState` if there is any, naming all, and the line that registers them."""
    if not hidden:
        return
    listed = ", ".join(f"{each.path} ({each.why})" for each in hidden)
    raise UnsupportedState(
        f"an optimizer keeps state in attributes, where no record has it: {listed}", code="capture.hidden_state",
        where=scope, found=type_name(found), hint=_advice(hidden, scope),
    )  # fmt: skip


def _advice(hidden: list[Hidden], scope: str) -> str:
    name = scope.removeprefix("optimizer.") or "optimizer"
    variable = name if name.isidentifier() else "optimizer"
    by_owner: dict[str, list[str]] = {}
    kept, lost = [], []
    for each in hidden:
        if not _can_be_kept(each.owner, each.name):
            lost.append(each.path)
            continue
        kept.append(each.path)
        owner = ".".join([variable, *each.path.split(".")[:-1]])
        by_owner.setdefault(owner, []).append(each.name)
    entries = [_entry(owner, names) for owner, names in by_owner.items()]
    told = [f"register it, if it is state: `components={{{', '.join(entries)}}}`"] if kept else []
    late = [each.path for each in hidden if each.why.startswith("absent") and each.path in kept]
    if late:
        told.append(f"give it {', '.join(late)} as it is made: a new process has none to register yet")
    if lost:
        told.append(
            f"{', '.join(lost)} can't be kept as plain values: hand in what it is as a component of its own, or give the "
            "optimizer a `state_dict` and `load_state_dict` that keep it"
        )
    return "; ".join(told)


def _entry(owner: str, names: list[str]) -> str:
    """Write down the component that registers attributes."""
    quoted = ", ".join(f'"{name}"' for name in names)
    return f'"{owner.replace(".", "_")}_state": segue.StateOf({owner}, {quoted})'


def _can_be_kept(owner: object, name: str) -> bool:
    value = getattr(owner, name, ABSENT)
    try:
        freeze(None if value is ABSENT else value, name)
    except UnsupportedState:
        return False
    return value is not ABSENT


def remember_attributes(optimizer: Optimizer, names: Mapping[int, str], registered: Registered) -> None:
    """Remember what the attributes of a torch optimizer are, the first time it is seen in this process."""
    own = own_attributes(optimizer)
    if not seen_before(optimizer):
        remembered(
            optimizer, own, views_of({"": optimizer}, names, registered) if own else _NO_VIEWS,
            has_state=has_stepped(optimizer),
        )  # fmt: skip


_NO_VIEWS = Views(NOTHING, NOTHING, NOTHING)


def capture_attributes(
    optimizer: Optimizer, names: Mapping[int, str], registered: Registered | None, scope: str
) -> dict[str, Any] | None:
    """Describe what a torch optimizer keeps in attributes and was configured with; `None` where it keeps nothing.

    Args:
        optimizer: The optimizer.
        names: Of the parameters of all registered modules, by `id`.
        registered: What else a training restores; `None` for an optimizer that is captured alone, where nothing can be
            registered. What it holds as it is first seen is taken for configuration there.
        scope: What it is called in messages.

    Raises:
        UnsupportedState: If one holds state that would be lost, naming all such.
    """
    told, hidden = _told_and_hidden(optimizer, names, registered)
    refuse_hidden(hidden, optimizer, scope)
    known = known_configuration(optimizer, scope)
    return None if known is None and not told else {**(known or {}), **told}


def _told_and_hidden(
    optimizer: Optimizer, names: Mapping[int, str], registered: Registered | None
) -> tuple[dict[str, Any], list[Hidden]]:
    own, kept = own_attributes(optimizer), registered or NOTHING
    seen = _memory.get(optimizer)
    if not own and (seen is None or not seen.attributes):
        if seen is None:
            remember_attributes(optimizer, names, kept)
        return {}, []
    views = views_of({"": optimizer}, names, kept)
    seen = remembered(optimizer, own, views, has_state=has_stepped(optimizer))
    is_late = seen.has_state and registered is not None
    told, hidden = {}, []
    for name, value in own.items():
        if kept.keeps(optimizer, name):
            continue
        description = described(name, value, views.told)
        first = seen.attributes.get(name)
        if isinstance(description, UnsupportedState):
            hidden.append(Hidden(optimizer, name, name, _why_unknown(description, value)))
        elif has_moved(first, name, value, description.tree, views):
            hidden.append(Hidden(optimizer, name, name, moved(first, value)))
        elif is_late and description.leaves:
            why = f"{text_of(value)}; it had stepped before it was first seen, so nobody knows what it was"
            hidden.append(Hidden(optimizer, name, name, why))
        else:
            told[name] = description.tree
    gone = [name for name in seen.attributes if name not in own and not kept.keeps(optimizer, name)]
    hidden += [Hidden(optimizer, name, name, f"{seen.attributes[name].text} -> absent") for name in gone]
    return told, hidden


def moved(first: First | None, value: Any) -> str:
    """Show what an attribute was, and what it is."""
    before, now = "absent" if first is None else first.text, text_of(value)
    return f"{before} -> {now}" if before != now else f"{now}, with other content than it had"


def _why_unknown(error: UnsupportedState, value: Any) -> str:
    place = f": {error.found}, at {error.where}" if error.found != type_name(value) else ""
    return f"{type_name(value)}: {error.what}{place}"


def check_attributes(
    record: dict[str, Any] | None,
    optimizer: Optimizer,
    names: Mapping[int, str],
    registered: Registered | None,
    scope: str,
) -> Iterator[Finding]:
    """Yield what was configured otherwise, when the recorded state came to be.

    Raises:
        UnsupportedState: If an attribute can't be looked into.
    """
    known = known_configuration(optimizer, scope) or {}
    now = {**known, **_told_now(optimizer, names, registered or NOTHING, scope)}
    yield from attribute_findings(record or {}, now, scope, lambda name: name not in known)


def _told_now(
    optimizer: Optimizer, names: Mapping[int, str], registered: Registered, scope: str
) -> dict[str, Any]:
    own = own_attributes(optimizer)
    if not own:
        return {}
    views = views_of({"": optimizer}, names, registered)
    remembered(optimizer, own, views, has_state=has_stepped(optimizer))
    found = {
        name: described(name, value, views.told)
        for name, value in own.items()
        if not registered.keeps(optimizer, name)
    }
    hidden = [
        Hidden(optimizer, name, name, _why_unknown(error, own[name]))
        for name, error in found.items()
        if isinstance(error, UnsupportedState)
    ]
    refuse_hidden(hidden, optimizer, scope)
    return {name: item.tree for name, item in found.items() if isinstance(item, Description)}


def attribute_findings(
    before: Mapping[str, Any], now: Mapping[str, Any], scope: str, is_admissible: Callable[[str], bool]
) -> Iterator[Finding]:
    """Yield the attributes that differ, or are on one side only."""
    for name in [*before, *(name for name in now if name not in before)]:
        left, right = before.get(name, ABSENT), now.get(name, ABSENT)
        if left is ABSENT or right is ABSENT or not same(left, right):
            yield Finding(
                OptimizerMismatch, f"{scope}.attribute.{name}", "the optimizer is configured otherwise",
                f"{scope} {name}", left, right, "build it with the arguments that it had",
                admissible=is_admissible(name),
            )  # fmt: skip
