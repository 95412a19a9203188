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
        """What a listing shows of it."""
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
        """Let go of it; may be called again. Tensors not read by then raise `StoreUnavailable`."""
        ...

    def __enter__(self) -> OpenCheckpoint: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@runtime_checkable
class Store(Protocol):
    """Where the checkpoints of one run are kept. One writer at a time; any number of readers, without the lock.

    Every error is a `StoreError`. `segue.testing.StoreConformance` checks an implementation.

    Attributes:
        path: Where that is, for people. In one process, stores of one run have one path, and of two runs have two.
        keeps_history: Whether older checkpoints stay when a newer one is put; else there is one at most.
    """

    @property
    def path(self) -> str: ...

    @property
    def keeps_history(self) -> bool: ...

    def acquire(self) -> None:
        """Become the writer; does nothing for the one that is.

        Raises:
            RunLocked: If another writer keeps the run for longer than this store waits.
            StoreUnavailable: If the place can't be used.
        """
        ...

    def release(self) -> None:
        """Stop being the writer; may be called again, and never fails."""
        ...

    def put(self, record: TrainingRecord) -> CheckpointInfo:
        """Store a record as the newest checkpoint, with a number that is larger than all before.

        When this returns, the checkpoint is as durable as the place can make it. When it raises, the newest checkpoint
        is the one from before, or this one, whole. The record is not changed, and may be changed afterwards.

        Raises:
            StoreError: With code `store.not_acquired`, if this store is not the writer.
            StoreFull: If there is no room.
            StoreUnavailable: If it can't be written.
            InvalidRecord: If the record holds what the store cannot.
        """
        ...

    def candidates(self) -> list[Candidate]:
        """List what could be checkpoints, newest first, without the lock; damaged ones are listed as well.

        Raises:
            StoreUnavailable: If that can't be told now. An empty list means that there surely is none.
        """
        ...

    def open(self, candidate: Candidate) -> OpenCheckpoint:
        """Open one for reading, without the lock: that one or none.

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
        """Take one away; what is gone already is no error. A failure is a `StoreWarning`, since it does no harm.

        Raises:
            StoreError: With code `store.not_acquired`, if this store is not the writer.
        """
        ...
