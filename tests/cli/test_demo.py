"""The demo from end to end: three runs, nine processes, six real kills."""

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
