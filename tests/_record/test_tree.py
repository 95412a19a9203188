"""The typed encoding: what goes in comes out in type, structure and every bit, and nothing else comes in."""

import json
import math
import struct
from collections import Counter, OrderedDict, deque

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from segue._capture.plain import freeze
from segue._record.composite import ConvertedTensor
from segue._record.tensors import CapturedTensor
from segue._record.tree import (
    MAX_DEPTH,
    MAX_NAME_BYTES,
    blob_name,
    copied,
    decode,
    encode,
    leaves,
    same,
    shown_path,
    thaw,
)
from segue.errors import InvalidRecord
from tests._store.records import MANY_KINDS, array, tensor

PAYLOADS = [math.inf, -math.inf, -0.0, struct.unpack(">d", bytes.fromhex("7ff800000000abcd"))[0],
            struct.unpack(">d", bytes.fromhex("fff8000000000001"))[0], 5e-324, 1.7976931348623157e308, 0.1]  # fmt: skip

floats = st.one_of(st.floats(), st.sampled_from(PAYLOADS))
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(-(2**200), 2**200), floats, st.complex_numbers(),
    st.text(st.characters(), max_size=8), st.text(st.characters(categories=["Cs", "Lu"]), max_size=4),
    st.binary(max_size=8), st.sampled_from([torch.bfloat16, torch.float8_e8m0fnu, torch.bool, torch.qint8]),
    st.sampled_from([torch.device("cpu"), torch.device("cuda:3"), torch.Size([2, 0])]),
    st.builds(range, st.integers(-5, 5), st.integers(-5, 5), st.integers(1, 3)),
    st.sampled_from([np.float32("nan"), np.int8(-3), np.str_(""), np.str_("ab"), np.datetime64("NaT"), np.bool_(True)]),
)  # fmt: skip
keys = st.one_of(st.text(max_size=4), st.sampled_from(["0", "1", "~k0", "a/b", "a", "tuple", "dict"]), st.integers(),
                 st.booleans(), st.none(), st.tuples(st.integers(), st.text(max_size=2)))  # fmt: skip


def containers(inner):
    return st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=3).map(tuple),
        st.builds(deque, st.lists(inner, max_size=3), st.sampled_from([None, 3, 9])),
        st.dictionaries(keys, inner, max_size=4),
        st.dictionaries(keys, inner, max_size=3).map(OrderedDict),
        st.dictionaries(keys, st.integers(), max_size=3).map(Counter),
        st.sets(keys, max_size=3),
        st.frozensets(keys, max_size=3),
        st.binary(max_size=4).map(bytearray),
    )


trees = st.recursive(scalars, containers, max_leaves=20)


class Shelf:
    """Keeps blobs by name, as a tensor file does, and refuses two under one name."""

    def __init__(self):
        self.blobs = {}

    def put(self, path, blob):
        name = blob_name(("section", *path))
        assert name not in self.blobs
        self.blobs[name] = blob
        return name


def round_trip(tree):
    shelf = Shelf()
    text = json.dumps(encode(tree, shelf.put), allow_nan=False)
    return decode(json.loads(text), shelf.blobs.__getitem__)


@settings(max_examples=300, deadline=None, database=None)
@given(trees)
def test_every_tree_comes_back_with_its_types_and_bits(tree):
    assert same(round_trip(freeze(tree, "state")), tree)


@settings(max_examples=100, deadline=None, database=None)
@given(trees, trees)
def test_two_trees_have_one_encoding_only_if_they_are_the_same(left, right):
    ours, theirs = (json.dumps(encode(tree, Shelf().put)) for tree in (left, right))
    if ours == theirs:
        assert same(left, right)


def test_every_kind_of_value_comes_back():
    assert same(round_trip(MANY_KINDS), MANY_KINDS)


@pytest.mark.parametrize(
    "value", [2**53, -(2**53), 2**53 - 1, 2**64, 2**20_000, -(2**20_000)], ids=lambda v: v.bit_length()
)
def test_integers_of_any_size_come_back(value):
    assert round_trip(value) == value


@pytest.mark.parametrize("value", PAYLOADS)
def test_floats_keep_sign_and_payload(value):
    assert struct.pack("d", round_trip(value)) == struct.pack("d", value)
    assert same(round_trip(complex(value, -0.0)), complex(value, -0.0))


def test_an_integer_key_and_its_text_stay_two_keys():
    assert same(round_trip({1: "a", "1": "b"}), {1: "a", "1": "b"})
    assert same(round_trip({(1, "x"): 2, None: 3}), {(1, "x"): 2, None: 3})


