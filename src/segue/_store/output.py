"""New files being filled: many small pieces gathered into few writes, large ones written from where they are."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import Protocol

from segue._store.filesystem import Filesystem, WritableFile

SLICE_BYTES = 8 * 2**20
"""Small enough to stay in the cache between hashing and writing."""
_DIRECT_BYTES = 2**20


class Output:
    """Writes bytes in order; durable only after `finish`. Buffers at most `SLICE_BYTES`."""

    def __init__(self, file: WritableFile) -> None:
        self._file = file
        self._buffer = bytearray()

    def add(self, data: memoryview) -> None:
        """Append bytes; the caller may change them afterwards."""
        if len(data) >= _DIRECT_BYTES:
            self._flush()
            self._write(data)
            return
        self._buffer += data
        if len(self._buffer) >= SLICE_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._buffer:
            self._write(memoryview(self._buffer))
            self._buffer = bytearray()

    def _write(self, data: memoryview) -> None:
        # A write may take less than it was given: at a signal, at a quota, on a network filesystem.
        while data:
            count = self._file.write(data)
            if count <= 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            data = data[count:]

    def finish(self) -> None:
        """Write out the rest and make the contents durable.

        Once, and whatever it says is final: after a failed fsync Linux takes the lost pages for clean, and the next
        fsync would succeed.
        """
        self._flush()
        self._file.fsync()

    def close(self) -> None:
        """Release the file; an error here is an error of the writes."""
        self._file.close()


class Files(Protocol):
    """Takes the files of a checkpoint, one after the other."""

    def file(self, name: str, num_bytes: int) -> contextlib.AbstractContextManager[Output]:
        """Begin a file of a size that is known before; its output is ended by leaving the context."""
        ...


class FolderFiles:
    """Files of their own in an open directory, each durable when it is left; their names only once the folder is."""

    def __init__(self, filesystem: Filesystem, folder: int) -> None:
        self._filesystem = filesystem
        self._folder = folder

    @contextlib.contextmanager
    def file(self, name: str, num_bytes: int) -> Iterator[Output]:
        output = Output(self._filesystem.create_file(name, self._folder))
        try:
            yield output
            output.finish()
        finally:
            output.close()


def write_file(files: Files, name: str, data: bytes) -> None:
    """Write a small file with these contents."""
    with files.file(name, len(data)) as output:
        output.add(memoryview(data))
