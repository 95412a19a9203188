"""The global streams of Python, NumPy and torch, pending Gaussians included."""

import random

import numpy as np
import pytest
import torch

from segue import RngStreams
from segue._record.tree import same
from tests._store.records import tensor


def draw():
    return (
        random.random(),
        random.gauss(0, 1),
        np.random.random(),
        np.random.normal(),
        torch.randn(3).tolist(),
        torch.rand(1).item(),
    )


def restore(record):
    for write in RngStreams().plan(record):
        write.run(torch.empty(0, dtype=torch.uint8))


def test_every_stream_goes_on_where_it_was():
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    # An odd number of normal draws leaves a Gaussian pending in Python's and NumPy's generators, and in torch's.
    random.gauss(0, 1)
    np.random.normal()
    torch.randn(1)
    record = RngStreams().capture()
    expected = [draw() for _ in range(3)]
    assert list(RngStreams().check(record)) == []
    restore(record)
    assert [draw() for _ in range(3)] == expected
    restore(record)
    assert [draw() for _ in range(3)] == expected


def test_a_pending_gaussian_is_part_of_the_state():
    random.seed(0)
    np.random.seed(0)
    before = RngStreams().capture()
    random.gauss(0, 1)
    np.random.normal()
    after = RngStreams().capture()
    assert (before["python"]["gauss"], before["numpy"]["has_gauss"]) == (None, 0)
    assert after["python"]["gauss"] is not None
    assert after["numpy"]["has_gauss"] == 1


def test_capture_draws_nothing_and_checking_changes_nothing():
    record = RngStreams().capture()
    list(RngStreams().check(record))
    RngStreams().plan(record)
    assert same(RngStreams().capture(), record)


def test_a_record_does_not_follow_the_streams():
    record, again = RngStreams().capture(), RngStreams().capture()
    draw()
    assert same(record, again)


GOOD = RngStreams().capture()
BAD = {
    "a python version": ("python", {**GOOD["python"], "version": 9}),
    "a short python state": ("python", {**GOOD["python"], "state": tensor("uint8", (4,))}),
    "no python state": ("python", {}),
    "python as nothing": ("python", None),
    "another numpy generator": ("numpy", {**GOOD["numpy"], "bit_generator": "PCG64"}),
    "a generator of no name": ("numpy", {**GOOD["numpy"], "bit_generator": "os.system"}),
    "a number that numpy has no room for": ("numpy", {**GOOD["numpy"], "has_gauss": 2**70}),
    "a numpy state of the wrong kind": ("numpy", {**GOOD["numpy"], "state": {"key": 1, "pos": 2}}),
    "a short torch state": ("torch", tensor("uint8", (16,))),
    "a torch state of another dtype": ("torch", tensor("float32", (16,))),
    "torch as text": ("torch", "seed"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_state_that_would_be_refused_is_a_finding(kind):
    name, value = BAD[kind]
    before = RngStreams().capture()
    [finding] = RngStreams().check({**GOOD, name: value})
    assert finding.code == f"streams.{name}"
    assert same(RngStreams().capture(), before)


def test_a_missing_stream_is_a_finding():
    for name in ("python", "numpy", "torch"):
        record = {key: value for key, value in GOOD.items() if key != name}
        assert [finding.code for finding in RngStreams().check(record)] == [f"streams.{name}"]


def test_a_stream_of_a_device_that_is_not_here_is_a_finding():
    record = {**GOOD, "accelerators": {"cuda:63": tensor("uint8", (16,))}}
    assert [finding.code for finding in RngStreams().check(record)] == ["streams.cuda:63"]


@pytest.mark.parametrize("value", [{"nowhere": None}, {"cpu": None}, {3: None}, None, [1]], ids=repr)
def test_accelerators_that_make_no_sense_are_a_finding(value):
    assert [
        finding.code.startswith("streams.") for finding in RngStreams().check({**GOOD, "accelerators": value})
    ] == [True]
    assert list(RngStreams().check({key: item for key, item in GOOD.items() if key != "accelerators"})) != []


@pytest.fixture
def another_bit_generator():
    before, state = np.random.get_bit_generator(), RngStreams().capture()
    yield lambda seed: np.random.set_bit_generator(np.random.PCG64(seed))
    np.random.set_bit_generator(before)
    restore(state)


def test_a_bit_generator_that_the_program_put_under_numpy_goes_on(another_bit_generator):
    another_bit_generator(1)
    np.random.normal()
    record = RngStreams().capture()
    expected = [draw() for _ in range(2)]
    another_bit_generator(2)
    assert list(RngStreams().check(record)) == []
    restore(record)
    assert [draw() for _ in range(2)] == expected


def test_one_that_a_program_no_longer_has_is_a_finding(another_bit_generator):
    default = RngStreams().capture()
    another_bit_generator(1)
    assert [finding.code for finding in RngStreams().check(default)] == ["streams.numpy"]


def test_a_state_of_an_accelerator_keeps_its_size_and_is_looked_at_only_where_it_is():
    # Generators of accelerators are told by device; here there is none, so that every one is a finding.
    for name in ("cuda:0", "mps", "xpu:0"):
        record = {**GOOD, "accelerators": {name: tensor("uint8", (16,))}}
        assert [finding.code for finding in RngStreams().check(record)] == [f"streams.{name}"]
