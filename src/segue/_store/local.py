"""The local filesystem of Linux and other POSIX systems, also when mounted from a network."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import os
from collections.abc import Callable

from segue._store.filesystem import WritableFile

_READ = os.O_RDONLY | os.O_CLOEXEC
_RENAME_NOREPLACE = 1
_SYNC_FILE_RANGE_WRITE = 2
_EARLY_WRITEBACK_BYTES = 2**20
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)
_UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


class LocalFilesystem:
    """`Filesystem` by system calls. Permissions follow the process's umask."""

    def open_directory(self, name: str, within: int | None = None, *, follow: bool = False) -> int:
        flags = _READ | os.O_DIRECTORY | (0 if follow else os.O_NOFOLLOW)
        return os.open(name, flags, dir_fd=within)

    def make_directory(self, name: str, within: int | None = None) -> None:
        os.mkdir(name, dir_fd=within)

    def fsync_directory(self, directory: int) -> None:
        os.fsync(directory)

    def list_names(self, directory: int) -> list[str]:
        return os.listdir(directory)

    def lstat(self, name: str, within: int) -> os.stat_result:
        return os.stat(name, dir_fd=within, follow_symlinks=False)

    def create_file(self, name: str, within: int) -> WritableFile:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return _LocalFile(os.open(name, flags, 0o666, dir_fd=within))

    def rename_noreplace(self, old: str, new: str, within: int) -> None:
        renameat2 = _c_function("renameat2")
        if renameat2 is not None:
            done = renameat2(within, os.fsencode(old), within, os.fsencode(new), _RENAME_NOREPLACE)
            if done == 0:
                return
            code = ctypes.get_errno()
            if code not in _UNSUPPORTED:
                raise OSError(code, os.strerror(code), old, None, new)
        self._rename_or_refuse(old, new, within)

    @staticmethod
    def _rename_or_refuse(old: str, new: str, within: int) -> None:
        """Rename where the kernel or filesystem has no exclusive form: rename refuses a folder that has files."""
        with contextlib.suppress(FileNotFoundError):
            os.stat(new, dir_fd=within, follow_symlinks=False)
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), old, None, new)
        try:
            os.rename(old, new, src_dir_fd=within, dst_dir_fd=within)
        except OSError as error:
            if error.errno in _TAKEN:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), old, None, new) from error
            raise

    def rename_replace(self, old: str, new: str, within: int) -> None:
        os.rename(old, new, src_dir_fd=within, dst_dir_fd=within)

    def unlink(self, name: str, within: int) -> None:
        os.unlink(name, dir_fd=within)

    def remove_directory(self, name: str, within: int) -> None:
        os.rmdir(name, dir_fd=within)

    def open_file(self, name: str, within: int) -> int:
        return os.open(name, _READ | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, dir_fd=within)

    def stat(self, descriptor: int) -> os.stat_result:
        return os.fstat(descriptor)

    def read_at(self, file: int, target: memoryview, offset: int) -> int:
        return os.preadv(file, [target], offset)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def free_bytes(self, directory: int) -> int:
        status = os.fstatvfs(directory)
        return status.f_bavail * status.f_frsize

    def lock(self, directory: int) -> None:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def unlock(self, directory: int) -> None:
        fcntl.flock(directory, fcntl.LOCK_UN)

    def lock_holder(self, directory: int) -> str:
        # Asked of the kernel; nobody writes it down, since that would go stale.
        with contextlib.suppress(OSError, ValueError):
            inode = os.fstat(directory).st_ino
            with open("/proc/locks", encoding="ascii") as table:
                for line in table:
                    fields = line.split()
                    if (
                        fields[1] == "FLOCK"
                        and fields[5].rsplit(":", 1)[-1] == str(inode)
                        and int(fields[4]) > 0
                    ):
                        return f"process {fields[4]} on this machine"
        return "another process, not visible from here,"


class _LocalFile:
    """A descriptor for writing that asks for early writeback, so that the fsync at the end finds little to do."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._written = 0

    def write(self, data: memoryview) -> int:
        count = os.write(self._descriptor, data)
        if count >= _EARLY_WRITEBACK_BYTES:
            self._start_writeback(count)
        self._written += count
        return count

    def _start_writeback(self, count: int) -> None:
        sync_file_range = _c_function("sync_file_range")
        if sync_file_range is not None:
            # A hint: its errors are not lost, fsync reports them.
            sync_file_range(
                self._descriptor,
                ctypes.c_int64(self._written),
                ctypes.c_int64(count),
                ctypes.c_uint(_SYNC_FILE_RANGE_WRITE),
            )

    def fsync(self) -> None:
        os.fsync(self._descriptor)

    def close(self) -> None:
        # Forgotten before closing: after an error the number may already belong to another file.
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


@functools.cache
def _c_function(name: str) -> Callable[..., int] | None:
    """Find a function of the C library that Python does not wrap; `None` where there is none."""
    try:
        function: Callable[..., int] = getattr(ctypes.CDLL(None, use_errno=True), name)
    except (OSError, AttributeError):
        return None
    return function
