"""What a run looks like from outside after an accident."""

import os
import warnings
from pathlib import Path

from segue._record.digest import digests
from segue._store.file_store import FileStore
from segue._store.store import DirectoryStore
from segue.errors import StoreError
from tests._store.records import record

OLD, NEW, NEXT = record(1), record(2), record(3)
NAMES = {str(digests(value)): name for name, value in (("old", OLD), ("new", NEW), ("next", NEXT))}


def store_at(path, **options):
    """The store of a run that is a folder, or a file with the usual suffix."""
    return (FileStore if str(path).endswith(".segue") else DirectoryStore)(path, **options)


def newest(path) -> str:
    """Tell which record the newest checkpoint is that verifies: `old`, `new`, `next`, or `nothing`."""
    store = store_at(path)
    for candidate in store.candidates():
        try:
            with store.open(candidate) as checkpoint:
                checkpoint.verify()
                return NAMES.get(str(digests(checkpoint.record())), "a third thing")
        except StoreError:
            continue
    return "nothing"


def saves_again(path) -> None:
    """Check that the next writer needs no repair: it sweeps, saves, and is then the newest."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with store_at(path, lock_timeout_seconds=5) as store:
            store.put(NEXT)
    assert newest(path) == "next"
    assert litter(path) == []


def litter(path) -> list[str]:
    """What is left of attempts, and of locks."""
    folder = path if os.path.isdir(path) else Path(path).parent
    return sorted(name for name in os.listdir(folder) if name.startswith("."))


def save_and_prune(path, filesystem) -> bool:
    """Save the new record over the old one, as a checkpointer does; return True once the save was acknowledged."""
    store = store_at(path, filesystem=filesystem, lock_timeout_seconds=0)
    try:
        store.acquire()
        store.put(NEW)
        acknowledged = True
        for candidate in store.candidates()[1:]:
            store.remove(candidate)
    finally:
        store.release()
    return acknowledged
