"""What a place of checkpoints must do: everything above stores is written against this."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, runtime_checkable

from segue._record.training import TrainingRecord
from segue._store.reader import CheckpointInfo
from segue._store.scan import Candidate


class OpenCheckpoint(Protocol):
    """One checkpoint, open for reading."""

    @property
    def info(self) -> CheckpointInfo:
        """What a listing shows of it: what `put` returned."""
        ...

    def record(self) -> TrainingRecord:
        """Build the record. Its tensors may be read later; each is verified whenever it is.

        Raises:
            CorruptCheckpoint: If something in it is not what was saved.
        """
        ...

    def verify(self) -> TrainingRecord:
        """Read every byte, compare it with its checksum, and return the record.

        Raises:
            CorruptCheckpoint: If a byte is not what was saved; there is no record then, not even in part.
        """
        ...

    def close(self) -> None:
        """Let go of it; may be called again.

        Until then its record stays readable, also when the checkpoint is removed or replaced. From then on, reading a
        tensor of it raises a `StoreError`: memory and files are free, and a record is never half of one thing.
        """
        ...

    def __enter__(self) -> OpenCheckpoint: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@runtime_checkable
class Store(Protocol):
    """Where the checkpoints of one run are kept. One writer at a time; any number of readers, without the lock.

    Every error is a `StoreError` with the place in `where`, but for `InvalidRecord` from `put`. Its class says what is done
    next: for `CheckpointNotFound`, `IncompleteCheckpoint`, `CorruptCheckpoint`, `UnsafeCheckpoint` and `UnsupportedFormat`
    `resume` goes back to an older checkpoint; all others end it. So a place that can't be reached is none of these.

    With `background=True`, `put` and `remove` are called in another thread than `acquire`, and a program may look at the
    run meanwhile (`candidates`, `open`, `summary`).

    `segue.testing.StoreConformance` checks an implementation; docs/explanation/stores.md has a whole one.

    Attributes:
        path: Where that is, for people. In one process, stores of one run have one path, and of two runs have two.
        keeps_history: Whether older checkpoints stay when a newer one is put; else there is one at most.
    """

    @property
    def path(self) -> str: ...

    @property
    def keeps_history(self) -> bool: ...

    def acquire(self) -> None:
        """Become the writer; does nothing for the one that is. Makes the place if it isn't there.

        A process that dies is writer no longer. A forked child of the writer is none, and neither keeps the run locked
        when its parent dies (it may be a data worker).

        Raises:
            RunLocked: If another writer keeps the run for longer than this store waits.
            StoreUnavailable: If the place can't be used.
        """
        ...

    def release(self) -> None:
        """Stop being the writer; may be called again, and never fails. Does nothing for who is none, as a forked child."""
        ...

    def put(self, record: TrainingRecord) -> CheckpointInfo:
        """Store a record as the newest checkpoint, with a number that is larger than all before.

        When this returns, the checkpoint is as durable as the place can make it. When it raises, the newest checkpoint
        is the one from before, or this one, whole: whatever it raises, and the record may raise anything while it is read.
        The record is not changed, and may be changed afterwards. It may be one that was read from this run.

        Returns:
            What a listing shows of it; `attempt` is an id that no other put has.

        Raises:
            StoreError: With code `store.not_acquired`, if this store is not the writer.
            StoreFull: If there is no room.
            StoreUnavailable: If it can't be written.
            InvalidRecord: If the record holds what the store cannot.
        """
        ...

    def candidates(self) -> list[Candidate]:
        """List what could be checkpoints, newest first, without the lock; damaged ones are listed as well.

        Makes nothing where there is nothing: a run that was never written has none.

        Raises:
            StoreUnavailable: If that can't be told now. An empty list means that there surely is none.
        """
        ...

    def open(self, candidate: Candidate) -> OpenCheckpoint:
        """Open one for reading, without the lock: that one or none, never what has replaced it.

        Damage in the data may be left to `verify`.

        Raises:
            CheckpointNotFound: If it is gone.
            IncompleteCheckpoint: If parts are missing.
            CorruptCheckpoint: If it is damaged.
            UnsafeCheckpoint: If it is not of this run, or not as segue makes them.
            UnsupportedFormat: If a newer segue wrote it.
            StoreUnavailable: If it can't be read now.
        """
        ...

    def summary(self, candidate: Candidate) -> CheckpointInfo:
        """Tell what a listing shows, without reading data; what `put` returned.

        Raises:
            StoreError: As `open` does.
        """
        ...

    def remove(self, candidate: Candidate) -> None:
        """Take one away; what is gone already, or was replaced, is no error.

        A failure is a `StoreWarning`: what stays does no harm, and the newer checkpoint that was put before is durable.

        Raises:
            StoreError: With code `store.not_acquired`, if this store is not the writer.
        """
        ...
