"""Version 2 of the format: tensors that consist of others, where their parts go, and which version is written."""

import dataclasses
import json

import pytest
import safetensors.torch

from segue._record.contract import Sharing
from segue._record.diff import diff
from segue._record.gradients import GradientsRecord
from segue._store.archive import open_checkpoint, write_checkpoint
from segue.errors import CorruptCheckpoint
from tests._store.records import module, record, second_version, sparse, subclass, tensor
from tests._store.test_round_trip import round_trip


def version_of(value, path):
    write_checkpoint(value, path)
    return json.loads((path / "manifest.json").read_text())["version"]


def test_everything_of_version_2_comes_back(tmp_path):
    round_trip(second_version(1), tmp_path / "a")


NEEDS_THE_SECOND = {
    "a quantized weight": lambda: record(1, model=module({"w": subclass()})),
    "a sparse gradient": lambda: record(1, gradients=GradientsRecord({"weight": sparse()})),
    "a quantized tensor of the caller": lambda: record(1, caller_state=[{"a": (subclass(),)}]),
    "an optimizer's attributes": lambda: with_optimizer(attributes={}),
    "a quantized moment": lambda: with_optimizer(state={"weight": {"exp_avg": subclass()}}),
}


def with_optimizer(**changes):
    plain = record(1)
    optimizer = dataclasses.replace(plain.optimizers["optimizer"], **changes)
    return dataclasses.replace(plain, optimizers={"optimizer": optimizer})


@pytest.mark.parametrize("what", NEEDS_THE_SECOND)
def test_what_needs_version_2_is_written_as_such(what, tmp_path):
    value = NEEDS_THE_SECOND[what]()
    assert version_of(value, tmp_path / "a") == 2
    round_trip(value, tmp_path / "b")


def test_what_does_not_need_it_is_written_as_version_1(tmp_path):
    assert version_of(record(1), tmp_path / "a") == 1
    assert version_of(with_optimizer(attributes=None), tmp_path / "b") == 1


def test_the_parts_of_the_models_tensors_are_in_the_models_file(tmp_path):
    write_checkpoint(second_version(1), tmp_path / "a")
    found = safetensors.torch.load_file(tmp_path / "a" / "model.safetensors")
    assert sorted(found) == [
        "base.weight.qdata", "base.weight.scale", "head", "nested.qdata", "nested.scale.qdata", "nested.scale.scale",
    ]  # fmt: skip


def test_a_part_makes_way_for_a_tensor_of_the_same_name(tmp_path):
    names = {"w": subclass(), "w.qdata": tensor(), "w.scale": subclass(5), "w.scale.qdata": tensor()}
    round_trip(record(1, model=module(names)), tmp_path / "a")
    found = safetensors.torch.load_file(tmp_path / "a" / "model.safetensors")
    assert sorted(found) == ["w.qdata", "w.scale.qdata", "w.scale.scale"]
    assert found["w.qdata"].shape == (2, 3)


def test_two_parts_that_get_one_name_come_back_both(tmp_path):
    nested = subclass(parts={"qdata": subclass(3)})
    model = module({"w": nested, "w.qdata": subclass(7)})
    round_trip(record(1, model=model), tmp_path / "a")


def test_a_changed_byte_is_told_by_name_and_part(tmp_path):
    weight = subclass(parts={"qdata": tensor("uint8", (2, 4), seed=9)})
    left, right = record(1, model=module({"w": subclass()})), record(1, model=module({"w": weight}))
    [difference] = diff(left, right).differences
    assert (difference.section, difference.path) == ("model", "tensors/w/qdata")


def test_a_part_is_verified_like_any_tensor(tmp_path):
    write_checkpoint(second_version(1), tmp_path / "a")
    with open_checkpoint(tmp_path / "a") as checkpoint:
        entry = checkpoint.manifest.tensors["model/tensors/base.weight/scale"]
        head = checkpoint.manifest.files["model.safetensors"].head
    data = bytearray((tmp_path / "a" / "model.safetensors").read_bytes())
    data[head + entry.chunk.begin] ^= 1
    (tmp_path / "a" / "model.safetensors").write_bytes(data)
    with (
        open_checkpoint(tmp_path / "a") as checkpoint,
        pytest.raises(CorruptCheckpoint, match=r"base\.weight/scale"),
    ):
        checkpoint.verify()


def test_sharing_of_parts_is_kept(tmp_path):
    found = round_trip(second_version(1), tmp_path / "a")
    assert found.model.contract.sharing == (Sharing({"base.weight.scale": 0, "nested.qdata": 4}, False),)
