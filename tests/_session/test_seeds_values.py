"""What a caller made, in a record: kept as it is, stored as trees, refused by path where it can't be stored."""

import dataclasses
from collections import OrderedDict, deque, namedtuple

import numpy as np
import pytest
import torch

import segue
from segue import RankLocal
from segue._record.digest import digests
from segue._record.tensors import CapturedTensor
from segue._record.training import TrainingRecord as Value
from segue.errors import InvalidRecord, UnsupportedState
from tests._session.callers import CALLBACKS, Loop, Net, bits, everything, scheduler_of
from tests._session.small import make


def captured(model_state=None, groups=None, **given):
    return segue.TrainingRecord.capture(Net(), model_state=model_state, groups=groups, **given)


def handed_back(record):
    """Return what the functions of a restore are given."""
    seen = []
    record.restore(
        Net(),
        restore_model=lambda state, model: seen.append(state),
        restore_groups=lambda model, groups: (model, seen.append(groups)),
    )
    return seen


def test_behaviour_12_what_was_stored_is_equal_to_what_was_given(tmp_path):
    groups = (
        {"exp_avg": torch.arange(4.0), "step": 3, "betas": (0.9, 0.999)},
        [np.arange(3), None, float("nan")],
        OrderedDict(a=segue.capture_gradients({"w": torch.ones(2, dtype=torch.bfloat16)})),
    )
    segue.save(captured({"a": torch.ones(2, 3).t()}, groups), tmp_path / "one")
    record = segue.load(tmp_path / "one")
    state, back = handed_back(record)
    assert state["a"].tolist() == [[1, 1]] * 3
    assert back[0]["exp_avg"].tolist() == [0, 1, 2, 3]
    assert (back[0]["step"], back[0]["betas"]) == (3, (0.9, 0.999))
    assert (back[1][0].tolist(), back[1][1], np.isnan(back[1][2])) == ([0, 1, 2], None, True)
    assert type(back[2]) is OrderedDict
    assert bits(back[2]["a"].to_tensors()["w"]) == bits(torch.ones(2, dtype=torch.bfloat16))
    again, _ = handed_back(record)
    assert again["a"] is not state["a"]


Named = namedtuple("Named", "a")


@pytest.mark.parametrize(
    ("groups", "where"),
    [
        ({"one": [1, object()]}, "groups['one'][1]"),
        ([Named(1)], "groups[0]"),
        ({"inner": RankLocal({"bad": Net()})}, "groups['inner'].inner['bad']"),
        ({"parameter": torch.nn.Parameter(torch.ones(1))}, "groups['parameter']"),
    ],
    ids=["object", "named tuple", "rank local", "parameter"],
)
def test_what_cannot_be_stored_is_captured_and_refused_by_path_when_it_is_saved(groups, where, tmp_path):
    record = captured(groups=groups)
    record.verify()
    assert record.groups is groups
    with pytest.raises(UnsupportedState) as caught:
        segue.save(record, tmp_path / "one")
    assert caught.value.where == where
    assert not (tmp_path / "one").exists()


def test_what_contains_itself_is_refused_too(tmp_path):
    groups = []
    groups.append(groups)
    with pytest.raises(UnsupportedState, match="contains itself"):
        segue.save(captured(groups=groups), tmp_path / "one")
    with pytest.raises(UnsupportedState, match="contains itself"):
        captured(groups=groups).converted("half")


def test_an_array_for_a_model_state_compares_in_its_own_way_and_is_stored(tmp_path):
    segue.save(captured(np.arange(3)), tmp_path / "one")
    assert handed_back_state(segue.load(tmp_path / "one")).tolist() == [0, 1, 2]


def handed_back_state(record):
    seen = []
    record.restore(Net(), restore_model=lambda state, model: seen.append(state))
    return seen[0]


def test_rank_local_state_stands_beside_ordinary_records_and_comes_back_as_it_was(tmp_path):
    loop = Loop()
    groups = (
        segue.capture_optimizer(loop.optimizers["sgd"], loop.model),
        RankLocal({"slice": torch.arange(3.0), "rank": 1}),
    )
    record = captured(groups=groups)
    segue.save(record, tmp_path / "one")
    _, back = handed_back(segue.load(tmp_path / "one"))
    assert isinstance(back[1], RankLocal)
    assert bits(back[1].inner["slice"]) == bits(groups[1].inner["slice"])
    assert back[1].inner["rank"] == 1
    assert segue.diff(record, segue.load(tmp_path / "one")).identical


