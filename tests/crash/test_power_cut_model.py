"""A power cut after any operation leaves the old checkpoint or the new one, and each step of the protocol is needed."""

import shutil
import tempfile

import pytest

from segue._store.layout import COMMIT_FILE, MANIFEST_FILE, MODEL_FILE, STATE_FILE, TRAINING_FILE
from segue._store.store import DirectoryStore
from tests.crash.outcome import NEW, OLD
from tests.crash.power_cut import cut_everywhere


@pytest.fixture(scope="module")
def run_with_old(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "a"
    with DirectoryStore(path) as store:
        store.put(OLD)
    return path


@pytest.fixture
def cut(run_with_old, tmp_path):
    def cut(workload, **options):
        path = tmp_path / "run"
        shutil.copytree(run_with_old, path)
        with tempfile.TemporaryDirectory(dir=tmp_path) as scratch:
            return cut_everywhere(
                path,
                lambda filesystem, acknowledged: workload(path, filesystem, acknowledged),
                scratch,
                **options,
            )

    return cut


def save(path, filesystem, acknowledged):
    with DirectoryStore(path, filesystem=filesystem) as store:
        store.put(NEW)
        acknowledged()


def save_and_prune(path, filesystem, acknowledged):
    with DirectoryStore(path, filesystem=filesystem) as store:
        store.put(NEW)
        acknowledged()
        store.remove(store.candidates()[1])


def prune_and_save(path, filesystem, acknowledged):
    with DirectoryStore(path, filesystem=filesystem) as store:
        store.remove(store.candidates()[0])
        store.put(NEW)
        acknowledged()


def test_no_power_cut_leaves_a_third_thing(cut):
    states, bad = cut(save_and_prune)
    assert states > 50
    assert bad == []


def forget(what, *names):
    return lambda asked, name: asked == what and (not names or name in names)


HARMFUL = {
    "no fsync of model.safetensors": (save, forget("fsync", MODEL_FILE)),
    "no fsync of training.safetensors": (save, forget("fsync", TRAINING_FILE)),
    "no fsync of state.json": (save, forget("fsync", STATE_FILE)),
    "no fsync of manifest.json": (save, forget("fsync", MANIFEST_FILE)),
    "no fsync of commit": (save, forget("fsync", COMMIT_FILE)),
    "no fsync of any file": (save, forget("fsync")),
    "no fsync of the attempt's folder": (save, forget("fsync_directory", "folder")),
    "no fsync of the run's folder": (save, forget("fsync_directory", "root")),
    "no fsync of any folder": (save, forget("fsync_directory")),
    "no fsync of the run's folder, and the old one removed": (
        save_and_prune,
        forget("fsync_directory", "root"),
    ),
    "no fsync of any file, and the old one removed": (save_and_prune, forget("fsync")),
    "the old one removed before the new one is durable": (prune_and_save, forget("nothing")),
}


@pytest.mark.parametrize("mutant", HARMFUL)
def test_a_step_left_out_is_noticed(cut, mutant):
    workload, ignore = HARMFUL[mutant]
    _, bad = cut(workload, ignore=ignore)
    assert bad, "the model cannot tell this mutant from the protocol"
