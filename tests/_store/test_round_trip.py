"""What was stored comes back: every dtype, layout, tree and size, bit by bit."""

import dataclasses
import gc
import os
import struct
import subprocess

import numpy as np
import pytest
import safetensors.torch
import torch

from segue._record.digest import digests
from segue._record.tensors import DTYPES
from segue._record.tree import same
from segue._store.archive import open_checkpoint, write_checkpoint
from segue._store.store import DirectoryStore
from segue.errors import CheckpointExists, CheckpointNotFound, InvalidRecord, StoreUnavailable
from tests._store.records import MANY_KINDS, array, captured, module, record, tensor


def round_trip(value, path):
    write_checkpoint(value, path)
    found = open_checkpoint(path).record()
    assert same(value.sections(), found.sections())
    assert digests(value) == digests(found)
    return found


def test_every_section_comes_back(tmp_path):
    round_trip(record(1), tmp_path / "a")


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_comes_back(tmp_path, dtype):
    tensors = {"w": tensor(dtype, (2, 3)), "scalar": tensor(dtype, ()), "none": tensor(dtype, (0, 5))}
    found = round_trip(record(1, model=module(tensors)), tmp_path / "a")
    assert found.model.tensors["w"].dtype is DTYPES[dtype]
    # The library can read it too, if need be as bytes.
    loaded = safetensors.torch.load_file(tmp_path / "a" / "model.safetensors")
    assert loaded["w"].dtype in (DTYPES[dtype], torch.uint8)
    assert loaded["none"].numel() == 0


@pytest.mark.parametrize("strides", [(12, 4, 1), (1, 2, 6), (3, 1, 6), (0, 0, 0), (48, 8, 2)])
def test_every_layout_comes_back(tmp_path, strides):
    values = {"w": tensor(shape=(2, 3, 4), strides=strides)}
    found = round_trip(record(1, model=module(values)), tmp_path / "a")
    assert found.model.tensors["w"].strides == strides


def test_every_kind_of_plain_state_comes_back(tmp_path):
    streams = {"python": (3, (1, 2), None), "kinds": MANY_KINDS}
    found = round_trip(record(1, caller_state=MANY_KINDS, streams=streams), tmp_path / "a")
    # Compared as fields too: `sections` must not be what loses the types.
    assert same(found.caller_state, MANY_KINDS)
    assert same(found.streams, streams)


def test_trees_as_deep_as_they_may_be_come_back(tmp_path):
    for wrap in (lambda tree: [tree], lambda tree: {"k": tree}, lambda tree: {1: tree}, lambda tree: (tree,)):
        tree = tensor()
        for _ in range(62):
            tree = wrap(tree)
        round_trip(record(1, caller_state=tree), tmp_path / str(len(os.listdir(tmp_path))))


@pytest.mark.parametrize(
    "values", [np.zeros((0, 3)), np.array(1.5), np.arange(4, dtype=">i2"), np.array(["ab"])]
)
def test_every_array_comes_back(tmp_path, values):
    round_trip(record(1, caller_state=array(values)), tmp_path / "a")


@pytest.mark.parametrize("device", ["cpu", "cuda:1", "meta", "mps"])
def test_devices_come_back_by_name(tmp_path, device):
    values = module({"w": tensor(device=device)})
    assert round_trip(record(1, model=values), tmp_path / "a").model.tensors["w"].device == device


def test_names_of_every_kind_come_back(tmp_path):
    names = ["a.b", "__metadata__", "with/slash", "~", "späß", "new\nline", "x" * 2000, "\u202e", ""]
    round_trip(record(1, model=module({name: tensor() for name in names})), tmp_path / "a")