@pytest.mark.parametrize("way", ["save", "converted"])
def test_a_precision_goes_through_the_converter_of_rank_local_state_exactly_once(way, tmp_path):
    calls = []

    def convert(inner, precision):
        calls.append((inner, precision))
        return inner.to(torch.bfloat16)

    converted, native = RankLocal(torch.full((2,), 0.1), convert), RankLocal(torch.full((2,), 0.1))
    record = captured(groups={"a": [converted], "b": native})
    if way == "save":
        segue.save(record, tmp_path / "one", precision="half")
        stored = segue.load(tmp_path / "one")
    else:
        stored = record.converted("half")
    assert len(calls) == 1
    assert calls[0][0] is converted.inner
    assert calls[0][1] == "half"
    _, groups = handed_back(stored)
    assert bits(groups["a"][0].inner) == bits(torch.full((2,), 0.1).bfloat16())
    assert bits(groups["b"].inner) == bits(native.inner)
    assert record.groups["a"][0] is converted


def test_every_container_is_searched_for_rank_local_state():
    calls = []
    local = RankLocal(1, lambda inner, precision: calls.append(inner))
    tree = {"list": [local], 1: (local,), "more": OrderedDict(a=deque([local], 3)), "same": local}
    stored = captured(model_state=tree, groups=local).converted("full")
    assert len(calls) == 5
    assert stored.model_state["more"]["a"].maxlen == 3


def test_native_precision_calls_no_converter_and_changes_nothing():
    record = captured(groups=RankLocal(1, lambda *_: pytest.fail("called")))
    assert record.converted("native") is record


def test_the_class_that_people_hold_stays(tmp_path):
    record = make()[2].capture()
    segue.save(record, tmp_path / "one")
    loaded = segue.load(tmp_path / "one")
    for each in (
        record, loaded, dataclasses.replace(record, step=3), record.with_device("cuda:0"), record.converted("double"),
        segue.from_bytes(segue.to_bytes(record)), segue.load(tmp_path / "one", device="cpu"),
    ):  # fmt: skip
        assert type(each) is segue.TrainingRecord
        assert not each.is_given
    assert type(record.as_stored()) is Value


def test_what_a_checkpointer_opens_is_of_that_class(tmp_path):
    _, _, training = make()
    with segue.Checkpointer(training, tmp_path / "run") as checkpointer:
        checkpointer.resume({})
        checkpointer.save({})
        assert type(checkpointer.newest()) is segue.TrainingRecord


def test_one_made_of_a_value_is_equal_to_it_and_made_of_itself_is_itself():
    record = make()[2].capture()
    assert segue.TrainingRecord.of(record) is record
    assert digests(segue.TrainingRecord.of(record.as_stored())) == digests(record)
    assert segue.diff(record, segue.TrainingRecord.of(record.as_stored())).identical


def test_placing_a_record_elsewhere_leaves_what_was_given():
    groups = {"a": torch.ones(1)}
    record = captured(groups=groups, state=torch.ones(1)).with_device("cuda:0")
    assert record.groups is groups
    assert record.is_given
    assert record.caller_state.device == "cuda:0"


def test_its_size_and_digests_are_those_of_what_would_be_stored(tmp_path):
    record = captured({"a": torch.ones(5)}, [torch.ones(2)])
    assert record.num_bytes == 28
    segue.save(record, tmp_path / "one")
    assert digests(record) == digests(segue.load(tmp_path / "one"))
    assert not segue.diff(record, captured({"a": torch.zeros(5)}, [torch.ones(2)])).identical


def test_a_loaded_record_holds_captured_tensors_until_it_is_restored(tmp_path):
    segue.save(captured({"a": torch.ones(5)}), tmp_path / "one")
    record = segue.load(tmp_path / "one")
    assert isinstance(record.model_state["a"], CapturedTensor)
    assert isinstance(handed_back_state(record)["a"], torch.Tensor)


def test_records_may_stand_in_the_callers_state_too(tmp_path):
    gradients = segue.capture_gradients({"w": torch.ones(2)})
    segue.save(captured(state={"average": gradients}), tmp_path / "one")
    assert segue.load(tmp_path / "one").state["average"].names == ("w",)


def test_a_record_that_was_stored_with_loss_is_not_restored(tmp_path):
    loop = Loop()
    loop.microbatch(0)
    record = loop.capture()
    with torch.no_grad():
        loop.model.first.weight.fill_(0.1)
    lossless = record.converted("double").restore(Net(9), scheduler_of, **CALLBACKS)
    assert everything(lossless.model, lossless.optimizer)[0] != {}
    with pytest.raises(segue.errors.LossyRecord):
        loop.capture().converted("half").restore(Net(9), scheduler_of, **CALLBACKS)


def test_a_renamed_record_is_still_one():
    from segue._record.rename import renamed

    record = renamed(make()[2].capture(), {"weight": "other"})
    assert type(record) is segue.TrainingRecord
    with pytest.raises(InvalidRecord):
        renamed(record, {"nowhere": "x"})
