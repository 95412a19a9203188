"""The one background thread: a save in flight, its result, and its error."""

from __future__ import annotations

import threading
from collections.abc import Callable

from segue._store.reader import CheckpointInfo
from segue.errors import SaveFailed


class PendingSave:
    """A save that may still be in progress; returned by `Checkpointer.save`."""

    def __init__(self) -> None:
        self._finished = threading.Event()
        self._info: CheckpointInfo | None = None
        self._error: BaseException | None = None

    @classmethod
    def completed(cls, info: CheckpointInfo) -> PendingSave:
        """Return a save that is durable already."""
        pending = cls()
        pending.run(lambda: info)
        return pending

    def done(self) -> bool:
        """Tell whether the save has ended, well or not. Does not block."""
        return self._finished.is_set()

    def wait(self, timeout_seconds: float | None = None) -> CheckpointInfo:
        """Block until the checkpoint is durable.

        Args:
            timeout_seconds: How long; `None` for as long as it takes.

        Returns:
            Where it is.

        Raises:
            SaveFailed: If it could not be stored; the checkpoints before it are whole.
            TimeoutError: If it is still in progress.
        """
        if not self._finished.wait(timeout_seconds):
            raise TimeoutError(f"the save is still in progress after {timeout_seconds} s")
        if self._error is not None:
            raise SaveFailed(f"a save in the background failed: {self._error}") from self._error
        assert self._info is not None, "finished without error means stored"
        return self._info

    @property
    def error(self) -> BaseException | None:
        """What went wrong, once it has ended."""
        return self._error

    def run(self, put: Callable[[], CheckpointInfo]) -> None:
        """Do the work and keep its outcome; never raises, since it may be the last frame of a thread."""
        try:
            self._info = put()
        except BaseException as error:
            self._error = error
        finally:
            self._finished.set()


class BackgroundWriter:
    """Runs one save at a time in a thread of its own, which keeps the interpreter alive until it is done."""

    def __init__(self) -> None:
        self._current: tuple[PendingSave, threading.Thread] | None = None

    def submit(self, put: Callable[[], CheckpointInfo]) -> PendingSave:
        """Start a save; waits for the one before it.

        Raises:
            SaveFailed: If the one before it failed; the new one was not started.
        """
        self.settle()
        pending = PendingSave()
        # Not a daemon: an interpreter that exits must not cut a save that the program believes in.
        thread = threading.Thread(target=pending.run, args=(put,), name="segue-writer", daemon=False)
        thread.start()
        self._current = (pending, thread)
        return pending

    def settle(self) -> None:
        """Wait for the save in flight.

        Raises:
            SaveFailed: If it failed; raised once.
        """
        if self._current is None:
            return
        pending, thread = self._current
        # Forgotten only after the wait has ended: if that is interrupted (Ctrl-C), `close` must wait for it again.
        thread.join()
        self._current = None
        pending.wait()
