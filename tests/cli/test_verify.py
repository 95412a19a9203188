import pytest

from segue import errors


def flip_last_byte(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_an_intact_run_is_fine(segue_command, run_path):
    outcome = segue_command("verify", run_path, "--json")
    assert (outcome.code, outcome.err, outcome.json["intact"]) == (0, "", True)
    assert [entry["seq"] for entry in outcome.json["checkpoints"]] == [3, 2, 1]


def test_a_single_checkpoint_can_be_verified(segue_command, run_path):
    outcome = segue_command("verify", run_path / "ckpt-000000002")
    assert outcome.code == 0
    assert "intact" in outcome.out


def test_one_flipped_bit_exits_4_and_names_the_checkpoint(segue_command, own_run):
    flip_last_byte(own_run / "ckpt-000000002" / "model.safetensors")
    outcome = segue_command("verify", own_run, "--json")
    assert (outcome.code, outcome.json["intact"]) == (4, False)
    damaged = [entry["name"] for entry in outcome.json["checkpoints"] if entry["error"]]
    assert damaged == ["ckpt-000000002"]


def test_a_person_is_told_what_is_damaged(segue_command, own_run):
    flip_last_byte(own_run / "ckpt-000000002" / "model.safetensors")
    out = segue_command("verify", own_run).out
    assert "model.safetensors" in out
    assert out.count("intact") == 2


def test_the_gravest_damage_decides_the_code(segue_command, own_run):
    flip_last_byte(own_run / "ckpt-000000002" / "model.safetensors")
    (own_run / "ckpt-000000003" / "commit").unlink()
    assert segue_command("verify", own_run).code == 5


@pytest.mark.parametrize("place", ["none", "."])
def test_nothing_to_verify_exits_5(segue_command, tmp_path, place):
    assert segue_command("verify", tmp_path / place).code == 5


def test_a_place_that_cannot_be_used_exits_6(segue_command):
    outcome = segue_command("verify", "s3://bucket/run")
    assert outcome.code == 6
    assert issubclass(errors.StoreUnavailable, errors.StoreError)
