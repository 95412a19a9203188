"""Random generators of a program's own: found by walking, captured by their path, put back where they are.

Wish: dropout noise from a module's own generator, and an augmentation that draws from another, go on where they were,
though nobody has registered them.

A generator is known by the paths at which it stands. Two paths to one generator are one stream, and stay one: on a
program that has two in its place the state would be right for one step. What can be told to be a random stream, and
can't be put back, is refused at capture.

What it still loses: a generator that only code could find, such as one in a dictionary of another library, a local of a
generator function, or the streams of worker processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from segue._capture.generators import (
    DoesNotFit,
    GeneratorKind,
    is_generator,
    is_global,
    kind_of_generator,
    source_of,
)
from segue._capture.reached import occurrences
from segue._capture.staging import type_name
from segue._capture.writes import ObjectWrite, Write
from segue._record.private import places_of
from segue._record.tree import same
from segue.errors import ComponentMismatch, Finding, UnsupportedState, some

Sections = dict[str, dict[str, Any]]


@dataclass
class PrivateStream:
    """One generator of the program."""

    path: str
    """Where it was found first."""
    value: Any
    kind: GeneratorKind
    aliases: list[str] = field(default_factory=list)
    """Where else it stands."""


class PrivateStreams:
    """The generators that can be reached from the objects of a training, at one moment.

    Args:
        roots: The objects by the beginning of their paths.

    Raises:
        UnsupportedState: If one is a random stream that nothing could restore.
    """

    def __init__(self, roots: Mapping[str, object]) -> None:
        self._by_path: dict[str, PrivateStream] = {}
        self._places: dict[str, PrivateStream] = {}
        self._find(roots)

    def _find(self, roots: Mapping[str, object]) -> None:
        by_source: dict[int, PrivateStream] = {}
        lost: dict[str, object] = {}
        unordered: dict[str, object] = {}
        for item in occurrences(roots):
            if not is_generator(item.value):
                continue
            kind = kind_of_generator(item.value)
            if kind is None:
                lost[item.path] = item.value
                continue
            source = source_of(item.value)
            if is_global(source):
                continue
            stream = by_source.get(id(source))
            if self._places.get(item.path, stream) is not stream:
                unordered[item.path] = item.value
            elif stream is None:
                stream = by_source[id(source)] = PrivateStream(item.path, item.value, kind)
                self._by_path[item.path] = self._places[item.path] = stream
            elif item.path not in self._places:
                stream.aliases.append(item.path)
                self._places[item.path] = stream
        if lost or unordered:
            raise _unrestorable(lost, unordered)

    @property
    def streams(self) -> list[PrivateStream]:
        """Each once."""
        return list(self._by_path.values())

    @property
    def places(self) -> frozenset[str]:
        """Every path at which one stands."""
        return frozenset(self._places)

    def capture(self) -> Sections | None:
        """Copy the state of each, by its path; `None` where there are none. Draws nothing."""
        return {
            path: {
                "kind": stream.kind.name,
                "state": stream.kind.read(stream.value),
                "aliases": sorted(stream.aliases),
            }
            for path, stream in sorted(self._by_path.items())
        } or None

    def snapshot(self) -> list[tuple[PrivateStream, Any]]:
        """Return each with a copy of its state, for `put_back`."""
        return [(stream, stream.kind.read(stream.value)) for stream in self._by_path.values()]

    def check(self, record: Sections | None, is_late: Callable[[str], bool]) -> Iterator[Finding]:
        """Yield what keeps recorded streams from being put back.

        Args:
            record: The section, or `None`.
            is_late: Tells of a path whether what stands there may come or go until the streams are put back.
        """
        recorded = places_of(record)
        for place in sorted(recorded.keys() ^ self._places.keys()):
            if not is_late(place):
                yield self._one_sided(place, record or {}, recorded)
        common = recorded.keys() & self._places.keys()
        divided = set(_divided(common, recorded, self._paths()))
        for path, section in (record or {}).items():
            places = [place for place in (path, *section["aliases"]) if place in common]
            if path in divided:
                yield _shared_otherwise(places, self._paths())
            elif places:
                yield from _unfit(places[0], section, self._places[places[0]])
        yield from self._joined(common, recorded, divided)

    def _paths(self) -> dict[str, str]:
        return {place: stream.path for place, stream in self._places.items()}

    def _one_sided(self, place: str, record: Sections, recorded: Mapping[str, str]) -> Finding:
        if place in recorded:
            what, then = "a random generator of the record is missing in the program", "drops its state"
            sides = (record[recorded[place]]["kind"], "absent")
        else:
            what = "a random generator of the program is not in the record"
            then = "leaves it as the program made it"
            sides = ("absent", type_name(self._places[place].value))
        return _finding(place, what, *sides, admissible=True, when_accepted=then)

    def _joined(self, common: Any, recorded: Mapping[str, str], told: set[str]) -> Iterator[Finding]:
        """Yield generators of the program that are several in the record."""
        live = self._paths()
        for path in sorted(_divided(common, live, recorded)):
            places = sorted(place for place in common if live[place] == path)
            if not told.intersection(recorded[place] for place in places):
                yield _finding(
                    places[0], "one random generator in the program is several in the record",
                    f"different ones at {some(places)}", "the same one",
                    hint="make as many as when it was captured",
                )  # fmt: skip

    def plan(self, record: Sections | None) -> list[Write]:
        """Plan to set every stream that both sides have."""
        sections = record or {}
        pairs = [
            (self._places[place], sections[path]["state"])
            for place, path in places_of(record).items()
            if place in self._places
        ]

        def write() -> None:
            for stream, state in pairs:
                stream.kind.write(stream.value, state)

        return [ObjectWrite("private random streams", write)]


def put_back(snapshot: list[tuple[PrivateStream, Any]]) -> None:
    """Set streams to what they were, those that have moved."""
    for stream, state in snapshot:
        if not same(stream.kind.read(stream.value), state):
            stream.kind.write(stream.value, state)


def _divided(common: Any, one: Mapping[str, str], other: Mapping[str, str]) -> Iterator[str]:
    """Yield what is one stream on the one side, and several on the other."""
    found: dict[str, set[str]] = {}
    for place in common:
        found.setdefault(one[place], set()).add(other[place])
    return (path for path, others in found.items() if len(others) > 1)


def _unfit(place: str, section: Mapping[str, Any], stream: PrivateStream) -> Iterator[Finding]:
    if section["kind"] != stream.kind.name:
        yield _finding(
            place, "another kind of random generator", section["kind"], stream.kind.name,
            hint="make the same kind as when it was captured",
        )  # fmt: skip
        return
    try:
        stream.kind.refuse_unfit(stream.value, section["state"])
    except DoesNotFit as error:
        yield _finding(place, f"the state of a random generator does not fit here: {error}")


def _shared_otherwise(places: list[str], live: Mapping[str, str]) -> Finding:
    return _finding(
        places[0], "one random generator in the record is several in the program", "the same one",
        f"{len({live[place] for place in places})} at {some(places)}",
        hint="hand the one generator to all of them, as when it was captured",
    )  # fmt: skip


def _finding(place: str, what: str, *sides: Any, **more: Any) -> Finding:
    return Finding(
        ComponentMismatch, f"streams.private.{place}", what, f"random stream {place}", *sides, **more
    )


def _unrestorable(lost: Mapping[str, object], unordered: Mapping[str, object]) -> UnsupportedState:
    found = [f"{path} ({type_name(value)})" for path, value in {**lost, **unordered}.items()]
    if lost:
        what = "a random stream has no state that could be restored"
        hint = (
            "draw from `random.Random(seed)`, `numpy.random.default_rng(seed)` or `torch.Generator()`: their state is "
            "captured by itself"
        )
    else:
        what = "several random streams are in a set, which has another order in each process"
        hint = "keep them in a list, or in a dictionary by name"
    return UnsupportedState(
        what, code="capture.stream", where=next(iter({**lost, **unordered})), found=some(found), hint=hint
    )
