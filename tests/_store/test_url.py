"""What paths and URLs name, and what nothing can be called."""

import pytest

from segue._store.archive import open_checkpoint, write_checkpoint
from segue._store.file_store import FileStore
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
