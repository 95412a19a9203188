"""A new run from an old checkpoint.

The wish: go on from step 2000 otherwise, or twice, and leave the run as it is.

Why the obvious way fails. A copied folder is a second copy of the same run, whose checkpoints two writers number alike,
and which nobody can tell apart. A program that restores by hand and saves elsewhere needs a change, runs once to make
the change, and writes down nothing of where the new run came from.

What we do: the same record, every byte of it verified, becomes the first checkpoint of a run with an id of its own. Its
lineage names the checkpoint by what it carries with it: run, number, attempt, and the digest of its manifest, which covers
every byte. No path and no date: checkpoints get moved, and the same fork is the same record whenever it is made.

What it still loses: the numbers of checkpoints begin anew.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

from segue._record.training import TrainingRecord
from segue._session.newest import newest_verified
from segue._store.archive import open_checkpoint
from segue._store.enclosing import is_run, refuse_enclosed
from segue._store.opening import store_at
from segue._store.protocol import OpenCheckpoint, Store
from segue._store.reader import CheckpointInfo, StoredCheckpoint
from segue._store.store import DirectoryStore
from segue._store.url import path_of, without_links
from segue.errors import CheckpointExists, CheckpointNotFound

Place = str | os.PathLike[str]


@dataclass(frozen=True)
class ForkedRun:
    """A run that began as a copy of a checkpoint; returned by `fork`."""

    path: str
    """Where the run is."""
    checkpoint: CheckpointInfo
    """Its first checkpoint."""
    source: CheckpointInfo
    """The checkpoint that was copied: of a run, the one that was taken."""


def fork(checkpoint: Place | Store, into: Place | Store) -> ForkedRun:
    """Begin a new run from an old checkpoint, and leave that as it is.

    A program that resumes the new run goes on as the old one would have from there; or otherwise, with
    `resume(accept=[...])`.

    Args:
        checkpoint: The folder or file of one checkpoint, or a `memory://` URL; or a run, as a path or a `Store`, for its
            newest checkpoint that is intact. Read without a lock.
        into: The new run's place, as `Checkpointer` takes it: a path or URL, or a `Store`, which is acquired and released
            here. It may be there, if it has no checkpoint.

    Returns:
        Where the new run is, its checkpoint, and which one was copied.

    Raises:
        CheckpointExists: If the new run's place has a checkpoint, is one, or is inside of a run or a checkpoint.
        CheckpointNotFound: If there is nothing to copy.
        IncompleteCheckpoint: If its files are missing.
        CorruptCheckpoint: If a byte of it is not what was saved.
        UnsafeCheckpoint: If it holds links, special files or foreign names.
        UnsupportedFormat: If a newer segue wrote it.
        RunLocked: If another process writes to the new run.
        StoreFull: If there is no room for it.
        StoreUnavailable: If one of the two places can't be read or written.

    Guarantees:
        The new checkpoint holds the same record: every section, in the precision that it was stored in, with step and
        microbatch; only the lineage is longer, by where it comes from. The run has its own id. Every byte is verified
        before anything is made, and once more as it is copied. Killed at any moment, there is a run with the whole
        checkpoint or one without any. The source is not touched.

    Cost:
        Reads the checkpoint twice and writes it once.
    """
    target = into if isinstance(into, Store) else store_at(into)
    _refuse_taken(target)
    refuse_enclosed(target.path)
    source, record = _opened(checkpoint)
    with source:
        _refuse_around(target, source)
        origin = _origin(source)
        made = _put(target, replace(record, lineage=(*record.lineage, _entry(record, origin))), origin)
        return ForkedRun(target.path, made, source.info)


def _put(target: Store, record: TrainingRecord, origin: dict[str, Any]) -> CheckpointInfo:
    target.acquire()
    try:
        _refuse_taken(target)  # another process may have been faster
        _refuse_same_run(target, origin["run"])
        return target.put(record)
    finally:
        target.release()


def _opened(checkpoint: Place | Store) -> tuple[OpenCheckpoint, TrainingRecord]:
    """Open what is to be copied, with every byte verified."""
    if isinstance(checkpoint, Store):
        return _newest_of(checkpoint)
    path = path_of(checkpoint)
    if is_run(path):
        return _newest_of(DirectoryStore(path))
    source = open_checkpoint(path)
    try:
        return source, source.verify()
    except BaseException:
        source.close()
        raise


def _newest_of(store: Store) -> tuple[OpenCheckpoint, TrainingRecord]:
    found = newest_verified(store, "`segue verify` says what is wrong with each")
    if found is None:
        raise CheckpointNotFound("the run has no checkpoint yet", where=store.path)
    return found[1], found[2]


def _origin(source: OpenCheckpoint) -> dict[str, Any]:
    """Name a checkpoint by what it carries with it wherever it is moved."""
    known = {"run": None, "seq": source.info.seq, "attempt": source.info.attempt, "manifest_sha256": None}
    if isinstance(source, StoredCheckpoint):
        known |= {"run": source.manifest.run, "manifest_sha256": source.manifest_sha256}
    return known


def _entry(record: TrainingRecord, origin: dict[str, Any]) -> dict[str, Any]:
    return {"step": record.step, "microbatch": record.microbatch, "forked_from": origin}


def _refuse_taken(target: Store) -> None:
    candidates = target.candidates()
    if candidates:
        raise CheckpointExists(
            "this run has checkpoints; a fork begins a new run", where=candidates[0].path,
            hint="name a place that isn't there yet",
        )  # fmt: skip


def _refuse_around(target: Store, source: OpenCheckpoint) -> None:
    """Refuse a run in whose folder the source lies."""
    inside, around = without_links(source.info.path), without_links(target.path)
    if inside.startswith(os.path.join(around, "")):
        raise CheckpointExists(
            "the checkpoint is inside of this folder, and would be part of the new run", code="store.enclosed",
            where=target.path, found=source.info.path, hint="name a place beside it",
        )  # fmt: skip


def _refuse_same_run(target: Store, run: str | None) -> None:
    if isinstance(target, DirectoryStore) and target.run_id == run:
        raise CheckpointExists(
            "this folder has run.json of the run that is to be forked", code="store.same_run", where=target.path,
            found=run, hint="a run of its own needs an id of its own: take that run.json away, or name another place",
        )  # fmt: skip
