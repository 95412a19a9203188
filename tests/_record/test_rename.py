"""The same record under other names, wherever a name occurs."""

from dataclasses import replace

import pytest

from segue._record.contract import Sharing
from segue._record.gradients import GradientsRecord
from segue._record.rename import renamed
from segue._record.sections import ComponentRecord, GroupRecord, OptimizerRecord
from segue._record.window import WindowRecord, WindowState
from segue.errors import InvalidRecord
from tests._store.records import module, record, tensor


def made():
    tensors = {"encoder.bias": tensor(seed=1), "encoder.weight": tensor(), "head.weight": tensor(seed=2)}
    return record(
        model=module(tensors, sharing=[Sharing({"encoder.weight": 0, "tied.weight": 0}, True)]),
        optimizers={
            "o": OptimizerRecord(
                "SGD",
                (GroupRecord(("encoder.weight", "head.weight", "loss/w"), {}, {}),),
                {"encoder.weight": {"step": 1}, "loss/w": {}},
                {},
                (),
            )
        },
        gradients=GradientsRecord({"encoder.weight": tensor(), "head.weight": tensor(seed=2)}),
        window=WindowRecord(
            WindowState("plain", "float32", 1.0, None, 1, 1.0), GradientsRecord({"encoder.bias": tensor()})
        ),
    )


def test_a_submodule_renames_everything_below_it():
    new = renamed(made(), {"encoder": "zoo.body"})
    assert list(new.model.tensors) == ["head.weight", "tied.weight", "zoo.body.bias"]
    assert list(new.gradients.tensors) == ["head.weight", "tied.weight"]
    assert list(new.window.sums.tensors) == ["zoo.body.bias"]
    assert new.optimizers["o"].groups[0].parameters == ("tied.weight", "head.weight", "loss/w")
    assert new.optimizers["o"].state == {"tied.weight": {"step": 1}, "loss/w": {}}
    assert new.model.contract.order == ("zoo.body.bias", "tied.weight", "head.weight")


def test_a_tied_tensor_is_called_by_the_first_of_its_new_names():
    new = renamed(made(), {"tied": "a"})
    assert "a.weight" in new.model.tensors
    assert "encoder.weight" not in new.model.tensors
    assert dict(new.model.contract.sharing[0].members) == {"a.weight": 0, "encoder.weight": 0}


def test_the_longest_name_wins_and_a_name_is_no_prefix():
    new = renamed(made(), {"encoder": "body", "encoder.bias": "b"})
    assert sorted(new.model.tensors) == ["b", "body.weight", "head.weight"]
    with pytest.raises(InvalidRecord, match="has this name"):
        renamed(made(), {"encod": "x"})


def test_names_can_be_swapped():
    new = renamed(made(), {"encoder.bias": "head.weight", "head.weight": "encoder.bias"})
    assert list(new.model.tensors) == ["encoder.bias", "encoder.weight", "head.weight"]
    assert new.model.tensors["head.weight"] is not None


def test_two_tensors_never_get_one_name():
    with pytest.raises(InvalidRecord) as caught:
        renamed(made(), {"encoder.bias": "head.weight"})
    assert caught.value.code == "rename.collision"


def test_no_names_give_the_record_itself():
    one = made()
    assert renamed(one, {}) is one


def test_names_of_tensors_imply_the_modules_that_hold_them():
    old = module({"head.weight": tensor(), "head.bias": tensor(shape=(1,))})
    made = replace(
        record(), model=replace(old, training={"": True, "head": False}), optimizers={}, components={}
    )
    made = replace(made, gradients=GradientsRecord({}), window=None)
    new = renamed(made, {"head.weight": "top.weight", "head.bias": "top.bias"})
    assert new.model.training == {"": True, "top": False}


def test_what_only_overlaps_is_no_tie_and_keeps_both_names():
    tensors = {"a.x": tensor(), "a.y": tensor(seed=2)}
    shared = record(model=module(tensors, sharing=[Sharing({"a.x": 0, "a.y": 4}, False)]))
    new = renamed(shared, {"a": "b"})
    assert list(new.model.tensors) == ["b.x", "b.y"]
    assert new.model.contract.sharing == (Sharing({"b.x": 0, "b.y": 4}, False),)


def test_a_name_whose_end_is_all_of_it_implies_no_submodule():
    renamed_once = renamed(record(model=module({"weight": tensor()})), {"weight": "other.weight"})
    assert list(renamed_once.model.tensors) == ["other.weight"]


def test_what_a_component_shares_with_the_model_is_renamed_and_with_others_is_not():
    shares = {
        "w": {"with": ("model", "encoder.weight"), "offset": 0, "same": True},
        "u": {"with": ("model", "encoder.weight.scale"), "offset": 0, "same": False},
        "v": {"with": ("component.b", "encoder.weight"), "offset": 0, "same": True},
    }
    component = ComponentRecord("module", "Loss", module({"w": tensor()}), {"shares": shares})
    new = renamed(replace(made(), components={"loss": component}), {"encoder.weight": "body.weight"})
    told = new.components["loss"].tree["shares"]
    assert told["w"]["with"] == ("model", "body.weight")
    assert told["u"]["with"] == ("model", "body.weight.scale")
    assert told["v"]["with"] == ("component.b", "encoder.weight")
