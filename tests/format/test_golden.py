"""The format is what the golden checkpoint says: it is read, and was written, byte for byte, for ever.

`golden/` is never regenerated. If a test here fails, the code is wrong, or the format needs a new version number.
"""

import hashlib
import os
import sys
from pathlib import Path

import pytest
import torch

from segue._record.contract import Sharing
from segue._record.diff import diff
from segue._record.digest import digests
from segue._record.gradients import GradientsRecord
from segue._record.tensors import CapturedTensor, MemoryBytes
from segue._record.training import TrainingRecord
from segue._record.tree import same
from segue._store.archive import open_checkpoint, write_checkpoint
from tests._store.records import fifth_version, fourth_version, module, record, second_version, third_version

GOLDEN = Path(__file__).parent / "golden" / "version-1"
ATTEMPT = "0123456789abcdef"


def _tensor(dtype, shape, strides, data):
    flat = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    return CapturedTensor(dtype, shape, strides, "cpu", MemoryBytes(flat))


def golden_record() -> TrainingRecord:
    weight = _tensor(torch.float32, (2, 2), (2, 1), bytes(range(16)))
    return TrainingRecord(
        model=module({"weight": weight}, sharing=[Sharing({"weight": 0, "tied": 0}, True)]),
        optimizers={},
        schedulers={},
        gradients=GradientsRecord({"weight": _tensor(torch.float32, (2, 2), (1, 2), bytes(range(16, 32)))}),
        window=None,
        components={},
        streams={"own": _tensor(torch.complex128, (1,), (1,), bytes(range(32, 48)))},
        caller_state={"step": 3, "pair": (1, float("inf"))},
        environment={"torch": "2.13.0"},
        step=3,
        microbatch=12,
    )


# The first is small enough to be spelled out below; the second has something in every section.
# Version 2 has all that it added: tensors of parts as weights, state, gradients and caller state, and the new fields.
# Version 3 likewise: a named base, what a caller made, optimizers of others, and a tensor stored in another precision.
# Version 4: attributes of optimizers of others, and what a gradient scaler was configured with.
# Version 5: private streams, extra state and settings of modules.
GOLDENS = {
    "version-1": golden_record,
    "version-1-every-section": lambda: record(7),
    "version-2": lambda: second_version(7),
    "version-3": lambda: third_version(7),
    "version-4": lambda: fourth_version(7),
    "version-5": lambda: fifth_version(7),
}


@pytest.fixture(params=GOLDENS)
def golden(request):
    return GOLDEN.parent / request.param, GOLDENS[request.param]()


def test_a_golden_checkpoint_is_read(golden):
    path, expected = golden
    with open_checkpoint(path) as checkpoint:
        checkpoint.verify()
        assert same(checkpoint.record().sections(), expected.sections())


def test_a_golden_checkpoint_is_written(golden, tmp_path):
    path, expected = golden
    write_checkpoint(expected, tmp_path / "again", new_attempt=lambda: ATTEMPT)
    assert sorted(os.listdir(tmp_path / "again")) == sorted(os.listdir(path))
    for name in os.listdir(path):
        assert (tmp_path / "again" / name).read_bytes() == (path / name).read_bytes(), name


def test_a_golden_checkpoint_is_read_where_no_library_of_quantized_tensors_is(golden, monkeypatch):
    path, expected = golden
    for name in [name for name in sys.modules if name.partition(".")[0] in ("torchao", "bitsandbytes")]:
        monkeypatch.delitem(sys.modules, name)
    with open_checkpoint(path) as checkpoint:
        found = checkpoint.verify()
        assert digests(found) == digests(expected)
        assert diff(found, expected).identical
    assert "torchao" not in sys.modules


def test_the_model_file_is_these_bytes():
    header = b'{"__metadata__":{"format":"pt"},"weight":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}'
    length = 120
    expected = length.to_bytes(8, "little") + header.ljust(length) + bytes(range(16))
    assert (GOLDEN / "model.safetensors").read_bytes() == expected


def test_the_training_file_is_these_bytes():
    header = (
        b'{"__metadata__":{"format":"pt"},'
        b'"streams/own":{"dtype":"U8","shape":[1,16],"data_offsets":[0,16]},'
        b'"gradients/tensors/weight":{"dtype":"F32","shape":[2,2],"data_offsets":[16,32]}}'
    )
    length = 184
    expected = (
        length.to_bytes(8, "little") + header.ljust(length) + bytes(range(32, 48)) + bytes(range(16, 32))
    )
    assert (GOLDEN / "training.safetensors").read_bytes() == expected


def test_the_caller_tree_is_these_bytes():
    expected = b'{"caller_state":{"dict":{"step":3,"pair":{"tuple":[1,{"float":"7ff0000000000000"}]}}},"components":{"dict":{}}}'
    assert (GOLDEN / "state.json").read_bytes() == expected


def test_the_commit_line_is_these_bytes():
    digest = hashlib.sha256((GOLDEN / "manifest.json").read_bytes()).hexdigest()
    assert (GOLDEN / "commit").read_bytes() == f"{digest}  manifest.json\n".encode()
