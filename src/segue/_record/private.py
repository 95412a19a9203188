"""Random generators of a program's own, as a record holds them: the shape of the section, and its paths under other names.

Each is a dictionary by the path at which it was found: its `kind`, its `state`, and `aliases`, the further places at
which the very same generator stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from segue.errors import InvalidRecord

_FIELDS = frozenset({"kind", "state", "aliases"})


def refuse_no_streams(streams: Any) -> None:
    """Raise `InvalidRecord` for what is no section of private streams."""
    if streams is None:
        return
    if type(streams) is not dict or not streams:
        raise _invalid("private streams that are no dictionary, or an empty one", "private_streams", streams)
    known: set[str] = set()
    for path, stream in streams.items():
        if type(path) is not str or not path:
            raise _invalid("a private stream without a path", "private_streams", path)
        if type(stream) is not dict or stream.keys() != _FIELDS or type(stream["kind"]) is not str:
            raise _invalid("a private stream without kind, state and aliases", path, stream)
        aliases = stream["aliases"]
        if type(aliases) is not list or not all(type(alias) is str and alias for alias in aliases):
            raise _invalid("aliases of a private stream that are no paths", path, aliases)
        for place in (path, *aliases):
            if place in known:
                raise _invalid("two private streams at one place", path, place)
            known.add(place)


def _invalid(what: str, where: str, found: Any) -> InvalidRecord:
    return InvalidRecord(what, code="record.streams", where=where, found=found)


def places_of(streams: Mapping[str, Any] | None) -> dict[str, str]:
    """Return every place of a generator, with the path under which the section has it."""
    return {
        place: path
        for path, stream in (streams or {}).items()
        for place in (path, *stream["aliases"])
    }  # fmt: skip


def renamed_streams(
    streams: dict[str, Any] | None, names: Mapping[str, Mapping[str, str]]
) -> dict[str, Any] | None:
    """Return the section with the modules in its paths renamed.

    Args:
        streams: The section, or `None`.
        names: From old to new names of modules, by what stands before the names of a module's tensors: nothing for the
            model, `ema/` for a component.
    """
    if streams is None:
        return None
    return {
        _renamed(path, names): {
            **stream,
            "aliases": sorted(_renamed(alias, names) for alias in stream["aliases"]),
        }
        for path, stream in streams.items()
    }


def _renamed(path: str, names: Mapping[str, Mapping[str, str]]) -> str:
    for prefix, table in names.items():
        scope = f"component.{prefix[:-1]}" if prefix else "model"
        if path.startswith(f"{scope}."):
            return f"{scope}.{_with_module(path[len(scope) + 1 :], table)}".rstrip(".")
    return path


def _with_module(rest: str, table: Mapping[str, str]) -> str:
    """Rename the module that a path begins with; the longest name that fits wins."""
    fitting = [old for old in table if not old or rest == old or rest.startswith((f"{old}.", f"{old}["))]
    if not fitting:
        return rest
    old = max(fitting, key=len)
    after = rest[len(old) :].removeprefix(".")
    return ".".join(part for part in (table[old], after) if part)
