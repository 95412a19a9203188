"""Memory behaves as a disk does, as far as a store can tell."""

import copy
import os
import pickle

import pytest

from segue._record.digest import digests
from segue._store.archive import open_checkpoint, write_checkpoint
from segue._store.in_memory import BytesStore, MemoryStore, open_bytes, to_bytes
from segue._store.local import LocalFilesystem
from segue._store.memory import MemoryFilesystem
from segue._store.store import DirectoryStore
from segue._store.url import forget, path_of
from segue.errors import CheckpointExists, CheckpointNotFound, CorruptCheckpoint, StoreUnavailable
from tests._store.records import record


@pytest.fixture
def name(tmp_path):
    name = f"memory:/{tmp_path}"
    yield name
    forget(name)


STEPS = {
    "a taken folder": lambda fs, root: fs.make_directory("full", root),
    "a missing folder": lambda fs, root: fs.open_directory("none", root),
    "a file as a folder": lambda fs, root: fs.open_directory("file", root),
    "a taken file": lambda fs, root: fs.create_file("file", root),
    "a file in a closed folder": lambda fs, root: fs.create_file("x", closed(fs, root)),
    "a taken name": lambda fs, root: fs.rename_noreplace("file", "full", root),
    "a missing name": lambda fs, root: fs.rename_noreplace("none", "x", root),
    "a file over a folder": lambda fs, root: fs.rename_replace("file", "full", root),
    "a folder unlinked": lambda fs, root: fs.unlink("full", root),
    "a missing file unlinked": lambda fs, root: fs.unlink("none", root),
    "a full folder removed": lambda fs, root: fs.remove_directory("full", root),
    "a file removed as a folder": lambda fs, root: fs.remove_directory("file", root),
    "a missing file": lambda fs, root: fs.open_file("none", root),
    "a missing name described": lambda fs, root: fs.lstat("none", root),
    "something closed": lambda fs, root: fs.stat(closed(fs, root)),
    "something closed again": lambda fs, root: fs.close(closed(fs, root)),
    "a folder read": lambda fs, root: fs.read_at(
        fs.open_directory("full", root), memoryview(bytearray(1)), 0
    ),
    "a lock that another has": lambda fs, root: (
        fs.lock(fs.open_directory("full", root)),
        fs.lock(fs.open_directory("full", root)),
    ),
    "a file listed": lambda fs, root: fs.list_names(fs.open_file("file", root)),
    "a path through a file": lambda fs, root: fs.open_directory(f"{root_path(fs)}/file/x"),
    "a file in a folder that was removed": lambda fs, root: fs.create_file("x", removed(fs, root)),
    "a folder in one that was removed": lambda fs, root: fs.make_directory("x", removed(fs, root)),
    "a path through nothing": lambda fs, root: fs.make_directory(f"{root_path(fs)}/none/x"),
}
paths = {}


def root_path(fs):
    return paths[id(fs)]


def removed(fs, root):
    fs.make_directory("short", root)
    descriptor = fs.open_directory("short", root)
    fs.remove_directory("short", root)
    return descriptor


def closed(fs, root):
    descriptor = fs.open_directory("full", root)
    fs.close(descriptor)
    return descriptor


def prepared(fs, path):
    paths[id(fs)] = path
    root = fs.open_directory(path)
    fs.make_directory("full", root)
    inner = fs.open_directory("full", root)
    for folder, file in ((root, "file"), (inner, "inner")):
        made = fs.create_file(file, folder)
        assert made.write(memoryview(b"abc")) == 3
        made.fsync()
        made.close()
    fs.close(inner)
    return root


def outcome(fs, path, step):
    root = prepared(fs, path)
    opened = []
    try:
        step(fs, root)
    except OSError as error:
        opened = [error.errno]
    return opened, sorted(fs.list_names(root))


@pytest.mark.parametrize("step", STEPS)
def test_what_a_disk_refuses_memory_refuses_with_the_same_errno(step, tmp_path):
    expected = outcome(LocalFilesystem(), str(tmp_path), STEPS[step])
    assert expected[0], "nothing was refused"
    assert outcome(MemoryFilesystem(), "/", STEPS[step]) == expected


def test_a_file_is_readable_after_its_name_is_gone():
    fs = MemoryFilesystem()
    root = prepared(fs, "/")
    file = fs.open_file("file", root)
    fs.unlink("file", root)
    target = bytearray(5)
    assert fs.read_at(file, memoryview(target), 1) == 2
    assert bytes(target) == b"bc\0\0\0"


