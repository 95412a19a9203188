"""Errors of the operating system, told as errors of this library."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

from segue.errors import StoreFull, StoreUnavailable

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
UNLOCKABLE = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
"""What `flock` says on filesystems that cannot lock."""


def unavailable(doing: str, path: str, error: OSError) -> StoreUnavailable:
    """Make the error for a failed system call, to be raised from it.

    Args:
        doing: What was being done, as an infinitive: `write the checkpoint`.
        path: The file or folder it was done to.
        error: What the operating system said.

    Returns:
        `StoreFull` where there is no room (or quota, or the file would be too large), else `StoreUnavailable`.
    """
    full = error.errno in _FULL
    code = errno.errorcode.get(error.errno or 0, "unknown error")
    return (StoreFull if full else StoreUnavailable)(
        f"could not {doing}: {error.strerror or error}",
        where=path,
        found=code,
        hint="make room and save again; what was stored before is intact" if full else None,
    )


@contextlib.contextmanager
def explained(doing: str, path: str) -> Iterator[None]:
    """Turn an `OSError` from inside into the error that `unavailable` makes."""
    try:
        yield
    except OSError as error:
        raise unavailable(doing, path, error) from error


def not_safe(error: OSError) -> bool:
    """Tell whether opening failed because the name is a link, a folder or a socket: no file of ours."""
    return error.errno in (errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.EISDIR, errno.ENODEV, errno.ENOTDIR)


def joined(folder: str, name: str) -> str:
    """Join a folder and a name that may be hostile: for messages, never for opening."""
    shown = name.replace("/", "\\/")
    # The folder of `memory://a` is `memory:`, as `os.path` has it.
    return f"{folder}//{shown}" if folder.endswith(":") else os.path.join(folder, shown)