def test_a_dictionary_that_looks_like_a_tag_stays_a_dictionary():
    for tree in ({"tuple": [1]}, {"dict": {"int": "0x1"}}, {"tensor": "model/w"}, {"set": [1, 1]}):
        assert same(round_trip(tree), tree)


LOOKALIKES = [
    ("a/b",), ("a", "b"), ("a~1b",), ("a~b",), ("a~0b",), ("a~", "1b"), ("0",), (0,), ("~k0",), ("a", "0"), ("a", 0),
    ("a.b",), ("",), ("", ""), ("a\nb",), ("a\\nb",), ("\ud800",), ("x" * 2000,), ("x" * 2001,), ("x" * 1000, "x" * 1000),
]  # fmt: skip


def test_paths_that_look_alike_get_different_names():
    names = [blob_name(("section", *path)) for path in LOOKALIKES]
    assert len(set(names)) == len(LOOKALIKES)
    assert all(len(name.encode()) <= MAX_NAME_BYTES for name in names)
    assert all(name.startswith("section/") for name in names)


parts = st.one_of(
    st.text(max_size=6), st.integers(0, 20), st.sampled_from(["a/b", "~", "~0", "~1", "~k1", "~h"])
)


@settings(max_examples=300, deadline=None, database=None)
@given(st.lists(parts, min_size=1, max_size=4), st.lists(parts, min_size=1, max_size=4))
def test_no_two_paths_share_a_name(left, right):
    if left != right:
        assert blob_name(("section", *left)) != blob_name(("section", *right))


def test_tensors_under_colliding_keys_stay_apart():
    one, two, three = (tensor(seed=seed) for seed in range(3))
    tree = {"a/b": one, "a": {"b": two}, "a.b": three}
    assert same(round_trip(tree), tree)
    mixed = {"0": one, 5: two, 0: three}
    assert same(round_trip(mixed), mixed)


def test_sets_are_encoded_in_an_order_of_their_own():
    # Equal sets of integers that collide iterate in the order of insertion.
    ours, theirs = {0, 8}, {8, 0}
    assert list(ours) != list(theirs)
    assert encode(ours, None) == encode(theirs, None)


def test_a_type_without_an_encoding_is_refused_by_its_path():
    with pytest.raises(InvalidRecord, match=r"a/0") as caught:
        encode({"a": [object()]}, Shelf().put)
    assert caught.value.found == "builtins.object"


def test_trees_deeper_than_the_limit_are_refused_both_ways():
    deep = []
    for _ in range(MAX_DEPTH + 1):
        deep = [deep]
    with pytest.raises(InvalidRecord, match="too deeply"):
        encode(deep, Shelf().put)
    for _ in range(4 * MAX_DEPTH):
        deep = [deep]
    with pytest.raises(InvalidRecord, match="too deeply"):
        decode(deep, None)


HOSTILE = [
    {"dict": []}, {"dict": 3}, {"map": {}}, {"map": [[1]]}, {"map": [[[], 1]]}, {"map": [[1, 1], [1, 2]]},
    {"set": [1, 1]}, {"set": [[1]]}, {"set": 3}, {"tuple": "ab"}, {"deque": [-1, []]}, {"deque": [True, []]},
    {"deque": []}, {"int": 3}, {"int": "1_0"}, {"int": "zz"}, {"int": None}, {"float": "00"}, {"float": 1.0},
    {"complex": "00"}, {"str": "!!"}, {"str": "/w=="}, {"bytes": 3}, {"bytes": "a"}, {"range": [1, 2]},
    {"range": [0, 1, 0]}, {"range": ["a", 1, 1]}, {"dtype": "Tensor"}, {"dtype": "__class__"}, {"dtype": 3},
    {"device": "nowhere"}, {"size": [-1.5]}, {"size": ["a"]}, {"scalar": ["|O", ""]}, {"scalar": ["<f8", "AA=="]},
    {"scalar": ["<f4", "AAAAAAAAAAA="]}, {"scalar": ["f4,f4", "AAAAAAAAAAA="]},
    {"scalar": ["2f4", "AAAAAAAAAAA="]}, {"array": ["w", "|O", [1], "C"]},
    {"array": ["w", "<f4", [3], "C"]}, {"array": ["w", "<f4", [-1], "C"]}, {"array": ["w", "<f4", [1], "K"]},
    {"array": ["w", "<f4", [1.0], "C"]}, {"tensor": 3}, {"tensor": ["w"]}, {"unknown": 1}, {}, {"a": 1, "b": 2},
    {"counter": 1}, {"ordered": [1]}, {"frozenset": [{"dict": {}}]},
]  # fmt: skip


