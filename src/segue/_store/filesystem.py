"""The operations a store needs from a filesystem, and nothing else: the seam at which tests inject faults.

Every name is relative to an open directory, so that no swapped path component can redirect an operation. The
methods are as small as system calls on purpose: a crash test numbers them, and fails or kills at each one.
"""

from __future__ import annotations

import contextlib
import os
from typing import Protocol


class WritableFile(Protocol):
    """A new file, written once from its beginning."""

    def write(self, data: memoryview) -> int:
        """Append some of the bytes and return how many; may be fewer than given."""
        ...

    def fsync(self) -> None:
        """Make the contents durable."""
        ...

    def close(self) -> None:
        """Release the descriptor; an error here is an error of the writes before."""
        ...


class ReadableFilesystem(Protocol):
    """What a reader needs. All methods raise `OSError`; directories and files are open descriptors."""

    def list_names(self, directory: int) -> list[str]:
        """Return all names in a directory but `.` and `..`, in any order."""
        ...

    def lstat(self, name: str, within: int) -> os.stat_result:
        """Describe a name without following it."""
        ...

    def open_file(self, name: str, within: int) -> int:
        """Open for reading without following a link and without waiting for a FIFO's other end."""
        ...

    def stat(self, descriptor: int) -> os.stat_result:
        """Describe an open file or directory."""
        ...

    def read_at(self, file: int, target: memoryview, offset: int) -> int:
        """Read bytes from a position and return how many; 0 at the end of the file."""
        ...

    def close(self, descriptor: int) -> None:
        """Close a directory or a file opened for reading."""
        ...


class Filesystem(ReadableFilesystem, Protocol):
    """What a store needs: the rest of it."""

    def open_directory(self, name: str, within: int | None = None, *, follow: bool = False) -> int:
        """Open a directory by path, or by name within another; a symbolic link is an error unless `follow`."""
        ...

    def make_directory(self, name: str, within: int | None = None) -> None:
        """Create a directory; an error if the name is taken."""
        ...

    def fsync_directory(self, directory: int) -> None:
        """Make the names in a directory durable."""
        ...

    def create_file(self, name: str, within: int) -> WritableFile:
        """Create a file; an error if the name is taken, even by a dangling link."""
        ...

    def rename_noreplace(self, old: str, new: str, within: int) -> None:
        """Give a file or a filled folder another name; `FileExistsError` if that is taken."""
        ...

    def rename_replace(self, old: str, new: str, within: int) -> None:
        """Give a file another name, in one step, also if another file has it, which is then gone."""
        ...

    def unlink(self, name: str, within: int) -> None:
        """Remove a name that is no directory; a link itself, not what it points to."""
        ...

    def remove_directory(self, name: str, within: int) -> None:
        """Remove an empty directory."""
        ...

    def free_bytes(self, directory: int) -> int:
        """Return how many bytes this user can still write."""
        ...

    def lock(self, directory: int) -> None:
        """Lock a directory against other holders; `BlockingIOError` if another has it."""
        ...

    def unlock(self, directory: int) -> None:
        """Give the lock back."""
        ...

    def lock_holder(self, directory: int) -> str:
        """Say who has the lock, as far as can be told; never fails."""
        ...


def close_quietly(filesystem: ReadableFilesystem, descriptor: int) -> None:
    """Close what was only read: nothing was written through it that an error could be about."""
    with contextlib.suppress(OSError):
        filesystem.close(descriptor)
