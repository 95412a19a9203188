"""`run.json`: the identity of a run, created once, durably, before its first checkpoint.

It keeps a checkpoint of another run, copied in by hand or planted with a huge number, from being taken for the
newest of this one.
"""

from __future__ import annotations

import contextlib

from segue._store import layout, strict_json
from segue._store.folder import Folder
from segue._store.manifest import check_version
from segue._store.output import FolderFiles, write_file
from segue._store.place import Place
from segue.errors import CorruptCheckpoint

FORMAT = "segue run"
VERSION = 1
"""Its own: a run may hold checkpoints of several versions of their format."""
_MAX_BYTES = 4096


def read_run(folder: Folder) -> str:
    """Return the run's id.

    Raises:
        IncompleteCheckpoint: If there is no `run.json`.
        CorruptCheckpoint: If it is not what `create_run` writes.
        UnsafeCheckpoint: If it is not a regular file.
        UnsupportedFormat: If a newer segue wrote it.
    """
    where = folder.path_of(layout.RUN_FILE)
    top = strict_json.parse(folder.read_file(layout.RUN_FILE, _MAX_BYTES), where)
    if type(top) is not dict:
        raise CorruptCheckpoint("expected an object", where=where, found=top)
    check_version(top.get("format"), top.get("version"), FORMAT, VERSION, where)
    run = top.get("run")
    if top.keys() != {"format", "version", "run"} or type(run) is not str or not layout.is_attempt(run):
        raise CorruptCheckpoint("not a run file", where=where, found=top)
    return run


def create_run(place: Place, run: str, attempt: str) -> None:
    """Write `run.json`: the inverse of `read_run`.

    Raises:
        OSError: If that failed; `FileExistsError` if another writer was first.
    """
    filesystem, root = place.filesystem, place.root
    temporary = layout.temporary_run_name(attempt)
    text = strict_json.dump({"format": FORMAT, "version": VERSION, "run": run}) + "\n"
    try:
        # fsynced under another name, then renamed: a kill or a power cut leaves no half-written identity.
        write_file(FolderFiles(filesystem, root), temporary, text.encode("ascii"))
        filesystem.rename_noreplace(temporary, layout.RUN_FILE, root)
    except BaseException:
        with contextlib.suppress(OSError):
            filesystem.unlink(temporary, root)
        raise
    # Durable before any checkpoint names this run: else a power cut leaves checkpoints that belong to no run.
    filesystem.fsync_directory(root)
