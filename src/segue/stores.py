"""Places of checkpoints: a folder, one file, memory, bytes; and the protocol for places of your own.

A URL is enough for the usual ones: `Checkpointer(training, "runs/a")`, `"runs/a.segue"`, `"memory://a"`.
"""

from segue._store.file_store import FileStore
from segue._store.in_memory import BytesStore, MemoryStore
from segue._store.opening import store_at
from segue._store.protocol import OpenCheckpoint, Store
from segue._store.reader import CheckpointInfo
from segue._store.scan import Candidate
from segue._store.store import DirectoryStore
from segue._store.url import forget

__all__ = [
    "BytesStore",
    "Candidate",
    "CheckpointInfo",
    "DirectoryStore",
    "FileStore",
    "MemoryStore",
    "OpenCheckpoint",
    "Store",
    "forget",
    "store_at",
]
