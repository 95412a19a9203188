"""Single checkpoints that belong to no run: exports, and checkpoints opened by their own path."""

from __future__ import annotations

import os
from collections.abc import Callable

from segue._record.training import TrainingRecord
from segue._store import layout
from segue._store.ancestors import make_durable_directory
from segue._store.commit import commit
from segue._store.commit_file import commit_file
from segue._store.contents import lay_out
from segue._store.failure import explained
from segue._store.file_reader import open_file
from segue._store.filesystem import Filesystem, close_quietly
from segue._store.folder import Folder, opened_folder
from segue._store.place import Identity, Place
from segue._store.place import new_attempt as _new_attempt
from segue._store.reader import CheckpointInfo, StoredCheckpoint, open_folder
from segue._store.url import absolute, filesystem_at, without_links
from segue.errors import CheckpointExists, CheckpointNotFound

EXPORT_SEQ = 0


def write_checkpoint(
    record: TrainingRecord,
    path: str | os.PathLike[str],
    *,
    filesystem: Filesystem | None = None,
    new_attempt: Callable[[], str] = _new_attempt,
) -> CheckpointInfo:
    """Store a record as a checkpoint of its own, under a name of the caller's choice.

    Args:
        record: Read once; not changed.
        path: What is to be made: a file if it ends in `.segue`, else a folder. Its parents are made as well.
        filesystem: What to work with; by default the local one, or that of the URL.
        new_attempt: Makes the id of the attempt.

    Returns:
        Where it is.

    Raises:
        CheckpointExists: If there is anything at that path.
        StoreFull: If there is not enough room; nothing is left behind.
        StoreUnavailable: If writing failed; see `commit.commit`.
        InvalidRecord: If the record holds what the format cannot.

    Guarantees:
        As `DirectoryStore.put`. A kill can leave a folder `.tmp-*` or a file `.*.tmp-*` beside the path, which may be
        deleted.
    """
    at = absolute(path)
    filesystem = filesystem or filesystem_at(at)
    parent, name = os.path.split(at)
    contents, attempt = lay_out(record), new_attempt()
    with explained("open the folder for the checkpoint", parent):
        make_durable_directory(filesystem, parent)
        root = filesystem.open_directory(parent, follow=True)
    try:
        # Before writing gigabytes in vain; the rename at the end decides.
        if not name or name in Folder(filesystem, root, parent).names():
            raise CheckpointExists("a stored checkpoint is never replaced", where=at)
        place, identity = Place(filesystem, root, parent), Identity(name, EXPORT_SEQ, None, attempt)
        if name.endswith(layout.FILE_SUFFIX):
            num_bytes = commit_file(place, contents, identity, replace=False)
        else:
            num_bytes = commit(place, contents, identity)
    finally:
        close_quietly(filesystem, root)
    return CheckpointInfo(EXPORT_SEQ, at, num_bytes, attempt, record.step, record.microbatch)


def open_checkpoint(
    path: str | os.PathLike[str], *, filesystem: Filesystem | None = None
) -> StoredCheckpoint:
    """Open the checkpoint at a path: that one or none, never another in its place.

    Args:
        path: The folder or the file of one checkpoint, of a run or standing alone. May be a symbolic link; nothing
            inside may.
        filesystem: What to work with; by default the local one, or that of the URL.

    Raises:
        CheckpointNotFound: If there is nothing, or a run's folder instead.
        IncompleteCheckpoint: If files are missing.
        UnsafeCheckpoint: If it holds links, special files or foreign names.
        CorruptCheckpoint: If its parts do not fit together.
        UnsupportedFormat: If a newer segue wrote it, or it is a file of another kind.
        StoreUnavailable: If it can't be read.
    """
    at = absolute(path)
    filesystem = filesystem or filesystem_at(at)
    if _is_no_folder(filesystem, at):
        return _open_file(filesystem, at)
    with opened_folder(filesystem, at, at, None, follow=True) as folder:
        _refuse_run(folder)
        return open_folder(folder, seq=layout.checkpoint_seq(os.path.basename(at)))


def _is_no_folder(filesystem: Filesystem, at: str) -> bool:
    try:
        close_quietly(filesystem, filesystem.open_directory(at, follow=True))
    except NotADirectoryError:
        return True
    except OSError:
        return False  # opening it again says what is wrong
    return False


def _open_file(filesystem: Filesystem, at: str) -> StoredCheckpoint:
    parent, name = os.path.split(without_links(at))
    with opened_folder(filesystem, parent, parent, None, follow=True) as folder:
        return open_file(folder, name)


def _refuse_run(folder: Folder) -> None:
    names = folder.names()
    if layout.RUN_FILE not in names or layout.MANIFEST_FILE in names:
        return
    newest = max((name for name in names if layout.checkpoint_seq(name) is not None), default="ckpt-...")
    raise CheckpointNotFound(
        "this is the folder of a run, not of one checkpoint",
        where=folder.path,
        hint=f"name a checkpoint inside it, such as {os.path.join(folder.path, newest)}",
    )
