"""What the command tells a shell: one code for each kind of trouble, as in `segue.errors`."""

from __future__ import annotations

from enum import IntEnum

from segue.errors import (
    CheckpointExists,
    CheckpointNotFound,
    CorruptCheckpoint,
    IncompleteCheckpoint,
    InvalidRecord,
    MismatchError,
    SegueError,
    UnsafeCheckpoint,
    UnsupportedFormat,
)


class ExitCode(IntEnum):
    """The exit codes of all commands."""

    FINE = 0
    DIFFERS = 1
    USAGE = 2
    MISMATCH = 3
    CORRUPT = 4
    NOT_FOUND = 5
    FAILED = 6


_BY_CLASS: tuple[tuple[type[SegueError], ExitCode], ...] = (
    (MismatchError, ExitCode.MISMATCH),
    (CorruptCheckpoint, ExitCode.CORRUPT),
    (UnsafeCheckpoint, ExitCode.CORRUPT),
    (UnsupportedFormat, ExitCode.CORRUPT),
    (InvalidRecord, ExitCode.CORRUPT),
    (IncompleteCheckpoint, ExitCode.NOT_FOUND),
    (CheckpointNotFound, ExitCode.NOT_FOUND),
    (CheckpointExists, ExitCode.USAGE),
)


def exit_code(error: SegueError) -> ExitCode:
    """Return the code of an error; `FAILED` for all that are no one's mistake, such as a full or locked disk."""
    for kind, code in _BY_CLASS:
        if isinstance(error, kind):
            return code
    return ExitCode.FAILED