def test_a_lock_goes_with_its_descriptor():
    fs = MemoryFilesystem()
    root = prepared(fs, "/")
    first, second = (fs.open_directory("full", root) for _ in range(2))
    fs.lock(first)
    fs.lock(first)
    fs.unlock(second)
    with pytest.raises(BlockingIOError):
        fs.lock(second)
    fs.close(first)
    fs.lock(second)


def test_a_name_is_one_run_in_this_process(name):
    with MemoryStore(name) as store:
        store.put(record(1))
    [candidate] = DirectoryStore(name).candidates()
    assert candidate.path == f"{path_of(name)}/ckpt-000000001"
    assert digests(open_checkpoint(candidate.path).verify()) == digests(record(1))


@pytest.mark.parametrize("last", ["export", "export.segue"])
def test_an_export_has_a_url(name, last):
    info = write_checkpoint(record(1), f"{name}/deep/{last}")
    assert info.path == f"{path_of(name)}/deep/{last}"
    with open_checkpoint(info.path) as checkpoint:
        assert checkpoint.info == info
        assert digests(checkpoint.verify()) == digests(record(1))
    with pytest.raises(CheckpointExists):
        write_checkpoint(record(2), info.path)


def test_what_is_forgotten_is_gone_and_what_was_read_stays(name):
    info = write_checkpoint(record(1), f"{name}/export")
    found = open_checkpoint(info.path).record()
    assert forget(name)
    assert not forget(name)
    with pytest.raises(CheckpointNotFound):
        open_checkpoint(info.path)
    assert digests(found) == digests(record(1))


def test_a_run_that_was_forgotten_takes_no_more(name):
    """Else a save would succeed where nobody can ever find it."""
    with MemoryStore(f"{name}/deep") as store:
        store.put(record(1))
        assert forget(name)
        with pytest.raises(StoreUnavailable):
            store.put(record(2))
        assert store.candidates() == []
    with MemoryStore(f"{name}/deep") as store:
        assert store.put(record(3)).seq == 1


def test_only_memory_is_forgotten(tmp_path):
    with pytest.raises(StoreUnavailable, match="not a place in memory"):
        forget(tmp_path)
    assert tmp_path.exists()


@pytest.mark.parametrize("url", ["memory://", "memory:///", "memory://a/../b", "memory://./a"])
def test_a_place_in_memory_needs_a_name(url):
    with pytest.raises(StoreUnavailable, match=r"store\.url"):
        path_of(url)


def test_one_place_is_written_in_one_way():
    assert path_of("memory://a//b/") == "memory://a/b"


def test_a_child_has_a_copy_of_its_own(name):
    with MemoryStore(name) as store:
        store.put(record(1))
        child = os.fork()
        if child == 0:
            status = 1
            try:
                with MemoryStore(name) as copy:
                    copy.put(record(2))
                    status = 0 if len(copy.candidates()) == 2 else 1
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert len(store.candidates()) == 1
        store.put(record(3))


def test_bytes_are_what_a_file_would_be(tmp_path):
    data = to_bytes(record(1))
    (tmp_path / "a.segue").write_bytes(data)
    assert digests(open_checkpoint(tmp_path / "a.segue").verify()) == digests(record(1))
    assert digests(open_bytes(data).verify()) == digests(record(1))


def test_bytes_that_change_later_change_no_record():
    data = bytearray(to_bytes(record(1)))
    found = open_bytes(data).record()
    data[:] = bytes(len(data))
    assert digests(found) == digests(record(1))


def test_damaged_bytes_are_told_by_name():
    data = bytearray(to_bytes(record(1)))
    position = data.index(b"model.safetensors") + 1024
    data[position] ^= 1
    with pytest.raises(CorruptCheckpoint, match=r"bytes://checkpoint"):
        open_bytes(bytes(data)).verify()


def test_bytes_go_on_elsewhere():
    first = BytesStore()
    assert first.data is None
    with first:
        first.put(record(1))
    second = BytesStore(first.data)
    with second:
        assert second.put(record(2)).seq == 2
    assert digests(open_bytes(second.data).record()) == digests(record(2))
    assert digests(open_bytes(first.data).record()) == digests(record(1))


@pytest.mark.parametrize("data", [None, "text", 5, [1, 2]])
def test_what_is_no_bytes_is_told_so(data):
    with pytest.raises(TypeError, match="made of bytes, not of"):
        open_bytes(data)
    if data is not None:
        with pytest.raises(TypeError, match="made of bytes, not of"):
            BytesStore(data)


def test_a_record_that_reads_stored_bytes_is_copied_and_never_pickled():
    found = open_bytes(to_bytes(record(1))).record()
    again = copy.deepcopy(found)
    assert digests(again) == digests(record(1))
    with pytest.raises(TypeError, match="to_bytes"):
        pickle.dumps(found)
    del again
    assert digests(found) == digests(record(1))
