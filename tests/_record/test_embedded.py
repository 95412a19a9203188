"""Records of segue's own in trees: stored under a name from a fixed list, and validated like any section."""

import pytest

from segue._record.gradients import GradientsRecord
from segue._record.structure import needed_version
from segue._record.tree import decode, encode, leaves, same, thaw
from segue._record.window import WindowRecord, WindowState
from segue.errors import InvalidRecord
from tests._record.test_rank_local import stored
from tests._store.records import record, tensor

PARTS = {
    "module": record().model,
    "optimizer": next(iter(record().optimizers.values())),
    "scheduler": next(iter(record().schedulers.values())),
    "component": next(iter(record().components.values())),
    "gradients": GradientsRecord({"a": tensor()}),
    "window": WindowRecord(
        WindowState("plain", "float32", 1.0, None, 1, 1.0), GradientsRecord({"a": tensor()})
    ),
    "window_state": WindowState("weighted", "float64", 0.1, 4, 2, 3.5),
}


@pytest.mark.parametrize("name", PARTS)
def test_each_part_of_a_record_may_stand_in_a_tree(name):
    tree = {"mine": (PARTS[name], 1)}
    back, _ = stored(tree)
    assert type(back["mine"][0]) is type(PARTS[name])
    assert same(tree, back)
    assert [path for path, _ in leaves(tree)] == [path for path, _ in leaves(back)]
    assert needed_version(tree) == 3


@pytest.mark.parametrize("name", PARTS)
def test_it_is_stored_under_its_name(name):
    assert encode(PARTS[name], lambda path, blob: "t")["own"][0] == name


@pytest.mark.parametrize("name", PARTS)
def test_it_is_the_same_live_and_stored(name):
    assert thaw([PARTS[name]])[0] is PARTS[name]


def test_in_its_own_place_it_needs_no_newer_version():
    assert needed_version(record()) < 3
    assert needed_version(record(caller_state=[PARTS["gradients"]])) == 3
    assert needed_version(record(streams={"mine": [PARTS["gradients"]]})) == 3


@pytest.mark.parametrize("name", PARTS)
def test_one_that_lacks_a_field_or_has_another_is_refused(name):
    body = encode(PARTS[name], lambda path, blob: "t")["own"][1]
    for wrong in ({"dict": {**body["dict"], "more": 1}}, {"dict": {}}, {"dict": {"tensors": 5}}, [], 7):
        with pytest.raises(InvalidRecord):
            decode({"own": [name, wrong]}, lambda reference: tensor())


def test_a_difference_is_noticed():
    assert not same(PARTS["gradients"], GradientsRecord({"a": tensor(seed=3)}))
    assert not same(PARTS["gradients"], PARTS["window"])
