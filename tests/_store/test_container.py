"""A checkpoint as one file: what it is to other programs, and its one form."""

import dataclasses
import io
import os
import subprocess
import tarfile

import pytest

from segue._record.digest import digests
from segue._record.tree import same
from segue._store.archive import open_checkpoint, write_checkpoint
from segue._store.container import Container, header
from segue._store.layout import CHECKPOINT_FILES
from segue._store.local import LocalFilesystem
from segue._store.stored_bytes import OpenFile
from segue.errors import CheckpointExists, CheckpointNotFound, UnsafeCheckpoint
from tests._store.records import record, second_version, tensor


@pytest.fixture
def file(tmp_path):
    write_checkpoint(record(1), tmp_path / "a.segue")
    return tmp_path / "a.segue"


@pytest.mark.parametrize("make", [record, second_version])
def test_everything_comes_back(make, tmp_path):
    write_checkpoint(make(1), tmp_path / "a.segue")
    found = open_checkpoint(tmp_path / "a.segue").verify()
    assert same(make(1).sections(), found.sections())
    assert digests(make(1)) == digests(found)


def test_tar_unpacks_it_to_a_folder_that_proves_itself(file, tmp_path):
    folder = tmp_path / "unpacked"
    folder.mkdir()
    done = subprocess.run(["tar", "xf", file, "-C", folder], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert subprocess.run(["sha256sum", "--quiet", "-c", "commit"], cwd=folder).returncode == 0
    assert sorted(os.listdir(folder)) == sorted(CHECKPOINT_FILES)
    assert digests(open_checkpoint(folder).verify()) == digests(record(1))


def test_it_is_what_the_standard_library_would_write(file):
    with tarfile.open(file) as archive:
        members = archive.getmembers()
        assert [member.name for member in members] == list(CHECKPOINT_FILES)
        again = io.BytesIO()
        for member in members:
            again.write(member.tobuf(tarfile.USTAR_FORMAT))
            again.write(archive.extractfile(member).read())
            again.write(bytes(-member.size % 512))
        again.write(bytes(1024))
    assert again.getvalue() == file.read_bytes()


@pytest.mark.parametrize("num_bytes", [0, 1, 511, 8**11 - 1, 8**11, 2**62])
def test_other_programs_read_the_same_from_a_header(num_bytes):
    member = tarfile.TarInfo.frombuf(header("model.safetensors", num_bytes), "utf-8", "strict")
    assert (member.name, member.size, member.mode) == ("model.safetensors", num_bytes, 0o644)
    assert member.isreg()


def test_files_beyond_what_octal_can_say_are_read(tmp_path):
    size = 8**11 + 5
    path = tmp_path / "sparse"
    with open(path, "wb") as file:
        file.write(header("large", size))
        file.seek(512 + size - 1)
        file.write(b"x")
        file.seek(512 + size + -size % 512)
        file.write(header("small", 3) + b"abc" + bytes(509) + bytes(1024))
    container = Container(OpenFile(LocalFilesystem(), os.open(path, os.O_RDONLY), str(path)))
    target = bytearray(9)
    large, small = (container.open_file(name, 0) for name in ("large", "small"))
    assert container.stat(large).st_size == size
    assert container.read_at(large, memoryview(target), size - 2) == 2
    assert target[:2] == b"\0x"
    assert container.read_at(small, memoryview(target), 1) == 2
    assert target[:2] == b"bc"
    assert container.read_at(small, memoryview(target), 3) == 0


def test_equal_records_give_equal_files(tmp_path):
    for name in ("a.segue", "b.segue"):
        write_checkpoint(record(1), tmp_path / name, new_attempt=lambda: "same")
    assert (tmp_path / "a.segue").read_bytes() == (tmp_path / "b.segue").read_bytes()


def test_its_size_is_that_of_the_file(file):
    with open_checkpoint(file) as checkpoint:
        assert checkpoint.info.num_bytes == os.path.getsize(file)


def test_a_record_keeps_the_file_open_and_only_that_long(file):
    before = len(os.listdir("/proc/self/fd"))
    found = open_checkpoint(file).record()
    assert len(os.listdir("/proc/self/fd")) == before + 1
    file.unlink()
    assert digests(found) == digests(record(1))
    del found
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_closed_checkpoint_has_no_file_open(file):
    before = len(os.listdir("/proc/self/fd"))
    checkpoint = open_checkpoint(file)
    checkpoint.close()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("taken", ["file", "folder", "link"])
def test_what_is_there_is_never_replaced(taken, tmp_path):
    path = tmp_path / "a.segue"
    if taken == "file":
        path.write_bytes(b"mine")
    elif taken == "folder":
        path.mkdir()
    else:
        path.symlink_to("nowhere")
    with pytest.raises(CheckpointExists):
        write_checkpoint(record(1), path)
    assert os.listdir(tmp_path) == ["a.segue"]
    assert taken != "file" or path.read_bytes() == b"mine"


def test_one_that_appears_while_it_is_written_is_not_replaced(tmp_path):
    class Late(LocalFilesystem):
        def rename_noreplace(self, old, new, within):
            (tmp_path / "a.segue").write_bytes(b"first")
            super().rename_noreplace(old, new, within)

    with pytest.raises(CheckpointExists):
        write_checkpoint(record(1), tmp_path / "a.segue", filesystem=Late())
    assert os.listdir(tmp_path) == ["a.segue"]
    assert (tmp_path / "a.segue").read_bytes() == b"first"


def test_a_link_to_it_is_followed_as_one_to_a_folder_is(file, tmp_path):
    (tmp_path / "latest").symlink_to("a.segue")
    assert digests(open_checkpoint(tmp_path / "latest").record()) == digests(record(1))


def test_no_such_file_is_not_found(tmp_path):
    with pytest.raises(CheckpointNotFound, match=r"a\.segue"):
        open_checkpoint(tmp_path / "a.segue")
    (tmp_path / "b").write_bytes(b"a file")
    with pytest.raises(UnsafeCheckpoint, match="not a folder"):
        open_checkpoint(tmp_path / "b" / "a.segue")


def test_writing_holds_little_more_than_the_record(tmp_path):
    class Watching(LocalFilesystem):
        largest = 0

        def create_file(self, name, within):
            inner, watching = super().create_file(name, within), self

            class File:
                def write(self, data):
                    watching.largest = max(watching.largest, len(data))
                    return inner.write(data)

                fsync, close = inner.fsync, inner.close

            return File()

    filesystem = Watching()
    large = dataclasses.replace(record(1), caller_state=tensor("uint8", (40 * 2**20,)))
    write_checkpoint(large, tmp_path / "a.segue", filesystem=filesystem)
    assert 0 < filesystem.largest <= 16 * 2**20
