"""One writer for each single file: the lock is on a folder beside it, since the file itself is replaced.

The folder is empty and is removed by whoever held it; a killed holder leaves it, unlocked, for the next.
"""

from __future__ import annotations

import contextlib
import errno
import os

from segue._store import layout
from segue._store.failure import joined
from segue._store.lock import RootLock
from segue._store.place import Place

_TRIES = 8
_WITHOUT_LOCK = "A second one would replace what the first has stored."


def lock_beside(place: Place, name: str, timeout_seconds: float) -> RootLock:
    """Become the only writer of a file.

    Raises:
        RunLocked: If another has it for longer than that.
        OSError: If the lock can't be made.
    """
    filesystem, beside = place.filesystem, layout.lock_name(name)
    for _ in range(_TRIES):
        with contextlib.suppress(FileExistsError):
            filesystem.make_directory(beside, place.root)
        try:
            descriptor = filesystem.open_directory(beside, place.root)
        except FileNotFoundError:
            continue  # its holder has just removed it
        lock = RootLock(filesystem, descriptor, joined(place.path, name), _WITHOUT_LOCK)
        try:
            lock.take(timeout_seconds)
            # Its holder may have removed the folder while we waited for it: then others lock another one by now.
            if not lock.exclusive or place.has(beside, filesystem.stat(descriptor)):
                return lock
        except BaseException:
            lock.give_back()
            raise
        lock.give_back()
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def unlock_beside(place: Place, name: str, lock: RootLock) -> None:
    """Let the next writer in, and remove the folder while nobody else can have it; a failure does no harm."""
    if lock.held and lock.exclusive:
        with contextlib.suppress(OSError):
            place.filesystem.remove_directory(layout.lock_name(name), place.root)
    lock.give_back()
