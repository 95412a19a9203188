"""Checkpoints that lie about the precision in which they are stored."""

import copy
import dataclasses

import pytest
import torch

from segue._record.gradients import GradientsRecord
from segue._store.archive import open_checkpoint, write_checkpoint
from segue.errors import CorruptCheckpoint
from tests._store.records import captured, record
from tests.hostile.lies import at, lie, refused

WEIGHT = ("model", "dict", "tensors", "dict", "weight", "converted")
GRADIENT = ("gradients", "dict", "tensors", "dict", "weight", "converted")


@pytest.fixture
def narrow(tmp_path):
    """A checkpoint in half precision, with a tensor of floats and one of integers in its model."""
    whole = record()
    model = whole.model
    integers = captured(torch.arange(12).reshape(4, 3))
    spec = dataclasses.replace(model.contract.tensors["cache"], dtype="int64", shape=(4, 3), strides=(3, 1))
    model = dataclasses.replace(
        model,
        tensors={**model.tensors, "cache": integers},
        contract=dataclasses.replace(model.contract, tensors={**model.contract.tensors, "cache": spec}),
    )
    gradients = GradientsRecord({"weight": captured(torch.ones(4, 3))})
    path = tmp_path / "checkpoint"
    write_checkpoint(dataclasses.replace(whole, model=model, gradients=gradients).converted("half"), path)
    return path


def describe(path, **changes):
    return lambda document: at(document["sections"], path)[0]["dict"].update(changes)


def own(name):
    return {"dtype": name}


INTEGERS = (*WEIGHT[:-2], "cache", "converted")

LIES = {
    "floats that were integers": describe(WEIGHT, dtype=own("int64")),
    "integers that were floats": describe(INTEGERS, dtype=own("float32")),
    "integers of a dtype that is never converted": describe(INTEGERS, dtype=own("int8")),
    "integers that were bytes": describe(INTEGERS, dtype=own("uint8")),
    "integers that are in their own dtype": describe(INTEGERS, dtype=own("int16")),
    "floats that were complex": describe(GRADIENT, dtype=own("complex64")),
    "floats that were float8": describe(GRADIENT, dtype=own("float8_e4m3fn")),
    "exact in its own dtype": describe(GRADIENT, dtype=own("float16"), exact=True),
    "another dtype than the contract's": describe(WEIGHT, dtype=own("float64")),
    "exact that is no truth value": describe(WEIGHT, exact=1),
    "no word on exactness": lambda document: at(document["sections"], WEIGHT)[0]["dict"].pop("exact"),
    "a dtype that is none": describe(WEIGHT, dtype="float32"),
    "nothing stored": lambda document: at(document["sections"], WEIGHT)[1].clear(),
    "two things stored": lambda document: at(document["sections"], WEIGHT)[1].update(more=1),
    "something else stored": lambda document: at(document["sections"], WEIGHT)[1].update(stored=3),
    "a converted tensor that is stored converted": lambda document: at(document["sections"], WEIGHT)[
        1
    ].update(stored={"converted": copy.deepcopy(at(document["sections"], WEIGHT))}),
    "another shape than the contract's": lambda document: at(
        document["sections"], ("model", "dict", "contract", "dict", "tensors", "dict", "weight", "dict")
    ).update(shape={"tuple": [3, 4]}),
    "a precision that there is not": lambda document: document["sections"].update(precision="quarter"),
    "a precision that is no name": lambda document: document["sections"].update(precision=16),
    "the precision that is never written": lambda document: document["sections"].update(precision="native"),
    "no precision, and converted state": lambda document: document["sections"].pop("precision"),
    "the version before": lambda document: document.update(version=2),
}


@pytest.mark.parametrize("name", LIES)
def test_a_lie_about_precision_is_refused(narrow, name):
    lie(narrow, LIES[name])
    refused(narrow, CorruptCheckpoint)


def test_told_the_truth_it_is_read(narrow):
    with open_checkpoint(narrow) as checkpoint:
        found = checkpoint.verify()
        assert (found.precision, checkpoint.manifest.version) == ("half", 3)
        assert "model/cache" not in found.lossy
        assert torch.equal(found.model.tensors["cache"].to_host(), torch.arange(12).reshape(4, 3))


def test_a_narrow_layout_that_spans_much_more_memory_is_refused(narrow):
    def change(document):
        document["tensors"]["model/tensors/weight/stored"]["strides"] = [2**40, 1]

    lie(narrow, change)
    refused(narrow, CorruptCheckpoint)
