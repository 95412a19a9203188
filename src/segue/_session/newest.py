"""Which checkpoint of a run is taken: the newest that can be read, whole."""

from __future__ import annotations

import warnings

from segue._record.training import TrainingRecord
from segue._store.protocol import OpenCheckpoint, Store
from segue._store.scan import Candidate
from segue.errors import (
    CheckpointNotFound,
    CorruptCheckpoint,
    IncompleteCheckpoint,
    SkippedCheckpointWarning,
    StoreError,
    UnsafeCheckpoint,
    UnsupportedFormat,
)

# What is passed over for an older checkpoint. An unavailable disk is no reason to lose hours of work.
_DAMAGED = (CorruptCheckpoint, IncompleteCheckpoint, UnsafeCheckpoint, UnsupportedFormat, CheckpointNotFound)


def newest_verified(store: Store, hint: str) -> tuple[Candidate, OpenCheckpoint, TrainingRecord] | None:
    """Open the newest checkpoint of a run that is intact, with every byte verified; `None` where the run has none.

    Args:
        store: Of the run; needs no lock.
        hint: What to do where all are damaged.

    Returns:
        The candidate, the open checkpoint, and its record.

    Raises:
        StoreError: If the run has checkpoints and all are damaged, or the run can't be read.
    """
    while True:
        candidates = store.candidates()
        reasons: list[StoreError] = []
        for candidate in candidates:
            try:
                return candidate, *_verified(store, candidate)
            except _DAMAGED as error:
                reasons.append(error)
                message = f"passed over {candidate.path}: {error}"
                warnings.warn(message, SkippedCheckpointWarning, stacklevel=4)
        if not reasons:
            return None
        # A reader without the lock may find each gone that it has listed: then there are others by now.
        if candidates == store.candidates():
            raise _all_damaged(reasons, hint)


def _verified(store: Store, candidate: Candidate) -> tuple[OpenCheckpoint, TrainingRecord]:
    checkpoint = store.open(candidate)
    try:
        return checkpoint, checkpoint.verify()
    except BaseException:
        checkpoint.close()
        raise


def _all_damaged(reasons: list[StoreError], hint: str) -> StoreError:
    newest = reasons[0]
    return type(newest)(
        f"no checkpoint of this run can be read; the newest: {newest.what}", code=newest.code, where=newest.where,
        expected=newest.expected, found=newest.found, hint=hint,
    )  # fmt: skip
