"""A run: numbers, order, names, litter, and what readers may do without the lock."""

import os

import pytest

from segue._record.digest import digests
from segue._store.local import LocalFilesystem
from segue._store.store import DirectoryStore
from segue.errors import CheckpointNotFound, StoreError, StoreWarning
from tests._store.records import record


@pytest.fixture
def store(tmp_path):
    with DirectoryStore(tmp_path / "run") as store:
        yield store


def test_a_new_run_has_no_candidates(tmp_path):
    assert DirectoryStore(tmp_path / "nowhere").candidates() == []
    assert os.listdir(tmp_path) == []


def test_numbers_count_up_from_one_and_newest_comes_first(store):
    infos = [store.put(record(seed)) for seed in range(3)]
    assert [info.seq for info in infos] == [1, 2, 3]
    assert [candidate.seq for candidate in store.candidates()] == [3, 2, 1]
    assert digests(store.open(store.candidates()[0]).record()) == digests(record(2))


def test_a_number_is_taken_from_names_and_not_from_time(store):
    os.mkdir(os.path.join(store.path, "ckpt-000000041"))
    assert store.put(record(1)).seq == 42


def test_numbers_grow_beyond_nine_digits(store):
    os.mkdir(os.path.join(store.path, "ckpt-999999999"))
    assert store.put(record(1)).seq == 10**9
    assert store.open(store.candidates()[0]).info.seq == 10**9


def test_a_summary_is_what_put_returned(store):
    info = store.put(record(3))
    assert store.summary(store.candidates()[0]) == info == store.open(store.candidates()[0]).info
    assert (info.step, info.microbatch) == (3, 24)
    files = (os.path.join(info.path, name) for name in os.listdir(info.path))
    assert info.num_bytes == sum(os.path.getsize(file) for file in files)


def test_names_that_segue_does_not_make_are_left_out(store):
    for name in (
        "ckpt-1",
        "ckpt-000000001.bak",
        "ckpt-0000000001",
        ".tmp-000000001.a",
        ".trash-000000001.a",
        "notes",
    ):
        os.mkdir(os.path.join(store.path, name))
    assert store.candidates() == []


def test_the_run_keeps_its_id(store, tmp_path):
    first = store.run_id
    store.release()
    with DirectoryStore(tmp_path / "run") as again:
        assert again.run_id == first


def test_a_relative_path_is_meant_from_where_the_store_was_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = DirectoryStore("run")
    monkeypatch.chdir("/")
    with store:
        store.put(record(1))
    assert (tmp_path / "run" / "ckpt-000000001").is_dir()


def test_writing_needs_the_lock(tmp_path):
    store = DirectoryStore(tmp_path)
    with pytest.raises(StoreError, match="acquire"):
        store.put(record(1))
    with pytest.raises(StoreError, match="acquire"):
        _ = store.run_id


def test_a_removed_checkpoint_is_gone(store):
    store.put(record(1))
    [candidate] = store.candidates()
    store.remove(candidate)
    assert os.listdir(store.path) == ["run.json"]
    with pytest.raises(CheckpointNotFound):
        store.open(candidate)


def test_a_removal_that_fails_warns(store):
    store.put(record(1))
    [candidate] = store.candidates()
    os.mkdir(os.path.join(candidate.path, "foreign"))
    with pytest.warns(StoreWarning, match="could not remove"):
        store.remove(candidate)
    assert store.candidates() == []


def test_litter_that_cannot_be_removed_warns_and_stays(tmp_path):
    os.makedirs(tmp_path / ".tmp-000000001.feed" / "foreign")
    with pytest.warns(StoreWarning, match="could not remove"):
        DirectoryStore(tmp_path).acquire()


def test_unknown_names_are_never_touched(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / ".tmp-NOTES").write_text("mine")
    with DirectoryStore(tmp_path) as store:
        store.put(record(1))
    assert (tmp_path / "notes.txt").exists()
    assert (tmp_path / ".tmp-NOTES").exists()


class NoExclusiveRename(LocalFilesystem):
    def rename_noreplace(self, old, new, within):
        self._rename_or_refuse(old, new, within)


def test_renaming_without_the_exclusive_form_never_replaces(tmp_path):
    filesystem = NoExclusiveRename()
    with DirectoryStore(tmp_path, filesystem=filesystem) as store:
        store.put(record(1))
        assert store.put(record(2)).seq == 2
    root = filesystem.open_directory(str(tmp_path))
    for taken in ("ckpt-000000002", "run.json"):
        with pytest.raises(FileExistsError):
            filesystem.rename_noreplace("ckpt-000000001", taken, root)
    os.close(root)
