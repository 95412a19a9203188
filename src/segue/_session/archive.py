"""Records and single checkpoints by hand: save, load, verify, diff, and as bytes."""

from __future__ import annotations

import os

import torch

from segue._record import diff as _diff
from segue._record.conversion import Precision
from segue._record.diff import RecordDiff
from segue._session.record import TrainingRecord
from segue._store import in_memory
from segue._store.archive import open_checkpoint, write_checkpoint
from segue._store.protocol import OpenCheckpoint
from segue._store.reader import CheckpointInfo
from segue._store.url import path_of

Place = str | os.PathLike[str]


def save(record: TrainingRecord, url: Place, precision: Precision = "native") -> CheckpointInfo:
    """Store a record as one checkpoint of its own, at a place of the caller's choice.

    Args:
        record: From `Training.capture` or `load`; read, not changed.
        url: A path that doesn't exist yet; missing parents are made. One file if it ends in `.segue`, else a folder. Or
            a `memory://` URL.
        precision: What to store it in, as in `TrainingRecord.converted`; each tensor in its own dtype by default.

    Returns:
        Where it is, and how large.

    Raises:
        InvalidRecord: If there is no such precision.
        CheckpointExists: If the place is taken; a stored checkpoint is never replaced.
        StoreFull: If there is not enough room.
        StoreUnavailable: If it can't be written.

    Guarantees:
        Durable when it returns; nothing under that name when it raises. What a precision lost is written down, tensor
        by tensor, and a restore refuses such a record unless told otherwise.

    Cost:
        One pass over the bytes; blocks until they are on disk. In another precision a second one, and memory for what
        is converted.
    """
    return write_checkpoint(record.converted(precision), path_of(url))


def load(url: Place, device: str | torch.device | None = None) -> TrainingRecord:
    """Open a checkpoint as a record. Tensors stay in the open files until they are needed, verified each time.

    Args:
        url: The folder or file of one checkpoint; never falls back to another.
        device: Place every tensor of the record on this device, for a restore there; by default where it was. `cuda`
            is the present one of several.

    Returns:
        The record; it stays readable when the checkpoint is deleted meanwhile.

    Raises:
        CheckpointNotFound: If there is none, or a run's folder instead.
        IncompleteCheckpoint: If files are missing.
        CorruptCheckpoint: If manifest, headers or sizes don't fit together; data is verified when it is read.
        UnsafeCheckpoint: If it holds links or special files.
        UnsupportedFormat: If a newer segue wrote it, or it is a file of another kind.
        DeviceMismatch: If torch has no device of that name.

    Cost:
        Reads manifest, headers and caller state.
    """
    return _record_of(open_checkpoint(path_of(url)), device)


def verify(url: Place) -> CheckpointInfo:
    """Read every byte of a checkpoint and compare it with its checksum.

    Returns:
        What was verified.

    Raises:
        StoreError: As `load`, and `CorruptCheckpoint` for the first byte that does not match, naming file and tensor.

    Cost:
        One sequential read.
    """
    with open_checkpoint(path_of(url)) as checkpoint:
        checkpoint.verify()
        return checkpoint.info


def diff(left: TrainingRecord | Place, right: TrainingRecord | Place) -> RecordDiff:
    """Compare the state of two records or checkpoints bit by bit.

    Environment, lineage and step counts are about a training, not state, and are left out. So is the precision in which
    state was stored: each tensor is compared in its own dtype.

    Returns:
        Every leaf that differs, in order; `identical` if none does.

    Raises:
        StoreError: If a checkpoint can't be opened or is damaged.

    Cost:
        Reads both; holds one pair of tensors at a time.
    """
    return _diff.diff(_record(left), _record(right))


def to_bytes(record: TrainingRecord) -> bytes:
    """Make the bytes of a record: what `save` writes as one file, to be sent or kept by the caller.

    Args:
        record: From `Training.capture` or `load`; read, not changed.

    Returns:
        The bytes. Those of equal records are equal, but for the id of the attempt in the manifest.

    Raises:
        InvalidRecord: If the record holds what the format cannot.

    Cost:
        One pass over the bytes; memory for one more copy of them.
    """
    return in_memory.to_bytes(record)


def from_bytes(data: bytes, device: str | torch.device | None = None) -> TrainingRecord:
    """Open the bytes of a record. Tensors stay in them until they are needed, verified each time.

    Args:
        data: From `to_bytes`, or the contents of a file.
        device: As in `load`.

    Returns:
        The record.

    Raises:
        CorruptCheckpoint: If anything is not as it was written; data is verified when it is read.
        UnsupportedFormat: If a newer segue made them, or they are of another kind.
        StoreError: As `load`.

    Cost:
        Reads manifest, headers and caller state; copies nothing, unless `data` could change.
    """
    return _record_of(in_memory.open_bytes(data), device)


def _record(value: TrainingRecord | Place) -> TrainingRecord:
    return load(value) if isinstance(value, str | os.PathLike) else value


def _record_of(checkpoint: OpenCheckpoint, device: str | torch.device | None) -> TrainingRecord:
    """Hand out the record of a checkpoint; what is loaded passes here."""
    record = TrainingRecord.of(checkpoint.record())
    return record if device is None else record.with_device(device)
