"""An open directory, from which files are opened safely."""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Iterator

from segue._store.failure import joined, not_safe, unavailable
from segue._store.filesystem import Filesystem, ReadableFilesystem, close_quietly
from segue._store.stored_bytes import OpenFile
from segue.errors import CheckpointNotFound, CorruptCheckpoint, IncompleteCheckpoint, UnsafeCheckpoint


class Folder:
    """A directory and where it is; `opened_folder` closes it."""

    def __init__(self, filesystem: ReadableFilesystem, descriptor: int, path: str) -> None:
        self.filesystem = filesystem
        self.descriptor = descriptor
        self.path = path

    def path_of(self, name: str) -> str:
        """Return the path of a file, for messages."""
        return joined(self.path, name)

    def names(self) -> set[str]:
        """Return all names in it.

        Raises:
            StoreUnavailable: If it can't be listed.
        """
        try:
            return set(self.filesystem.list_names(self.descriptor))
        except OSError as error:
            raise unavailable("list a folder", self.path, error) from error

    def open_file(self, name: str) -> OpenFile:
        """Open a regular file for reading.

        Raises:
            IncompleteCheckpoint: If there is none of that name.
            UnsafeCheckpoint: If it is a link, a folder, a FIFO, a device or a socket.
            StoreUnavailable: If it can't be opened.
        """
        path = self.path_of(name)
        try:
            # Looked at before opening, since opening a device can already do something; and after, since the name
            # may have been swapped between the two.
            self._check_regular(self.filesystem.lstat(name, self.descriptor).st_mode, path)
            file = OpenFile(self.filesystem, self.filesystem.open_file(name, self.descriptor), path)
            self._check_regular(file.mode, path)
        except FileNotFoundError as error:
            raise IncompleteCheckpoint("a file is missing", where=path) from error
        except OSError as error:
            if not_safe(error):
                raise UnsafeCheckpoint("not a regular file", where=path) from error
            raise unavailable("open a stored file", path, error) from error
        return file

    @staticmethod
    def _check_regular(mode: int, path: str) -> None:
        if not stat.S_ISREG(mode):
            raise UnsafeCheckpoint("not a regular file", where=path, found=stat.filemode(mode))

    def read_file(self, name: str, max_bytes: int) -> bytes:
        """Read a whole small file; its size is limited before any memory is taken.

        Raises:
            CorruptCheckpoint: If it is larger than `max_bytes`.
        """
        file = self.open_file(name)
        try:
            if file.size > max_bytes:
                raise CorruptCheckpoint("too large", where=file.path, expected=max_bytes, found=file.size)
            return bytes(file.read(file.size))
        finally:
            file.close()


@contextlib.contextmanager
def opened_folder(
    filesystem: Filesystem, name: str, path: str, within: int | None, *, follow: bool = False
) -> Iterator[Folder]:
    """Open a folder, and close it afterwards.

    Raises:
        CheckpointNotFound: If there is nothing of that name.
        UnsafeCheckpoint: If it is a link or no folder.
        StoreUnavailable: If it can't be opened.
    """
    try:
        descriptor = filesystem.open_directory(name, within, follow=follow)
    except FileNotFoundError as error:
        raise CheckpointNotFound("no such checkpoint", where=path) from error
    except OSError as error:
        if not_safe(error):
            raise UnsafeCheckpoint("not a folder", where=path) from error
        raise unavailable("open a folder", path, error) from error
    try:
        yield Folder(filesystem, descriptor, path)
    finally:
        close_quietly(filesystem, descriptor)
