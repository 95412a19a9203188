import shutil

import pytest
import torch

import segue
from segue.errors import CheckpointExists, CheckpointNotFound, CorruptCheckpoint
from tests._session.small import make, step


def test_a_record_survives_the_disk(tmp_path):
    model, optimizer, training = make()
    step(model, optimizer)
    record = training.capture({"a": (1, 2)})
    info = segue.save(record, tmp_path / "deep" / "export")
    loaded = segue.load(info.path)
    assert segue.diff(record, loaded).identical
    assert segue.diff(info.path, record).identical
    assert loaded.state == {"a": (1, 2)}
    assert segue.verify(info.path).num_bytes == info.num_bytes


def test_a_place_that_is_taken_is_refused(tmp_path):
    _, _, training = make()
    segue.save(training.capture({"n": 1}), tmp_path / "export")
    with pytest.raises(CheckpointExists):
        segue.save(training.capture({"n": 2}), tmp_path / "export")
    assert segue.load(tmp_path / "export").state == {"n": 1}


def test_load_never_falls_back(tmp_path):
    _, _, training = make()
    with segue.Checkpointer(training, tmp_path / "run") as checkpointer:
        checkpointer.save({"n": 1})
    with pytest.raises(CheckpointNotFound):
        segue.load(tmp_path / "run" / "ckpt-000000002")
    with pytest.raises(CheckpointNotFound, match="run"):
        segue.load(tmp_path / "run")


def test_a_loaded_record_outlives_its_checkpoint(tmp_path):
    model, optimizer, training = make()
    step(model, optimizer)
    record = training.capture()
    segue.save(record, tmp_path / "export")
    loaded = segue.load(tmp_path / "export")
    shutil.rmtree(tmp_path / "export")
    other, _, other_training = make(seed=1)
    other_training.restore(loaded)
    assert torch.equal(other.weight, model.weight)


def test_a_record_can_be_placed_on_another_device(tmp_path):
    _, _, training = make()
    record = training.capture().with_device("cuda:0")
    segue.save(record, tmp_path / "export")
    with pytest.raises(segue.errors.DeviceMismatch, match='device="cpu"'):
        training.check(segue.load(tmp_path / "export"))
    for device in ("cpu", "cpu:0", torch.device("cpu")):
        training.restore(segue.load(tmp_path / "export", device=device))


def test_a_device_that_torch_has_no_name_for_is_refused_and_one_that_is_absent_here_is_not(tmp_path):
    segue.save(make()[2].capture(), tmp_path / "export")
    for device in ("gpu", "", "cpu:x", 1.5):
        with pytest.raises(segue.errors.DeviceMismatch, match="there is no such device"):
            segue.load(tmp_path / "export", device=device)
    assert segue.load(tmp_path / "export", device="cuda:7").placed_on == "cuda:7"


def test_diff_names_the_first_and_the_worst_element():
    model, _, training = make()
    before = training.capture()
    with torch.no_grad():
        model.weight[1, 2] = torch.nextafter(model.weight[1, 2], torch.tensor(9.0))
        model.bias[0] += 1
    found = segue.diff(before, training.capture())
    by_path = {item.path: item for item in found.differences}
    weight = by_path["tensors/weight"]
    assert (weight.num_differing, weight.num_elements, weight.first_index, weight.max_ulps) == (
        1,
        6,
        (1, 2),
        1,
    )
    assert found.worst is by_path["tensors/bias"]


def test_verify_names_file_and_tensor(tmp_path):
    _, _, training = make()
    info = segue.save(training.capture(), tmp_path / "export")
    path = tmp_path / "export" / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptCheckpoint, match=r"model\.safetensors") as caught:
        segue.verify(info.path)
    assert "weight" in str(caught.value)
