"""A checkpoint in one file is taken wherever a folder is."""

import json

import pytest

import segue


@pytest.fixture
def file(run_path, tmp_path):
    path = tmp_path / "export.segue"
    segue.save(segue.load(run_path / "ckpt-000000002"), path)
    return path


def test_it_is_shown(segue_command, file):
    outcome = segue_command("inspect", file, "--json")
    assert outcome.code == 0
    assert outcome.json["num_file_bytes"] == file.stat().st_size
    assert "an export" in segue_command("inspect", file).out


def test_it_is_verified(segue_command, file):
    outcome = segue_command("verify", file, "--json")
    [entry] = outcome.json["checkpoints"]
    assert (outcome.code, entry["name"], entry["num_bytes"]) == (0, "export.segue", file.stat().st_size)
    assert entry["saved"] is not None
    data = bytearray(file.read_bytes())
    data[5000] ^= 1
    file.write_bytes(data)
    assert segue_command("verify", file).code == 4


def test_it_is_compared_with_a_folder(segue_command, file, run_path):
    assert segue_command("diff", file, run_path / "ckpt-000000002").code == 0
    assert segue_command("diff", run_path / "ckpt-000000003", file).code == 1


def test_list_shows_the_one_checkpoint_of_a_file(segue_command, file):
    outcome = segue_command("list", file, "--json")
    assert outcome.code == 0
    [entry] = json.loads(outcome.out)["checkpoints"]
    assert (entry["path"], entry["error"]) == (str(file), None)
    file.write_bytes(file.read_bytes()[:-5])
    [damaged] = json.loads(segue_command("list", file, "--json").out)["checkpoints"]
    assert damaged["error"]["code"].startswith("store.")


def test_the_memory_of_another_process_is_out_of_reach(segue_command):
    outcome = segue_command("inspect", "memory://a")
    assert outcome.code == 6
    assert "known only to the process" in outcome.err
