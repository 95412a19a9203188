"""The policy: when to save, how many to keep, which one to resume."""

from __future__ import annotations

import os
import signal
import time
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from types import TracebackType
from typing import Any

from segue._record.conversion import Precision, precision_name
from segue._session.cadence import Cadence
from segue._session.newest import newest_verified
from segue._session.preemption import PreemptionFlag
from segue._session.record import TrainingRecord
from segue._session.retention import expired
from segue._session.training import Training
from segue._session.writer import BackgroundWriter, PendingSave
from segue._store.opening import store_at
from segue._store.protocol import Store
from segue._store.reader import CheckpointInfo
from segue._store.scan import Candidate
from segue.errors import (
    CheckpointExists,
    CheckpointNotFound,
    SaveFailed,
    StoreError,
    StoreUnavailable,
)

_writers: weakref.WeakValueDictionary[str, Checkpointer] = weakref.WeakValueDictionary()


class Checkpointer:
    """Saves a training as it goes, and resumes the newest verified checkpoint of its run.

    Args:
        training: What to save and restore.
        url: The run's place: a folder; one file, if it ends in `.segue`; or memory, as `memory://name`. It is made when
            it is first needed; a relative path counts from where the program is now. Or any `segue.stores.Store`.
        every_microbatches: `save_if_due` saves when this many of its calls have passed since the last save.
        every_steps: It saves when `step` has grown by this much.
        every_seconds: It saves when this much time has passed. Without any `every_*`, it saves at each call.
        keep_last: How many of the newest checkpoints stay, at least 1; `None` keeps all. While a save is in progress
            the run needs room for one more. A file holds one by nature.
        background: Write in a thread, over a copy taken at the call; at most one save is in flight.
        precision: What to store records in, as in `TrainingRecord.converted`. Where it loses bits, `resume` refuses the
            record unless it is accepted: `resume(accept=["record.lossy"])`.
        signals: A preemption notice: the next `save_if_due` saves, waits until that is durable, and returns True.
        clock: Monotonic seconds, for `every_seconds`.
        lock_timeout_seconds: How long to wait for another process that writes to this run, before `RunLocked`; a
            preempted job's old process may still be on its way out. A store that is passed in has its own.

    Raises:
        TypeError: If the training, the store or an interval is of another type.
        ValueError: If an interval or `keep_last` is not positive, or the store can't keep that many.
        StoreUnavailable: If the URL is of a kind that is not supported.
        InvalidRecord: If there is no such precision.

    Guarantees:
        A checkpoint appears whole or not at all, and survives a power cut once its save has returned. Nothing older is
        deleted before that. A second checkpointer on the same run takes over from the first in one process, and is
        refused (`RunLocked`) in another.

    Collective:
        No; one process.
    """

    def __init__(
        self,
        training: Training,
        url: str | os.PathLike[str] | Store,
        *,
        every_microbatches: int | None = None,
        every_steps: int | None = None,
        every_seconds: float | None = None,
        keep_last: int | None = None,
        background: bool = False,
        precision: Precision = "native",
        signals: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGUSR1),
        clock: Callable[[], float] = time.monotonic,
        lock_timeout_seconds: float = 30.0,
    ) -> None:
        if not isinstance(training, Training):
            raise TypeError(
                f"Checkpointer(training, url): the first is a segue.Training, not {type(training).__name__}"
            )
        if keep_last is not None and keep_last < 1:
            raise ValueError(f"keep_last must be at least 1, not {keep_last!r}")
        self._training = training
        self._store = _store_of(url, lock_timeout_seconds)
        if keep_last not in (None, 1) and not self._store.keeps_history:
            raise ValueError(f"keep_last={keep_last}: {self._store.path} holds one checkpoint, the newest")
        self._key = _key_of(self._store)
        self._cadence = Cadence(every_microbatches, every_steps, every_seconds, clock)
        self._keep_last = keep_last
        self._background = background
        precision_name(precision)
        self._precision = precision
        self._writer = BackgroundWriter()
        self._preemption = PreemptionFlag(signals)
        self._microbatch = 0
        self._resumed_from: int | None = None
        self._has_joined = False
        self._expects_state = False
        self._is_open = False
        self._is_superseded = False

    @property
    def path(self) -> str:
        """Where the run is."""
        return self._store.path

    @property
    def preempted(self) -> bool:
        """Whether a preemption signal has come."""
        return self._preemption.is_set

    def __enter__(self) -> Checkpointer:
        self._preemption.install()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except SaveFailed as failure:
            if error is None:
                raise
            error.add_note(f"besides, the last save failed: {failure}")

    def close(self) -> None:
        """Wait for the save in flight and let go of the run and the signals. Never saves; may be called again.

        Raises:
            SaveFailed: If the save in flight failed.
        """
        try:
            self._writer.settle()
        finally:
            self._preemption.remove()
            self._let_go()

    def _let_go(self) -> None:
        self._store.release()
        self._is_open = False
        if _writers.get(self._key) is self:
            del _writers[self._key]

    def _open(self) -> None:
        """Become the run's writer, taking over from another checkpointer in this process (a notebook cell run twice)."""
        if self._is_superseded:
            raise StoreError(
                "another Checkpointer of this process has taken over this run", code="checkpointer.superseded",
                where=self.path,
            )  # fmt: skip
        if self._is_open:
            return
        before = _writers.get(self._key)
        if before is not None and before is not self:
            before._supersede()
        self._store.acquire()
        self._is_open = True
        _writers[self._key] = self

    def _supersede(self) -> None:
        try:
            self.close()
        finally:
            self._is_superseded = True

    def resume(
        self, default: Any = None, *, accept: Collection[str] = (), rename: Mapping[str, str] | None = None
    ) -> Any:
        """Restore the newest verified checkpoint of this run, or begin.

        Args:
            default: The caller state of a run that has no checkpoint yet; returned as it is then.
            accept: Codes of differences to admit, as in `Training.restore`.
            rename: From recorded names to what they are called now, likewise.

        Returns:
            The caller state to go on from.

        Raises:
            MismatchError: If the newest verified checkpoint does not fit this training; nothing has changed.
            StoreError: If the run has checkpoints and all are damaged: it never starts afresh by itself.
            CheckpointNotFound: If it has none, and this checkpointer has passed boundaries already: the default would
                be given to a training that is no longer at its beginning.
            RunLocked: If another process writes to this run.

        Guarantees:
            Damaged or half-written checkpoints are passed over, each with a `SkippedCheckpointWarning` that says why.

        Cost:
            Reads the checkpoint twice: all of it is verified before anything is written.
        """
        self._open()
        self._expects_state = default is not None
        self._writer.settle()
        found = self._newest_verified()
        if found is None:
            self._refuse_to_begin_half_way()
            self._has_joined = True
            self._cadence.reset(0, None)
            return default
        candidate, record = found
        state = self._training.restore_verified(record, accept=accept, rename=rename or {}, verified=True)
        self._has_joined = True
        self._resumed_from = candidate.seq
        self._microbatch = record.microbatch or 0
        self._cadence.reset(self._microbatch, record.step)
        return state

    def _refuse_to_begin_half_way(self) -> None:
        """Refuse to call it a beginning when this training has moved and there is nothing to go back to."""
        if self._microbatch:
            raise CheckpointNotFound(
                "nothing was saved yet, and this training has moved on", code="checkpointer.nothing_saved",
                where=self.path, found=f"{self._microbatch} microbatches since it began",
                hint="build the training again; or save once before the loop, to have something to go back to",
            )  # fmt: skip

    def newest(self) -> TrainingRecord | None:
        """Open the newest verified checkpoint without restoring it; `None` where the run has none.

        Its `state` is readable, so that a program can rebuild groups or freeze layers as they were. Needs no lock.

        Raises:
            StoreError: If the run has checkpoints and all are damaged.
        """
        found = self._newest_verified()
        return None if found is None else found[1]

    def _newest_verified(self) -> tuple[Candidate, TrainingRecord] | None:
        found = newest_verified(
            self._store, "move what is damaged away to start afresh; resume never does that by itself"
        )
        return None if found is None else (found[0], TrainingRecord.of(found[2]))

    def save_if_due(self, state: Any = None, *, step: int | None = None) -> bool:
        """Call at each boundary, once per microbatch: saves when it is time.

        Args:
            state: The caller state; copied when it is saved.
            step: Optimizer steps so far; needed with `every_steps`.

        Returns:
            True once a preemption signal has come and this checkpoint is durable: the program should end.

        Raises:
            TypeError: If `resume` had a default and this has no state.
            CaptureError: If the training can't be captured.
            CheckpointExists: If the run has checkpoints and this checkpointer has not resumed.
            StoreError: If it can't be stored.
            SaveFailed: If the save before this one failed in the background.
        """
        self._refuse_lost_state(state)
        self._microbatch += 1
        if not (self._preemption.is_set or self._cadence.is_due(self._microbatch, step)):
            return False
        pending = self._save(state, step)
        if not self._preemption.is_set:
            return False
        pending.wait()
        return True

    def save(self, state: Any = None, *, step: int | None = None) -> PendingSave:
        """Save now.

        Args:
            state: The caller state; copied before this returns.
            step: Optimizer steps so far, for people and file listings.

        Returns:
            A handle; its `wait()` blocks until the checkpoint is durable, and without `background` it is already.

        Raises:
            TypeError: If `resume` had a default and this has no state.
            CaptureError: If the training can't be captured.
            CheckpointExists: If the run has checkpoints and this checkpointer has not resumed.
            StoreError: If it can't be stored.
            SaveFailed: If the save before this one failed in the background.

        Guarantees:
            What is stored is the training as it was at the call.

        Cost:
            One copy of everything; with `background` nothing else blocks unless a save is still in flight.
        """
        self._refuse_lost_state(state)
        return self._save(state, step)

    def _refuse_lost_state(self, state: Any) -> None:
        if state is None and self._expects_state:
            raise TypeError(
                "resume(default=...) began with a caller state: pass it on to each save, or it is lost"
            )

    def _save(self, state: Any, step: int | None) -> PendingSave:
        self._open()
        self._writer.settle()
        self._refuse_to_fork()
        record = self._training.capture(state, step=step, microbatch=self._microbatch)
        self._cadence.reset(self._microbatch, step)
        if self._background:
            return self._writer.submit(lambda: self._put(record))
        return PendingSave.completed(self._put(record))

    def _refuse_to_fork(self) -> None:
        """Refuse to append one training to the run of another, and then to let retention delete that."""
        if not self._has_joined and self._store.candidates():
            raise CheckpointExists(
                "this run has checkpoints that were not resumed", code="checkpointer.not_resumed", where=self.path,
                hint="call `resume()` before the first save, or give this training a run of its own",
            )  # fmt: skip
        self._has_joined = True

    def _put(self, record: TrainingRecord) -> CheckpointInfo:
        info = self._store.put(record.converted(self._precision))
        self._remove_expired(info.seq)
        return info

    def _remove_expired(self, written: int) -> None:
        """Delete what retention lets go, only now that the new checkpoint is durable."""
        if self._keep_last is None:
            return
        try:
            candidates = {candidate.seq: candidate for candidate in self._store.candidates()}
        except StoreUnavailable:
            return  # without a whole listing nothing may be deleted; the next save tries again
        protected = {written, *self._resumed_recently(written)}
        for seq in expired(list(candidates), self._keep_last, protected):
            self._store.remove(candidates[seq])

    def _resumed_recently(self, written: int) -> list[int]:
        # The one we came from has proved that it restores; it stays until two newer ones exist.
        origin = self._resumed_from
        return [origin] if origin is not None and written - origin < 2 else []


def _store_of(url: str | os.PathLike[str] | Store, lock_timeout_seconds: float) -> Store:
    if isinstance(url, str | os.PathLike):
        return store_at(url, lock_timeout_seconds=lock_timeout_seconds)
    if not isinstance(url, Store):
        raise TypeError(
            f"Checkpointer(training, url): the second is a path, a URL or a Store, not {type(url).__name__}"
        )
    return url


def _key_of(store: Store) -> str:
    """Return what two stores of one run have in common."""
    return os.path.realpath(store.path) if os.path.isabs(store.path) else store.path
