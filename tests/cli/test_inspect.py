import pytest
import torch

import segue
from tests.exactness.strangers import OwnMomentum

CHECKPOINT = "ckpt-000000003"


def test_json_has_the_documented_shape(segue_command, run_path):
    outcome = segue_command("inspect", run_path / CHECKPOINT, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    summary = outcome.json
    assert list(summary) == [
        "path", "run", "seq", "num_file_bytes", "files", "kind", "step", "microbatch", "world_size", "rank", "num_bytes",
        "precision", "sections", "model", "optimizers", "opaque_optimizers", "schedulers", "gradients", "window", "components",
        "streams", "private_streams", "caller_state", "environment", "lineage",
    ]  # fmt: skip
    assert (summary["step"], summary["microbatch"], summary["seq"]) == (1, 3, 3)
    assert summary["model"]["num_elements"] == 3 * 4 + 4 + 4 + 4
    assert summary["model"]["num_buffers"] == 3
    assert summary["optimizers"]["optimizer"]["steps"] == [1.0, 1.0]
    assert summary["optimizers"]["optimizer"]["groups"][0]["options"]["lr"] == 0.01
    assert summary["schedulers"]["scheduler"]["last_epoch"] == 1
    assert (summary["window"]["microbatches"], summary["window"]["total_weight"]) == (1, 6.0)
    assert summary["window"]["sums"]["num_tensors"] == 4
    assert summary["streams"] == ["python", "numpy", "torch"]
    assert summary["caller_state"] == {"step": 1, "note": "[bold]not markup[/]"}


def test_sizes_add_up(segue_command, run_path):
    summary = segue_command("inspect", run_path / CHECKPOINT, "--json").json
    assert sum(section["num_bytes"] for section in summary["sections"].values()) == summary["num_bytes"]
    on_disk = sum(path.stat().st_size for path in (run_path / CHECKPOINT).iterdir())
    assert summary["num_file_bytes"] == on_disk


@pytest.mark.parametrize(
    "told",
    [
        "step 1, microbatch 3",
        "AdamW",
        "StepLR",
        "1 of 2 microbatches",
        "weight 6",
        "python, numpy, torch",
        "torch 2.",
    ],
)
def test_a_person_sees_position_window_and_environment(segue_command, run_path, told):
    assert told in segue_command("inspect", run_path / CHECKPOINT).out


def test_names_from_a_checkpoint_are_never_taken_for_markup(segue_command, run_path):
    assert "[bold]not markup[/]" in segue_command("inspect", run_path / CHECKPOINT).out


def test_a_missing_checkpoint_exits_5_with_nothing_on_stdout(segue_command, tmp_path):
    outcome = segue_command("inspect", tmp_path / "none", "--json")
    assert (outcome.code, outcome.out) == (5, "")
    assert "error: no such checkpoint [store.not_found]" in outcome.err


def test_a_run_is_no_checkpoint_and_the_error_names_one(segue_command, run_path):
    outcome = segue_command("inspect", run_path)
    assert outcome.code == 5
    assert f"{run_path / CHECKPOINT}" in outcome.err


def test_a_checkpoint_without_its_commit_exits_5(segue_command, own_run):
    (own_run / CHECKPOINT / "commit").unlink()
    assert segue_command("inspect", own_run / CHECKPOINT).code == 5


def test_an_optimizer_that_is_not_torchs_is_shown(segue_command, tmp_path):
    model = torch.nn.Linear(2, 2)
    optimizers = {"own": OwnMomentum([model.weight], lr=0.1), "bias": OwnMomentum([model.bias], lr=0.1)}
    segue.save(segue.Training(model, optimizers).capture(), tmp_path / "it")
    shown = segue_command("inspect", tmp_path / "it", "--json").json["opaque_optimizers"]
    assert shown["own"] == {
        "class": "tests.exactness.strangers.OwnMomentum", "kind": "state_dict", "groups": [{"num_parameters": 1}],
    }  # fmt: skip
    text = " ".join(segue_command("inspect", tmp_path / "it").out.split())
    assert "OwnMomentum as 'bias', by its own state_dict; steps 1 parameter" in text


def test_private_streams_are_shown_with_all_their_places(segue_command, tmp_path):
    model = torch.nn.Linear(2, 1)
    model.noise = model.again = torch.Generator()
    training = segue.Training(model, torch.optim.SGD(model.parameters(), lr=0.1))
    segue.save(training.capture(), tmp_path / "x")
    summary = segue_command("inspect", tmp_path / "x", "--json").json
    assert summary["private_streams"] == {
        "model.again": {"kind": "torch.Generator", "aliases": ["model.noise"]}
    }
    out = " ".join(segue_command("inspect", tmp_path / "x").out.split())
    assert "model.again: torch.Generator, also at model.noise" in out
