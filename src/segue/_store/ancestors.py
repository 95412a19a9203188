"""Making a folder that survives a power cut, together with the folders above it."""

from __future__ import annotations

import contextlib
import os

from segue._store.filesystem import Filesystem, close_quietly


def make_durable_directory(filesystem: Filesystem, path: str) -> None:
    """Create a folder and its missing ancestors, each name durable before the next is made in it.

    The name of a folder that exists already is made durable too: whoever made it may have been killed before that.

    Raises:
        OSError: If one can't be made.
    """
    parent = os.path.dirname(path)
    if parent == path:
        return
    try:
        filesystem.make_directory(path)
    except FileNotFoundError:
        make_durable_directory(filesystem, parent)
        with contextlib.suppress(FileExistsError):
            filesystem.make_directory(path)
    except FileExistsError:
        # Somebody else's parent may not be readable for us; then its names are not ours to care for.
        with contextlib.suppress(PermissionError):
            _sync(filesystem, parent)
        return
    # Without this a power cut takes the whole run away, with every checkpoint that was reported as saved.
    _sync(filesystem, parent)


def _sync(filesystem: Filesystem, path: str) -> None:
    directory = filesystem.open_directory(path, follow=True)
    try:
        filesystem.fsync_directory(directory)
    finally:
        close_quietly(filesystem, directory)
