"""Files that are not what they should be: missing, extra, of another kind, cut short, or with one bit turned."""

import os
import random
import socket

import pytest

from segue._store.layout import CHECKPOINT_FILES
from segue._store.store import DirectoryStore
from segue.errors import (
    CheckpointNotFound,
    CorruptCheckpoint,
    IncompleteCheckpoint,
    StoreError,
    UnsafeCheckpoint,
    UnsupportedFormat,
)
from tests._store.records import record
from tests.hostile.lies import lie, read_all, refused


def test_an_honest_checkpoint_is_read(checkpoint):
    read_all(checkpoint)


def test_a_copied_and_a_moved_checkpoint_is_read(checkpoint, tmp_path):
    os.rename(checkpoint, tmp_path / "elsewhere")
    read_all(tmp_path / "elsewhere")


@pytest.mark.parametrize("name", CHECKPOINT_FILES)
def test_a_missing_file_is_incomplete(checkpoint, name):
    os.unlink(checkpoint / name)
    refused(checkpoint, IncompleteCheckpoint, entry=name)


@pytest.mark.parametrize("name", ["optimizer.pt", ".hidden", "Manifest.json", "model.safetensors.bak", "é"])
def test_an_extra_name_is_unsafe(checkpoint, name):
    (checkpoint / name).write_bytes(b"\x80\x04.")
    refused(checkpoint, UnsafeCheckpoint)


def test_a_file_kept_by_the_filesystem_itself_is_ignored(checkpoint):
    (checkpoint / ".nfs00a1").write_bytes(b"")
    read_all(checkpoint)


def _symlink(path):
    os.rename(path, path.parent.parent / "target")
    os.symlink(path.parent.parent / "target", path)


def _dangling(path):
    os.unlink(path)
    os.symlink("nowhere", path)


def _fifo(path):
    os.unlink(path)
    os.mkfifo(path)


def _directory(path):
    os.unlink(path)
    os.mkdir(path)


