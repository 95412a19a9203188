"""What paths and URLs name, and what nothing can be called."""

import pytest

from segue._store.archive import open_checkpoint, write_checkpoint
from segue._store.file_store import FileStore
from segue._store.in_memory import MemoryStore
from segue._store.store import DirectoryStore
from segue._store.url import path_of
from segue.errors import StoreUnavailable
from tests._store.records import record


@pytest.mark.parametrize("path", ["a\0b", "a\ud800b.segue"])
@pytest.mark.parametrize("use", [path_of, FileStore, DirectoryStore, open_checkpoint,
                                 lambda path: write_checkpoint(record(1), path)])  # fmt: skip
def test_what_no_file_can_be_called_is_refused(path, use, tmp_path):
    with pytest.raises(StoreUnavailable, match="no file can have such a name"):
        use(f"{tmp_path}/{path}")


def test_nor_can_a_url_spell_it():
    with pytest.raises(StoreUnavailable, match="no file can have such a name"):
        path_of("file:///a%00b")


@pytest.mark.parametrize("url", ["file:///a?b.segue", "file:///a#b.segue", "file://"])
def test_a_url_of_a_file_is_its_path_and_nothing_else(url):
    """What comes after it would be cut off, and two names would be one place."""
    with pytest.raises(StoreUnavailable, match="ends with its path"):
        path_of(url)


def test_a_url_spells_every_name():
    assert path_of("file:///a%3Fb%23c%20d") == "/a?b#c d"
    assert path_of("/a?b#c d") == "/a?b#c d"


@pytest.mark.parametrize("make", [FileStore, DirectoryStore])
def test_stores_take_urls_as_everything_else_does(make, tmp_path):
    assert make(f"file://{tmp_path}/a%20b").path == f"{tmp_path}/a b"
    with pytest.raises(StoreUnavailable, match="a local path, or in memory"):
        make("https://host/a")


@pytest.mark.parametrize("url", ["runs/a", "file:///runs/a"])
def test_what_is_meant_for_a_disk_does_not_end_in_memory(url):
    with pytest.raises(StoreUnavailable, match="not a place in memory"):
        MemoryStore(url)


def test_a_file_has_a_name():
    with pytest.raises(StoreUnavailable, match="ends with its name"):
        FileStore("/")
