"""Dataclasses to trees and back: what is not exactly right is refused by its path."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from segue._record.structure import structure, unstructure
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
