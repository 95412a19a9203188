"""B76 to B89: killed, cut, full, flipped, hostile, and saved in the background: the old one, the new one, or a refusal."""

import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW

import segue
from segue import Checkpointer, Training
from segue._record.diff import diff
from segue.errors import (
    CheckpointNotFound,
    CorruptCheckpoint,
    IncompleteCheckpoint,
    SkippedCheckpointWarning,
    StoreError,
    UnsafeCheckpoint,
)
from tests.cases import children
from tests.cases.state import live, raw

PARTS = ("commit", "manifest.json", "model.safetensors", "training.safetensors")


def small(value=0.0):
    model = nn.Linear(20, 20)
    with torch.no_grad():
        model.weight.fill_(value)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, optimizer, Training(model, optimizer, rng=None)


def two_steps(run):
    """A run with the checkpoints of steps 100 and 200."""
    model, optimizer, training = small()
    with Checkpointer(training, run) as checkpointer:
        for step in (100, 200):
            with torch.no_grad():
                model.weight.fill_(step)
            optimizer.state[model.weight] = {"momentum_buffer": torch.full((20, 20), float(step))}
            checkpointer.save({"step": step}, step=step)
    older, newer = sorted(p for p in run.iterdir() if p.name.startswith("ckpt-"))
    return older, newer


def resumed_step(run):
    model, optimizer, training = small(-1.0)
    with Checkpointer(training, run) as checkpointer:
        state = checkpointer.resume()
    assert model.weight.unique().tolist() == [float(state["step"])]
    assert optimizer.state[model.weight]["momentum_buffer"].unique().tolist() == [float(state["step"])]
    return state["step"]


@pytest.mark.exact
def test_b76_killed_at_any_moment_of_a_save_the_newest_whole_checkpoint_loads(tmp_path):
    run = tmp_path / "run"
    told = 0
    for attempt in range(4):
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.cases.children", "writes_until_killed", str(run), "24"],
            stdout=subprocess.PIPE, text=True, cwd=children.ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        for _ in range(2):
            told = int(child.stdout.readline())
        # From just after one save into the middle of the next, and beyond.
        time.sleep(0.02 * attempt)
        child.send_signal(signal.SIGKILL)
        told = max([told, *map(int, child.stdout.read().split())])
        assert child.wait() == -signal.SIGKILL
        child.stdout.close()
        model = nn.Linear(24 * 256, 1024, bias=False)
        with Checkpointer(Training(model, SGD(model.parameters(), lr=0.1), rng=None), run) as checkpointer:
            state = checkpointer.resume()
        # What was said to be durable is; one more may have become so before it could be said.
        assert state["count"] in (told, told + 1)
        assert model.weight.min().item() == model.weight.max().item() == state["count"]
    with Checkpointer(
        Training(model, SGD(model.parameters(), lr=0.1), rng=None), run, keep_last=2
    ) as checkpointer:
        checkpointer.resume()
        checkpointer.save(state)
    assert [name for name in os.listdir(run) if name.startswith(".tmp")] == []
    assert len([name for name in os.listdir(run) if name.startswith("ckpt-")]) <= 3


