"""What is told of state that is not captured: its path, what it did, and the line that registers it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from segue._capture.data.plain_loader import about_workers, replacing_lines
from segue._capture.plain import freeze
from segue._capture.state_of import StateOf
from segue._capture.uncovered import Moved, shown_as, written
from segue._capture.uncovered_kinds import Kind, is_position
from segue._capture.uncovered_loose import shuffles
from segue._capture.uncovered_marks import text_of
from segue._capture.uncovered_moves import Uncaptured
from segue.errors import ABSENT, UnsupportedState

_MAX_TOLD = 20


class Told(NamedTuple):
    """One thing that is not captured."""

    path: str
    what: str
    argument: str
    """The argument of `Training` that registers it: `components`, `optimizers`, `schedulers`; empty where none can."""
    entry: tuple[str, str]
    """The key there and the expression; or, without an argument, nothing and what to do instead."""
    names: tuple[str, ...] = ()
    """The attributes that a `StateOf` names; those of one owner are joined."""
    before: str = ""
    """A line that goes before."""


def told_of_moved(moved: Moved, roots: Mapping[str, str], name_of: Callable[[object], str | None]) -> Told:
    """Say how to register an attribute.

    Args:
        moved: The attribute.
        roots: How the program calls what was handed in, by the beginning of its paths.
        name_of: How it calls any other object.
    """
    path, owner = f"{moved.path}.{moved.name}", moved.held.owner
    before = "absent" if moved.before is ABSENT else text_of(moved.before)
    now = "absent" if moved.part is None else text_of(moved.part.mark)
    what = f"{before} -> {now}" if before != now else f"{now}, with other content than it had"
    value = ABSENT if moved.part is None else moved.part.value
    whole = name_of(value) if isinstance(value, dict) else None
    expression = name_of(owner) or written(moved.held.link, roots)
    if value is ABSENT or not _can_be_kept(value):
        return Told(path, what, "", ("", _otherwise(moved, value)))
    if "." in moved.name or "[" in moved.name or not moved.name.isidentifier() or _is_closed_over(moved):
        if isinstance(value, dict):
            whole = whole or _part_of(expression, moved)
            if whole is not None:
                return Told(path, what, "components", (_key(path), f"segue.StateOf({whole})"))
        return Told(
            path, what, "", ("", "keep it in an attribute of an object or in a dictionary, and register that")
        )
    if expression is None:
        return Told(path, what, "", ("", f'register it with `segue.StateOf(..., "{moved.name}")`'))
    if not _can_be_set(owner, moved.name):
        return Told(
            path, what, "", ("", "give its owner `state_dict` and `load_state_dict`, and register that")
        )
    late = f"give it {moved.name} as it is made" if moved.before is ABSENT else ""
    key = _key(f"{shown_as(moved.held.link) or moved.path}_state")
    return Told(path, what, "components", (key, expression), (moved.name,), late)


def _can_be_kept(value: Any) -> bool:
    try:
        freeze(value, "attribute")
    except UnsupportedState:
        return False
    return True


def _can_be_set(owner: Any, name: str) -> bool:
    try:
        StateOf(owner, name)
    except (UnsupportedState, TypeError):
        return False
    return True


def _is_closed_over(moved: Moved) -> bool:
    return moved.name in getattr(getattr(moved.held.owner, "__code__", None), "co_freevars", ())


def _part_of(expression: str | None, moved: Moved) -> str | None:
    """Write down what a function closes over, or its default."""
    if expression is None:
        return None
    if not _is_closed_over(moved):
        return f"{expression}.{moved.name}"
    index = moved.held.owner.__code__.co_freevars.index(moved.name)
    return f"{expression}.__closure__[{index}].cell_contents"


def _otherwise(moved: Moved, value: Any) -> str:
    if value is ABSENT:
        return "keep it, with a value that says that there is none, and register it"
    return "it can't be kept as plain values: register what it is as a component of its own"


def told_of_object(found: Uncaptured, registered: Mapping[str, Mapping[str, str]]) -> Told:
    """Say how to register an object.

    Args:
        found: The object.
        registered: How the program calls the optimizers and schedulers that are registered, by name.
    """
    name = _key(found.path)
    if found.kind in (Kind.OPTIMIZER, Kind.SCHEDULER):
        argument = "optimizers" if found.kind is Kind.OPTIMIZER else "schedulers"
        known = registered[argument]
        while name in known:
            name += "_2"
        entries = ", ".join(f'"{each}": {expression}' for each, expression in known.items())
        return Told(found.path, found.why, argument, (name, found.expression), before=entries)
    if found.kind is Kind.WEIGHTS:
        return _told_of_weights(found, name)
    if found.kind is Kind.LOADER and not is_position(type(found.value)):
        return _told_of_loader(found)
    if found.kind in (Kind.PASS, Kind.GENERATOR, Kind.ITERATOR):
        hint = "iterate over a `segue.DataPosition(loader)` and register that, or keep how far it is in the caller's state"
        return Told(found.path, found.why, "", ("", hint))
    return Told(found.path, found.why, "components", (name, found.expression))


def _told_of_weights(found: Uncaptured, name: str) -> Told:
    value = found.value
    if isinstance(value, dict):
        return Told(found.path, found.why, "components", (name, f"segue.StateOf({found.expression})"))
    if isinstance(value, list | tuple):
        hint = (
            "keep it in a dictionary or in an attribute of an object, and register that with `segue.StateOf`"
        )
        return Told(found.path, found.why, "", ("", hint))
    names = tuple(each for each in found.names if _can_be_set(value, each))
    return Told(found.path, found.why, "components", (name, found.expression), names)


def _told_of_loader(found: Uncaptured) -> Told:
    line = f"data = segue.DataPosition({found.expression})"
    what = f"{found.why}; iterate over `data` instead"
    if shuffles(found.value) and type(found.value).__module__.startswith("torch.utils.data"):
        name = found.expression if found.expression.isidentifier() else "loader"
        line = "; ".join([*replacing_lines(found.value, name), f"data = segue.DataPosition({name})"])
        what += about_workers(found.value)
    return Told(found.path, what, "components", ("data", "data"), before=line)


def _key(expression: str) -> str:
    """Make a name from an expression."""
    words = re.sub(r"__\w+__|cell_contents", "", expression)
    return re.sub(r"\W+", "_", words).strip("_").removeprefix("self_") or "state"


def message(told: Iterable[Told]) -> str:
    """Tell all of it: each path with its line, and at the end what names what is no state."""
    joined = _joined(told)
    lines = ["state that segue can see is not captured, and a resumed run would be without it:"]
    lines += [f"  {each.path}: {each.what}\n    {_line(each)}" for each in joined[:_MAX_TOLD]]
    if len(joined) > _MAX_TOLD:
        lines.append(f"  and {len(joined) - _MAX_TOLD} more")
    named = ", ".join(f'"{path}"' for each in joined[:_MAX_TOLD] for path in each.path.split(", "))
    lines.append(f"what is no state, is named: `Training(..., not_state=[{named}])`")
    return "\n".join(lines)


def _joined(told: Iterable[Told]) -> list[Told]:
    """Join the attributes of one owner: one `StateOf` registers them."""
    by_owner: dict[Any, Told] = {}
    for each in told:
        key = (each.argument, each.entry) if each.names else each.path
        first = by_owner.get(key)
        if first is None:
            by_owner[key] = each
        else:
            late = "; ".join(filter(None, (first.before, each.before)))
            by_owner[key] = first._replace(
                path=f"{first.path}, {each.path}", what=f"{first.what}; {each.what}", names=first.names + each.names,
                before=late,
            )  # fmt: skip
    return list(by_owner.values())


def _line(told: Told) -> str:
    name, expression = told.entry
    if not told.argument:
        return expression
    if told.names:
        quoted = ", ".join(f'"{each}"' for each in told.names)
        line = f'components={{"{name}": segue.StateOf({expression}, {quoted})}}'
        return f"{line}  # {told.before}" if told.before else line
    if told.argument == "components":
        line = f'components={{"{name}": {expression}}}'
        return f"{told.before}; {line}" if told.before else line
    known = f"{told.before}, " if told.before else ""
    return f'{told.argument}={{{known}"{name}": {expression}}}'
