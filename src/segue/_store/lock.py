"""One writer for each run: a lock on a folder, which the kernel gives back when its holder dies."""

from __future__ import annotations

import contextlib
import os
import time
import warnings
import weakref

from segue._store.failure import UNLOCKABLE
from segue._store.filesystem import Filesystem, close_quietly
from segue.errors import RunLocked, StoreError, StoreWarning

_POLL_SECONDS = 0.05
_SILENT_SECONDS = 1.0
"""A wait that is no longer is over before anybody wonders."""


class RootLock:
    """An open and locked folder. The kernel gives the lock back when this process ends, however it ends."""

    def __init__(self, filesystem: Filesystem, descriptor: int, path: str, without: str) -> None:
        """Take charge of an open folder.

        Args:
            filesystem: That of the folder.
            descriptor: Closed when the lock is given back.
            path: For messages.
            without: What a run has to do without where the filesystem cannot lock, as a sentence.
        """
        self.descriptor = descriptor
        self.exclusive = False
        """Whether the filesystem can lock at all: else another writer cannot be told from a dead one."""
        self._filesystem = filesystem
        self._path = path
        self._without = without
        # A store that is dropped without a release must not keep its run locked for the rest of the process.
        self._closer = weakref.finalize(self, close_quietly, filesystem, descriptor)

    @property
    def held(self) -> bool:
        """Whether this process still has it; a forked child has not."""
        return self._closer.alive

    def take(self, timeout_seconds: float) -> None:
        """Wait for the lock.

        Raises:
            RunLocked: If another process (or another store in this one) has it for longer than that.
            OSError: If locking failed otherwise.
        """
        deadline = time.monotonic() + timeout_seconds
        silent_until = time.monotonic() + _SILENT_SECONDS
        has_told = False
        while True:
            try:
                self._filesystem.lock(self.descriptor)
            except BlockingIOError as error:
                if time.monotonic() >= deadline:
                    raise RunLocked(
                        f"{self._filesystem.lock_holder(self.descriptor)} is writing to this run",
                        where=self._path,
                        hint="stop it, or give this run a place of its own",
                    ) from error
                if not has_told and time.monotonic() >= silent_until:
                    has_told = True
                    self._warn_waiting(timeout_seconds)
                time.sleep(_POLL_SECONDS)
            except OSError as error:
                if error.errno not in UNLOCKABLE:
                    raise
                self._warn_unlockable()
                return
            else:
                self.exclusive = True
                _HELD.add(self)
                return

    def _warn_waiting(self, timeout_seconds: float) -> None:
        warnings.warn(
            StoreWarning(
                f"{self._path}: {self._filesystem.lock_holder(self.descriptor)} is writing to this run; waiting {timeout_seconds:g} s for it"
            ),
            stacklevel=2,
        )

    def _warn_unlockable(self) -> None:
        warnings.warn(
            StoreWarning(
                f"{self._path}: this filesystem cannot lock; make sure that only one process writes to this run. "
                f"{self._without}"
            ),
            stacklevel=2,
        )

    def give_back(self) -> None:
        """Unlock and close; may be called again, and in a forked child."""
        _HELD.discard(self)
        if self.held and self.exclusive:
            with contextlib.suppress(OSError):  # closing gives it back as well
                self._filesystem.unlock(self.descriptor)
        self._closer()

    def drop_in_child(self) -> None:
        """Close the copy that a fork made, without unlocking: the lock is the parent's.

        Else it outlives a killed trainer for as long as its data workers do.
        """
        if self._closer.detach() is not None:
            close_quietly(self._filesystem, self.descriptor)


_HELD: weakref.WeakSet[RootLock] = weakref.WeakSet()


def _drop_all_in_child() -> None:
    for lock in list(_HELD):
        lock.drop_in_child()
    _HELD.clear()


os.register_at_fork(after_in_child=_drop_all_in_child)


def not_acquired(path: str) -> StoreError:
    """Make the error for writing without the lock."""
    return StoreError(
        "this store is not open for writing; call acquire first", code="store.not_acquired", where=path
    )