def _socket(path):
    os.unlink(path)
    here = os.getcwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def _device(path):
    os.unlink(path)
    try:
        os.mknod(path, 0o600 | 0o020000, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("no rights to make a device")


@pytest.mark.timeout(10)
@pytest.mark.parametrize("replace", [_symlink, _dangling, _fifo, _directory, _socket, _device])
@pytest.mark.parametrize("name", CHECKPOINT_FILES)
def test_something_else_in_place_of_a_file_is_unsafe_and_never_hangs(checkpoint, name, replace):
    replace(checkpoint / name)
    refused(checkpoint, UnsafeCheckpoint, entry=name)


def test_a_hard_link_is_read_and_left_alone(checkpoint, tmp_path):
    os.link(checkpoint / "state.json", tmp_path / "secret")
    read_all(checkpoint)


@pytest.mark.parametrize("name", CHECKPOINT_FILES)
def test_a_file_of_any_other_length_is_refused(checkpoint, name):
    data = (checkpoint / name).read_bytes()
    lengths = {0, 1, 7, 8, 9, 63, 64, 79, len(data) // 2, len(data) - 1, len(data) - 64}
    for length in sorted(length for length in lengths if 0 <= length < len(data)):
        (checkpoint / name).write_bytes(data[:length])
        refused(checkpoint, CorruptCheckpoint)
    for more in (b"\0", b"\n", b"PK\x05\x06" + bytes(18)):
        (checkpoint / name).write_bytes(data + more)
        refused(checkpoint, CorruptCheckpoint)


def _refused_bit(path, data, bit):
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << bit % 8
    with open(path, "r+b") as file:
        file.write(damaged)
    with pytest.raises(StoreError):
        read_all(path.parent)


@pytest.mark.parametrize("name", CHECKPOINT_FILES)
def test_a_turned_bit_is_refused(checkpoint, name):
    data = (checkpoint / name).read_bytes()
    generator = random.Random(name)
    for _ in range(60):
        _refused_bit(checkpoint / name, data, generator.randrange(8 * len(data)))


@pytest.mark.crash
@pytest.mark.parametrize("name", CHECKPOINT_FILES)
def test_every_turned_byte_is_refused(checkpoint, name):
    data = (checkpoint / name).read_bytes()
    for position in range(len(data)):
        _refused_bit(checkpoint / name, data, 8 * position + position % 8)


@pytest.mark.crash
@pytest.mark.parametrize("name", CHECKPOINT_FILES)
def test_every_shorter_length_is_refused(checkpoint, name):
    data = (checkpoint / name).read_bytes()
    for length in range(len(data)):
        (checkpoint / name).write_bytes(data[:length])
        with pytest.raises(StoreError):
            read_all(checkpoint)


def test_huge_files_are_refused_before_they_are_read(checkpoint):
    for name in ("commit", "manifest.json"):
        os.truncate(checkpoint / name, 2**30)
        refused(checkpoint, CorruptCheckpoint, match="too large" if name == "commit" else None)


def test_a_folder_of_pickles_is_refused(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02c__builtin__\neval\n.")
    refused(tmp_path, IncompleteCheckpoint)


def test_no_folder_or_a_file_is_told_apart(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(CheckpointNotFound):
        read_all(tmp_path / "nothing")
    with pytest.raises(CorruptCheckpoint, match="empty"):
        read_all(tmp_path / "file")
    (tmp_path / "file").write_bytes(b"PK\x03\x04" + bytes(3000))
    with pytest.raises(UnsupportedFormat, match="not a checkpoint"):
        read_all(tmp_path / "file")


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "run"
    with DirectoryStore(path) as store:
        store.put(record(1))
    return DirectoryStore(path)


def test_a_checkpoint_of_another_run_is_unsafe(run, honest, tmp_path):
    with DirectoryStore(tmp_path / "other") as other:
        other.put(record(2))
    os.rename(tmp_path / "other" / "ckpt-000000001", tmp_path / "run" / "ckpt-000000002")
    lie(tmp_path / "run" / "ckpt-000000002", lambda document: document.update(seq=2))
    with pytest.raises(UnsafeCheckpoint, match="belongs to another run"):
        run.open(run.candidates()[0])


def test_a_renamed_copy_is_corrupt(run):
    os.rename(run.candidates()[0].path, os.path.join(run.path, "ckpt-000000009"))
    with pytest.raises(CorruptCheckpoint, match="renamed copy"):
        run.open(run.candidates()[0])


def test_a_linked_checkpoint_folder_is_unsafe(run, tmp_path):
    os.rename(run.candidates()[0].path, tmp_path / "real")
    os.symlink(tmp_path / "real", os.path.join(run.path, "ckpt-000000001"))
    with pytest.raises(UnsafeCheckpoint, match="not a folder"):
        run.open(run.candidates()[0])


def test_a_run_without_its_file_is_incomplete(run):
    os.unlink(os.path.join(run.path, "run.json"))
    with pytest.raises(IncompleteCheckpoint, match=r"run\.json"):
        run.open(run.candidates()[0])
    with pytest.raises(IncompleteCheckpoint, match=r"run\.json"):
        run.acquire()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"format": "segue run", "version": 1, "run": "../x"}', "\0" * 5000]
)
def test_a_damaged_run_file_is_refused(run, text):
    with open(os.path.join(run.path, "run.json"), "w") as file:
        file.write(text)
    with pytest.raises(StoreError, match=r"run\.json"):
        run.open(run.candidates()[0])


def test_planted_litter_is_swept_without_following_links(run, tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("keep")
    planted = os.path.join(run.path, ".tmp-000000002.feed")
    os.mkdir(planted)
    os.symlink(precious, os.path.join(planted, "link"))
    os.symlink(precious, os.path.join(run.path, ".trash-000000003.feed"))
    with run:
        pass
    assert sorted(os.listdir(run.path)) == ["ckpt-000000001", "run.json"]
    assert (precious / "file").read_text() == "keep"


def test_bytes_that_change_after_opening_are_never_delivered(checkpoint):
    from segue._store.archive import open_checkpoint

    with open_checkpoint(checkpoint) as opened:
        record = opened.record()
        with open(checkpoint / "model.safetensors", "r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"\x55")
        with pytest.raises(CorruptCheckpoint, match="model/tensors/bias"):
            record.model.tensors["bias"].to_host()
        os.truncate(checkpoint / "model.safetensors", 200)
        with pytest.raises(CorruptCheckpoint, match="ends too early"):
            record.model.tensors["weight"].source.verify()
