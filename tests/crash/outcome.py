"""What a run looks like from outside after an accident."""

import os
import warnings

from segue._record.digest import digests
from segue._store.store import DirectoryStore
from segue.errors import StoreError
from tests._store.records import record

OLD, NEW, NEXT = record(1), record(2), record(3)
NAMES = {str(digests(value)): name for name, value in (("old", OLD), ("new", NEW), ("next", NEXT))}


def newest(path) -> str:
    """Tell which record the newest checkpoint is that verifies: `old`, `new`, `next`, or `nothing`."""
    store = DirectoryStore(path)
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
        with DirectoryStore(path, lock_timeout_seconds=5) as store:
            store.put(NEXT)
    assert newest(path) == "next"
    assert litter(path) == []


def litter(path) -> list[str]:
    return sorted(name for name in os.listdir(path) if name.startswith("."))


def save_and_prune(path, filesystem) -> bool:
    """Save the new record over the old one, as a checkpointer does; return True once the save was acknowledged."""
    store = DirectoryStore(path, filesystem=filesystem, lock_timeout_seconds=0)
    try:
        store.acquire()
        store.put(NEW)
        acknowledged = True
        for candidate in store.candidates()[1:]:
            store.remove(candidate)
    finally:
        store.release()
    return acknowledged
