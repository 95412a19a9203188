"""The same record under other names, wherever a name occurs."""

from dataclasses import replace

import pytest

from segue._record.contract import Sharing
from segue._record.gradients import GradientsRecord
from segue._record.rename import names_around, names_in, new_names, renamed, renamed_module, renamed_optimizer
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


def deep(names, modes, components=None):
    """A record of a model with these tensors, and these modes of its modules."""
    tensors = {name: tensor(seed=at) for at, name in enumerate(names)}
    made = replace(
        record(), optimizers={}, gradients=GradientsRecord({}), window=None, components=components or {}
    )
    return replace(made, model=replace(module(tensors), training=modes))


WRAPPED = {"": True, "module": False, "module.a": True, "module.a.b": False}
BARE = {"": False, "a": True, "a.b": False}


def test_a_module_around_all_of_it_is_taken_away():
    new = renamed(deep(["module.a.b.w", "module.v"], WRAPPED), {"module": ""})
    assert list(new.model.tensors) == ["a.b.w", "v"]
    assert new.model.training == BARE


def test_all_of_it_goes_into_a_module_which_is_then_as_it_was():
    new = renamed(deep(["a.b.w", "v"], BARE), {"": "module"})
    assert list(new.model.tensors) == ["module.a.b.w", "module.v"]
    assert new.model.training == {**WRAPPED, "": False}


def test_several_modules_around_it_go_and_come_at_once():
    bare = deep(["w", "a.v"], {"": True, "a": False})
    around = renamed(bare, {"": "x.y"})
    assert list(around.model.tensors) == ["x.y.a.v", "x.y.w"]
    assert around.model.training == {"x": True, "x.y": True, "x.y.a": False, "": True}
    assert renamed(around, {"x.y": ""}).model.training == bare.model.training
    assert list(renamed(around, {"x.y": ""}).model.tensors) == ["a.v", "w"]


def test_a_module_goes_out_of_one_that_holds_more_and_that_one_stays():
    made = deep(["a.b.w", "a.c.v", "a.u"], {"": True, "a": False, "a.b": True, "a.c": True})
    new = renamed(made, {"a.b": "b"})
    assert list(new.model.tensors) == ["a.c.v", "a.u", "b.w"]
    assert new.model.training == {"": True, "a": False, "b": True, "a.c": True}
    inner = renamed(deep(["a.b.w", "a.u"], {"": True, "a": False, "a.b": True}), {"a.b": ""})
    assert inner.model.training == {"": True, "a": False}


def test_a_module_takes_the_place_of_the_one_around_it():
    new = renamed(deep(["a.b.w"], {"": True, "a": False, "a.b": True}), {"a.b": "a"})
    assert list(new.model.tensors) == ["a.w"]
    assert new.model.training == {"": True, "a": True}


def test_a_program_keeps_its_line_and_nothing_goes_deeper_twice():
    once = renamed(deep(["a.b.w", "v"], BARE), {"": "module"})
    assert renamed(once, {"": "module"}).model == once.model
    assert renamed(once, {"": "module.module"}).model != once.model
    nested = renamed(deep(["a.w"], {"": True, "a": True}), {"a": "a.a"})
    assert list(nested.model.tensors) == ["a.a.w"]
    assert renamed(nested, {"a": "a.a"}).model == nested.model


def test_the_whole_of_a_component_is_named_by_it_alone():
    ema = replace(module({"module.w": tensor()}), training={"": True, "module": False})
    ema = ComponentRecord("module", "Net", ema, None)
    made = deep(["module.w"], {"": True, "module": True}, {"ema": ema})
    out = renamed(made, {"ema/module": "ema/"})
    assert list(out.components["ema"].module.tensors) == ["w"]
    assert out.components["ema"].module.training == {"": False}
    assert list(out.model.tensors) == ["module.w"]
    back = renamed(out, {"ema/": "ema/module"})
    assert list(back.components["ema"].module.tensors) == ["module.w"]
    assert list(renamed(back, {"ema/": "ema/module"}).components["ema"].module.tensors) == ["module.w"]


def test_modes_that_are_not_told_come_from_nowhere():
    new = renamed(deep(["w"], {"a": True}), {"": "x"})
    assert new.model.training == {"x.a": True}


def test_a_module_alone_is_renamed_too():
    made = deep(["module.a.b.w"], WRAPPED).model
    assert renamed_module(made, {"module": ""}).training == BARE
    assert renamed_module(made, {}) is made
    assert {"", "module", "module.a", "module.a.b", "module.a.b.w"} == names_in(made)


def test_an_optimizer_alone_is_renamed_too():
    one = made().optimizers["o"]
    new = renamed_optimizer(one, {"encoder": "", "head": "top"})
    assert new.groups[0].parameters == ("weight", "top.weight", "loss/w")
    assert new.state == {"weight": {"step": 1}, "loss/w": {}}
    assert renamed_optimizer(one, {}) is one
    assert new_names(["a.b", "c"], {"a": ""}) == {"a.b": "b"}
    assert names_around(["a.b.c", "d"]) == {"a", "a.b", "a.b.c", "d"}
