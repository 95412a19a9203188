"""Generators of a program's own go on where they were, in a new process: at every cut, whatever is drawn in between."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import segue
from tests.exactness.private_streams import BATCHES, STEPS, Run

# Not by `-m`: classes of `__main__` have another name, and so other digests.
_PROGRAM = "import sys; from tests.exactness.private_streams import main; main(*sys.argv[1:])"
ROOT = Path(__file__).resolve().parents[2]
STREAMS = [
    "component.data.loader.dataset.legacy", "component.data.loader.dataset.seeds", "component.data.loader.generator",
    "model.0.choices['keep']", "model.0.generator", "model.2._forward_hooks[0].__closure__.hooked", "model.2.choices['keep']",
    "model.2.generator", "optimizer.optimizer.dither", "scheduler.scheduler.lr_lambdas[0].generator",
]  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    alone = Run(seed=1).go_on(0)
    whole = Run(seed=1)
    records = {}

    def save(done):
        if done == STEPS:
            return
        records[done] = whole.training.capture()
        segue.save(records[done], folder / str(done))

    expected = whole.go_on(0, save)
    assert alone == expected  # a run that saves is the run that doesn't
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _PROGRAM, str(folder), *map(str, records)],
        capture_output=True, text=True, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return records, expected, json.loads(done.stdout)


def test_all_generators_are_found(runs):
    records, _, _ = runs
    assert sorted(records[1].private_streams) == STREAMS


@pytest.mark.parametrize("cut", range(1, STEPS))
def test_a_new_process_goes_on_with_the_same_bits(cut, runs):
    _, expected, resumed = runs
    found = resumed[str(cut)]
    assert found["losses"] == expected["losses"][len(expected["losses"]) - len(found["losses"]) :]
    assert len(found["losses"]) >= STEPS - cut
    assert found["digests"] == expected["digests"]


def test_the_same_generator_is_one_stream_wherever_it_stands(runs):
    records, _, _ = runs
    aliases = {
        path: stream["aliases"] for path, stream in records[1].private_streams.items() if stream["aliases"]
    }
    assert aliases == {
        "component.data.loader.generator": [
            "component.data.loader.sampler.generator",
            "component.hooked.shuffling",
        ],
        "model.2._forward_hooks[0].__closure__.hooked": ["component.hooked.hooked"],
    }


def test_the_cuts_are_inside_and_at_the_end_of_a_pass():
    assert 1 < BATCHES < STEPS
    assert STEPS % BATCHES == 0


def test_each_stream_decides_something():
    """Leaves out one stream after the other: were one of them not drawn from, this comparison would prove nothing."""
    record, others = _record_at(2), Run(seed=9).training.capture().private_streams
    unspoiled = _digests_after(record)
    for path in STREAMS:
        spoiled = {**record.private_streams[path], "state": others[path]["state"]}
        streams = {**record.private_streams, path: spoiled}
        assert _digests_after(replace(record, private_streams=streams)) != unspoiled, path


def _record_at(stop):
    run, records = Run(seed=1), {}
    run.go_on(0, lambda done: records.setdefault(done, run.training.capture() if done == stop else None))
    return records[stop]


def _digests_after(record):
    run = Run(seed=5)
    run.training.restore(record)
    found = run.go_on(STEPS - BATCHES)["digests"]
    return {name: digest for name, digest in found.items() if name != "private_streams"}
