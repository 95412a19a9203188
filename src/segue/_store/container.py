"""A checkpoint as one file: an uncompressed tar archive of its five files, which any `tar` unpacks.

Tar and not zip, since the checksum that zip asks of each file would cost a pass over the data that proves nothing
the manifest doesn't, and since a header before each file lets us write strictly forward.

Archives are where readers disagree, so there is one way only to write one: a reader takes name and size from a
header, makes the header that belongs to them, and refuses any other, byte for byte. What comes before, between or
after the files is then known to be nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from segue._store.folder import Folder
from segue._store.output import Output
from segue._store.stored_bytes import OpenFile
from segue.errors import CheckpointNotFound, CorruptCheckpoint, IncompleteCheckpoint, UnsupportedFormat

BLOCK_BYTES = 512
END = bytes(2 * BLOCK_BYTES)
ROOT = 0
"""The descriptor of the folder that an archive stands for."""
MAX_FILES = 100
_MODE = 0o644
_TIME = 315532800  # 1980-01-01: equal records give equal archives, and GNU tar warns of an earlier one
_MAGIC = b"ustar\x0000"  # the name, a zero byte, and the version 00
_MAGIC_AT = 257
_SIZE_FIELD = slice(124, 136)
_MAX_OCTAL = 8**11 - 1
_NAME = re.compile(rb"[a-z0-9][a-z0-9._-]{0,98}")


def header(name: str, num_bytes: int) -> bytes:
    """Make the block that stands before a file: POSIX ustar, with the size in base 256 where octal has no room."""
    size = b"%011o\0" % num_bytes if num_bytes <= _MAX_OCTAL else b"\x80" + num_bytes.to_bytes(11, "big")
    before = b"%b%07o\0%07o\0%07o\0%b%011o\0" % (name.encode().ljust(100, b"\0"), _MODE, 0, 0, size, _TIME)
    after = b"0" + bytes(100) + _MAGIC
    after += bytes(BLOCK_BYTES - len(before) - 8 - len(after))
    return b"%b%06o\0 %b" % (before, sum(before) + 8 * ord(" ") + sum(after), after)


def padding(num_bytes: int) -> int:
    """Return how many zeros follow a file of this size."""
    return -num_bytes % BLOCK_BYTES


class ContainerFiles:
    """Files of a checkpoint, written into one archive."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self.num_bytes = 0
        """Of the archive so far."""

    @contextlib.contextmanager
    def file(self, name: str, num_bytes: int) -> Iterator[Output]:
        self._output.add(memoryview(header(name, num_bytes)))
        yield self._output
        self._output.add(memoryview(bytes(padding(num_bytes))))
        self.num_bytes += BLOCK_BYTES + num_bytes + padding(num_bytes)

    def finish(self) -> None:
        """Mark the end of the archive, and make it durable."""
        self._output.add(memoryview(END))
        self._output.finish()
        self.num_bytes += len(END)


@dataclass(frozen=True)
class _Window:
    """Where a file is in the archive."""

    offset: int
    num_bytes: int


class Container:
    """An archive as a folder that can be read: a `ReadableFilesystem` over one open file, read where it is.

    The file is closed when all descriptors are: `ROOT`, which is open at first, and those of `open_file`.
    """

    def __init__(self, file: OpenFile) -> None:
        """Read the headers.

        Raises:
            UnsupportedFormat: If it is no archive at all.
            CorruptCheckpoint: If it is not exactly what a writer makes.
        """
        self.num_bytes = file.size
        self._file = file
        self._windows = _read_headers(file, self.num_bytes)
        self._open = {ROOT: _Window(0, 0)}
        self._numbers = itertools.count(ROOT + 1)

    def list_names(self, directory: int) -> list[str]:
        return list(self._windows)

    def lstat(self, name: str, within: int) -> os.stat_result:
        return _status(self._window(name))

    def open_file(self, name: str, within: int) -> int:
        window, descriptor = self._window(name), next(self._numbers)
        self._open[descriptor] = window
        return descriptor

    def _window(self, name: str) -> _Window:
        if name not in self._windows:
            raise FileNotFoundError(name)
        return self._windows[name]

    def stat(self, descriptor: int) -> os.stat_result:
        return _status(self._open[descriptor])

    def read_at(self, file: int, target: memoryview, offset: int) -> int:
        window = self._open[file]
        part = target[: max(0, window.num_bytes - offset)]
        self._file.read_exactly(part, window.offset + offset)
        return len(part)

    def close(self, descriptor: int) -> None:
        self._open.pop(descriptor, None)
        if not self._open:
            self._file.close()


