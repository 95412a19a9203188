"""Bytes of a tensor in an open file, verified each time they are read."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from typing import NoReturn

from segue._store.checksum import BLOCK_BYTES, BlockHasher, digest
from segue._store.failure import unavailable
from segue._store.filesystem import ReadableFilesystem, close_quietly
from segue._store.output import SLICE_BYTES
from segue.errors import CorruptCheckpoint, StoreUnavailable


class OpenFile:
    """A file open for reading. It stays readable when its name is removed, until the last tensor of it is gone."""

    def __init__(self, filesystem: ReadableFilesystem, descriptor: int, path: str) -> None:
        self.path = path
        self._filesystem = filesystem
        self._descriptor = descriptor
        self._closer = weakref.finalize(self, close_quietly, filesystem, descriptor)

    def close(self) -> None:
        """Close the file; may be called again."""
        self._closer()

    def __deepcopy__(self, memo: object) -> OpenFile:
        """Return this one: a copy of a record reads the same file."""
        return self

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled: another process does not have the file open, and this one would read a closed one."""
        raise TypeError(
            "a record that reads an open checkpoint can't be pickled; send `segue.to_bytes(record)`"
        )

    @property
    def size(self) -> int:
        """The size it has now."""
        return self._stat().st_size

    @property
    def mode(self) -> int:
        """What kind of file it is, and its permissions."""
        return self._stat().st_mode

    def _stat(self) -> os.stat_result:
        try:
            return self._filesystem.stat(self._open_descriptor())
        except OSError as error:
            raise unavailable("look at a stored file", self.path, error) from error

    def _open_descriptor(self) -> int:
        if not self._closer.alive:
            raise StoreUnavailable("this checkpoint was closed", where=self.path)
        return self._descriptor

    def read_exactly(self, target: memoryview, offset: int) -> None:
        """Fill `target` from a position.

        Raises:
            CorruptCheckpoint: If the file ends before that.
            StoreUnavailable: If it can't be read.
        """
        descriptor = self._open_descriptor()
        while target:
            try:
                count = self._filesystem.read_at(descriptor, target, offset)
            except OSError as error:
                raise unavailable("read a stored file", self.path, error) from error
            if count == 0:
                raise CorruptCheckpoint("the file ends too early", where=self.path, found=offset)
            target, offset = target[count:], offset + count

    def read(self, num_bytes: int, offset: int = 0) -> bytearray:
        """Return bytes from a position; raises as `read_exactly` does."""
        data = bytearray(num_bytes)
        self.read_exactly(memoryview(data), offset)
        return data


class StoredBytes:
    """The bytes of one tensor in a file: a `ByteSource` that never delivers a byte it has not verified.

    Hashing again at each reading closes the gap between checking and using: what changed since the checkpoint was
    opened is found before `read_into` returns.
    """

    __slots__ = ("_digests", "_file", "_name", "_num_bytes", "_offset")

    def __init__(
        self, file: OpenFile, name: str, offset: int, num_bytes: int, digests: tuple[str, ...]
    ) -> None:
        self._file = file
        self._name = name
        self._offset = offset
        self._num_bytes = num_bytes
        self._digests = digests

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    def read_into(self, target: memoryview) -> None:
        """Fill `target`; on `CorruptCheckpoint` its contents are worthless."""
        if self._num_bytes <= SLICE_BYTES < BLOCK_BYTES:
            self._file.read_exactly(target, self._offset)
            self._compare((digest(target),))
            return
        hasher = BlockHasher()
        for start in range(0, self._num_bytes, SLICE_BYTES):
            part = target[start : start + SLICE_BYTES]
            self._file.read_exactly(part, self._offset + start)
            hasher.update(part)
        self._compare(tuple(hasher.digests()))

    def slices(self) -> Iterator[memoryview]:
        """Yield the bytes in pieces; the error for damage comes at the end, when all pieces have been seen."""
        hasher = BlockHasher()
        scratch = memoryview(bytearray(min(SLICE_BYTES, self._num_bytes)))
        for start in range(0, self._num_bytes, SLICE_BYTES):
            part = scratch[: min(SLICE_BYTES, self._num_bytes - start)]
            self._file.read_exactly(part, self._offset + start)
            hasher.update(part)
            yield part
        self._compare(tuple(hasher.digests()))

    def verify(self) -> None:
        for _ in self.slices():
            pass

    def _compare(self, found: tuple[str, ...]) -> None:
        if found != self._digests:
            block = next(
                index
                for index, pair in enumerate(zip(found, self._digests, strict=True))
                if pair[0] != pair[1]
            )
            raise CorruptCheckpoint(
                f"the bytes of tensor {self._name!a} are not those that were saved"[:300],
                where=self._file.path,
                expected=self._digests[block],
                found=found[block],
            )
