"""A rank's own state goes through everything unopened, and through its converter once for each conversion."""

import dataclasses

import pytest
import torch

from segue import RankLocal
from segue._record.composite import blobs
from segue._record.structure import needed_version
from segue._record.tree import decode, encode, leaves, same, thaw
from segue.errors import InvalidRecord
from tests._store.records import tensor


def test_the_inner_state_is_the_same_object_uninspected():
    class Slice:
        def __getattribute__(self, name):
            raise AssertionError(f"looked at: {name}")

    inner = Slice()
    assert RankLocal(inner).inner is inner


def test_a_conversion_calls_the_converter_once_with_the_very_object():
    calls, inner = [], object()

    def convert(value, precision):
        calls.append((value, precision))
        return "converted"

    local = RankLocal(inner, convert)
    assert local.converted("half").inner == "converted"
    assert calls == [(inner, "half")]
    assert local.inner is inner


def test_without_a_converter_it_stays_native():
    local = RankLocal(object())
    assert local.converted("half") is local


def test_it_is_a_frozen_value_that_is_equal_to_itself_alone():
    local = RankLocal(torch.ones(2))
    assert local == local
    assert local != RankLocal(local.inner)
    with pytest.raises(dataclasses.FrozenInstanceError):
        local.inner = 1


def stored(tree):
    """Encode a tree and decode it again."""
    table = {}

    def name(path, blob):
        table["/".join(map(str, path))] = blob
        return "/".join(map(str, path))

    return decode(encode(tree, name), table.__getitem__), table


def test_in_a_tree_it_is_stored_as_its_inner_state_and_comes_back():
    tree = {"zero": [RankLocal({"slice": tensor(), "rank": 1}, convert=print)]}
    back, table = stored(tree)
    assert [*table] == ["zero/0/slice"]
    assert same(back["zero"][0], tree["zero"][0])
    assert type(back["zero"][0]) is RankLocal
    assert back["zero"][0].convert is None


def test_what_works_on_trees_looks_inside():
    tree = {"a": RankLocal({"slice": tensor(), "rank": 1})}
    assert [blob.shape for blob in blobs(tree)] == [(2, 3)]
    assert [path for path, _ in leaves(tree)] == [("a", "slice"), ("a", "rank")]
    assert not same(tree, {"a": RankLocal({"slice": tensor(seed=1), "rank": 1})})
    assert not same(tree, {"a": {"slice": tensor(), "rank": 1}})
    live = thaw(tree)["a"]
    assert isinstance(live.inner["slice"], torch.Tensor)
    assert live.inner["rank"] == 1


def test_it_needs_the_third_version_of_the_format():
    assert needed_version({"a": [RankLocal(1)]}) == 3
    assert needed_version({"a": [1]}) == 1


@pytest.mark.parametrize(
    "body", [None, 5, ["rank_local"], ["rank_local", 1, 2], ["os.system", {}], [["rank_local"], 1], {"a": 1}]
)
def test_a_lie_is_refused(body):
    with pytest.raises(InvalidRecord):
        decode({"own": body}, {}.__getitem__)
