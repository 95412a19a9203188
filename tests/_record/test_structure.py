"""Dataclasses to trees and back: what is not exactly right is refused by its path."""

import dataclasses
from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import Any

import pytest

from segue._record.composite import CapturedSparse, Composite
from segue._record.structure import added, needed_version, structure, unstructure
from segue._record.tensors import CapturedTensor
from segue._record.training import TrainingRecord
from segue._record.tree import same
from segue.errors import InvalidRecord
from tests._store.records import record, tensor


@dataclasses.dataclass(frozen=True)
class Inner:
    count: int
    name: str | None


@dataclasses.dataclass(frozen=True)
class Outer:
    inners: Mapping[str, Inner]
    shape: tuple[int, ...]
    tensors: Mapping[str, CapturedTensor | None]
    tree: Any
    flag: bool


VALUE = Outer(
    {"a": Inner(1, None), "b": Inner(2, "x")}, (2, 3), {"w": tensor(), "gone": None}, {1: (2,)}, True
)


def test_a_dataclass_comes_back_from_its_tree():
    assert structure(Outer, unstructure(VALUE)) == VALUE


def test_a_whole_record_comes_back_from_its_sections():
    made = record()
    again = TrainingRecord.from_sections(made.sections())
    assert all(same(made.sections()[name], section) for name, section in again.sections().items())


def without(tree, key):
    return {name: item for name, item in tree.items() if name != key}


TREE = unstructure(VALUE)
BAD = [
    (None, ""), ([], ""), (without(TREE, "flag"), ""), ({**TREE, "more": 1}, ""), ({**TREE, "flag": 1}, "flag"),
    ({**TREE, "shape": (2, 3)}, "shape"), ({**TREE, "shape": [2, "3"]}, "shape/1"), ({**TREE, "shape": [True]}, "shape/0"),
    ({**TREE, "inners": []}, "inners"), ({**TREE, "inners": {1: {}}}, "inners"),
    ({**TREE, "inners": {"a": {"count": 1}}}, "inners/a"),
    ({**TREE, "inners": {"a": {"count": 1.0, "name": None}}}, "inners/a/count"),
    ({**TREE, "inners": {"a": {"count": 1, "name": 3}}}, "inners/a/name"),
    ({**TREE, "tensors": {"w": 3}}, "tensors/w"),
]  # fmt: skip


@pytest.mark.parametrize(("tree", "where"), BAD, ids=lambda item: repr(item)[:40])
def test_anything_else_is_refused_by_its_path(tree, where):
    with pytest.raises(InvalidRecord) as caught:
        structure(Outer, tree)
    assert caught.value.code == "record.field"
    assert caught.value.where == where


def test_trees_are_passed_through_untouched():
    odd = {"tree": {"inner": (1, {2})}}
    assert unstructure(dataclasses.replace(VALUE, tree=odd))["tree"] is odd


@dataclasses.dataclass(frozen=True)
class Grown:
    """A section that got fields after the first version of the format."""

    count: int
    second: str | None = added(since=2)
    third: int = added(since=3, default=7)
    gradient: CapturedTensor | Composite | None = None


SPARSE = CapturedSparse(
    "sparse_coo", (2,), False, {"indices": tensor("int64", (1, 1)), "values": tensor(shape=(1,))}
)


def test_a_field_of_a_later_version_is_written_only_where_it_says_something():
    assert unstructure(Grown(1)) == {"count": 1, "gradient": None}
    assert unstructure(Grown(1, "x")) == {"count": 1, "second": "x", "gradient": None}
    for value in (Grown(1), Grown(1, "x"), Grown(1, None, 8), Grown(1, "x", 9, SPARSE)):
        assert structure(Grown, unstructure(value)) == value


@pytest.mark.parametrize(
    ("tree", "where"),
    [({"gradient": None}, ""), ({"count": 1}, ""), ({"count": 1, "gradient": None, "fourth": 1}, ""),
     ({"count": 1, "gradient": None, "third": "8"}, "third"), ({"count": 1, "gradient": 3}, "gradient")],
)  # fmt: skip
def test_a_later_field_is_checked_like_any_other(tree, where):
    with pytest.raises(InvalidRecord) as caught:
        structure(Grown, tree)
    assert caught.value.where == where


@pytest.mark.parametrize(
    ("value", "version"),
    [(Grown(1), 1), (Grown(1, "x"), 2), (Grown(1, "x", 8), 3), (Grown(1, gradient=SPARSE), 2), (SPARSE, 2),
     (tensor(), 1), ({"a": [({1: SPARSE},)]}, 2), ([Grown(1, None, 8), SPARSE], 3), (record(), 1), ("x", 1),
     (OrderedDict(a=SPARSE), 2), (deque([SPARSE]), 2), (b"x", 1)],
)  # fmt: skip
def test_the_oldest_version_that_holds_a_value_is_known(value, version):
    assert needed_version(value) == version


@pytest.mark.parametrize("field", [{"second": None}, {"third": 7}])
def test_a_default_that_is_written_out_is_refused(field):
    with pytest.raises(InvalidRecord, match="not of its type") as caught:
        structure(Grown, {"count": 1, "gradient": None, **field})
    assert [caught.value.where] == list(field)
