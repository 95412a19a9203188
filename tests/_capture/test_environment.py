"""What changes last bits is recorded and compared, and never set."""

import warnings

import pytest
import torch
from torch import nn

from segue import Training
from segue._capture.environment import capture_environment, check_environment
from segue._record.tree import decode, encode, same
from segue.errors import EnvironmentMismatch, EnvironmentWarning


def test_it_is_plain_and_the_same_twice():
    here = capture_environment()
    assert same(here, capture_environment())
    assert same(decode(encode(here, None), None), here)
    assert here["torch"] == torch.__version__
    assert here["num_threads"] == torch.get_num_threads()


@pytest.mark.parametrize("key", sorted(capture_environment()))
def test_each_difference_has_its_code_and_can_be_accepted(key):
    [finding] = check_environment({**capture_environment(), key: "another"})
    assert finding.code == f"environment.{key}"
    assert finding.admissible


def test_an_entry_on_one_side_only_differs():
    here = capture_environment()
    assert [f.code for f in check_environment({**here, "phase_of_moon": 1})] == ["environment.phase_of_moon"]
    here.pop("torch")
    assert [f.code for f in check_environment(here)] == ["environment.torch"]


def test_a_flag_that_changes_bits_is_seen_and_left_alone():
    before = capture_environment()
    torch.set_flush_denormal(True)
    try:
        assert [f.code for f in check_environment(before)] == ["environment.flush_denormal"]
        assert capture_environment()["flush_denormal"]
    finally:
        torch.set_flush_denormal(False)
    assert same(capture_environment(), before)


def other_environment(strict):
    model = nn.Linear(1, 1)
    training = Training(model, torch.optim.SGD(model.parameters(), lr=0.1), rng=None, strict=strict)
    record = training.capture()
    object.__setattr__(record, "environment", {**record.environment, "num_threads": 99, "torch": "1.0"})
    return training, record


def test_a_difference_warns_with_every_entry():
    training, record = other_environment(strict=False)
    with pytest.warns(EnvironmentWarning, match="environment.num_threads") as caught:
        training.restore(record)
    assert "environment.torch" in str(caught[0].message)


def test_an_accepted_difference_is_silent():
    training, record = other_environment(strict=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        training.restore(record, accept=["environment.num_threads", "environment.torch"])


def test_a_strict_training_refuses_and_can_accept():
    training, record = other_environment(strict=True)
    with pytest.raises(EnvironmentMismatch) as caught:
        training.restore(record)
    assert [f.code for f in caught.value.findings] == ["environment.num_threads", "environment.torch"]
    training.restore(record, accept=["environment.num_threads", "environment.torch"])