def truncate(older, newer):
    os.truncate(newer / "training.safetensors", os.path.getsize(newer / "training.safetensors") // 2)


def drop_file(name):
    def damage(older, newer):
        (newer / name).unlink()

    return damage


def swap_file(name):
    def damage(older, newer):
        (newer / name).unlink()
        shutil.copy(older / name, newer / name)

    return damage


def empty_folder(older, newer):
    for path in newer.iterdir():
        path.unlink()


DAMAGES = {
    "truncated": (truncate, CorruptCheckpoint),
    "empty": (empty_folder, IncompleteCheckpoint),
    **{f"without {name}": (drop_file(name), IncompleteCheckpoint) for name in PARTS},
    **{f"with {name} of another step": (swap_file(name), CorruptCheckpoint) for name in PARTS},
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_b77_a_damaged_newest_is_passed_over_and_said_why_and_refused_when_asked_for(kind, tmp_path):
    damage, error = DAMAGES[kind]
    run = tmp_path / "run"
    older, newer = two_steps(run)
    damage(older, newer)
    with pytest.raises(error) as caught:
        segue.verify(newer)
    assert isinstance(caught.value, StoreError)
    with pytest.warns(SkippedCheckpointWarning, match=newer.name):
        assert resumed_step(run) == 100
    # The next save goes behind the damaged one, and is the newest then.
    _, _, training = small(300.0)
    with Checkpointer(training, run) as checkpointer:
        with pytest.warns(SkippedCheckpointWarning):
            checkpointer.resume()
        checkpointer.save({"step": 300})
    assert Checkpointer(training, run).newest().state == {"step": 300}


def test_b77_a_run_whose_checkpoints_are_all_damaged_never_starts_afresh(tmp_path):
    run = tmp_path / "run"
    for path in two_steps(run):
        os.truncate(path / "model.safetensors", 10)
    model, optimizer, training = small(5.0)
    before = live(model, optimizer)
    with Checkpointer(training, run) as checkpointer:
        with (
            pytest.warns(SkippedCheckpointWarning),
            pytest.raises(CorruptCheckpoint, match="no checkpoint of this run"),
        ):
            checkpointer.resume(default={"step": 0})
        assert live(model, optimizer) == before
    with pytest.raises(CheckpointNotFound):
        segue.load(run / "ckpt-000000099")


def test_b78_a_full_disk_is_told_with_its_cause_and_loses_nothing(tmp_path):
    run = tmp_path / "run"
    model = nn.Linear(1000, 1000, bias=False)
    training = Training(model, SGD(model.parameters(), lr=0.1), rng=None)
    with Checkpointer(training, run) as checkpointer:
        checkpointer.save({"count": 1})
    before = sorted(os.listdir(run))
    for _ in range(2):
        told = children.run("saves_under_a_limit", run)
        assert told["error"] == "store.full"
        assert told["cause"] == "OSError"
        assert "EFBIG" in told["text"]
    assert sorted(os.listdir(run)) == before
    with Checkpointer(training, run) as checkpointer:
        assert checkpointer.resume() == {"count": 1}


def flip(path, offset, bit):
    with open(path, "r+b") as file:
        file.seek(offset)
        [byte] = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ (1 << bit)]))


