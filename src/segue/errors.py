"""Every error segue raises, and the findings they are made of.

The base class says who must act: a `MismatchError` is the caller's to resolve, after a `CorruptCheckpoint`
one falls back to the checkpoint before, `StoreUnavailable` can be retried. All are ordinary exceptions.

```
SegueError
|-- CaptureError      UnsupportedState, TiedParameterConflict, PendingGradientError, NotAtBoundary, ConcurrentMutation
|-- MismatchError     ContractMismatch, OptimizerMismatch, SchedulerMismatch, ComponentMismatch, DeviceMismatch,
|                     TopologyMismatch, BaseMismatch, LossyRecord, EnvironmentMismatch
|-- WindowError
|-- InvalidRecord
|-- StoreError        CheckpointNotFound, CheckpointExists, IncompleteCheckpoint, CorruptCheckpoint,
|                     UnsupportedFormat, UnsafeCheckpoint, RunLocked, StoreUnavailable, StoreFull
|-- SaveFailed
`-- RestoreInterrupted
```
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

_MAX_SHOWN = 200
_MAX_ALSO = 20


_MAX_ALIKE = 4
_BY_NAME = (".extra.", ".missing.", ".setting.", ".private.")


def entries_of(codes: Sequence[str]) -> list[str]:
    """Return what to write into `accept=` for these codes: one entry for many names that begin alike."""
    alike: dict[str, list[str]] = {}
    for code in codes:
        alike.setdefault(_entry_of_many(code) or code, []).append(code)
    return [
        entry
        for many, members in alike.items()
        for entry in ([many] if len(members) > _MAX_ALIKE else members)
    ]


def _entry_of_many(code: str) -> str | None:
    """Return the entry for all names under the first part of this one, of what came, went or differs by name."""
    for aspect in _BY_NAME:
        scope, found, name = code.partition(aspect)
        if found and "." in name:
            return f"{scope}{aspect}{name.partition('.')[0]}.*"
    return None


def admitting(code: str) -> Iterator[str]:
    """Yield the entries of `accept=` that admit a code: itself, and those of all under a name, as `model.extra.head.*`."""
    yield code
    for at, character in enumerate(code):
        # `model.extra.*` has no name, and would admit what nobody has seen.
        if character == "." and any(all(code[:at].partition(aspect)) for aspect in _BY_NAME):
            yield f"{code[:at]}.*"


class _Absent:
    """The type of `ABSENT`: `None` is a legitimate expected or found value, so it cannot mean "not given"."""

    def __repr__(self) -> str:
        return "absent"


ABSENT: Final = _Absent()


def shown(value: Any) -> str:
    """Render a value for a message: escaped, on one line, at most 200 characters."""
    try:
        text = value if isinstance(value, str) else repr(value)
    except ValueError:  # CPython refuses to write out an integer of more than 4300 digits
        text = f"a {type(value).__name__} with too many digits to show"
    text = text.encode("unicode_escape").decode("ascii")
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."


def some(names: Sequence[str]) -> str:
    """Show the first five of many names, and how many there are more."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


@dataclass(frozen=True)
class Finding:
    """One thing that differs, or is wrong, with the entry of `accept=` that would admit it."""

    error: type[MismatchError]
    """The error class this finding alone would raise."""
    code: str
    """Stable identity, such as `optimizer.adamw.lr`; also the entry for `accept=`."""
    what: str
    """What is wrong, as a clause."""
    where: str
    """The object it was found at."""
    expected: Any = ABSENT
    """What the record holds."""
    found: Any = ABSENT
    """What the live object holds."""
    hint: str | None = None
    """What to do about it."""
    admissible: bool = False
    """Whether `accept=[code]` lets the restore go on."""
    when_accepted: str = "keeps what the program has now"
    """What the restore does then."""

    def __str__(self) -> str:
        return _sentence(self.code, self.what, self.where, self.expected, self.found, self._advice())

    def _advice(self) -> str | None:
        if not self.admissible:
            return self.hint
        entry = f'resume(accept=["{self.code}"]) {self.when_accepted}'
        return f"{self.hint}; {entry}" if self.hint else entry


