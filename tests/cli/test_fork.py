"""`segue fork`: what it makes, what it says, and how it ends."""

import dataclasses
import os

import pytest

import segue

NEWEST = "ckpt-000000003"
FORKED = "ckpt-000000001"


def test_a_new_run_begins_from_the_checkpoint_and_the_report_tells_both(segue_command, run_path, tmp_path):
    outcome = segue_command("fork", run_path / "ckpt-000000002", "--into", tmp_path / "b", "--json")
    assert (outcome.code, outcome.err) == (0, "")
    report = outcome.json
    assert set(report) == {"path", "run", "checkpoint", "source", "passed_over"}
    assert report["path"] == str(tmp_path / "b")
    assert report["checkpoint"] == dataclasses.asdict(segue.verify(tmp_path / "b" / FORKED))
    source = report["source"]
    run = source.pop("run")
    assert source == dataclasses.asdict(segue.verify(run_path / "ckpt-000000002"))
    assert report["passed_over"] == []
    inspected = segue_command("inspect", tmp_path / "b" / FORKED, "--json").json
    assert (inspected["run"], inspected["seq"]) == (report["run"], 1)
    assert inspected["lineage"][0]["forked_from"]["run"] == run != report["run"]
    assert segue_command("diff", run_path / "ckpt-000000002", tmp_path / "b" / FORKED).code == 0
    assert segue_command("verify", tmp_path / "b").code == 0


def test_a_person_reads_what_was_copied_and_where_it_is(segue_command, run_path, tmp_path):
    outcome = segue_command("fork", run_path, "--into", tmp_path / "b.segue")
    assert (outcome.code, outcome.err) == (0, "")
    assert f"copied  {NEWEST} of run " in outcome.out
    assert " at step 1\n" in outcome.out
    assert str(tmp_path / "b.segue") in outcome.out
    [entry] = segue_command("list", tmp_path / "b.segue", "--json").json["checkpoints"]
    assert (entry["step"], entry["error"]) == (1, None)


def test_of_a_run_with_damage_the_one_that_was_taken_is_told(segue_command, own_run, tmp_path):
    (own_run / NEWEST / "commit").unlink()
    outcome = segue_command("fork", own_run, "--into", tmp_path / "b", "--json")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.json["source"]["seq"] == 2
    [message] = outcome.json["passed_over"]
    assert NEWEST in message
    outcome = segue_command("fork", own_run, "--into", tmp_path / "c")
    assert outcome.code == 0
    assert NEWEST in outcome.out
    assert "ckpt-000000002" in outcome.out


def test_it_ends_as_the_other_commands_do(segue_command, own_run, tmp_path):
    taken = segue_command("fork", own_run, "--into", own_run, "--json")
    assert (taken.code, taken.out) == (2, "")
    assert "a fork begins a new run [store.exists]" in taken.err
    for into in (own_run / "inside", own_run / NEWEST, tmp_path):
        assert segue_command("fork", own_run / NEWEST, "--into", into).code == 2
    assert segue_command("fork", own_run).code == 2
    assert segue_command("fork", tmp_path / "none", "--into", tmp_path / "b").code == 5
    assert segue_command("fork", own_run, "--into", "memory://b").code == 6
    data = bytearray((own_run / NEWEST / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (own_run / NEWEST / "model.safetensors").write_bytes(data)
    assert segue_command("fork", own_run / NEWEST, "--into", tmp_path / "b").code == 4
    (own_run / NEWEST / "manifest.json").unlink()
    assert segue_command("fork", own_run / NEWEST, "--into", tmp_path / "b").code == 5
    assert os.listdir(tmp_path) == ["own"]


LINEAGE = (
    {"step": 200, "microbatch": 400, "forked_from": {"run": "3f2a", "seq": 2, "attempt": "0a", "manifest_sha256": "e" * 64}},
    {"step": 200, "microbatch": 400, "accepted": ["optimizer.adamw.lr"], "renamed": {}},
    {"step": 1200, "microbatch": 9, "accepted": ["model.order", "record.lossy"], "renamed": {"old": "new"}},
    {"step": None, "microbatch": 7, "accepted": [], "renamed": {"[bold]a[/]": "b"}},
    {"step": None, "microbatch": None, "forked_from": {"run": None, "seq": 0, "attempt": "0b", "manifest_sha256": None}},
    {"step": 3, "microbatch": None, "forked_from": {"run": None, "seq": 4, "attempt": "0c", "manifest_sha256": None}},
)  # fmt: skip
TOLD = [
    "forked from run 3f2a checkpoint 2 (step 200)",
    "accepted optimizer.adamw.lr at step 200",
    "accepted model.order, record.lossy at step 1,200; renamed old to new at step 1,200",
    "renamed [bold]a[/] to b at microbatch 7",
    "forked from an export, 0b",
    "forked from checkpoint 4, 0c (step 3)",
]


def test_inspect_tells_the_lineage_in_sentences(segue_command, run_path, tmp_path):
    record = dataclasses.replace(segue.load(run_path / NEWEST), lineage=LINEAGE)
    segue.save(record, tmp_path / "it")
    shown = [line.strip() for line in segue_command("inspect", tmp_path / "it").out.splitlines()]
    at = shown.index(f"lineage       {TOLD[0]}")
    assert shown[at + 1 : at + len(TOLD)] == TOLD[1:]
    assert segue_command("inspect", tmp_path / "it", "--json").json["lineage"] == list(LINEAGE)


@pytest.mark.parametrize(
    "entry",
    ["accepted", None, 7, {}, {"step": "x"}, ("a",), {"forked_from": 3}, {"forked_from": {}}, {"accepted": 5},
     {"accepted": [None], "step": {}}, {"renamed": {1: [2]}, "microbatch": float("nan")}],
)  # fmt: skip
def test_inspect_bears_any_lineage_that_a_file_may_claim(segue_command, run_path, tmp_path, entry):
    record = dataclasses.replace(segue.load(run_path / NEWEST), lineage=(entry,))
    segue.save(record, tmp_path / "it")
    outcome = segue_command("inspect", tmp_path / "it")
    assert (outcome.code, outcome.err) == (0, "")
    assert "lineage" in outcome.out
