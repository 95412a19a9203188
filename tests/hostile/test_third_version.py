"""Checkpoints that lie about what version 3 of the format added to a model: its base and its configuration."""

import json

import pytest

from segue._store.archive import write_checkpoint
from segue.errors import CorruptCheckpoint
from tests._store.records import third_version
from tests.hostile.lies import at, drop, lie, lie_in_state, put, refused

MODEL = ("model", "dict")
BASE = (*MODEL, "base", "dict")
OMITTED = (*BASE, "omitted", "dict")
TENSORS = (*MODEL, "tensors", "dict")
OPAQUE = ("opaque_optimizers", "dict", "foreign", "dict")


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    path = tmp_path_factory.mktemp("honest") / "checkpoint"
    write_checkpoint(third_version(1), path)
    return path


@pytest.mark.parametrize("version", [1, 2])
def test_an_older_version_that_needs_3_is_refused(version, checkpoint):
    lie(checkpoint, lambda document: document.update(version=version))
    refused(checkpoint, CorruptCheckpoint, match="claims an older version")


LIES = {
    "a base of no known source": put(BASE, source="trust me"),
    "a base without an identity": put(BASE, identity=""),
    "an identity that is no text": put(BASE, identity=7),
    "a digest of another length": put(OMITTED, base="abc"),
    "a digest of other digits": put(OMITTED, base="X" * 32),
    "no digest where one is claimed": put(OMITTED, base=None),
    "a declared base with a digest": put(BASE, source="declared"),
    "an omitted tensor that the contract does not know": put(OMITTED, other="0" * 32),
    "an omitted tensor that is there": put(OMITTED, moved="0" * 32),
    "a tensor neither there nor omitted": drop(OMITTED, "base"),
    "no base at all": drop(MODEL, "base"),
    "a base that says nothing": put(MODEL, base=None),
    "omitted tensors in a list": put(BASE, omitted=[]),
    "a base with a field of nobody": put(BASE, load="os.system"),
    "a configuration that is a list": put(MODEL, configuration=[1]),
    "a configuration that says nothing": put(MODEL, configuration=None),
    "a kind of precision that is no text": lambda document: document["sections"].update(precision=2),
    "a precision that says nothing": lambda document: document["sections"].update(precision="native"),
    "optimizers of others in the manifest": lambda document: document["sections"].update(opaque_optimizers=[]),
    "a converted tensor of another dtype than its contract": lambda document: at(document["sections"], (*TENSORS, "adapter", "converted"))[0]["dict"].update(dtype={"dtype": "float16"}),
}  # fmt: skip


@pytest.mark.parametrize("what", LIES)
def test_a_lie_about_the_base_is_refused(checkpoint, what):
    lie(checkpoint, LIES[what])
    refused(checkpoint, CorruptCheckpoint)


LIES_IN_STATE = {
    "an optimizer of another's without state": lambda state: at(state, OPAQUE).pop("state"),
    "groups of numbers": lambda state: at(state, OPAQUE).update(groups=[[1]]),
    "optimizers of others in a list": lambda state: state.update(opaque_optimizers=[]),
    "optimizers of others that say nothing": lambda state: state.update(opaque_optimizers=None),
    "a section of nobody": lambda state: state.update(hooks=[]),
}


@pytest.mark.parametrize("what", LIES_IN_STATE)
def test_a_lie_about_another_optimizer_is_refused(checkpoint, what):
    state = json.loads((checkpoint / "state.json").read_text())
    LIES_IN_STATE[what](state)
    lie_in_state(checkpoint, json.dumps(state).encode())
    refused(checkpoint, CorruptCheckpoint)
