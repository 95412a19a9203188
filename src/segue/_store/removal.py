"""Taking things away: litter of dead attempts, and checkpoints that retention gives up."""

from __future__ import annotations

import stat
import warnings

from segue._store import layout
from segue._store.failure import joined
from segue._store.filesystem import close_quietly
from segue._store.place import Place
from segue.errors import StoreWarning


def sweep(place: Place) -> None:
    """Remove what dead attempts left; only the holder of the lock may.

    A failure warns: litter takes room and does no other harm.

    Raises:
        OSError: If the folder can't be listed.
    """
    for name in sorted(place.filesystem.list_names(place.root)):
        if layout.is_litter(name):
            _remove_or_warn(place, name)


def remove_checkpoint(place: Place, name: str, trash: str) -> None:
    """Remove a checkpoint; a failure warns, and what is left is swept later."""
    filesystem, root = place.filesystem, place.root
    try:
        # Out of the candidates in one step: a kill while unlinking must not leave one with some of its files.
        filesystem.rename_noreplace(name, trash, root)
        # Durably: else a power cut brings the name back, over a folder whose files are gone.
        filesystem.fsync_directory(root)
    except OSError as error:
        _warn(place, name, error)
        return
    _remove_or_warn(place, trash)


def _remove_or_warn(place: Place, name: str) -> None:
    try:
        _remove(place, name)
    except OSError as error:
        _warn(place, name, error)


def _remove(place: Place, name: str) -> None:
    """Remove a file or link, or a folder with the files and links in it; never what a link points to.

    A folder within is not ours: it stays, and with it the folder around it.
    """
    filesystem, root = place.filesystem, place.root
    if not stat.S_ISDIR(filesystem.lstat(name, root).st_mode):
        filesystem.unlink(name, root)
        return
    folder = filesystem.open_directory(name, root)
    try:
        for entry in filesystem.list_names(folder):
            filesystem.unlink(entry, folder)
    finally:
        close_quietly(filesystem, folder)
    filesystem.remove_directory(name, root)


def _warn(place: Place, name: str, error: OSError) -> None:
    path = joined(place.path, name)
    warnings.warn(StoreWarning(f"could not remove {path}: {error.strerror or error}"), stacklevel=2)
