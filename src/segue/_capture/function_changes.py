"""How two descriptions of a function differ: where, what was there, and what is there now."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from segue._capture.held import REGISTERED
from segue._record.tree import same
from segue.errors import ABSENT, shown


@dataclass(frozen=True)
class Change:
    """One difference."""

    place: str
    """For people: `closed-over box["cap"]`."""
    before: str = ""
    now: str = ""
    """What is there; both are empty where only the place can be told."""
    owner: tuple[str, str] | None = None
    """What would register it: the expression of an object or dictionary, and the name of the part that differs."""

    def __str__(self) -> str:
        return f"{self.place}: {self.before} -> {self.now}" if self.before or self.now else self.place


@dataclass(frozen=True)
class _Place:
    text: str = ""
    expression: str = ""
    owner: tuple[str, str] | None = None

    def variable(self, kind: str, name: str, holder: str | None = None) -> _Place:
        return _Place(self._inside(f"{kind} {name}"), name, None if holder is None else (holder, name))

    def part(self, kind: str) -> _Place:
        return _Place(self._inside(kind))

    def attribute(self, name: str) -> _Place:
        owner = (self.expression, name) if self.expression else None
        return _Place(f"{self.text}.{name}", f"{self.expression}.{name}" if owner else "", owner)

    def entry(self, key: Any) -> _Place:
        text = f"[{_quoted(key)}]"
        expression = f"{self.expression}{text}" if self.expression else ""
        is_named = isinstance(key, str) and self.expression
        return _Place(self.text + text, expression, (self.expression, key) if is_named else self.owner)

    def item(self, index: int) -> _Place:
        return replace(self, text=f"{self.text}[{index}]", expression="")

    def _inside(self, text: str) -> str:
        return f"{self.text} > {text}" if self.text else text


def changes(before: Any, now: Any) -> list[Change]:
    """Tell how a callable, or a list of callables, differs from what it was.

    Args:
        before: Its description, or a list of such; one from a file may be of another version, or anything at all. What
            descriptions did not tell by then is not compared.
        now: That of `fingerprint`.
    """
    if type(before) is list and type(now) is list and len(before) == len(now):
        several = len(now) > 1
        found = [
            change
            for index, pair in enumerate(zip(before, now, strict=True))
            for change in _compared(*pair, _Place(f"function {index}" if several else ""), has_all=True)
        ]
    else:
        found = list(_compared(before, now, _Place(), has_all=True))
    if found or same(before, now) or _is_older(before):
        return found
    return [Change("what it is", _text(before), _text(now))]


def registering(found: list[Change]) -> str | None:
    """Write down the components that would register what has changed; `None` if nothing can be."""
    names: dict[str, list[str]] = {}
    for owner, name in dict.fromkeys(change.owner for change in found if change.owner is not None):
        names.setdefault(owner, []).append(name)
    entries = [
        f'"{re.sub(r"[^0-9A-Za-z]+", "_", owner).strip("_")}": segue.StateOf({owner}, {", ".join(map(_quoted, parts))})'
        for owner, parts in names.items()
    ]
    return f"components={{{', '.join(entries)}}}" if entries else None


def _is_older(description: Any) -> bool:
    """Tell whether a description is of a time when less was told of functions."""
    if type(description) is dict:
        is_function = description.keys() >= {"function", "code"} and "python" not in description
        return is_function or description.keys() == {"class"} or any(map(_is_older, description.values()))
    return type(description) in (list, tuple) and any(map(_is_older, description))


def without_registered(first: Any, now: Any) -> Any:
    """Return a description with what is registered by now told as such."""
    return _merged(first, now, lambda _, now: _is_registered(now))


def with_unregistered(first: Any, now: Any) -> Any:
    """Return a description with what is no longer registered told as it is now."""
    return _merged(first, now, lambda first, _: _is_registered(first))


def _merged(first: Any, now: Any, is_taken: Callable[[Any, Any], bool]) -> Any:
    if is_taken(first, now):
        return now
    if type(first) is dict and type(now) is dict:
        return {key: _merged(item, now.get(key, ABSENT), is_taken) for key, item in first.items()}
    if type(first) is type(now) and type(first) in (list, tuple) and len(first) == len(now):
        return type(first)(_merged(*pair, is_taken) for pair in zip(first, now, strict=True))
    return first


def reads_registered(description: Any) -> bool:
    """Tell whether a callable reads state that is kept elsewhere."""
    if type(description) is dict:
        return _is_registered(description) or any(map(reads_registered, description.values()))
    return type(description) in (list, tuple) and any(map(reads_registered, description))


def describes_callable(value: Any) -> bool:
    """Tell whether a value of a configuration describes a callable, or callables."""
    if type(value) is list:
        return bool(value) and all(each is None or describes_callable(each) for each in value)
    return type(value) is dict and not value.keys().isdisjoint(_OF_CALLABLES)


_OF_CALLABLES = frozenset({"function", "builtin", "partial", "cached", "method", "class", "type", REGISTERED})


def _is_registered(description: Any) -> bool:
    return type(description) is dict and description.keys() == {REGISTERED}


# What is told of a callable, by key, and what its parts are called.
_BY_NAME = {
    "closure": "closed-over",
    "globals": "global",
    "keyword_defaults": "default of",
    "keywords": "argument",
}
_BY_INDEX = {"defaults": "default", "arguments": "argument"}
_WITHIN = ("partial", "cached", "method", "of")
_CODE = ("code", "exceptions")
_SINCE_PYTHON = frozenset({"python", "exceptions", "globals"})


def _compared(before: Any, now: Any, place: _Place, *, has_all: bool) -> Iterator[Change]:
    if same(before, now):
        return
    if type(before) is dict and type(now) is dict:
        kinds = _kind(before), _kind(now)
        if kinds == ("entries", "entries") or (kinds == ("items", "entries") and not has_all):
            yield from _entries(_items(before), now["entries"], place, has_all=has_all)
            return
        if kinds[0] == kinds[1]:
            yield from _KINDS[kinds[0]](before, now, place, has_all)
            return
        if not has_all and kinds[1] == "again":
            return
    if type(before) is list and type(now) is list and len(before) == len(now):
        for index, pair in enumerate(zip(before, now, strict=True)):
            yield from _compared(*pair, place.item(index), has_all=has_all)
        return
    yield Change(place.text or "it", _text(before), _text(now), place.owner)


def _kind(description: dict[Any, Any]) -> str:
    for kind, keys in (("function", {"function", "code"}), ("callable", {"class"}), ("object", {"object"})):
        if keys <= description.keys():
            return kind
    for key in ("partial", "cached", "method"):
        if key in description:
            return "applied"
    for key in (
        "entries", "again", "length", REGISTERED, "module", "type", "member", "builtin", "recursion", "constant",
    ):  # fmt: skip
        if key in description and len(description) <= 2:
            return "named" if key in ("module", "type") else key
    return "items"


def _functions(before: Any, now: Any, place: _Place, has_all: bool) -> Iterator[Change]:
    has_all = "python" in before
    versions = before.get("python"), now.get("python")
    if has_all and versions[0] != versions[1]:
        yield Change(
            f"the bytecode is of another Python ({versions[0]} -> {versions[1]}); the functions can't be compared"
        )
    elif any(not same(before.get(key), now.get(key)) for key in _CODE if has_all or key in before):
        yield Change(place.part("its code").text)
    if not same(before["function"], now["function"]):
        yield Change(place.part("its name").text, _text(before["function"]), _text(now["function"]))
    yield from _parts(before, now, place, has_all)
    told = _items(before.get("attributes")), _items(now.get("attributes"))
    yield from _by_key(*told, lambda name: _of_function(place, name), has_all)


def _of_function(place: _Place, name: str) -> _Place:
    owner = (place.expression, name) if place.expression else None
    return replace(place.part(f"attribute {name}"), owner=owner)


def _applied(before: Any, now: Any, place: _Place, has_all: bool) -> Iterator[Change]:
    for key in _WITHIN:
        if key in before or key in now:
            yield from _compared(before.get(key, ABSENT), now.get(key, ABSENT), place, has_all=has_all)
    yield from _parts(before, now, place, has_all)


def _parts(before: Any, now: Any, place: _Place, has_all: bool) -> Iterator[Change]:
    for key, word in _BY_NAME.items():
        if key in before or (key in now and (has_all or key not in _SINCE_PYTHON)):
            holder = "globals()" if key == "globals" else None

            def variable(name: str, word: str = word, holder: str | None = holder) -> _Place:
                return place.variable(word, name, holder)

            yield from _by_key(_items(before.get(key)), _items(now.get(key)), variable, has_all)
    for key, word in _BY_INDEX.items():
        sides = before.get(key, ABSENT), now.get(key, ABSENT)
        if has_all or ABSENT not in sides:
            yield from _compared(*sides, place.part(word), has_all=has_all)


def _callables(before: Any, now: Any, place: _Place, has_all: bool) -> Iterator[Change]:
    if not same(before["class"], now["class"]):
        yield Change(place.part("its class").text, _text(before["class"]), _text(now["class"]))
    elif before.keys() != {"class"}:  # older descriptions tell no more
        yield from _methods(before, now, str(now["class"]), place, has_all)


def _methods(before: Any, now: Any, name: str, place: _Place, has_all: bool) -> Iterator[Change]:
    sides = _items(before.get("methods")), _items(now.get("methods"))
    yield from _by_key(*sides, lambda method: place.part(f"method {method}"), has_all)
    sides = _items(before.get("class_attributes")), _items(now.get("class_attributes"))
    yield from _by_key(*sides, _Place(place.part(name).text, name).attribute, has_all)


def _objects(before: Any, now: Any, place: _Place, has_all: bool) -> Iterator[Change]:
    if not same(before["object"], now["object"]):
        yield Change(place.text, _text(before), _text(now), place.owner)
        return
    sides = _items(before.get("attributes")), _items(now.get("attributes"))
    yield from _by_key(*sides, place.attribute, has_all)
    yield from _entries(_items(before.get("items")), _items(now.get("items")), place, has_all=has_all)
    yield from _methods(before, now, str(now["object"]), place, has_all)
    if not same(before.get("default"), now.get("default")):
        yield Change(f"{place.text} default")


def _named(before: Any, now: Any, place: _Place, has_all: bool) -> Iterator[Change]:
    names = [each.get("module", each.get("type")) for each in (before, now)]
    if not same(*names):
        yield Change(place.text, _text(before), _text(now), place.owner)
        return
    sides = _items(before.get("attributes")), _items(now.get("attributes"))
    yield from _by_key(*sides, place.attribute, has_all)


def _entries(before: Any, now: Any, place: _Place, *, has_all: bool) -> Iterator[Change]:
    if not has_all:
        before = {key: value for key, value in before.items() if key in now}
    yield from _by_key(before, now, place.entry, has_all)


def _whole(before: Any, now: Any, place: _Place, has_all: bool) -> Iterator[Change]:
    yield Change(place.text or "it", _text(before), _text(now), place.owner)


_KINDS: dict[str, Callable[[Any, Any, _Place, bool], Iterator[Change]]] = {
    "function": _functions,
    "applied": _applied,
    "callable": _callables,
    "object": _objects,
    "named": _named,
    "items": lambda before, now, place, has_all: _by_key(before, now, place.entry, has_all),
}
for _key in ("again", "length", REGISTERED, "member", "builtin", "recursion", "constant"):
    _KINDS[_key] = _whole


def _by_key(
    before: dict[Any, Any], now: dict[Any, Any], place: Callable[[Any], _Place], has_all: bool
) -> Iterator[Change]:
    for key in [*before, *(key for key in now if key not in before)]:
        yield from _compared(before.get(key, ABSENT), now.get(key, ABSENT), place(key), has_all=has_all)


def _items(value: Any) -> dict[Any, Any]:
    if type(value) is not dict:
        return {}
    entries = value.get("entries")
    return entries if type(entries) is dict and len(value) == 1 else value


def _quoted(key: Any) -> str:
    return f'"{key}"' if isinstance(key, str) else repr(key)


def _text(description: Any) -> str:
    """Show what is described, in few words."""
    if description is ABSENT:
        return "not there"
    if type(description) is not dict:
        return shown(description)
    for key, word in _WORDS.items():
        if key in description:
            value = description[key]
            named = value if isinstance(value, str) or key == "length" else ""
            return f"{word} {named}".strip()
    return shown(description)


_WORDS = {
    "empty": "not there", REGISTERED: "registered", "module": "module", "type": "class", "object": "an object of class",
    "function": "function", "builtin": "function", "class": "an object of class", "partial": "a partial",
    "cached": "a cached function", "method": "a method", "member": "a member of an enumeration", "path": "path",
    "logger": "logger", "length": "length", "again": "a function told before", "recursion": "itself", "entries": "a dictionary",
    "environment": "the environment", "union": "a union of types", "constant": "",
}  # fmt: skip
