"""Checkpoints that lie about what version 4 of the format added: attributes of optimizers, settings of components."""

import json

import pytest

from segue._store.archive import write_checkpoint
from segue.errors import CorruptCheckpoint
from tests._store.records import fourth_version
from tests.hostile.lies import at, lie, lie_in_state, refused

FOREIGN = ("opaque_optimizers", "dict", "foreign", "dict")
ATTRIBUTES = (*FOREIGN, "attributes", "dict")


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    path = tmp_path_factory.mktemp("honest") / "checkpoint"
    write_checkpoint(fourth_version(1), path)
    return path


@pytest.mark.parametrize("version", [1, 2, 3])
def test_an_older_version_that_needs_4_is_refused(version, checkpoint):
    lie(checkpoint, lambda document: document.update(version=version))
    refused(checkpoint, CorruptCheckpoint, match="claims an older version")


def put(path, **values):
    return lambda state: at(state, path).update(values)


LIES = {
    "attributes that are a list": put(FOREIGN, attributes=[1]),
    "attributes that say nothing": put(FOREIGN, attributes=None),
    "a part of nobody": put(ATTRIBUTES, run="os.system"),
    "a part that is a list": put(ATTRIBUTES, kept=[1]),
    "a part whose keys are no names": put(ATTRIBUTES, moved={"map": [[1, 2]]}),
    "settings that say nothing": put(("components", "dict", "scaler", "dict"), configured=None),
}


@pytest.mark.parametrize("what", LIES)
def test_a_lie_about_attributes_is_refused(checkpoint, what):
    state = json.loads((checkpoint / "state.json").read_text())
    LIES[what](state)
    lie_in_state(checkpoint, json.dumps(state).encode())
    refused(checkpoint, CorruptCheckpoint)
