"""Records and single checkpoints by hand: save, load, verify, diff."""

from __future__ import annotations

import os

from segue._record import diff as _diff
from segue._record.diff import RecordDiff
from segue._record.training import TrainingRecord
from segue._store.archive import open_checkpoint, write_checkpoint
from segue._store.reader import CheckpointInfo
from segue._store.url import local_path

Place = str | os.PathLike[str]


def save(record: TrainingRecord, url: Place) -> CheckpointInfo:
    """Store a record as one checkpoint of its own, at a place of the caller's choice.

    Args:
        record: From `Training.capture` or `load`; read, not changed.
        url: A path that doesn't exist yet; missing parents are made.

    Returns:
        Where it is, and how large.

    Raises:
        CheckpointExists: If the place is taken; a stored checkpoint is never replaced.
        StoreFull: If there is not enough room.
        StoreUnavailable: If it can't be written.

    Guarantees:
        Durable when it returns; nothing under that name when it raises.

    Cost:
        One pass over the bytes; blocks until they are on disk.
    """
    return write_checkpoint(record, local_path(url))


def load(url: Place, device: str | None = None) -> TrainingRecord:
    """Open a checkpoint as a record. Tensors stay in the open files until they are needed, verified each time.

    Args:
        url: The folder of one checkpoint; never falls back to another.
        device: Place every tensor of the record on this device, for a restore there; by default where it was.

    Returns:
        The record; it stays readable when the checkpoint is deleted meanwhile.

    Raises:
        CheckpointNotFound: If there is none, or a run's folder instead.
        IncompleteCheckpoint: If files are missing.
        CorruptCheckpoint: If manifest, headers or sizes don't fit together; data is verified when it is read.
        UnsafeCheckpoint: If it holds links or special files.
        UnsupportedFormat: If a newer segue wrote it.

    Cost:
        Reads manifest, headers and caller state.
    """
    record = open_checkpoint(local_path(url)).record()
    return record if device is None else record.with_device(device)


def verify(url: Place) -> CheckpointInfo:
    """Read every byte of a checkpoint and compare it with its checksum.

    Returns:
        What was verified.

    Raises:
        StoreError: As `load`, and `CorruptCheckpoint` for the first byte that does not match, naming file and tensor.

    Cost:
        One sequential read.
    """
    with open_checkpoint(local_path(url)) as checkpoint:
        checkpoint.verify()
        return checkpoint.info


def diff(left: TrainingRecord | Place, right: TrainingRecord | Place) -> RecordDiff:
    """Compare the state of two records or checkpoints bit by bit.

    Environment, lineage and step counts are about a training, not state, and are left out.

    Returns:
        Every leaf that differs, in order; `identical` if none does.

    Raises:
        StoreError: If a checkpoint can't be opened or is damaged.

    Cost:
        Reads both; holds one pair of tensors at a time.
    """
    return _diff.diff(_record(left), _record(right))


def _record(value: TrainingRecord | Place) -> TrainingRecord:
    return value if isinstance(value, TrainingRecord) else load(value)
