"""A training over each place of checkpoints; and behaviour 98: replaced whole, not found, or refused with nothing changed."""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch

import segue
from segue._record.digest import digests
from segue.errors import (
    CheckpointExists,
    CheckpointNotFound,
    CorruptCheckpoint,
    SkippedCheckpointWarning,
    StoreError,
    UnsafeCheckpoint,
    UnsupportedFormat,
)
from tests._session.small import make, step


@pytest.fixture
def memory(tmp_path):
    name = f"memory:/{tmp_path}"
    yield name
    segue.stores.forget(name)


def train(place, until, seed=0, **options):
    model, optimizer, training = make(seed)
    with segue.Checkpointer(training, place, **options) as checkpointer:
        state = checkpointer.resume(default={"n": 0})
        while state["n"] < until:
            step(model, optimizer)
            state["n"] += 1
            checkpointer.save(state, step=state["n"])
    return digests(training.capture())


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("place", ["folder", "run.segue", "memory", "memory file", "bytes"])
def test_a_run_goes_on_from_each_place(place, background, tmp_path, memory):
    where = {
        "memory": f"{memory}/run",
        "memory file": f"{memory}/run.segue",
        "bytes": segue.stores.BytesStore(),
    }
    where = where.get(place, tmp_path / place)
    train(where, 2, background=background)
    assert train(where, 4, seed=9, background=background) == train(tmp_path / "uninterrupted", 4)


def test_a_file_holds_the_newest_only(tmp_path):
    train(tmp_path / "run.segue", 3)
    assert os.listdir(tmp_path) == ["run.segue"]
    assert segue.load(tmp_path / "run.segue").state == {"n": 3}
    assert segue.verify(tmp_path / "run.segue").seq == 3


@pytest.mark.parametrize("keep_last", [None, 1])
def test_a_file_keeps_one_by_nature(keep_last, tmp_path):
    train(tmp_path / "run.segue", 2, keep_last=keep_last)
    assert segue.load(tmp_path / "run.segue").state == {"n": 2}


def test_a_file_cannot_keep_more_than_one(tmp_path):
    _, _, training = make()
    with pytest.raises(ValueError, match=r"keep_last=2: .*run\.segue holds one checkpoint"):
        segue.Checkpointer(training, tmp_path / "run.segue", keep_last=2)


def test_what_is_no_place_is_refused():
    _, _, training = make()
    with pytest.raises(TypeError, match="a path, a URL or a Store, not int"):
        segue.Checkpointer(training, 3)


def test_a_second_checkpointer_on_one_store_takes_over(memory):
    for place in (segue.stores.BytesStore(), f"{memory}/run"):
        _, _, training = make()
        first = segue.Checkpointer(training, place)
        first.save({"n": 1})
        second = segue.Checkpointer(training, place)
        assert second.resume() == {"n": 1}
        with pytest.raises(StoreError, match="taken over"):
            first.save({"n": 2})
        second.close()


def test_a_run_that_was_not_resumed_is_not_replaced(tmp_path):
    train(tmp_path / "run.segue", 1)
    _, _, training = make()
    with (
        segue.Checkpointer(training, tmp_path / "run.segue") as checkpointer,
        pytest.raises(CheckpointExists, match="not resumed"),
    ):
        checkpointer.save({"n": 1})
    assert segue.load(tmp_path / "run.segue").state == {"n": 1}


def test_an_export_is_no_run(tmp_path):
    _, _, training = make()
    segue.save(training.capture({"n": 7}), tmp_path / "a.segue")
    with (
        segue.Checkpointer(training, tmp_path / "a.segue") as checkpointer,
        pytest.warns(SkippedCheckpointWarning),
        pytest.raises(UnsafeCheckpoint, match=r"(?s)export.*") as caught,
    ):
        checkpointer.resume(default={})
    assert "a.segue" in str(caught.value)


