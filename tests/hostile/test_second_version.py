"""Checkpoints that lie about what version 2 of the format added."""

import pytest

from segue._store.archive import write_checkpoint
from segue.errors import CorruptCheckpoint
from tests._store.records import second_version
from tests.hostile.lies import at, drop, lie, lie_in_state, put, refused

WEIGHT = ("model", "dict", "tensors", "dict", "base.weight", "subclass")
SPEC = ("model", "dict", "contract", "dict", "tensors", "dict", "base.weight", "dict")
PARTS = (*SPEC, "parts", "dict")
OPTIMIZER = ("optimizers", "dict", "optimizer", "dict")
MOMENT = (*OPTIMIZER, "state", "dict", "head", "dict", "exp_avg", "subclass")


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    path = tmp_path_factory.mktemp("honest") / "checkpoint"
    write_checkpoint(second_version(1), path)
    return path


def test_a_version_1_that_needs_2_is_refused(checkpoint):
    lie(checkpoint, lambda document: document.update(version=1))
    refused(checkpoint, CorruptCheckpoint, match="claims an older version")


def test_a_version_1_with_a_field_of_2_that_says_nothing_is_refused(checkpoint):
    def change(document):
        at(document["sections"], SPEC).update(parts=None)

    lie(checkpoint, change)
    refused(checkpoint, CorruptCheckpoint)


def place(path, index, value):
    def change(document):
        at(document["sections"], path)[index] = value

    return change


LIES = {
    "a tensor of parts that its contract does not know": drop(SPEC, "parts"),
    "another class in the contract": put(PARTS, class_name="torchao.quantization.Int8Tensor"),
    "another context in the contract": put(PARTS, context={"dict": {}}),
    "another part in the contract": drop((*PARTS, "tensors", "dict"), "scale"),
    "another dtype of a part": put((*PARTS, "tensors", "dict", "qdata", "dict"), dtype="int8"),
    "another shape of a part": put((*PARTS, "tensors", "dict", "qdata", "dict"), shape={"tuple": [8]}),
    "a part that is a list": put((*PARTS, "tensors", "dict"), qdata=[]),
    "a spec with a field of nobody": put(PARTS, hook="os.system"),
    "a class that is no text": put((*WEIGHT, 0, "dict"), class_name=5),
    "a shape that is no shape": put((*WEIGHT, 0, "dict"), shape={"tuple": [2, -4]}),
    "a shape of another tensor": put((*WEIGHT, 0, "dict"), shape={"tuple": [4, 2]}),
    "strides of another length": put((*WEIGHT, 0, "dict"), strides={"tuple": [1]}),
    "a field too many": put((*WEIGHT, 0, "dict"), run="os.system"),
    "an order of other parts": put((*WEIGHT, 0, "dict"), order={"tuple": ["qdata", "other"]}),
    "an order that names one twice": put((*WEIGHT, 0, "dict"), order={"tuple": ["qdata", "qdata"]}),
    "parts that are no object": place(WEIGHT, 1, []),
    "a part that is a number": put((*WEIGHT, 1), scale=5),
    "a tensor in a description": put((*WEIGHT, 0, "dict"), context={"tensor": "model/tensors/head"}),
    "a description without parts": place(MOMENT, 1, {}),
    "a pair of one": lambda document: at(document["sections"], MOMENT).pop(),
    "attributes that are no dictionary": put(OPTIMIZER, attributes=[1]),
    "attributes by numbers": put(OPTIMIZER, attributes={"map": [[1, 2]]}),
    "an unknown kind of composite": lambda document: at(document["sections"], MOMENT[:-1]).update(pickled=at(document["sections"], MOMENT[:-1]).pop("subclass")),
    "a sparse tensor in a model": put(("model", "dict", "tensors", "dict"), head={"sparse": []}),
}  # fmt: skip


@pytest.mark.parametrize("what", LIES)
def test_a_lie_about_a_tensor_of_parts_is_refused(checkpoint, what):
    lie(checkpoint, LIES[what])
    refused(checkpoint, CorruptCheckpoint)


def test_a_state_nested_without_end_is_refused(checkpoint):
    inner = '{"subclass":[{"dict":{}},{"a":' * 100 + "1" + "}]}" * 100
    lie_in_state(checkpoint, b'{"caller_state":' + inner.encode() + b',"components":{"dict":{}}}')
    refused(checkpoint, CorruptCheckpoint)


def test_a_class_that_nobody_admits_can_be_read_but_never_made(checkpoint):
    """It is data until someone asks for a live tensor: inspecting and comparing need no class."""
    from segue._store.archive import open_checkpoint
    from segue.errors import InvalidRecord

    lie(checkpoint, put((*MOMENT, 0, "dict"), class_name="os.system"))
    with open_checkpoint(checkpoint) as opened:
        moment = opened.verify().optimizers["optimizer"].state["head"]["exp_avg"]
        with pytest.raises(InvalidRecord, match="does not admit"):
            moment.to_host()


def test_parts_in_another_order_than_the_contract_tells_are_refused(checkpoint):
    def change(document):
        at(document["sections"], WEIGHT)[0]["dict"]["order"]["tuple"].reverse()

    lie(checkpoint, change)
    refused(checkpoint, CorruptCheckpoint)
