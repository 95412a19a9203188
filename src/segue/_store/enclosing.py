"""What a place lies in: a new run inside of another run, or of a checkpoint, would be part of it, and go when it goes."""

from __future__ import annotations

import os
from collections.abc import Iterator

from segue._store import layout
from segue._store.folder import Folder, opened_folder
from segue._store.run_file import read_run
from segue._store.url import filesystem_at, is_memory, without_links
from segue.errors import CheckpointExists, StoreError


def refuse_enclosed(path: str) -> None:
    """Refuse a place for a new run that is a checkpoint, or is inside of one or of a run.

    Args:
        path: Of the new run; of a folder or a file. What is on no disk and in no `memory://` is inside of nothing.

    Raises:
        CheckpointExists: Naming the run or checkpoint.
    """
    if not (os.path.isabs(path) or is_memory(path)):
        return
    at = without_links(path)
    if _kind_of(at) == "checkpoint":
        raise CheckpointExists(
            "this is a checkpoint: a run can't begin in it", code="store.enclosed", where=path,
            hint="name a folder that isn't there yet",
        )  # fmt: skip
    for folder in _above(at):
        kind = _kind_of(folder)
        if kind is not None:
            raise CheckpointExists(
                f"this is inside of a {kind}, and would be part of it", code="store.enclosed", where=path,
                found=folder, hint="name a place beside it",
            )  # fmt: skip


def is_run(path: str) -> bool:
    """Tell whether a path is that of a run's folder, also of one that has lost its `run.json`."""
    try:
        with opened_folder(filesystem_at(path), path, path, None, follow=True) as folder:
            names = folder.names()
    except StoreError:
        return False  # opening it as a checkpoint says what is wrong
    has_checkpoints = any(layout.checkpoint_seq(name) is not None for name in names)
    return layout.MANIFEST_FILE not in names and (layout.RUN_FILE in names or has_checkpoints)


def _above(path: str) -> Iterator[str]:
    """Yield the folders that a path is in, from the inside out."""
    while (parent := os.path.dirname(path)) not in (path, ""):
        yield parent
        path = parent


def _kind_of(path: str) -> str | None:
    """Return `run` or `checkpoint`, or `None` where a folder is neither, isn't there, or can't be looked at."""
    try:
        with opened_folder(filesystem_at(path), path, path, None, follow=True) as folder:
            names = folder.names()
            if {layout.COMMIT_FILE, layout.MANIFEST_FILE} <= names:
                return "checkpoint"
            return "run" if layout.RUN_FILE in names and _is_ours(folder) else None
    except StoreError:
        return None


def _is_ours(folder: Folder) -> bool:
    """Tell whether `run.json` is one of ours: others call their files so, too."""
    try:
        read_run(folder)
    except StoreError:
        return False
    return True