@pytest.mark.parametrize("name", ["export", "export.segue"])
def test_a_record_survives_each_place(name, tmp_path, memory):
    model, optimizer, training = make()
    step(model, optimizer)
    record = training.capture({"a": (1, 2)})
    for place in (tmp_path / "deep" / name, f"{memory}/deep/{name}"):
        info = segue.save(record, place)
        assert segue.diff(record, segue.load(info.path)).identical
        assert segue.diff(info.path, record).identical
        assert segue.verify(info.path) == info
        with pytest.raises(CheckpointExists):
            segue.save(record, place)


def test_a_record_is_bytes_and_back():
    model, optimizer, training = make()
    step(model, optimizer)
    record = training.capture({"a": (1, 2)})
    data = segue.to_bytes(record)
    assert type(data) is bytes
    assert segue.diff(record, segue.from_bytes(data)).identical
    other, _, other_training = make(seed=1)
    assert other_training.restore(segue.from_bytes(data)) == {"a": (1, 2)}
    assert torch.equal(other.weight, model.weight)
    placed = segue.from_bytes(data, device="cuda:0")
    assert {tensor.device for tensor in placed.model.tensors.values()} == {"cuda:0"}


# Behaviour 98.


def unchanged_by(action):
    model, optimizer, training = make(seed=4)
    step(model, optimizer)
    before = digests(training.capture())
    action(training)
    assert digests(training.capture()) == before


GARBAGE = {
    "nothing": (lambda data: b"", CorruptCheckpoint),
    "garbage": (lambda data: os.urandom(len(data)), UnsupportedFormat),
    "half": (lambda data: data[: len(data) // 2], CorruptCheckpoint),
    "a turned bit": (lambda data: data[:700] + bytes([data[700] ^ 1]) + data[701:], CorruptCheckpoint),
}


@pytest.mark.parametrize("what", GARBAGE)
def test_98_garbage_is_a_clean_error_and_nothing_is_restored(what, tmp_path):
    spoil, error = GARBAGE[what]
    path = tmp_path / "run.segue"
    train(path, 2)
    path.write_bytes(spoil(path.read_bytes()))

    def resume(training):
        with (
            segue.Checkpointer(training, path) as checkpointer,
            pytest.warns(SkippedCheckpointWarning, match=r"run\.segue"),
            pytest.raises(error, match="no checkpoint of this run can be read"),
        ):
            checkpointer.resume(default={})

    def restore(training):
        with pytest.raises(error, match=r"run\.segue"):
            training.restore(segue.load(path))

    unchanged_by(resume)
    unchanged_by(restore)


def test_98_a_missing_file_is_not_found(tmp_path):
    def restore(training):
        with pytest.raises(CheckpointNotFound, match=r"none\.segue"):
            training.restore(segue.load(tmp_path / "none.segue"))

    unchanged_by(restore)


WRITER = """
import sys
import segue
from tests._session.test_stores import train
train({path!r}, 10**6)
"""


def test_98_a_killed_writer_leaves_a_readable_file(tmp_path):
    path = tmp_path / "run.segue"
    train(path, 1)
    last = 1
    for _ in range(2):
        writer = subprocess.Popen([sys.executable, "-c", WRITER.format(path=str(path))])
        deadline = time.monotonic() + 60
        while segue.load(path).state["n"] < last + 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        segue.verify(path)
        found = segue.load(path).state["n"]
        assert found >= last + 3
        last = found
    assert train(path, last + 1, seed=3) == train(tmp_path / "uninterrupted", last + 1)


def test_a_run_in_a_folder_that_is_called_like_a_file_stays_one(tmp_path):
    path = tmp_path / "run.segue"
    path.mkdir()
    *_, training = make()
    with segue.Checkpointer(training, path, keep_last=2) as checkpointer:
        checkpointer.save({"at": 1})
        checkpointer.save({"at": 2})
    with segue.Checkpointer(make()[2], path) as checkpointer:
        assert checkpointer.resume() == {"at": 2}
    assert (path / "ckpt-000000001").is_dir()
