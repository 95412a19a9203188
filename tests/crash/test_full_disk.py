"""No room: the save says so, what was there stays, and nothing is left behind."""

import os
import resource
import subprocess

import pytest

from segue._store.archive import write_checkpoint
from segue._store.local import LocalFilesystem
from segue._store.store import DirectoryStore
from segue.errors import StoreFull, StoreUnavailable
from tests._store.records import module, record, tensor
from tests.crash.outcome import NEW, OLD, litter, newest, saves_again


class NearlyFull(LocalFilesystem):
    def __init__(self, free_bytes):
        self.left = free_bytes
        self.made = []

    def free_bytes(self, directory):
        return self.left

    def make_directory(self, name, within=None):
        self.made.append(name)
        super().make_directory(name, within)


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "a"
    with DirectoryStore(path) as store:
        store.put(OLD)
    return path


def test_a_save_that_will_not_fit_is_refused_before_it_begins(run):
    filesystem = NearlyFull(5000)
    with DirectoryStore(run, filesystem=filesystem) as store:
        filesystem.made.clear()
        with pytest.raises(StoreFull, match="ENOSPC"):
            store.put(NEW)
    assert filesystem.made == []
    assert newest(run) == "old"
    saves_again(run)


def test_a_limit_on_file_sizes_is_told_as_full(run):
    large = record(2, model=module({"w": tensor(shape=(300, 300))}))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with DirectoryStore(run) as store:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
        try:
            with pytest.raises(StoreFull, match="EFBIG") as caught:
                store.put(large)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert "make room" in str(caught.value)
        assert litter(run) == []
    assert newest(run) == "old"
    saves_again(run)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_told_as_unavailable(run):
    os.chmod(run, 0o500)
    try:
        with pytest.raises(StoreUnavailable, match="EACCES"), DirectoryStore(run) as store:
            store.put(NEW)
        assert newest(run) == "old"
    finally:
        os.chmod(run, 0o700)


MOUNTED = """
set -e
mount -t tmpfs -o size={size} none {path}
exec {python} -c '
import sys
sys.path.insert(0, ".")
from segue._store.local import LocalFilesystem
from segue._store.store import DirectoryStore
from segue.errors import StoreFull
from tests.crash.outcome import NEW, OLD, litter, newest, record
class Blind(LocalFilesystem):
    def free_bytes(self, directory):
        return 2**40
path = "{path}/a"
try:
    with DirectoryStore(path, filesystem=Blind()) as store:
        store.put(OLD)
        stored = "old"
        for step in range(20):
            store.put(NEW)
            stored = "new"
except StoreFull:
    print("full", newest(path) == stored, litter(path))
'
"""


@pytest.mark.crash
@pytest.mark.parametrize("pages", range(12, 60, 7))
def test_a_filesystem_that_really_fills_up_keeps_what_it_had(tmp_path, pages):
    import sys

    script = MOUNTED.format(size=f"{pages * 4}k", path=tmp_path, python=sys.executable)
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True)
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip("no mount rights")
    assert done.stdout.strip() == "full True []", done.stderr


def test_an_export_that_fails_leaves_no_trace(tmp_path):
    with pytest.raises(StoreFull):
        write_checkpoint(NEW, tmp_path / "export", filesystem=NearlyFull(10))
    assert os.listdir(tmp_path) == []
