"""B14 and B15: state that an optimizer has outside of its dictionary, and the mode that its weights are in."""

import pytest
import torch
from torch import nn

import segue
from segue import StateOf, Training
from segue.errors import OptimizerMismatch, UnsupportedState
from tests.cases.hidden_state import AFTER, FREE, Distance, Switched, free, run, step
from tests.cases.state import live, raw, stored


def unregistered():
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = Distance(model.parameters())
    return model, optimizer, Training(model, optimizer)


def test_b14_attributes_that_have_moved_are_refused_at_save_time_and_all_are_listed():
    model, optimizer, training = unregistered()
    for index in range(5):
        step(model, optimizer, index)
    before, own = (
        live(model, optimizer),
        {name: raw(vars(optimizer)[name]) for name in ("global_d", "k", "norm")},
    )
    with pytest.raises(UnsupportedState) as caught:
        training.capture()
    assert caught.value.code == "capture.hidden_state"
    assert "global_d (0.001 -> 0.00759375" in caught.value.what
    assert "k (0 -> 5)" in caught.value.what
    assert "norm (0.0 -> " in caught.value.what
    assert "lead" not in caught.value.what  # it only points to a group, which stays where it is
    assert 'segue.StateOf(optimizer, "global_d", "k", "norm")' in caught.value.hint
    assert live(model, optimizer) == before
    assert {name: raw(vars(optimizer)[name]) for name in own} == own


def test_b14_the_line_in_the_refusal_is_all_that_is_missing(tmp_path):
    model, optimizer, training = unregistered()
    step(model, optimizer, 0)
    with pytest.raises(UnsupportedState) as caught:
        training.capture()
    line = caught.value.hint.partition("`")[2].partition("`")[0]
    namespace = {"segue": segue, "optimizer": optimizer}
    components = eval(line.removeprefix("components="), namespace)
    Training(model, optimizer, components=components).capture()


@pytest.mark.exact
def test_b14_once_registered_it_goes_on_with_the_same_bits_in_a_new_process(tmp_path):
    saved, resumed = (run("distance", tmp_path / "record", mode) for mode in ("save", "resume"))
    assert saved == resumed
    assert len(saved["moments"]) == len(set(saved["moments"])) == AFTER + 1


def test_b14_the_leading_group_is_the_one_that_is_stepped_after_a_restore(tmp_path):
    model, optimizer, _ = unregistered()
    names = ("global_d", "k", "norm")
    training = Training(model, optimizer, components={"distance": StateOf(optimizer, *names)})
    step(model, optimizer, 0)
    record = stored(training.capture(), tmp_path)
    assert record.optimizers["optimizer"].attributes == {"lead": {"reference": "group 0"}}
    step(model, optimizer, 1)
    training.restore(record)
    assert optimizer.lead is optimizer.param_groups[0]
    assert (optimizer.global_d, optimizer.k) == (1e-3 * 1.5, 1)


def test_b14_registered_on_one_side_only_is_refused(tmp_path):
    model, optimizer, _ = unregistered()
    components = {"distance": StateOf(optimizer, "global_d", "k", "norm")}
    record = stored(Training(model, optimizer, components=components).capture(), tmp_path)
    other_model, other, resumed = unregistered()
    before = live(other_model, other)
    with pytest.raises(OptimizerMismatch) as caught:
        resumed.restore(record)
    codes = {finding.code for finding in caught.value.findings}
    assert {f"optimizer.optimizer.attribute.{name}" for name in ("global_d", "k", "norm")} < codes
    assert "component.distance" in codes
    assert live(other_model, other) == before


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "AdamWScheduleFree" else pytest.mark.exact) for name in FREE],
)
def test_b15_saved_in_either_mode_it_goes_on_with_the_same_bits_and_mode_in_a_new_process(
    name, mode, tmp_path
):
    pytest.importorskip("schedulefree")
    program = f"{name}-{mode}"
    saved, resumed = (run(program, tmp_path / "record", part) for part in ("save", "resume"))
    assert saved == resumed
    assert set(saved["modes"]) - {None} == {mode == "train"}
    assert len(set(saved["moments"])) == AFTER + 1


def schedule_free(seed):
    torch.manual_seed(seed)
    model = nn.Linear(3, 3)
    optimizer = free("AdamWScheduleFree", warmup_steps=3)(model)
    return model, optimizer, Switched(optimizer, is_training=False)


def test_b15_one_record_holds_weights_and_mode_of_one_instant(tmp_path):
    pytest.importorskip("schedulefree")
    model, optimizer, switched = schedule_free(0)
    training = Training(model, optimizer)
    for index in range(4):
        step(model, switched, index)
    evaluated, in_eval = live(model, optimizer), stored(training.capture(), tmp_path)
    optimizer.train()
    trained, in_train = live(model, optimizer), stored(training.capture(), tmp_path)
    assert evaluated["parameters"] != trained["parameters"]
    # Whichever is restored, and in whichever mode the program is: weights and mode come together.
    for record, expected in ((in_eval, evaluated), (in_train, trained), (in_eval, evaluated)):
        other_model, other, _ = schedule_free(1)
        resumed = Training(other_model, other)
        other.train()
        resumed.restore(record)
        assert live(other_model, other) == expected
        training.restore(record)
        assert live(model, optimizer) == expected


def test_b15_records_of_parts_that_are_taken_in_two_modes_are_the_callers_to_keep_apart():
    pytest.importorskip("schedulefree")
    model, optimizer, switched = schedule_free(0)
    for index in range(4):
        step(model, switched, index)
    weights = segue.capture_module(model)
    optimizer.train()
    rest = segue.capture_optimizer(optimizer, model)
    # The optimizer's record tells the mode that its weights have to be in; a caller of the parts can compare it.
    assert [group.options["train_mode"] for group in rest.groups] == [True]
    other_model, other, _ = schedule_free(1)
    segue.restore_module(weights, other_model)
    segue.restore_optimizer(rest, other, other_model)
    assert raw(other_model.weight) != raw(model.weight)
    assert live(other_model, other)["state"] == live(model, optimizer)["state"]