@pytest.mark.parametrize("json_value", HOSTILE, ids=json.dumps)
def test_what_encode_never_writes_is_refused(json_value):
    with pytest.raises(InvalidRecord):
        decode([json_value], lambda name: tensor(shape=(1,)))


def test_thawed_values_share_nothing_with_the_record():
    tree = {"t": tensor(), "a": array(np.arange(3)), "l": [bytearray(b"a")], "d": deque([[1]], 2)}
    live = thaw(tree)
    live["t"].fill_(0)
    live["a"][0] = 9
    live["l"][0].append(1)
    live["d"][0].append(2)
    assert same(tree, {"t": tensor(), "a": array(np.arange(3)), "l": [bytearray(b"a")], "d": deque([[1]], 2)})


DIFFERENT = [
    (1, True), (1, 1.0), (0.0, -0.0), ("a", b"a"), ([1], (1,)), ({}, OrderedDict()), ({"a": 1}, Counter(a=1)),
    (b"a", bytearray(b"a")), ({1: 0}, {True: 0}), ({0.0: 1}, {-0.0: 1}), ({1}, {1.0}), ({1}, frozenset({1})),
    (frozenset({(1, 0.0)}), frozenset({(1, -0.0)})), (deque([1], 2), deque([1])), (torch.Size([1]), (1,)),
    (np.float32(1), np.float64(1)), (np.float32(1), 1.0), (None, False), ([1, 2], [1]), ({"a": 1}, {"b": 1}),
    (complex(0.0, 0.0), complex(0.0, -0.0)), (math.nan, PAYLOADS[3]),
]  # fmt: skip


@pytest.mark.parametrize(("left", "right"), DIFFERENT, ids=repr)
def test_values_that_python_calls_equal_may_still_differ(left, right):
    assert not same(left, right)
    assert not same([left], [right])
    assert same(left, left)


def test_the_order_of_keys_makes_no_difference():
    assert same({"a": 1, "b": 2}, {"b": 2, "a": 1})


def test_a_tensor_and_an_array_of_the_same_bytes_differ():
    values = np.arange(6, dtype=np.uint8)
    assert not same(array(values), freeze(torch.from_numpy(values), "state"))
    assert not same(array(values), array(values.reshape(2, 3)))
    assert not same(array(np.zeros((2, 3))), array(np.asfortranarray(np.zeros((2, 3)))))


def test_an_empty_container_is_a_leaf_of_its_own():
    tree = {"e": {}, "l": [], "n": None, "t": (1, [])}
    assert [(shown_path(path), leaf) for path, leaf in leaves(tree)] == [
        ("e", {}), ("l", []), ("n", None), ("t/0", 1), ("t/1", []),
    ]  # fmt: skip


def test_leaves_of_tensors_are_the_tensors():
    [(path, leaf)] = leaves({"a": [tensor()]})
    assert path == ("a", "0")
    assert isinstance(leaf, CapturedTensor)


def test_a_tensor_cannot_stand_where_only_plain_values_can():
    with pytest.raises(InvalidRecord, match="can't stand here"):
        encode(ConvertedTensor(tensor(), tensor(), True), lambda path, blob: "x")
    for place in ({"map": [[{"tensor": "x"}, 1]]}, {"range": [{"tensor": "x"}, 1, 1]}):
        with pytest.raises(InvalidRecord):
            decode(place, {}.__getitem__)


def test_an_empty_numpy_string_is_a_scalar_of_no_bytes():
    [again] = [decode(encode(np.str_(""), None), None)]
    assert (type(again), again) == (np.str_, "")


def test_a_copy_of_a_tree_is_equal_and_its_own():
    record = freeze(
        {"list": [1, (2.5, {3})], "deque": deque([1], 4), "count": Counter("ab"), "bytes": bytearray(b"ab"),
         "tensor": torch.arange(3), "array": np.arange(3), 5: None}, "x",
    )  # fmt: skip
    other = copied(record)
    assert same(other, record)
    assert other["list"] is not record["list"]
    assert other["bytes"] is not record["bytes"]
    for name in ("tensor", "array"):
        before, now = (np.frombuffer(tree[name].source.view, np.uint8) for tree in (record, other))
        assert before.ctypes.data != now.ctypes.data
