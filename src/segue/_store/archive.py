"""Single checkpoints that belong to no run: exports, and checkpoints opened by their own path."""

from __future__ import annotations

import os
from collections.abc import Callable

from segue._record.training import TrainingRecord
from segue._store import layout
from segue._store.ancestors import make_durable_directory
from segue._store.commit import Identity, Place, commit
from segue._store.contents import lay_out
from segue._store.failure import unavailable
from segue._store.filesystem import Filesystem, close_quietly
from segue._store.local import LocalFilesystem
from segue._store.reader import CheckpointInfo, Folder, StoredCheckpoint, open_folder
from segue._store.store import new_attempt as _new_attempt
from segue._store.store import opened_checkpoint
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
        path: The folder to be made; its parents are made as well.
        filesystem: What to work with; the local one by default.
        new_attempt: Makes the id of the attempt.

    Returns:
        Where it is.

    Raises:
        CheckpointExists: If there is anything at that path.
        StoreFull: If there is not enough room; nothing is left behind.
        StoreUnavailable: If writing failed; see `commit.commit`.
        InvalidRecord: If the record holds what the format cannot.

    Guarantees:
        As `DirectoryStore.put`. A kill can leave a folder `.tmp-*` beside the path, which may be deleted.
    """
    filesystem = filesystem or LocalFilesystem()
    absolute = os.path.abspath(path)
    parent, name = os.path.split(absolute)
    contents, attempt = lay_out(record), new_attempt()
    try:
        make_durable_directory(filesystem, parent)
        root = filesystem.open_directory(parent, follow=True)
    except OSError as error:
        raise unavailable("open the folder for the checkpoint", parent, error) from error
    try:
        # Before writing gigabytes in vain; the rename at the end decides.
        if not name or name in Folder(filesystem, root, parent).names():
            raise CheckpointExists("a stored checkpoint is never replaced", where=absolute)
        num_bytes = commit(
            Place(filesystem, root, parent), contents, Identity(name, EXPORT_SEQ, None, attempt)
        )
    finally:
        close_quietly(filesystem, root)
    return CheckpointInfo(EXPORT_SEQ, absolute, num_bytes, attempt, record.step, record.microbatch)


def open_checkpoint(
    path: str | os.PathLike[str], *, filesystem: Filesystem | None = None
) -> StoredCheckpoint:
    """Open the checkpoint at a path: that one or none, never another in its place.

    Args:
        path: The folder of one checkpoint, of a run or standing alone. May be a symbolic link; nothing inside may.
        filesystem: What to work with; the local one by default.

    Raises:
        CheckpointNotFound: If there is nothing, or a run's folder instead.
        IncompleteCheckpoint: If files are missing.
        UnsafeCheckpoint: If it holds links, special files or foreign names.
        CorruptCheckpoint: If its parts do not fit together.
        UnsupportedFormat: If a newer segue wrote it.
        StoreUnavailable: If it can't be read.
    """
    absolute = os.path.abspath(path)
    with opened_checkpoint(filesystem or LocalFilesystem(), absolute, absolute, None, follow=True) as folder:
        names = folder.names()
        if layout.RUN_FILE in names and layout.MANIFEST_FILE not in names:
            newest = max(
                (name for name in names if layout.checkpoint_seq(name) is not None), default="ckpt-..."
            )
            raise CheckpointNotFound(
                "this is the folder of a run, not of one checkpoint",
                where=absolute,
                hint=f"name a checkpoint inside it, such as {os.path.join(absolute, newest)}",
            )
        seq = layout.checkpoint_seq(os.path.basename(absolute))
        return open_folder(folder, seq=seq)