def _sentence(code: str, what: str, where: str | None, expected: Any, found: Any, hint: str | None) -> str:
    lines = [f"{what} [{code}]"]
    if where is not None:
        lines.append(f"  where:    {shown(where)}")
    if expected is not ABSENT:
        lines.append(f"  expected: {shown(expected)}")
    if found is not ABSENT:
        lines.append(f"  found:    {shown(found)}")
    if hint is not None:
        lines.append(f"  hint:     {hint}")
    return "\n".join(lines)


class SegueError(Exception):
    """Base of all errors of this library.

    Attributes:
        code: Stable identity of what went wrong, in lower case with dots.
        what: What is wrong, as a clause.
        where: The object, file or entry at which it was found, or `None`.
        expected: What should have been there; `ABSENT` when there is nothing to compare.
        found: What was there; `ABSENT` when there is nothing to compare.
        hint: What to do about it, or `None`.
        also: Further findings of the same check.
    """

    default_code = "error"

    def __init__(
        self,
        what: str,
        *,
        code: str | None = None,
        where: str | None = None,
        expected: Any = ABSENT,
        found: Any = ABSENT,
        hint: str | None = None,
        also: Sequence[Finding] = (),
    ) -> None:
        self.code = code or self.default_code
        self.what = what
        self.where = where
        self.expected = expected
        self.found = found
        self.hint = hint
        self.also = tuple(also)
        super().__init__(what)

    def __str__(self) -> str:
        text = _sentence(self.code, self.what, self.where, self.expected, self.found, self.hint)
        if not self.also:
            return text
        return text + self._further()

    def _further(self) -> str:
        more = [f"- {finding}" for finding in self.also[:_MAX_ALSO]]
        if len(self.also) > _MAX_ALSO:
            more.append(f"- and {len(self.also) - _MAX_ALSO} more")
        return "\nalso:\n" + "\n".join(more)


class CaptureError(SegueError):
    """The live training cannot be captured as it is; nothing was changed."""

    default_code = "capture"


class UnsupportedState(CaptureError):
    """Some live state has no exact representation here; the message names its path and type."""

    default_code = "capture.unsupported"


class TiedParameterConflict(CaptureError):
    """Aliases of one parameter disagree about its shape, dtype or trainability."""

    default_code = "capture.tied"


class PendingGradientError(CaptureError):
    """A pending gradient does not fit the parameter it belongs to."""

    default_code = "capture.pending"


class NotAtBoundary(CaptureError):
    """A forward, backward or update is in flight."""

    default_code = "capture.boundary"


class ConcurrentMutation(CaptureError):
    """A tensor changed while it was being copied."""

    default_code = "capture.mutation"


class MismatchError(SegueError):
    """The record and the live training differ; nothing was changed. `findings` has all differences."""

    default_code = "mismatch"

    def __init__(self, what: str, *, findings: Sequence[Finding] = (), **fields: Any) -> None:
        self.findings = tuple(findings)
        super().__init__(what, **fields)

    def _further(self) -> str:
        codes = list(dict.fromkeys(finding.code for finding in self.findings if finding.admissible))
        others = sum(not finding.admissible for finding in self.findings)
        if not codes:
            return super()._further()
        entries = ", ".join(f'"{entry}"' for entry in entries_of(codes))
        to_accept = f"resume(accept=[{entries}])"
        if others:
            # Not an entry to paste: it would not be enough.
            return f"{super()._further()}\n{others} of the {len(self.findings)} differences can't be accepted; the rest: {to_accept}"
        return f"{super()._further()}\nto accept{self._what_it_drops(codes)}: {to_accept}"

    def _what_it_drops(self, codes: Sequence[str]) -> str:
        """Say before the line to paste what it throws away: pasted for a renamed module, it would lose what was learnt."""
        if not any(".missing." in code for code in codes):
            return ""
        renames = any("resume(rename=" in (finding.hint or "") for finding in self.findings)
        return ", dropping what is missing" + (
            " (if it was renamed, `rename=` above keeps it)" if renames else ""
        )

    @staticmethod
    def of(findings: Sequence[Finding]) -> MismatchError:
        """Make the one error that reports all findings, of the first finding's class.

        Args:
            findings: In the order of the checks; not empty.

        Returns:
            The error, to be raised by the caller.
        """
        first = findings[0]
        return first.error(
            first.what,
            findings=findings,
            code=first.code,
            where=first.where,
            expected=first.expected,
            found=first.found,
            hint=first._advice(),
            also=findings[1:],
        )


