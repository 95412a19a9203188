"""A run in a folder, with all its checkpoints."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from types import TracebackType

from segue._record.training import TrainingRecord
from segue._store import layout
from segue._store.ancestors import make_durable_directory
from segue._store.commit import commit
from segue._store.contents import Contents, lay_out
from segue._store.failure import explained, unavailable
from segue._store.filesystem import Filesystem
from segue._store.folder import Folder, opened_folder
from segue._store.lock import RootLock, not_acquired
from segue._store.place import Identity, Place, new_attempt
from segue._store.reader import CheckpointInfo, StoredCheckpoint, info_of, open_folder, read_manifest
from segue._store.removal import remove_checkpoint, sweep
from segue._store.run_file import create_run, read_run
from segue._store.scan import Candidate, scan
from segue._store.url import absolute, filesystem_at
from segue.errors import (
    CheckpointExists,
    CheckpointNotFound,
    IncompleteCheckpoint,
    StoreError,
    UnsafeCheckpoint,
)

_NAME_TRIES = 8
_WITHOUT_LOCK = "Nothing stored will be removed."


class DirectoryStore:
    """A run in a local directory (or one mounted from a network): `Store` by the protocol in `commit`.

    Args:
        root: The run's folder; created by `acquire`. A relative path is made absolute now.
        filesystem: What to work with; tests pass one that fails.
        lock_timeout_seconds: How long `acquire` waits for another writer.
        new_attempt: Makes ids for attempts and the run; tests pass one that repeats.
    """

    keeps_history = True

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        filesystem: Filesystem | None = None,
        lock_timeout_seconds: float = 30.0,
        new_attempt: Callable[[], str] = new_attempt,
    ) -> None:
        self.path = absolute(root)
        self._filesystem = filesystem or filesystem_at(self.path)
        self._lock_timeout_seconds = lock_timeout_seconds
        self._new_attempt = new_attempt
        self._lock: RootLock | None = None
        self._run_id: str | None = None

    def acquire(self) -> None:
        """Become the writer of this run.

        Creates the folder and its missing ancestors durably, locks it, removes what dead attempts left, and
        creates or reads `run.json`. Does nothing if this store has the lock already.

        Raises:
            RunLocked: If another writer keeps the lock for longer than the timeout.
            StoreUnavailable: If the folder can't be made, opened or written.
            IncompleteCheckpoint: If there are checkpoints but `run.json` is gone.
            CorruptCheckpoint: If `run.json` is damaged.
            StoreError: If the folder is itself a checkpoint.
        """
        if self._lock is not None and self._lock.held:
            return
        with explained("open the run for writing", self.path):
            make_durable_directory(self._filesystem, self.path)
            descriptor = self._filesystem.open_directory(self.path, follow=True)
            lock = RootLock(self._filesystem, descriptor, self.path, _WITHOUT_LOCK)
            try:
                lock.take(self._lock_timeout_seconds)
                place = Place(self._filesystem, descriptor, self.path)
                self._refuse_checkpoint(place)
                if lock.exclusive:
                    sweep(place)
                self._run_id = self._read_or_create_run(place)
            except BaseException:
                lock.give_back()
                raise
        self._lock = lock

    def _refuse_checkpoint(self, place: Place) -> None:
        """Refuse to begin a run inside of a checkpoint, which nobody could read any more then."""
        names = self._folder(place.root).names()
        if layout.COMMIT_FILE in names and layout.RUN_FILE not in names:
            run = os.path.dirname(self.path)
            raise StoreError(
                "this is one checkpoint and not a run", code="store.not_a_run", where=self.path,
                hint=f"name the run, perhaps {run}; `segue.load` opens a checkpoint by its own path",
            )  # fmt: skip

    def _read_or_create_run(self, place: Place) -> str:
        folder = self._folder(place.root)
        if layout.RUN_FILE in folder.names():
            return read_run(folder)
        if scan(folder):
            raise _without_run(self.path)
        run = self._new_attempt()
        try:
            create_run(place, run, self._new_attempt())
        except FileExistsError:
            return read_run(folder)
        return run

    def release(self) -> None:
        """Give the lock back; does nothing without it."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.give_back()

    def __enter__(self) -> DirectoryStore:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    @property
    def run_id(self) -> str:
        """The id of the run.

        Raises:
            StoreError: Before the first `acquire`.
        """
        if self._run_id is None:
            raise not_acquired(self.path)
        return self._run_id

    def put(self, record: TrainingRecord) -> CheckpointInfo:
        """Store a record as the newest checkpoint.

        Args:
            record: Read once, while it is written; not changed.

        Returns:
            Where it is.

        Raises:
            StoreFull: If there is not enough room; nothing is left behind.
            StoreUnavailable: If writing failed; see `commit.commit`.
            InvalidRecord: If the record holds what the format cannot.
            StoreError: If this store does not have the lock.

        Guarantees:
            When it returns, the checkpoint survives crash and power cut. When it raises, or is killed, all stored
            before is as it was.

        Cost:
            One pass over the bytes, written and hashed; at most 16 MiB of memory beyond the record.
        """
        place, contents = self._place(), lay_out(record)
        for _ in range(_NAME_TRIES):
            candidates = scan(self._folder(place.root))
            seq = candidates[0].seq + 1 if candidates else 1
            with contextlib.suppress(CheckpointExists):
                return self._put_as(place, contents, record, seq)
        # Only where the filesystem cannot lock: another writer was faster each time, and kept its own.
        busy = BlockingIOError(errno.EAGAIN, "other writers took every name")
        raise unavailable("write the checkpoint", self.path, busy)

    def _put_as(self, place: Place, contents: Contents, record: TrainingRecord, seq: int) -> CheckpointInfo:
        name, attempt = layout.checkpoint_name(seq), self._new_attempt()
        num_bytes = commit(place, contents, Identity(name, seq, self.run_id, attempt))
        path = os.path.join(self.path, name)
        return CheckpointInfo(seq, path, num_bytes, attempt, record.step, record.microbatch)

    def _place(self) -> Place:
        if self._lock is None or not self._lock.held:
            raise not_acquired(self.path)
        return Place(self._filesystem, self._lock.descriptor, self.path)

    def candidates(self) -> list[Candidate]:
        """List what could be checkpoints of this run, newest first; none where there is no such folder.

        Raises:
            StoreUnavailable: If the folder exists but can't be listed.
        """
        try:
            with self._opened_root() as root:
                return scan(root)
        except CheckpointNotFound:
            return []

    def open(self, candidate: Candidate) -> StoredCheckpoint:
        """Open a checkpoint, with manifest and headers verified.

        Raises:
            CheckpointNotFound: If it is gone.
            UnsafeCheckpoint: If it belongs to another run, is a link, or holds links or foreign names.
            IncompleteCheckpoint: If files are missing.
            CorruptCheckpoint: If its parts do not fit together.
            UnsupportedFormat: If a newer segue wrote it.
        """
        with self._opened(candidate) as (root, folder):
            run = _run_of(root)
            checkpoint = open_folder(folder, seq=candidate.seq)
            if checkpoint.manifest.run != run:
                checkpoint.close()
                raise UnsafeCheckpoint(
                    "belongs to another run",
                    where=candidate.path,
                    expected=run,
                    found=checkpoint.manifest.run,
                )
            return checkpoint

    def summary(self, candidate: Candidate) -> CheckpointInfo:
        """Read step, microbatch and sizes of a checkpoint from its manifest; its data is not looked at.

        Raises:
            StoreError: As `open` does, for commit line and manifest.
        """
        with self._opened(candidate) as (_, folder):
            return info_of(read_manifest(folder), candidate.path)

    def remove(self, candidate: Candidate) -> None:
        """Remove a checkpoint. A failure is a `StoreWarning`: what could not be removed does no harm.

        Does nothing on a filesystem that cannot lock, where it could be another writer's.

        Raises:
            StoreError: If this store does not have the lock.
        """
        place = self._place()
        if self._lock is not None and self._lock.exclusive:
            remove_checkpoint(place, candidate.name, layout.trash_name(candidate.seq, self._new_attempt()))

    def _opened_root(self) -> contextlib.AbstractContextManager[Folder]:
        return opened_folder(self._filesystem, self.path, self.path, None, follow=True)

    @contextlib.contextmanager
    def _opened(self, candidate: Candidate) -> Iterator[tuple[Folder, Folder]]:
        with (
            self._opened_root() as root,
            opened_folder(self._filesystem, candidate.name, candidate.path, root.descriptor) as folder,
        ):
            try:
                yield root, folder
            except IncompleteCheckpoint as error:
                # A reader without the lock can open a folder just before its files are taken away.
                if candidate.name in root.names():
                    raise
                raise CheckpointNotFound("removed while it was being opened", where=candidate.path) from error

    def _folder(self, descriptor: int) -> Folder:
        return Folder(self._filesystem, descriptor, self.path)


def _run_of(root: Folder) -> str:
    try:
        return read_run(root)
    except IncompleteCheckpoint as error:
        raise _without_run(root.path) from error


def _without_run(path: str) -> IncompleteCheckpoint:
    return IncompleteCheckpoint(
        f"checkpoints, but no {layout.RUN_FILE}: whose are they?",
        where=path,
        hint=f"copy {layout.RUN_FILE} of the original run here, or open one checkpoint by its own path",
    )
