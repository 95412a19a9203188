"""A run that is one file: its newest checkpoint, replaced by each next one in one step."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator
from types import TracebackType

from segue._record.training import TrainingRecord
from segue._store import layout
from segue._store.ancestors import make_durable_directory
from segue._store.commit_file import commit_file
from segue._store.contents import lay_out
from segue._store.failure import explained, joined
from segue._store.file_lock import lock_beside, unlock_beside
from segue._store.file_reader import open_file, read_file_manifest
from segue._store.filesystem import Filesystem
from segue._store.folder import Folder, opened_folder
from segue._store.lock import RootLock, not_acquired
from segue._store.manifest import Manifest
from segue._store.place import Identity, Place, new_attempt
from segue._store.reader import CheckpointInfo, StoredCheckpoint
from segue._store.scan import Candidate
from segue._store.url import absolute, filesystem_at
from segue.errors import CheckpointNotFound, StoreError, StoreUnavailable, StoreWarning, UnsafeCheckpoint


class FileStore:
    """A run in one file, which always holds its newest checkpoint: `Store` by the protocol in `commit_file`.

    Args:
        path: The file; made by the first `put`, its parents by `acquire`. A relative path is made absolute now.
        filesystem: What to work with; tests pass one that fails.
        lock_timeout_seconds: How long `acquire` waits for another writer.
        new_attempt: Makes ids for attempts and the run; tests pass one that repeats.

    Guarantees:
        At any moment, whatever is killed, there is the old file or the new one, whole. A file that is not this run's,
        or that can't be read, is never replaced.
    """

    keeps_history = False

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        filesystem: Filesystem | None = None,
        lock_timeout_seconds: float = 30.0,
        new_attempt: Callable[[], str] = new_attempt,
    ) -> None:
        self.path = absolute(path)
        self._parent, self._name = os.path.split(self.path)
        if not self._name:
            raise StoreUnavailable("the path of a file ends with its name", code="store.url", where=self.path)
        self._filesystem = filesystem or filesystem_at(self.path)
        self._lock_timeout_seconds = lock_timeout_seconds
        self._new_attempt = new_attempt
        self._lock: RootLock | None = None
        self._run_id: str | None = None
        self._last_seq = 0

    def acquire(self) -> None:
        """Become the writer of this run.

        Creates the missing folders above the file durably, locks, and removes what dead attempts left beside it. Does
        nothing if this store has the lock already.

        Raises:
            RunLocked: If another writer keeps the lock for longer than the timeout.
            StoreUnavailable: If the folder can't be made, opened or written.
        """
        if self._lock is not None and self._lock.held:
            return
        with explained("open the run for writing", self.path):
            make_durable_directory(self._filesystem, self._parent)
            with self._opened_parent() as folder:
                place = self._place(folder)
                lock = lock_beside(place, self._name, self._lock_timeout_seconds)
                try:
                    if lock.exclusive:
                        self._sweep(place)
                except BaseException:
                    unlock_beside(place, self._name, lock)
                    raise
        self._lock = lock

    def _sweep(self, place: Place) -> None:
        for name in sorted(place.filesystem.list_names(place.root)):
            if layout.is_temporary_file(name, self._name):
                with _warning_of_failure(joined(self._parent, name)):
                    place.filesystem.unlink(name, place.root)

    def release(self) -> None:
        """Give the lock back; does nothing without it."""
        lock, self._lock = self._lock, None
        if lock is None:
            return
        try:
            with self._opened_parent() as folder:
                unlock_beside(self._place(folder), self._name, lock)
        except StoreError:
            lock.give_back()  # the folder is gone or can't be read; then there is nothing to tidy up

    def __enter__(self) -> FileStore:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def put(self, record: TrainingRecord) -> CheckpointInfo:
        """Store a record in place of the checkpoint that is there.

        Args:
            record: Read once, while it is written; not changed. It may be the one that is replaced.

        Returns:
            Where it is.

        Raises:
            StoreFull: If there is not enough room; nothing is left behind.
            StoreUnavailable: If writing failed; see `commit_file.commit_file`.
            InvalidRecord: If the record holds what the format cannot.
            StoreError: If this store does not have the lock, or the file that is there can't be read or is not this
                run's: it stays.

        Guarantees:
            When it returns, the checkpoint survives crash and power cut. When it raises, or is killed, there is the
            old one or the new one, whole.

        Cost:
            One pass over the bytes, written and hashed; at most 16 MiB of memory beyond the record. For a while the
            disk holds both files.
        """
        self._require_lock()
        contents = lay_out(record)
        with self._opened_to_write() as folder:
            current = self._current(folder)
            run = current.run if current is not None else self._run_id
            seq = max(self._last_seq, current.seq if current is not None else 0) + 1
            identity = Identity(self._name, seq, run or self._new_attempt(), self._new_attempt())
            num_bytes = commit_file(self._place(folder), contents, identity, replace=True)
        self._run_id, self._last_seq = identity.run, seq
        return CheckpointInfo(seq, self.path, num_bytes, identity.attempt, record.step, record.microbatch)

    def candidates(self) -> list[Candidate]:
        """Return the one checkpoint, or none where there is no such file.

        One that can't be read is a candidate too, with the number 0: only opening it tells what is wrong.

        Raises:
            StoreUnavailable: If it can't be looked at.
        """
        try:
            with self._opened_parent() as folder:
                if self._name not in folder.names():
                    return []
                return [Candidate(self._seq(folder), self._name, self.path)]
        except CheckpointNotFound:
            return []

    def _seq(self, folder: Folder) -> int:
        try:
            return read_file_manifest(folder, self._name)[0].seq
        except CheckpointNotFound:
            raise
        except StoreError:
            return 0

    def open(self, candidate: Candidate) -> StoredCheckpoint:
        """Open the checkpoint, with manifest and headers verified.

        Raises:
            CheckpointNotFound: If it is gone, or another has replaced it.
            UnsafeCheckpoint: If the file is a link or special, has foreign names in it, or is an export of no run.
            UnsupportedFormat: If a newer segue wrote it, or it is a file of another kind.
            CorruptCheckpoint: If its parts do not fit together.
        """
        with self._opened_parent() as folder:
            checkpoint = open_file(folder, self._name)
            try:
                self._check_own(checkpoint.manifest)
                self._check_asked_for(checkpoint.info, candidate)
            except StoreError:
                checkpoint.close()
                raise
            return checkpoint

    def summary(self, candidate: Candidate) -> CheckpointInfo:
        """Read step, microbatch and sizes from the manifest; the data is not looked at.

        Raises:
            StoreError: As `open` does, for container, commit line and manifest.
        """
        with self._opened_parent() as folder:
            _, info = read_file_manifest(folder, self._name)
            self._check_asked_for(info, candidate)
            return info

    def remove(self, candidate: Candidate) -> None:
        """Remove the checkpoint, unless another has replaced it. A failure is a `StoreWarning`.

        Does nothing on a filesystem that cannot lock, where it could be another writer's.

        Raises:
            StoreError: If this store does not have the lock.
        """
        lock = self._require_lock()
        if not lock.exclusive:
            return
        with _warning_of_failure(self.path), self._opened_parent() as folder:
            if self._name in folder.names() and self._seq(folder) == candidate.seq:
                self._filesystem.unlink(self._name, folder.descriptor)
                self._filesystem.fsync_directory(folder.descriptor)

    def _current(self, folder: Folder) -> Manifest | None:
        """Return what is about to be replaced, after making sure that it may be."""
        if self._name not in folder.names():
            return None
        description, _ = read_file_manifest(folder, self._name)
        self._check_own(description)
        return description

    def _check_own(self, description: Manifest) -> None:
        if description.run is None:
            raise UnsafeCheckpoint(
                "an export, which belongs to no run",
                where=self.path,
                hint="restore it with `segue.load`, and give this run a file of its own",
            )
        if self._run_id not in (None, description.run):
            raise UnsafeCheckpoint(
                "belongs to another run", where=self.path, expected=self._run_id, found=description.run
            )

    def _check_asked_for(self, info: CheckpointInfo, candidate: Candidate) -> None:
        if info.seq != candidate.seq:
            raise CheckpointNotFound(
                "another checkpoint has replaced it", where=self.path, expected=candidate.seq, found=info.seq
            )

    def _require_lock(self) -> RootLock:
        if self._lock is None or not self._lock.held:
            raise not_acquired(self.path)
        return self._lock

    def _opened_parent(self) -> contextlib.AbstractContextManager[Folder]:
        return opened_folder(self._filesystem, self._parent, self._parent, None, follow=True)

    @contextlib.contextmanager
    def _opened_to_write(self) -> Iterator[Folder]:
        with contextlib.ExitStack() as stack:
            try:
                folder = stack.enter_context(self._opened_parent())
            except CheckpointNotFound as error:
                raise StoreUnavailable("the folder of this run is gone", where=self._parent) from error
            yield folder

    def _place(self, folder: Folder) -> Place:
        return Place(self._filesystem, folder.descriptor, self._parent)


@contextlib.contextmanager
def _warning_of_failure(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, StoreError) as error:
        warnings.warn(StoreWarning(f"could not remove {path}: {error}"), stacklevel=4)
