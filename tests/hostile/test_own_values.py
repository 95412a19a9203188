"""Checkpoints that lie about the records that a caller has put into one."""

import json

import pytest
import torch

import segue
from segue import RankLocal
from segue.errors import CorruptCheckpoint
from tests._session.callers import Net
from tests.hostile.lies import lie, lie_in_state, read_all, refused


@pytest.fixture
def mine(tmp_path):
    model = Net()
    groups = {
        "adamw": segue.capture_optimizer(torch.optim.AdamW(model.first.parameters()), model),
        "slice": RankLocal({"values": torch.ones(3), "rank": 1}),
    }
    path = tmp_path / "checkpoint"
    segue.save(
        segue.TrainingRecord.capture(model, model_state=segue.capture_module(model), groups=groups), path
    )
    return path


def change(path, edit):
    state = json.loads((path / "state.json").read_text())
    edit(state)
    lie_in_state(path, json.dumps(state).encode())


def optimizer(state):
    return state["groups"]["dict"]["adamw"]["own"]


def module(state):
    return state["model_state"]["own"][1]["dict"]


LIES = {
    "a name that nobody has": lambda state: optimizer(state).__setitem__(0, "subprocess.Popen"),
    "a name that is no text": lambda state: optimizer(state).__setitem__(0, ["optimizer"]),
    "the name of another part": lambda state: optimizer(state).__setitem__(0, "module"),
    "a field more": lambda state: optimizer(state)[1]["dict"].update(more=1),
    "a field less": lambda state: optimizer(state)[1]["dict"].pop("groups"),
    "a field of another type": lambda state: optimizer(state)[1]["dict"].update(class_name=5),
    "no tree": lambda state: optimizer(state).__setitem__(1, {"dict": 5}),
    "three things": lambda state: optimizer(state).append(1),
    "one thing": lambda state: optimizer(state).pop(),
    "a module without its tensor": lambda state: module(state)["tensors"]["dict"].pop("first.bias"),
    "a tensor twice": lambda state: module(state)["tensors"]["dict"].update(
        {"first.bias": module(state)["tensors"]["dict"]["frozen.bias"]}
    ),
    "rank-local state that is nothing": lambda state: state["groups"]["dict"]["slice"].update(own=["rank_local"]),
    "rank-local state of a tensor that is nowhere": lambda state: state["groups"]["dict"]["slice"]["own"][1]["dict"].update(
        values={"tensor": "groups/nowhere"}
    ),
}  # fmt: skip


def test_told_honestly_it_is_read(mine):
    change(mine, lambda state: None)
    read_all(mine)


@pytest.mark.parametrize("edit", LIES.values(), ids=LIES)
def test_a_lie_about_what_is_in_it_is_refused(mine, edit):
    change(mine, edit)
    refused(mine, CorruptCheckpoint)


@pytest.mark.parametrize("version", [1, 2])
def test_an_older_version_that_holds_such_a_thing_is_refused(mine, version):
    lie(mine, lambda document: document.update(version=version))
    refused(mine, CorruptCheckpoint, match="claims an older version")


def test_deeper_than_anyone_reads_is_refused(mine):
    def edit(state):
        tree = 1
        for _ in range(300):
            tree = {"own": ["rank_local", tree]}
        state["groups"]["dict"]["slice"] = tree

    change(mine, edit)
    refused(mine)


@pytest.mark.parametrize("sizes", [[-1, 3], [10**18, 4], [{"int": "0x" + "f" * 40}, 3]])
def test_a_contract_of_no_possible_model_is_refused(mine, sizes):
    """Nothing else tells the shapes: the record has no values of its own."""

    def edit(document):
        contract = document["sections"]["model"]["dict"]["contract"]["dict"]
        contract["tensors"]["dict"]["first.weight"]["dict"]["shape"] = sizes

    lie(mine, edit)
    refused(mine, CorruptCheckpoint)
