"""The demo from end to end: three runs, nine processes, six real kills; then that of an adapter."""

import sys

import pytest

from segue.demo import picture
from segue.demo.kills import fewest_microbatches
from segue.demo.settings import RunSettings

SHORT = -(-fewest_microbatches(RunSettings()) // 4) * 4


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("demo")


@pytest.mark.timeout(180)
def test_the_killed_run_is_bit_identical_and_state_dicts_are_not(segue_command, out):
    outcome = segue_command("demo", "--json", "--seed", "1", "--microbatches", SHORT, "--out", out)
    assert outcome.code == 0, outcome.err
    report = outcome.json
    assert report["identical"]
    whole, ours, theirs = report["runs"].values()
    assert whole["num_processes"] == 1
    assert ours["num_processes"] == theirs["num_processes"] == 4
    assert ours["digest"] == whole["digest"] != theirs["digest"]
    assert ours["num_losses"] == SHORT
    assert (ours["num_losses_differing"], ours["num_replayed_differing"], ours["sections_differing"]) == (
        0,
        0,
        [],
    )
    assert ours["continued_from"] == [kill["continued_from"] for kill in report["kills"]]
    assert theirs["num_losses_differing"] > 0
    assert "streams" in theirs["sections_differing"]
    assert any(kill["pending_microbatches"] for kill in report["kills"])
    during = [kill for kill in report["kills"] if kill["during_save"]]
    assert during
    assert all("model.safetensors" in kill["written_of_checkpoint"] for kill in during)
    if picture.can_draw():
        assert (out / "loss.png").read_bytes().startswith(b"\x89PNG")

    # What it left can be looked at, as its last lines suggest.
    assert segue_command("verify", out / "runs" / "segue" / "checkpoints").code == 0
    finals = [out / "runs" / role / "final" for role in ("uninterrupted", "segue", "state-dicts")]
    assert segue_command("diff", finals[0], finals[1]).code == 0
    assert segue_command("diff", finals[0], finals[2]).code == 1


def test_a_missing_picture_is_told_before_the_training_with_the_way_to_install(
    segue_command, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    (tmp_path / "runs").mkdir()  # not made by a demo, so that this one ends where the training would begin
    outcome = segue_command("demo", "--out", tmp_path)
    assert outcome.code == 6
    told, refused = outcome.err.splitlines()
    assert "pip install 'segue[demo]'" in told
    assert "not made by the demo" in refused


def test_the_plan_says_how_to_repeat_it(segue_command, tmp_path):
    (tmp_path / "runs").mkdir()
    out = segue_command("demo", "--seed", "7", "--out", tmp_path).out
    assert f"segue demo --seed 7 --out {tmp_path}" in out
    assert "while writing its checkpoint" in out


@pytest.mark.timeout(180)
def test_a_killed_adapter_is_identical_without_a_byte_of_its_base_and_refuses_another(
    segue_command, tmp_path
):
    options = ["--adapters", "--seed", "1", "--microbatches", SHORT, "--out", tmp_path]
    outcome = segue_command("demo", "--json", *options)
    assert outcome.code == 0, outcome.err
    report = outcome.json
    assert report["identical"]
    assert {name: check["passed"] for name, check in report["checks"].items()} == {
        "base_is_absent": True, "other_base_is_refused": True, "identical": True,
    }  # fmt: skip
    whole, ours = report["runs"].values()
    assert (whole["num_processes"], ours["num_processes"]) == (1, 4)
    assert ours["digest"] == whole["digest"]
    assert any(kill["pending_microbatches"] for kill in report["kills"])
    assert any(kill["during_save"] for kill in report["kills"])
    assert (report["picture"], report["adapter"]["base"]) == (
        None,
        str(tmp_path / "runs" / "base.safetensors"),
    )
    absent = report["checks"]["base_is_absent"]
    assert absent["num_base_bytes"] > 10 * absent["num_checkpoint_bytes"]

    # What it left can be looked at, as its last lines suggest.
    finals = [tmp_path / "runs" / role / "final" for role in ("uninterrupted", "segue")]
    assert segue_command("diff", *finals).code == 0
    assert segue_command("inspect", "--json", finals[1]).json["kind"] == "model_state"


def test_the_plan_of_an_adapter_says_how_to_repeat_it_and_needs_no_matplotlib(
    segue_command, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    (tmp_path / "runs").mkdir()  # not made by a demo
    outcome = segue_command("demo", "--adapters", "--seed", "7", "--out", tmp_path)
    assert outcome.code == 6
    assert f"segue demo --adapters --seed 7 --out {tmp_path}" in outcome.out
    assert "A LoRA adapter" in outcome.out
    assert "not made by the demo" in outcome.err
    assert "matplotlib" not in outcome.err
