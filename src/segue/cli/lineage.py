"""What has become of a run, as sentences: where it comes from, and what was changed on purpose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from segue.cli.plain import plain


def told(entry: Any) -> str:
    """Tell an entry of a record's lineage; one of an unknown kind is shown as it is."""
    if isinstance(entry, Mapping):
        parts = list(_parts(entry))
        if parts:
            return "; ".join(parts)
    return str(plain(entry))


def position(step: Any, microbatch: Any) -> str:
    """Say where in a training something was: by its step, without one by its microbatch; empty without either."""
    if step is not None:
        return f"at step {_number(step)}"
    return "" if microbatch is None else f"at microbatch {_number(microbatch)}"


def _parts(entry: Mapping[Any, Any]) -> Iterator[str]:
    at = position(entry.get("step"), entry.get("microbatch"))
    origin, accepted, renamed = (entry.get(key) for key in ("forked_from", "accepted", "renamed"))
    if isinstance(origin, Mapping):
        yield _ended(f"forked from {_source(origin)}", at and f"({at.removeprefix('at ')})")
    if isinstance(accepted, list | tuple) and accepted:
        yield _ended(f"accepted {', '.join(map(str, accepted))}", at)
    if isinstance(renamed, Mapping) and renamed:
        yield _ended("renamed " + ", ".join(f"{old} to {new}" for old, new in renamed.items()), at)


def _source(origin: Mapping[Any, Any]) -> str:
    run, seq = origin.get("run"), origin.get("seq")
    if run is None and not seq:
        return f"an export, {origin.get('attempt')}"
    return f"run {run} checkpoint {seq}" if run is not None else f"checkpoint {seq}, {origin.get('attempt')}"


def _ended(text: str, at: str) -> str:
    return f"{text} {at}" if at else text


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(plain(value))