def test_tensors_larger_than_a_block_come_back(tmp_path, monkeypatch):
    for name in ("checksum", "tensor_file", "stored_bytes"):
        monkeypatch.setattr(f"segue._store.{name}.BLOCK_BYTES", 4096)
    for name in ("output", "tensor_file", "stored_bytes"):
        monkeypatch.setattr(f"segue._store.{name}.SLICE_BYTES", 1024)
    sizes = (0, 1, 1023, 1024, 1025, 4095, 4096, 4097, 8192, 10_000)
    tensors = {f"t{size}": tensor("uint8", (size,), seed=size) for size in sizes}
    found = round_trip(record(1, model=module(tensors)), tmp_path / "a")
    # Stored again from the open files, slice by slice.
    round_trip(found, tmp_path / "b")
    first, second = ((tmp_path / name / "model.safetensors").read_bytes() for name in "ab")
    assert first == second
    description = open_checkpoint(tmp_path / "a").manifest.tensors
    assert len(description["model/tensors/t10000"].chunk.xxh3) == 3
    assert len(description["model/tensors/t8192"].chunk.xxh3) == 2


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(5, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.head = torch.nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("cache", torch.ones(3), persistent=False)


def test_a_plain_model_loads_the_model_file(tmp_path):
    model = Tied()
    values = {name: captured(value) for name, value in model.named_parameters()}
    values |= {name: captured(value) for name, value in model.named_buffers()}
    kinds = {
        "norm.running_mean": "buffer",
        "norm.running_var": "buffer",
        "norm.num_batches_tracked": "buffer",
    }
    write_checkpoint(record(1, model=module(values, kinds | {"cache": "transient"})), tmp_path / "a")
    path = tmp_path / "a" / "model.safetensors"
    plain = Tied()
    missing, unexpected = safetensors.torch.load_model(plain, path, strict=True)
    assert not missing
    assert not unexpected
    assert torch.equal(plain.head.weight, model.embed.weight)
    assert "cache" not in safetensors.torch.load_file(path)
    assert "head.weight" not in safetensors.torch.load_file(path)


def test_data_is_aligned(tmp_path):
    write_checkpoint(record(1), tmp_path / "a")
    for file in ("model.safetensors", "training.safetensors"):
        length = struct.unpack("<Q", (tmp_path / "a" / file).read_bytes()[:8])[0]
        assert (8 + length) % 64 == 0
    for entry in open_checkpoint(tmp_path / "a").manifest.tensors.values():
        assert entry.chunk.begin % DTYPES[entry.dtype].itemsize == 0


def test_sha256sum_checks_the_commit_line(tmp_path):
    write_checkpoint(record(1), tmp_path / "a")
    assert (
        subprocess.run(["sha256sum", "-c", "commit"], cwd=tmp_path / "a", capture_output=True).returncode == 0
    )


def test_equal_records_give_equal_bytes(tmp_path):
    for name in "ab":
        write_checkpoint(record(1), tmp_path / name, new_attempt=lambda: "feed")
    for file in os.listdir(tmp_path / "a"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_an_export_never_replaces_anything(tmp_path):
    write_checkpoint(record(1), tmp_path / "a")
    (tmp_path / "file").write_text("x")
    for name in ("a", "file"):
        with pytest.raises(CheckpointExists):
            write_checkpoint(record(2), tmp_path / name)
    assert sorted(os.listdir(tmp_path)) == ["a", "file"]


def test_an_export_may_have_any_name(tmp_path):
    write_checkpoint(record(1), tmp_path / "ckpt-000000007")
    assert open_checkpoint(tmp_path / "ckpt-000000007").info.seq == 0


def test_a_record_outlives_its_checkpoint_on_disk(tmp_path):
    with DirectoryStore(tmp_path) as store:
        store.put(record(1))
        found = store.open(store.candidates()[0]).record()
        store.remove(store.candidates()[0])
    gc.collect()
    assert digests(found) == digests(record(1))


def test_a_closed_checkpoint_says_so(tmp_path):
    write_checkpoint(record(1), tmp_path / "a")
    opened = open_checkpoint(tmp_path / "a")
    found = opened.record()
    opened.close()
    opened.close()
    with pytest.raises(StoreUnavailable, match="was closed"):
        found.verify()


def test_descriptors_are_closed_with_the_last_tensor(tmp_path):
    write_checkpoint(record(1), tmp_path / "a")
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    found = open_checkpoint(tmp_path / "a").record()
    assert len(os.listdir("/proc/self/fd")) > before
    del found
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(("field", "value"), [("step", -1), ("step", True), ("microbatch", 2**62)])
def test_counts_that_are_none_are_refused(tmp_path, field, value):
    with pytest.raises(InvalidRecord, match=r"record\.field"):
        write_checkpoint(dataclasses.replace(record(1), **{field: value}), tmp_path / "a")
    assert os.listdir(tmp_path) == []


def test_what_no_reader_accepts_is_never_written(tmp_path):
    with pytest.raises(InvalidRecord, match="strides"):
        write_checkpoint(record(1, caller_state=tensor(strides=(2**40, 1))), tmp_path / "a")


def test_the_umask_decides_who_may_read(tmp_path):
    old = os.umask(0o027)
    try:
        write_checkpoint(record(1), tmp_path / "a")
    finally:
        os.umask(old)
    assert os.stat(tmp_path / "a").st_mode & 0o777 == 0o750
    assert {os.stat(tmp_path / "a" / name).st_mode & 0o777 for name in os.listdir(tmp_path / "a")} == {0o640}


def test_opening_a_run_by_mistake_names_a_checkpoint_inside(tmp_path):
    with DirectoryStore(tmp_path) as store:
        store.put(record(1))
    with pytest.raises(CheckpointNotFound, match="ckpt-000000001"):
        open_checkpoint(tmp_path)