class ContainerFolder(Folder):
    """The folder that an archive stands for."""

    def __init__(self, container: Container, path: str) -> None:
        super().__init__(container, ROOT, path)
        self.num_bytes = container.num_bytes
        """Of the archive: its files, and what is around them."""


def _status(window: _Window) -> os.stat_result:
    return os.stat_result((stat.S_IFREG | _MODE, 0, 0, 1, 0, 0, window.num_bytes, _TIME, _TIME, _TIME))


def _read_headers(file: OpenFile, total: int) -> dict[str, _Window]:
    _refuse_foreign(file, total)
    windows: dict[str, _Window] = {}
    position = 0
    # Each file takes a block at least, so that the walk ends; the limit is for archives of nothing but headers.
    while total - position > len(END):
        name, num_bytes = _parse(bytes(file.read(BLOCK_BYTES, position)), file.path, position)
        if name in windows or len(windows) == MAX_FILES:
            raise CorruptCheckpoint("a file occurs twice, or there are too many", where=file.path, found=name)
        windows[name] = window = _Window(position + BLOCK_BYTES, num_bytes)
        position = window.offset + num_bytes + padding(num_bytes)
        if position + len(END) > total:
            raise CorruptCheckpoint(
                "the file is cut off",
                where=file.path,
                expected=f"{position + len(END)} bytes or more",
                found=total,
            )
        _check_zeros(file, position - padding(num_bytes), padding(num_bytes))
    _check_zeros(file, position, total - position)
    return windows


def _refuse_foreign(file: OpenFile, total: int) -> None:
    if total == 0:
        raise CorruptCheckpoint("the file is empty: it was lost, or never written", where=file.path)
    first = bytes(file.read(min(total, BLOCK_BYTES)))
    if not first[_MAGIC_AT:].startswith(_MAGIC):
        raise UnsupportedFormat("not a checkpoint in one file", where=file.path, found=first[:16])


def _parse(block: bytes, path: str, position: int) -> tuple[str, int]:
    """Return name and size from a header; any but the one header for these is refused."""
    name, field = block[:100].rstrip(b"\0"), block[_SIZE_FIELD]
    if field[0] == 0x80:
        num_bytes = int.from_bytes(field[1:], "big")
    else:
        num_bytes = int(field[:-1], 8) if re.fullmatch(rb"[0-7]{11}\0", field) else -1
    if num_bytes < 0 or not _NAME.fullmatch(name) or header(name.decode(), num_bytes) != block:
        raise CorruptCheckpoint(
            "a header that no writer makes", where=path, found=f"{block[:32]!r} at byte {position}"
        )
    return name.decode(), num_bytes


def _check_zeros(file: OpenFile, offset: int, num_bytes: int) -> None:
    if any(file.read(num_bytes, offset)):
        raise CorruptCheckpoint(
            "bytes where there should be none", where=file.path, found=f"after byte {offset}"
        )


@contextlib.contextmanager
def opened_container(folder: Folder, name: str) -> Iterator[ContainerFolder]:
    """Open an archive as the folder it stands for, and let go of it afterwards; what was opened in it stays open.

    Raises:
        CheckpointNotFound: If there is nothing of that name.
        UnsafeCheckpoint: If it is a link, a folder or a special file.
        UnsupportedFormat: If it is no archive at all.
        CorruptCheckpoint: If it is not exactly what a writer makes.
        StoreUnavailable: If it can't be read.
    """
    try:
        file = folder.open_file(name)
    except IncompleteCheckpoint as error:
        raise CheckpointNotFound("no such checkpoint", where=folder.path_of(name)) from error
    try:
        container = Container(file)
    except BaseException:
        file.close()
        raise
    try:
        yield ContainerFolder(container, file.path)
    finally:
        container.close(ROOT)
