"""Stores without a disk: a run in this process's memory, and one checkpoint as bytes."""

from __future__ import annotations

import itertools

from segue._record.training import TrainingRecord
from segue._store.commit_file import commit_file
from segue._store.contents import lay_out
from segue._store.file_reader import open_file
from segue._store.file_store import FileStore
from segue._store.folder import opened_folder
from segue._store.memory import PROCESS_MEMORY, MemoryFilesystem
from segue._store.place import Identity, Place, new_attempt
from segue._store.reader import StoredCheckpoint
from segue._store.store import DirectoryStore
from segue._store.url import memory_path

_numbers = itertools.count(1)
_ROOT = "bytes:"
_NAME = "checkpoint"


class MemoryStore(DirectoryStore):
    """A run in the memory of this process, with all its checkpoints; lost with the process.

    It is written and read like a folder: what is read shares nothing with what was put, and every byte is verified.

    Args:
        url: `memory://` and a name: every store of that name in this process is of one run.

    Raises:
        StoreUnavailable: If the URL is of another kind.

    Guarantees:
        As for a folder, but for what ends the process. A forked child has a copy of its own from then on.

    Cost:
        The bytes of each checkpoint, until it is removed: also after the store is dropped.
    """

    def __init__(self, url: str, *, lock_timeout_seconds: float = 30.0) -> None:
        super().__init__(
            memory_path(url), filesystem=PROCESS_MEMORY, lock_timeout_seconds=lock_timeout_seconds
        )


class BytesStore(FileStore):
    """A run as bytes: its newest checkpoint, as `to_bytes` makes it, to be sent or kept by the caller.

    Args:
        data: The bytes of an earlier `BytesStore` to go on from; `None` for a new run.

    Guarantees:
        As for a file, but that nothing outlives the process.
    """

    def __init__(self, data: bytes | None = None) -> None:
        self._memory = MemoryFilesystem()
        # A path of its own, since that is how two runs are told apart.
        path = f"{_ROOT}//{next(_numbers)}"
        if data is not None:
            self._memory.place(path, _bytes_of(data))
        super().__init__(path, filesystem=self._memory, lock_timeout_seconds=0.0)

    @property
    def data(self) -> bytes | None:
        """The newest checkpoint; `None` before the first."""
        return self._memory.contents(self.path)


def to_bytes(record: TrainingRecord) -> bytes:
    """Make the bytes of a single file that belongs to no run.

    Raises:
        InvalidRecord: If the record holds what the format cannot.
    """
    memory = MemoryFilesystem()
    place = Place(memory, memory.open_directory(_ROOT), _ROOT)
    commit_file(place, lay_out(record), Identity(_NAME, 0, None, new_attempt()), replace=False)
    data = memory.contents(_NAME)
    assert data is not None, "committed"
    return data


def open_bytes(data: bytes) -> StoredCheckpoint:
    """Open what `to_bytes` made; the bytes are kept, and read when they are needed.

    Raises:
        StoreError: As `file_reader.open_file` does.
    """
    memory = MemoryFilesystem()
    memory.place(_NAME, _bytes_of(data))
    with opened_folder(memory, _ROOT, _ROOT, None) as folder:
        return open_file(folder, _NAME)


def _bytes_of(data: bytes) -> bytes:
    """Return bytes that nobody can change; of a number `bytes` would make as many zeros."""
    if not isinstance(data, bytes | bytearray | memoryview):
        raise TypeError(f"a checkpoint is made of bytes, not of {type(data).__name__}")
    return bytes(data)
