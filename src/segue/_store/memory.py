"""A filesystem in memory: a store over it is read and written by the same code as one on a disk.

No operation takes a lock, since a fork may happen inside any of them, and the child must be able to close what it
inherited. Each change of names is one operation of one dictionary.
"""

from __future__ import annotations

import errno
import io
import itertools
import os
import stat
from dataclasses import dataclass, field

from segue._store.filesystem import WritableFile

_PLENTY_BYTES = 2**62
_numbers = itertools.count(1)


@dataclass(eq=False)
class _File:
    data: bytes = b""
    inode: int = field(default_factory=lambda: next(_numbers))


@dataclass(eq=False)
class _Directory:
    entries: dict[str, _File | _Directory] = field(default_factory=dict)
    inode: int = field(default_factory=lambda: next(_numbers))
    is_removed: bool = False
    """Whether it has no name any more. As on a disk, nothing is made in it then: nobody would find it."""

    def remove(self) -> None:
        self.is_removed = True
        for entry in list(self.entries.values()):
            if isinstance(entry, _Directory):
                entry.remove()


class MemoryFilesystem:
    """`Filesystem` without a disk. What it holds is lost with the process, and a forked child has a copy of its own.

    Paths are those of URLs, such as `memory://exports/a`, or absolute ones.
    """

    def __init__(self) -> None:
        self._root = _Directory()
        self._open: dict[int, _File | _Directory] = {}
        self._descriptors = itertools.count(3)
        self._locks: dict[int, int] = {}

    def open_directory(self, name: str, within: int | None = None, *, follow: bool = False) -> int:
        found = self._lookup(name, within)
        if not isinstance(found, _Directory):
            raise _error(errno.ENOTDIR, name)
        return self._opened(found)

    def make_directory(self, name: str, within: int | None = None) -> None:
        parent, last = self._parent(name, within)
        if not last:
            raise _error(errno.EEXIST, name)
        _refuse_removed(parent, name)
        made = _Directory()
        if parent.entries.setdefault(last, made) is not made:
            raise _error(errno.EEXIST, name)

    def fsync_directory(self, directory: int) -> None:
        self._directory(directory)

    def list_names(self, directory: int) -> list[str]:
        return list(self._directory(directory).entries)

    def lstat(self, name: str, within: int) -> os.stat_result:
        return _status(self._lookup(name, within))

    def create_file(self, name: str, within: int) -> WritableFile:
        made, directory = _File(), self._directory(within)
        _refuse_removed(directory, name)
        if directory.entries.setdefault(name, made) is not made:
            raise _error(errno.EEXIST, name)
        return _MemoryOutput(made)

    def rename_noreplace(self, old: str, new: str, within: int) -> None:
        entries, moved = self._directory(within).entries, self._lookup(old, within)
        if entries.setdefault(new, moved) is not moved:
            raise _error(errno.EEXIST, new)
        del entries[old]

    def rename_replace(self, old: str, new: str, within: int) -> None:
        entries, moved = self._directory(within).entries, self._lookup(old, within)
        if isinstance(entries.get(new), _Directory):
            raise _error(errno.EISDIR, new)
        entries[new] = moved
        del entries[old]

    def unlink(self, name: str, within: int) -> None:
        if isinstance(self._lookup(name, within), _Directory):
            raise _error(errno.EISDIR, name)
        del self._directory(within).entries[name]

    def remove_directory(self, name: str, within: int) -> None:
        found = self._lookup(name, within)
        if not isinstance(found, _Directory):
            raise _error(errno.ENOTDIR, name)
        if found.entries:
            raise _error(errno.ENOTEMPTY, name)
        found.remove()
        del self._directory(within).entries[name]

    def open_file(self, name: str, within: int) -> int:
        return self._opened(self._lookup(name, within))

    def stat(self, descriptor: int) -> os.stat_result:
        return _status(self._known(descriptor))

    def read_at(self, file: int, target: memoryview, offset: int) -> int:
        found = self._known(file)
        if not isinstance(found, _File):
            raise _error(errno.EISDIR)
        part = memoryview(found.data)[offset : offset + len(target)]
        target[: len(part)] = part
        return len(part)

    def close(self, descriptor: int) -> None:
        self.unlock(descriptor)
        if self._open.pop(descriptor, None) is None:
            raise _error(errno.EBADF)

    def free_bytes(self, directory: int) -> int:
        return _PLENTY_BYTES

    def lock(self, directory: int) -> None:
        if self._locks.setdefault(self._directory(directory).inode, directory) != directory:
            raise _error(errno.EAGAIN)

    def unlock(self, directory: int) -> None:
        found = self._open.get(directory)
        if found is not None and self._locks.get(found.inode) == directory:
            del self._locks[found.inode]

    def lock_holder(self, directory: int) -> str:
        return "another store of this process"

    def contents(self, path: str) -> bytes | None:
        """Return what is in a file, without copying; `None` if there is none."""
        try:
            found = self._lookup(path, None)
        except FileNotFoundError:
            return None
        return found.data if isinstance(found, _File) else None

    def place(self, path: str, data: bytes) -> None:
        """Make a file of these bytes, without copying; the folder it is in must be there."""
        parent, last = self._parent(path, None)
        parent.entries[last] = _File(data)

    def forget(self, path: str) -> bool:
        """Drop a name with everything below it, and tell whether there was one. What is open stays readable."""
        try:
            parent, last = self._parent(path, None)
        except OSError:
            return False
        found = parent.entries.pop(last, None)
        if isinstance(found, _Directory):
            found.remove()
        return found is not None

    def _opened(self, found: _File | _Directory) -> int:
        descriptor = next(self._descriptors)
        self._open[descriptor] = found
        return descriptor

    def _known(self, descriptor: int) -> _File | _Directory:
        if descriptor not in self._open:
            raise _error(errno.EBADF)
        return self._open[descriptor]

    def _directory(self, descriptor: int) -> _Directory:
        found = self._known(descriptor)
        if not isinstance(found, _Directory):
            raise _error(errno.ENOTDIR)
        return found

    def _lookup(self, name: str, within: int | None) -> _File | _Directory:
        parent, last = self._parent(name, within)
        if not last:
            return parent
        if last not in parent.entries:
            raise _error(errno.ENOENT, name)
        return parent.entries[last]

    def _parent(self, name: str, within: int | None) -> tuple[_Directory, str]:
        """Find the directory that a name is in, and the last part of it; that is empty for the root itself."""
        if within is not None:
            return self._directory(within), name
        *folders, last = _parts(name) or [""]
        found = self._root
        for part in folders:
            inner = found.entries.get(part)
            if inner is None:
                raise _error(errno.ENOENT, name)
            if not isinstance(inner, _Directory):
                raise _error(errno.ENOTDIR, name)
            found = inner
        return found, last


PROCESS_MEMORY = MemoryFilesystem()
"""What `memory://` URLs name."""


class _MemoryOutput:
    """A file being filled; its bytes are there for readers once it is closed."""

    def __init__(self, file: _File) -> None:
        self._file = file
        self._buffer = io.BytesIO()

    def write(self, data: memoryview) -> int:
        return self._buffer.write(data)

    def fsync(self) -> None:
        pass

    def close(self) -> None:
        self._file.data = self._buffer.getvalue()


def _parts(path: str) -> list[str]:
    # The parent of `memory://a` is `memory:`, as `os.path` has it.
    scheme, colon, rest = path.partition(":")
    return [part for part in (rest if colon and "/" not in scheme else path).split("/") if part]


def _status(found: _File | _Directory) -> os.stat_result:
    kind, size = (stat.S_IFDIR, 0) if isinstance(found, _Directory) else (stat.S_IFREG, len(found.data))
    return os.stat_result((kind | 0o600, found.inode, 0, 1, 0, 0, size, 0, 0, 0))


def _refuse_removed(directory: _Directory, name: str) -> None:
    if directory.is_removed:
        raise _error(errno.ENOENT, name)


def _error(code: int, name: str | None = None) -> OSError:
    return OSError(code, os.strerror(code), name)