def places(path):
    """The first, the last and some bytes between, in the header and in the data."""
    size = os.path.getsize(path)
    return sorted({0, 7, 8, 9, size // 3, size // 2, size - 9, size - 1} & set(range(size)))


@pytest.mark.parametrize("name", PARTS)
def test_b80_one_flipped_bit_anywhere_is_refused_naming_the_file(name, tmp_path):
    run = tmp_path / "run"
    _, newer = two_steps(run)
    for offset in places(newer / name):
        for bit in (0, 6):
            flip(newer / name, offset, bit)
            with pytest.raises(StoreError) as caught:
                segue.verify(newer)
            assert name in str(caught.value) or "manifest" in str(caught.value), (offset, bit)
            with pytest.raises(StoreError):
                small()[2].restore(segue.load(newer))
            with pytest.warns(SkippedCheckpointWarning, match=newer.name):
                assert resumed_step(run) == 100
            flip(newer / name, offset, bit)
    segue.verify(newer)


def test_b80_a_flip_between_loading_and_restoring_is_seen(tmp_path):
    _, newer = two_steps(tmp_path / "run")
    model, optimizer, training = small(5.0)
    record = segue.load(newer)
    flip(newer / "model.safetensors", os.path.getsize(newer / "model.safetensors") - 1, 3)
    before = live(model, optimizer)
    with pytest.raises(CorruptCheckpoint, match=r"model\.safetensors"):
        training.restore(record)
    assert live(model, optimizer) == before


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("form", ["pickle", "torch"])
def test_b86_code_in_any_part_is_refused_and_does_not_run(name, form, tmp_path):
    run, made = tmp_path / "run", str(tmp_path / "made")
    _, newer = two_steps(run)
    if form == "pickle":
        (newer / name).write_bytes(pickle.dumps(Payload(made)))
    else:
        torch.save({"x": Payload(made)}, newer / name)
    with pytest.raises(StoreError):
        segue.verify(newer)
    with pytest.raises(StoreError):
        small()[2].restore(segue.load(newer))
    with pytest.warns(SkippedCheckpointWarning):
        assert resumed_step(run) == 100
    assert not os.path.exists(made)


def test_b86_a_whole_pickled_file_is_no_checkpoint(tmp_path):
    made = str(tmp_path / "made")
    torch.save({"x": Payload(made)}, tmp_path / "record.pt")
    with pytest.raises(StoreError):
        segue.load(tmp_path / "record.pt")
    assert not os.path.exists(made)


def test_b86_a_link_out_of_the_checkpoint_is_unsafe(tmp_path):
    _, newer = two_steps(tmp_path / "run")
    outside = tmp_path / "outside.safetensors"
    shutil.move(newer / "model.safetensors", outside)
    (newer / "model.safetensors").symlink_to(outside)
    with pytest.raises(UnsafeCheckpoint):
        segue.load(newer)


def test_b86_loading_imports_no_unpickler_of_its_own(tmp_path):
    """A pickle in the place of every part makes `pickle.loads` the thing that must never be reached."""
    _, newer = two_steps(tmp_path / "run")
    script = (
        "import sys, pickle\n"
        "def refuse(*a, **k): print('unpickled'); raise SystemExit(9)\n"
        "import segue\n"
        "sys.addaudithook(lambda event, args: refuse() if event.startswith('pickle.') else None)\n"
        f"record = segue.load({str(newer)!r}); record.verify(); print(record.state['step'])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=children.ROOT)
    assert done.stdout.strip() == "200", done.stderr


class Slow:
    """A component whose state keeps the writer busy: large enough that steps happen while it is written."""

    def __init__(self):
        self.values = torch.zeros(4_000_000)

    def state_dict(self):
        return {"values": self.values, "list": [self.values[:3]]}

    def load_state_dict(self, state):
        self.values = state["values"]


def test_b89_a_save_in_the_background_stores_the_values_of_the_moment(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(300, 300)
    optimizer = AdamW(model.parameters(), lr=0.1)
    slow = Slow()
    training = Training(model, optimizer, components={"slow": slow})

    def step():
        optimizer.zero_grad()
        model(torch.ones(1, 300)).pow(2).sum().backward()
        optimizer.step()

    step()
    with Checkpointer(training, tmp_path / "run", background=True) as checkpointer:
        state = {"log": [1]}
        expected, weights = training.capture(state), raw(model.weight)
        pending = checkpointer.save(state)
        state["log"].append(2)
        slow.values.fill_(9)
        for _ in range(3):
            step()
        assert raw(model.weight) != weights
        info = pending.wait()
        assert pending.done()
    record = segue.load(info.path)
    assert diff(record, expected).identical
    assert raw(record.model.tensors["weight"].to_host()) == weights
    assert record.optimizers["optimizer"].state["weight"]["step"].to_host().item() == 1
    assert record.state == {"log": [1]}
    assert threading.active_count() == 1 or all(t.name != "segue-writer" for t in threading.enumerate())


def test_b89_capture_async_gives_the_values_of_the_moment():
    model, optimizer, training = small(1.0)
    expected = training.capture()
    future = training.capture_async()
    with torch.no_grad():
        model.weight.fill_(2)
    optimizer.state[model.weight] = {"momentum_buffer": torch.ones(20, 20)}
    assert diff(future.result(), expected).identical
