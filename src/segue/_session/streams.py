"""Random streams of a training, global and private: compared, put back after a refusal, and restored last of all.

Restoring a component may make generators, or put others in the place of those that were there: a data loader's iterator
is built then. So where only such an object can tell, private streams are compared once more when all objects are restored,
while everything can still be put back; and they are looked for anew when they are written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

from segue._capture.naming import joined
from segue._capture.private_streams import PrivateStreams, put_back
from segue._capture.writes import ObjectWrite, Write, run_all
from segue._record.private import places_of
from segue._record.training import TrainingRecord
from segue._record.tree import same
from segue._session.live import LiveTraining
from segue._session.one_sided import recorded_modules
from segue._session.refusals import refuse
from segue.errors import ComponentMismatch, Finding, RestoreInterrupted, some


def stream_findings(record: TrainingRecord, live: LiveTraining) -> Iterator[Finding]:
    """Yield which random streams differ, as far as can be told before any object is restored."""
    if record.streams is not None and live.rng is not None:
        yield from live.rng.check(record.streams)
    elif record.streams is not None or live.rng is not None:
        sides = ("captured", "rng=None") if record.streams is not None else ("rng=None", "captured")
        yield Finding(
            ComponentMismatch, "streams", "random streams are on one side only", "random streams", *sides,
            admissible=True, when_accepted="leaves the streams as they are",
        )  # fmt: skip
    yield from _private_findings(record, live, _beginnings_of([*live.asked(), *_with_extra_state(record)]))


def _private_findings(
    record: TrainingRecord, live: LiveTraining, is_late: Callable[[str], bool]
) -> Iterator[Finding]:
    roots = live.roots().keys()
    has_place, is_new = _beginnings_of(roots), _beginnings_of(roots - _roots(record))

    def is_told(place: str) -> bool:  # as one-sided with all that is in it
        return is_new(place) or not has_place(place)

    streams = PrivateStreams(live.roots())
    yield from streams.check(record.private_streams, lambda place: is_late(place) or is_told(place))


def _with_extra_state(record: TrainingRecord) -> Iterator[str]:
    """Yield the paths of modules that are told their extra state, which may make generators."""
    for prefix, module in recorded_modules(record).items():
        scope = f"component.{prefix.removesuffix('/')}" if prefix else "model"
        yield from (joined(scope, path) if path else scope for path in module.extra or ())


def _roots(record: TrainingRecord) -> set[str]:
    """Return where paths began when a record was captured, as far as it tells."""
    optimizers = [*record.optimizers, *(record.opaque_optimizers or {})]
    return {
        "model",
        *(f"component.{name}" for name in record.components),
        *(f"optimizer.{name}" for name in optimizers),
        *(f"scheduler.{name}" for name in record.schedulers),
        *(["accumulator"] if record.window is not None else []),
        *(["model_state"] if record.model_state is not None else []),
    }


def _beginnings_of(roots: Iterable[str]) -> Callable[[str], bool]:
    """Return what tells whether a path begins with one of these."""
    beginnings = tuple(f"{root}{separator}" for root in roots for separator in ".[{")
    whole = frozenset(roots)
    return lambda place: place in whole or place.startswith(beginnings)


class StreamsRestore:
    """The random streams of one restore.

    Made before anything else of it: reading what objects hold runs code of theirs, which may draw.

    Args:
        record: The record, of which the streams are.
        live: The objects.
        accept: What the caller accepts.
    """

    def __init__(self, record: TrainingRecord, live: LiveTraining, accept: Collection[str]) -> None:
        self._record = record
        self._live = live
        self._accept = accept
        self._global_before = None if live.rng is None else live.rng.capture()
        self._private_before = PrivateStreams(live.roots()).snapshot()
        self._expected: frozenset[str] = frozenset()

    def put_back(self) -> None:
        """Set every stream to what it was when this was made."""
        rng, before = self._live.rng, self._global_before
        if rng is not None and before is not None and not same(rng.capture(), before):
            run_all(rng.plan(before))
        put_back(self._private_before)

    def admit(self) -> list[str]:
        """Compare private streams once more, now that all objects are restored.

        Returns:
            The codes of differences that the caller has accepted.

        Raises:
            MismatchError: With every other difference.
        """
        findings = list(_private_findings(self._record, self._live, lambda place: False))
        admitted = refuse(findings, self._accept)
        self._expected = (
            PrivateStreams(self._live.roots()).places & places_of(self._record.private_streams).keys()
        )
        return list(dict.fromkeys(finding.code for finding in admitted))

    def plan(self) -> list[Write]:
        """Plan to set every stream that both sides have."""
        record, rng = self._record, self._live.rng
        private: list[Write] = [ObjectWrite("private random streams", self._write_private)]
        if record.private_streams is None:
            private = []
        return private + (rng.plan(record.streams) if record.streams is not None and rng is not None else [])

    def _write_private(self) -> None:
        streams = PrivateStreams(self._live.roots())
        gone = sorted(self._expected - streams.places)
        if gone:
            raise RestoreInterrupted(
                "a random generator went away while the training was restored", where=some(gone)
            )
        run_all(streams.plan(self._record.private_streams))
