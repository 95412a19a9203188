"""One writer at a time; a dead one never stands in the way, and its forked workers don't either."""

import errno
import os
import signal
import time

import pytest

from segue._store.local import LocalFilesystem
from segue._store.store import DirectoryStore
from segue.errors import RunLocked, StoreError, StoreWarning
from tests.crash.outcome import NEW, OLD, newest


def test_a_second_writer_is_refused_and_told_who_is_first(tmp_path):
    second = DirectoryStore(tmp_path, lock_timeout_seconds=0)
    told = pytest.raises(RunLocked, match=f"process {os.getpid()} on this machine")
    with DirectoryStore(tmp_path), told:
        second.acquire()
    second.acquire()


def test_a_second_writer_waits_for_the_first(tmp_path):
    first = DirectoryStore(tmp_path)
    first.acquire()
    child = os.fork()
    if child == 0:
        try:
            with DirectoryStore(tmp_path, lock_timeout_seconds=20) as second:
                second.put(NEW)
            os._exit(0)
        finally:
            os._exit(1)
    time.sleep(0.1)
    first.release()
    assert os.waitpid(child, 0)[1] == 0
    assert newest(tmp_path) == "new"


def test_readers_need_no_lock(tmp_path):
    with DirectoryStore(tmp_path) as store:
        store.put(OLD)
        assert newest(tmp_path) == "old"


def test_a_killed_writer_frees_the_lock_though_its_workers_live(tmp_path):
    ready, tell = os.pipe()
    trainer = os.fork()
    if trainer == 0:
        stores = [DirectoryStore(tmp_path), DirectoryStore(tmp_path / "other")]
        for store in stores:
            store.acquire()
        worker = os.fork()
        if worker == 0:
            time.sleep(60)
            os._exit(0)
        os.write(tell, str(worker).encode())
        time.sleep(60)
        os._exit(0)
    worker = int(os.read(ready, 20))
    os.kill(trainer, signal.SIGKILL)
    os.waitpid(trainer, 0)
    try:
        for path in (tmp_path, tmp_path / "other"):
            DirectoryStore(path, lock_timeout_seconds=0.5).acquire()
    finally:
        os.kill(worker, signal.SIGKILL)


def test_a_forked_child_cannot_write_and_leaves_the_parents_lock_alone(tmp_path):
    store = DirectoryStore(tmp_path)
    store.acquire()
    child = os.fork()
    if child == 0:
        try:
            store.put(NEW)
        except StoreError:
            store.release()
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    with pytest.raises(RunLocked):
        DirectoryStore(tmp_path, lock_timeout_seconds=0).acquire()
    store.put(NEW)
    assert newest(tmp_path) == "new"


class Unlockable(LocalFilesystem):
    def lock(self, directory):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


def test_a_filesystem_that_cannot_lock_warns_and_removes_nothing(tmp_path):
    (tmp_path / ".tmp-000000009.feed").mkdir()
    store = DirectoryStore(tmp_path, filesystem=Unlockable())
    with pytest.warns(StoreWarning, match="cannot lock"):
        store.acquire()
    store.put(OLD)
    store.put(NEW)
    store.remove(store.candidates()[1])
    assert len(store.candidates()) == 2
    assert (tmp_path / ".tmp-000000009.feed").exists()
    assert newest(tmp_path) == "new"


def test_two_writers_without_a_lock_never_lose_a_save(tmp_path):
    class Racing(Unlockable):
        """Lets the other writer take the name just before the rename."""

        rival = None

        def rename_noreplace(self, old, new, within):
            rival, self.rival = self.rival, None
            if rival is not None and new.startswith("ckpt-"):
                rival.put(OLD)
            super().rename_noreplace(old, new, within)

    filesystem = Racing()
    rival, store = (DirectoryStore(tmp_path, filesystem=given) for given in (Unlockable(), filesystem))
    for writer in (rival, store):
        with pytest.warns(StoreWarning, match="cannot lock"):
            writer.acquire()
    filesystem.rival = rival
    assert store.put(NEW).seq == 2
    assert [candidate.seq for candidate in store.candidates()] == [2, 1]
    assert newest(tmp_path) == "new"


def test_a_dropped_store_gives_its_lock_back(tmp_path):
    DirectoryStore(tmp_path).acquire()
    DirectoryStore(tmp_path, lock_timeout_seconds=0).acquire()