class ContractMismatch(MismatchError):
    """A parameter or buffer differs in name, alias, shape, dtype, strides or trainability."""


class OptimizerMismatch(MismatchError):
    """An optimizer differs in class, groups, options or order."""


class SchedulerMismatch(MismatchError):
    """A scheduler differs in class, configuration or structure."""


class ComponentMismatch(MismatchError):
    """A component exists on one side only, or refuses its state."""


class DeviceMismatch(MismatchError):
    """A tensor lives on another device than when it was captured."""


class TopologyMismatch(MismatchError):
    """Another world size, rank or mesh."""


class BaseMismatch(MismatchError):
    """The frozen base is not the one the record names."""


class LossyRecord(MismatchError):
    """The record was stored with a lossy precision."""


class EnvironmentMismatch(MismatchError):
    """Something that changes floating-point results differs, and the training is strict."""


class WindowError(SegueError):
    """An accumulation window refuses: bad weight, overflow, empty, wrong dtype, gradient not consumed."""

    default_code = "window"


class InvalidRecord(SegueError):
    """A record contradicts itself."""

    default_code = "record"


class StoreError(SegueError):
    """Base of everything that concerns stored checkpoints."""

    default_code = "store"


class CheckpointNotFound(StoreError):
    """There is no checkpoint at that place."""

    default_code = "store.not_found"


class CheckpointExists(StoreError):
    """The place is taken; a stored checkpoint is never modified."""

    default_code = "store.exists"


class IncompleteCheckpoint(StoreError):
    """A checkpoint lacks files, as after a crash while it was written or copied."""

    default_code = "store.incomplete"


class CorruptCheckpoint(StoreError):
    """Bytes do not match their checksums, or the manifest contradicts itself or its files."""

    default_code = "store.corrupt"


class UnsupportedFormat(StoreError):
    """Not a segue checkpoint, or one of a newer format."""

    default_code = "store.format"


class UnsafeCheckpoint(StoreError):
    """A checkpoint contains links, special files or names that no writer of ours makes."""

    default_code = "store.unsafe"


class RunLocked(StoreError):
    """Another process is writing to this run."""

    default_code = "store.locked"


class StoreUnavailable(StoreError):
    """The place of the checkpoints cannot be used now; retrying may help."""

    default_code = "store.unavailable"


class StoreFull(StoreUnavailable):
    """There is not enough room; nothing was lost."""

    default_code = "store.full"


class SaveFailed(SegueError):
    """A background save failed; raised by `wait()`, by the next save and by `close()`."""

    default_code = "save.failed"


class StaleIterator(SegueError):
    """A batch was asked of a pass over the data that another one, or a restore, has replaced."""

    default_code = "data.stale"


class RestoreInterrupted(SegueError):
    """The bytes changed or vanished after writing had begun: rebuild this `Training` from scratch."""

    default_code = "restore.interrupted"


class SegueWarning(UserWarning):
    """Base of this library's warnings."""


class SkippedCheckpointWarning(SegueWarning):
    """`resume` passed over a damaged or foreign checkpoint; the message names it and why."""


class EnvironmentWarning(SegueWarning):
    """The state is restored exactly, but something that changes floating-point results differs."""


class ScheduleWarning(SegueWarning):
    """A scheduler was due when the training was captured."""


class BaseWarning(SegueWarning):
    """Frozen parameters are stored with every checkpoint, since they are not, or no longer, the base that was named."""


class CounterWarning(SegueWarning):
    """A step counter is of a dtype that can't count on from where it stands."""


class ConsumedGradientsWarning(SegueWarning):
    """Gradients that `step` has used already still stood in `.grad` when the training was captured, and cost bytes."""


class UncoveredStateWarning(SegueWarning):
    """Something has changed that a resumed run would be without, since nothing that was registered keeps it."""


class StoreWarning(SegueWarning):
    """Something went wrong that does not endanger any checkpoint, such as a failed deletion."""
