"""Tensors that consist of others, as the command shows them."""

import pytest

from segue._store.archive import write_checkpoint
from segue.cli.plain import plain
from tests._store.records import module, record, second_version, sparse, subclass, tensor


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    path = tmp_path_factory.mktemp("stored") / "checkpoint"
    write_checkpoint(second_version(7), path)
    return path


def test_inspect_counts_values_and_names_classes(segue_command, stored):
    summary = segue_command("inspect", stored, "--json").json
    assert summary["model"]["num_elements"] == 8 + 6 + 8
    assert summary["model"]["dtypes"] == {"MXTensor of bfloat16": 3, "float32": 1}
    assert summary["caller_state"] == {"held": ["MXTensor bfloat16 [2, 4]"], "1": "sparse float32 [4, 3]"}
    assert summary["optimizers"]["optimizer"]["attributes"] == {
        "block_size": 256, "name2qmap": {"dynamic": "float32 [4]"}
    }  # fmt: skip
    out = segue_command("inspect", stored).out
    assert "MXTensor of bfloat16" in out
    assert "built with block_size: 256" in out


def test_verify_reads_every_part(segue_command, stored):
    assert segue_command("verify", stored).code == 0


def test_diff_names_the_part_that_changed(segue_command, tmp_path):
    changed = subclass(parts={"qdata": tensor("uint8", (2, 4), seed=9)})
    for name, weight in (("a", subclass()), ("b", changed)):
        write_checkpoint(record(1, model=module({"w": weight})), tmp_path / name)
    outcome = segue_command("diff", tmp_path / "a", tmp_path / "b", "--json")
    [difference] = outcome.json["differences"]
    assert (outcome.code, difference["section"], difference["path"]) == (1, "model", "tensors/w/qdata")


@pytest.mark.parametrize(
    ("value", "text"),
    [(subclass(), "MXTensor bfloat16 [2, 4]"), (sparse(), "sparse float32 [4, 3]")],
)
def test_a_tensor_of_parts_is_one_line(value, text):
    assert plain(value) == text


def test_an_optimizer_of_torch_has_no_attributes(segue_command, tmp_path):
    write_checkpoint(record(1), tmp_path / "a")
    summary = segue_command("inspect", tmp_path / "a", "--json").json
    assert summary["optimizers"]["optimizer"]["attributes"] is None
    assert "built with" not in segue_command("inspect", tmp_path / "a").out


def test_integers_that_python_does_not_write_out_are_told(segue_command, tmp_path):
    write_checkpoint(record(1, caller_state={"n": 1 << 20000, 3 << 20000: 1}), tmp_path / "a")
    told = "a int with too many digits to show"
    outcome = segue_command("inspect", tmp_path / "a", "--json")
    assert (outcome.code, outcome.json["caller_state"]) == (0, {"n": told, told: 1})
    assert segue_command("inspect", tmp_path / "a").code == 0
