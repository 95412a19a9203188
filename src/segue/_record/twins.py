"""Which new name an old one may have got: proposals for `rename=`, where thousands came and went together."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Mapping, Sequence

_WINDOW = 8
"""How many names are looked at on each side of where one would stand: in thousands, all would be too many."""


class Twins:
    """New names by what they could be a new name of.

    Args:
        kinds: For each new name, what must be equal.
    """

    def __init__(self, kinds: Mapping[str, Hashable]) -> None:
        # Names that end alike, by each of their ends: sorted, those that begin alike are neighbours.
        self._by_end: dict[tuple[Hashable, tuple[str, ...]], list[str]] = {}
        for name in sorted(kinds):
            for end in _ends(name):
                self._by_end.setdefault((kinds[name], end), []).append(name)

    def closest(self, name: str, kind: Hashable) -> str | None:
        """Return the new name that is called most like an old one, or `None` where none is of its kind."""
        among: dict[str, None] = {}
        for end in _ends(name):
            alike = self._by_end.get((kind, end))
            if alike is not None:
                among |= dict.fromkeys(_around(alike, name))
        return max(among, key=lambda other: _likeness(name, other), default=None)


def _ends(name: str) -> list[tuple[str, ...]]:
    """Return all that a dotted name ends on, from the whole of it to nothing."""
    parts = tuple(name.split("."))
    return [parts[at:] for at in range(len(parts) + 1)]


def _around(names: Sequence[str], name: str) -> Sequence[str]:
    at = bisect_left(names, name)
    return names[max(at - _WINDOW, 0) : at + _WINDOW]


def _likeness(left: str, right: str) -> int:
    """Count the components that two dotted names share at their beginnings and ends: layers are told by number."""
    lefts, rights = left.split("."), right.split(".")
    return _common(lefts, rights) + _common(lefts[::-1], rights[::-1])


def _common(left: Sequence[str], right: Sequence[str]) -> int:
    pairs = zip(left, right, strict=False)
    return next((at for at, (ours, theirs) in enumerate(pairs) if ours != theirs), min(len(left), len(right)))


def without_common_end(left: str, right: str) -> tuple[str, str]:
    """Cut the components that two dotted names share at their ends: `a.0.bias`, `b.0.bias` become `a`, `b`."""
    lefts, rights = left.split("."), right.split(".")
    while lefts and rights and lefts[-1] == rights[-1]:
        lefts.pop()
        rights.pop()
    return ".".join(lefts), ".".join(rights)
