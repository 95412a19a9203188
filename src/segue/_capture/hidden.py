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

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer

from segue._capture.attributes import known_configuration, own_attributes
from segue._capture.description import Description
from segue._capture.first_seen import First, has_moved, has_stepped, remembered, seen_of, text_of
from segue._capture.plain import freeze
from segue._capture.registered import NOTHING, Registered
from segue._capture.staging import type_name
from segue._capture.views import NO_VIEWS, described, views_of
from segue._record.tree import same
from segue.errors import ABSENT, Finding, OptimizerMismatch, UnsupportedState


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
    if seen_of(optimizer) is None:
        remembered(
            optimizer, own, views_of({"": optimizer}, names, registered) if own else NO_VIEWS,
            has_state=has_stepped(optimizer),
        )  # fmt: skip


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
    seen = seen_of(optimizer)
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
            hidden.append(Hidden(optimizer, name, name, why_unknown(description, value)))
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


def why_unknown(error: UnsupportedState, value: Any) -> str:
    """Say why an attribute can't be looked into."""
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
        Hidden(optimizer, name, name, why_unknown(error, own[name]))
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
