"""A run in one file, beyond what every store does: what it never replaces, its lock, and its litter."""

import errno
import os
import signal
import time

import pytest

from segue._record.digest import digests
from segue._store.archive import write_checkpoint
from segue._store.file_store import FileStore
from segue._store.local import LocalFilesystem
from segue.errors import (
    CorruptCheckpoint,
    StoreUnavailable,
    StoreWarning,
    UnsafeCheckpoint,
    UnsupportedFormat,
)
from tests._store.records import record


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.segue"


def test_nothing_but_the_file_is_left_behind(path):
    with FileStore(path) as store:
        store.put(record(1))
        assert sorted(os.listdir(path.parent)) == [".a.segue.lock", "a.segue"]
    assert os.listdir(path.parent) == ["a.segue"]


def test_nothing_is_made_by_looking(tmp_path):
    store = FileStore(tmp_path / "deep" / "a.segue")
    assert store.candidates() == []
    assert os.listdir(tmp_path) == []


def test_the_run_keeps_its_id(path):
    found = []
    for step in (1, 2):
        with FileStore(path) as store:
            store.put(record(step))
            with store.open(store.candidates()[0]) as checkpoint:
                found.append(checkpoint.manifest.run)
    assert found[0] == found[1] is not None


FOREIGN = {
    "an export": (lambda path: write_checkpoint(record(9), path), UnsafeCheckpoint),
    "another file": (lambda path: path.write_bytes(b"PK\3\4" + bytes(2000)), UnsupportedFormat),
    "an empty file": (lambda path: path.touch(), CorruptCheckpoint),
    "a folder": (lambda path: path.mkdir(), UnsafeCheckpoint),
    "a link": (lambda path: path.symlink_to("b.segue"), UnsafeCheckpoint),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_what_is_not_of_this_run_is_a_candidate_and_is_never_replaced(what, path):
    make, error = FOREIGN[what]
    make(path)
    before = path.lstat()
    with FileStore(path) as store:
        [candidate] = store.candidates()
        with pytest.raises(error):
            store.open(candidate)
        with pytest.raises(error):
            store.put(record(1))
    after = path.lstat()
    assert (after.st_ino, after.st_mtime_ns, after.st_size) == (
        before.st_ino,
        before.st_mtime_ns,
        before.st_size,
    )
    assert os.listdir(path.parent) == ["a.segue"]


def test_a_file_of_another_run_is_not_replaced(path, tmp_path):
    with FileStore(tmp_path / "b.segue") as other:
        other.put(record(2))
    with FileStore(path) as store:
        store.put(record(1))
        os.replace(tmp_path / "b.segue", path)
        with pytest.raises(UnsafeCheckpoint, match="another run"):
            store.put(record(3))
    [candidate] = FileStore(path).candidates()
    assert digests(FileStore(path).open(candidate).record()) == digests(record(2))


def test_numbers_grow_even_where_the_file_was_deleted(path):
    with FileStore(path) as store:
        assert store.put(record(1)).seq == 1
        path.unlink()
        assert store.put(record(2)).seq == 2


def test_files_in_one_folder_have_writers_of_their_own(tmp_path):
    with (
        FileStore(tmp_path / "a.segue", lock_timeout_seconds=0) as first,
        FileStore(tmp_path / "b.segue", lock_timeout_seconds=0) as second,
    ):
        (tmp_path / ".b.segue.tmp-feed").touch()
        first.put(record(1))
        second.put(record(2))
    FileStore(tmp_path / "a.segue").acquire()
    assert (tmp_path / ".b.segue.tmp-feed").exists()


def test_what_a_dead_writer_left_is_swept_and_nothing_else(path):
    for name in (
        ".a.segue.tmp-0123abc",
        ".a.segue.tmp-Not.ours",
        ".aa.segue.tmp-0123abc",
        "a.segue.tmp-0123abc",
    ):
        (path.parent / name).touch()
    FileStore(path).acquire()
    assert sorted(os.listdir(path.parent)) == [
        ".a.segue.lock", ".a.segue.tmp-Not.ours", ".aa.segue.tmp-0123abc", "a.segue.tmp-0123abc",
    ]  # fmt: skip


def test_litter_that_cannot_be_removed_warns_and_stays(path):
    (path.parent / ".a.segue.tmp-0123abc").mkdir()
    with pytest.warns(StoreWarning, match="could not remove"):
        FileStore(path).acquire()


def test_a_killed_writer_frees_the_lock(path):
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        FileStore(path).acquire()
        os.write(tell, b"x")
        time.sleep(60)
    os.read(ready, 1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert os.listdir(path.parent) == [".a.segue.lock"]
    with FileStore(path, lock_timeout_seconds=0.5) as store:
        store.put(record(1))
    assert os.listdir(path.parent) == ["a.segue"]


def test_a_writer_that_waited_does_not_take_a_lock_that_was_removed(path):
    class Slow(LocalFilesystem):
        """Its holder goes away between opening the folder and locking it, and another comes."""

        first, others = None, []

        def lock(self, directory):
            if self.first is not None:
                first, self.first = self.first, None
                first.release()
                self.others.append(FileStore(path))
                self.others[0].acquire()
                self.others[0].release()
            super().lock(directory)

    filesystem = Slow()
    filesystem.first = FileStore(path)
    filesystem.first.acquire()
    with (
        FileStore(path, filesystem=filesystem, lock_timeout_seconds=0),
        pytest.raises(Exception, match="is writing"),
    ):
        FileStore(path, lock_timeout_seconds=0).acquire()


class Unlockable(LocalFilesystem):
    def lock(self, directory):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


def test_a_filesystem_that_cannot_lock_warns_and_removes_nothing(path):
    (path.parent / ".a.segue.tmp-0123abc").touch()
    store = FileStore(path, filesystem=Unlockable())
    with pytest.warns(StoreWarning, match=r"cannot lock.*would replace"):
        store.acquire()
    store.put(record(1))
    [candidate] = store.candidates()
    store.remove(candidate)
    store.release()
    assert store.candidates() == [candidate]
    assert (path.parent / ".a.segue.tmp-0123abc").exists()


def test_a_removal_that_fails_warns(path):
    class Stuck(LocalFilesystem):
        def unlink(self, name, within):
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    with FileStore(path, filesystem=Stuck()) as store:
        store.put(record(1))
        with pytest.warns(StoreWarning, match="could not remove"):
            store.remove(store.candidates()[0])
    assert path.exists()


def test_a_damaged_file_can_be_removed_by_hand(path):
    path.write_bytes(b"garbage")
    with FileStore(path) as store:
        store.remove(store.candidates()[0])
        assert store.candidates() == []
        assert store.put(record(1)).seq == 1


def test_a_rename_whose_reply_was_lost_is_a_success(path):
    class Lossy(LocalFilesystem):
        def rename_replace(self, old, new, within):
            super().rename_replace(old, new, within)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with FileStore(path, filesystem=Lossy()) as store:
        assert store.put(record(1)).seq == 1
        assert store.put(record(2)).seq == 2


def test_a_folder_that_is_gone_is_no_missing_checkpoint(tmp_path):
    store = FileStore(tmp_path / "a" / "b.segue")
    with store:
        os.rmdir(tmp_path / "a" / ".b.segue.lock")
        os.rmdir(tmp_path / "a")
        with pytest.raises(StoreUnavailable, match="the folder of this run is gone"):
            store.put(record(1))
