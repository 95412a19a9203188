"""A filesystem that fails, or dies, at its Nth operation; and one that writes down what it was asked to do."""

import errno
import os
import signal
from dataclasses import dataclass, field

from segue._store.local import LocalFilesystem

OPERATIONS = (
    "open_directory", "make_directory", "fsync_directory", "list_names", "lstat", "create_file", "rename_noreplace",
    "rename_replace", "unlink", "remove_directory", "open_file", "stat", "read_at", "close", "free_bytes", "lock", "unlock",
    "lock_holder",
)  # fmt: skip


@dataclass
class Fault:
    """What happens at which operation; `how` is one of `HOWS`."""

    at: int
    how: str
    errno: int = errno.EIO
    sticky: bool = False
    hit: list[str] = field(default_factory=list)


HOWS = ("before", "after", "half", "kill before", "kill after", "kill half")


class FaultyFilesystem:
    """Counts every operation of the seam, writes and fsyncs of files included, and misbehaves at one of them."""

    def __init__(self, fault: Fault | None = None) -> None:
        self.inner = LocalFilesystem()
        self.fault = fault
        self.count = 0
        self.trace: list[str] = []

    def __getattr__(self, name):
        if name not in OPERATIONS:
            raise AttributeError(name)
        inner = getattr(self.inner, name)

        def operation(*args, **options):
            return self.perform(name, inner, args, options)

        return operation

    def create_file(self, name, within):
        return _FaultyFile(self, self.perform("create_file", self.inner.create_file, (name, within), {}))

    def perform(self, name, inner, args, options=None):
        self.count += 1
        self.trace.append(name)
        fault = self.fault
        if fault is None or not (self.count == fault.at or (fault.sticky and self.count > fault.at)):
            return inner(*args, **(options or {}))
        fault.hit.append(name)
        if fault.how in ("half", "kill half"):
            if name != "write":
                return inner(*args, **(options or {}))
            result = inner(args[0][: max(1, len(args[0]) // 2)])
            if fault.how == "kill half":
                os.kill(os.getpid(), signal.SIGKILL)
            return result
        if fault.how == "kill before":
            os.kill(os.getpid(), signal.SIGKILL)
        # Linux releases a descriptor even where close reports an error.
        if fault.how in ("after", "kill after") or name in ("close", "close_file"):
            inner(*args, **(options or {}))
        if fault.how == "kill after":
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(fault.errno, os.strerror(fault.errno))


class _FaultyFile:
    def __init__(self, filesystem, inner):
        self.filesystem, self.inner = filesystem, inner

    def write(self, data):
        return self.filesystem.perform("write", self.inner.write, (data,))

    def fsync(self):
        self.filesystem.perform("fsync", self.inner.fsync, ())

    def close(self):
        self.filesystem.perform("close_file", self.inner.close, ())
