"""A power cut while a single file is replaced: the old file or the new one, and each step is needed."""

import tempfile
from pathlib import Path

import pytest

from segue._store.file_store import FileStore
from tests.crash.outcome import NEW, OLD, newest
from tests.crash.power_cut import cut_everywhere

NAME = "a.segue"


@pytest.fixture
def cut(tmp_path):
    folder = tmp_path / "runs"
    with FileStore(folder / NAME) as store:
        store.put(OLD)

    def replace(filesystem, acknowledged):
        with FileStore(folder / NAME, filesystem=filesystem) as store:
            store.put(NEW)
            acknowledged()

    def cut(**options):
        with tempfile.TemporaryDirectory(dir=tmp_path) as scratch:
            return cut_everywhere(
                folder, replace, scratch, read=lambda place: newest(Path(place) / NAME), **options
            )

    return cut


def test_no_power_cut_leaves_a_third_thing(cut):
    states, bad = cut()
    assert states > 10
    assert bad == []


HARMFUL = {"no fsync of the file": "fsync", "no fsync of the folder": "fsync_directory"}


@pytest.mark.parametrize("mutant", HARMFUL)
def test_a_step_left_out_is_noticed(cut, mutant):
    _, bad = cut(ignore=lambda asked, name: asked == HARMFUL[mutant])
    assert bad, "the model cannot tell this mutant from the protocol"
