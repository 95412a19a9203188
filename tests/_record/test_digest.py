"""Digests are equal exactly when every bit, type and layout is."""

import pytest

from segue._record.digest import STATE_SECTIONS, digests, total, tree_digest
from segue._record.gradients import GradientsRecord
from segue._record.training import OPTIONAL_SECTIONS
from tests._store.records import record, tensor

TREE = {"w": tensor(), "list": [1, (2,)], "f": 0.0, "key": {1: "a"}}


def test_equal_trees_have_one_digest_whatever_the_order_of_keys():
    assert tree_digest(TREE) == tree_digest(dict(reversed(TREE.items())))
    assert tree_digest({1, 2, 3}) == tree_digest({3, 2, 1})


@pytest.mark.parametrize(
    "change",
    [{"w": tensor(seed=1)}, {"w": tensor(strides=(1, 2))}, {"w": tensor("int32")}, {"w": tensor(shape=(3, 2))}, {"list": [1, [2]]},
     {"f": -0.0}, {"f": 0}, {"key": {"1": "a"}}, {"more": None}],
)  # fmt: skip
def test_every_change_of_bits_type_or_layout_shows(change):
    assert tree_digest({**TREE, **change}) != tree_digest(TREE)


def test_the_device_is_not_state():
    assert tree_digest({"w": tensor(device="cuda:0")}) == tree_digest({"w": tensor()})


def test_a_change_shows_in_its_own_section_only():
    before, after = digests(record()), digests(record(gradients=GradientsRecord({"weight": tensor(seed=9)})))
    assert before.keys() == set(STATE_SECTIONS) - OPTIONAL_SECTIONS
    assert [name for name in before if before[name] != after[name]] == ["gradients"]
    assert total(before) != total(after)


def test_what_is_about_a_training_is_no_state():
    one, other = record(), record(environment={"torch": "3"}, lineage=(), step=99, microbatch=3)
    assert total(digests(one)) == total(digests(other))


def test_the_same_record_made_twice_has_the_same_digest():
    assert digests(record(3)) == digests(record(3))
    assert len(total(digests(record()))) == 32
