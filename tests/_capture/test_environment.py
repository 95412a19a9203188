"""What changes last bits is recorded and compared, and never set."""

import subprocess
import sys
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


def test_a_record_of_an_older_segue_says_nothing_of_what_came_since():
    older = capture_environment()
    for key in ("libraries", "cpu_model", "cpu_instructions", "cuda", "einsum", "fp32_precision"):
        del older[key]
    assert list(check_environment(older, {})) == []


def test_each_finding_says_why_bits_change():
    here = capture_environment({})
    for key in here:
        [finding] = check_environment({**here, key: "another"}, {})
        assert finding.what.startswith(
            "the state is exact, but the continuation may differ in the last bits: "
        )
    [finding] = check_environment({**here, "num_threads": 99}, {})
    assert "split over threads" in finding.what


def module_with_compiled_parts():
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(4)))
    model[0] = torch.compile(model[0])
    model[1] = torch.compile(model[1], backend="aot_eager")
    model[2].compile(backend="eager")
    return model


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
def test_what_runs_compiled_is_recorded_with_its_backend():
    model = module_with_compiled_parts()
    here = capture_environment({"model": model})
    assert here["compiled"] == {"model.0": "inductor", "model.1": "aot_eager", "model.2": "eager"}
    assert list(check_environment(here, {"model": model})) == []
    [finding] = check_environment(here, {"model": nn.Sequential(nn.Linear(2, 2))})
    assert finding.code == "environment.compiled"
    assert "compiled and eager" in finding.what


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
def test_reading_what_is_compiled_changes_nothing():
    model = module_with_compiled_parts()
    before = torch.get_rng_state()
    capture_environment({"model": model})
    assert torch.equal(before, torch.get_rng_state())
    assert model[2]._compiled_call_impl is not None


def test_only_libraries_in_use_are_named():
    code = (
        "import sys; from segue._capture.environment import capture_environment as capture; "
        "first = capture()['libraries']; import torchdata; second = capture()['libraries']; "
        "assert 'torchdata' not in first and 'torchdata' in second, (first, second); "
        "assert 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_library_that_is_imported_later_or_earlier_is_no_difference_and_another_version_is_one():
    code = (
        "import sys; from segue._capture.environment import capture_environment as capture, check_environment; "
        "before = capture(); import torchdata; after = capture(); assert list(check_environment(before)) == []; "
        "del sys.modules['torchdata']; assert list(check_environment(after)) == []; "
        "other = {**after, 'libraries': {'torchdata': '0.10.0', 'apex': '1'}}; [found] = check_environment(other); "
        "assert found.found['torchdata'].startswith('0.11') and found.found['apex'] == 'not installed', found"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


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
