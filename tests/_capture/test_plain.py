"""Plain state by value: copied, typed, and refused by path and type where it has no exact form."""

import collections
import dataclasses
import enum
import random
from collections import Counter, OrderedDict, deque

import numpy as np
import pytest
import torch
from torch import nn

from segue import quant
from segue._capture.plain import freeze
from segue._record.tree import decode, encode, same, thaw
from segue.errors import UnsupportedState

Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass
class Config:
    rate: float = 0.1


class Colour(enum.IntEnum):
    RED = 1


class Text(str):
    __slots__ = ()


class Numbers(list):
    pass


class Table(dict):
    pass


class Marked(torch.Tensor):
    pass


def itself():
    items = []
    items.append(items)
    return items


def through_a_dictionary():
    table = {}
    table["self"] = [table]
    return table


def nested(depth, make=lambda inner: [inner]):
    value = make(0)
    for _ in range(depth):
        value = make(value)
    return value


def test_containers_keep_type_order_and_content():
    state = {"l": [1, (2, [3])], "d": deque([1, 2], 5), "o": OrderedDict(b=1, a=2), "c": Counter("aab"), "s": {1, "a"},
             3: {None: b"x"}, (1, (2,)): range(3), "b": bytearray(b"ab")}  # fmt: skip
    assert same(freeze(state, "state"), state)


def test_the_copy_does_not_follow_the_original():
    state = {
        "list": [1],
        "tensor": torch.zeros(2),
        "array": np.zeros(2),
        "bytes": bytearray(b"a"),
        "set": {1},
    }
    frozen = freeze(state, "state")
    state["list"].append(2)
    state["tensor"].fill_(1)
    state["array"].fill(1)
    state["bytes"].append(1)
    state["set"].add(2)
    live = thaw(frozen)
    assert live["list"] == [1]
    assert live["tensor"].tolist() == [0, 0]
    assert live["array"].tolist() == [0, 0]
    assert live["bytes"] == b"a"
    assert live["set"] == {1}


REFUSED = [
    (Point(1, 2), "Point", "named tuples"), (Config(), "Config", "plain values"), (Colour.RED, "Colour", "plain values"),
    (Text("a"), "Text", "plain values"), (Numbers([1]), "Numbers", "plain values"), (Table(a=1), "Table", "plain values"),
    (lambda: None, "builtins.function", "plain values"), ((x for x in ()), "generator", "plain values"),
    (iter([1]), "list_iterator", "plain values"), (object(), "builtins.object", "plain values"),
    (int, "builtins.type", "plain values"), (collections.defaultdict(int), "defaultdict", "plain values"),
    (random.Random(0), "random.Random", "plain values"), (torch.Generator(), "torch._C.Generator", "get_state"),
    (np.random.default_rng(0), "Generator", "bit_generator.state"), (np.random.RandomState(0), "RandomState", "get_state"),
    (nn.Linear(1, 1), "Linear", "components="), (torch.strided, "torch.layout", "plain values"),
    (np.void(b"ab"), "void", "plain values"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "found", "hint"), REFUSED, ids=lambda value: type(value).__name__)
def test_what_has_no_exact_encoding_is_refused_by_path_and_type(value, found, hint):
    with pytest.raises(UnsupportedState) as caught:
        freeze({"log": [0, {"last": value}]}, "state")
    assert caught.value.where == "state['log'][1]['last']"
    assert found in caught.value.found
    assert hint in caught.value.hint


def test_a_key_without_an_exact_encoding_is_refused():
    for key in (object(), Colour.RED, Point(1, 2), (1, object()), Text("a")):
        with pytest.raises(UnsupportedState, match="key"):
            freeze({key: 1}, "state")


def test_an_element_of_a_set_without_an_exact_encoding_is_refused():
    with pytest.raises(UnsupportedState, match="key"):
        freeze({"s": {Colour.RED}}, "state")


@pytest.mark.parametrize("make", [itself, through_a_dictionary], ids=["list", "dictionary"])
def test_state_that_contains_itself_is_refused(make):
    with pytest.raises(UnsupportedState, match="contains itself"):
        freeze(make(), "state")


@pytest.mark.parametrize(
    "make", [lambda x: [x], lambda x: (x,), lambda x: {"a": x}, lambda x: {(1,): x}],
    ids=["list", "tuple", "dict", "map"],
)  # fmt: skip
def test_what_capture_admits_can_also_be_encoded(make):
    tree = freeze(nested(55, make), "state")
    assert same(decode(encode(tree, None, ("caller_state",)), None), tree)
    with pytest.raises(UnsupportedState, match="too deeply"):
        freeze(nested(57, make), "state")


@pytest.mark.parametrize("make", [lambda x: (x,), lambda x: frozenset([x])], ids=["tuple", "frozenset"])
def test_keys_that_are_nested_too_deeply_are_refused_at_capture(make):
    key = nested(100, make)
    for state in ({key: 1}, {key}):
        with pytest.raises(UnsupportedState, match="too deeply"):
            freeze(state, "state")
    deep = freeze({nested(40, make): 1}, "state")
    assert same(decode(encode(deep, None, ("caller_state",)), None), deep)


def test_an_enormous_integer_is_kept_and_can_be_a_key():
    state = {10**5000: [10**6000]}
    assert same(decode(encode(freeze(state, "state"), None), None), state)
    with pytest.raises(UnsupportedState):
        freeze({10**5000: object()}, "state")


def test_tensors_that_require_grad_are_refused_with_a_way_out():
    with pytest.raises(UnsupportedState, match="requires grad") as caught:
        freeze({"w": torch.ones(1, requires_grad=True)}, "state")
    assert caught.value.where == "state['w']"
    assert "detach" in caught.value.hint


def test_tensor_subclasses_are_refused():
    with pytest.raises(UnsupportedState, match="subclass"):
        freeze([torch.ones(1).as_subclass(Marked)], "state")


ARRAYS = [
    np.arange(6).reshape(2, 3), np.asfortranarray(np.arange(6).reshape(2, 3)), np.arange(12)[::-2], np.array(3.5),
    np.zeros((0, 3)), np.arange(3, dtype=">i4"), np.array(["a", "bcd"]), np.array([b"a"]), np.array([True]),
    np.array(["2020-01-01", "NaT"], dtype="datetime64[D]"), np.array([1 + 2j]), np.array([np.nan, -0.0], np.float16),
    np.arange(4).reshape(2, 2).T, np.ones((1,)).repeat(3),
]  # fmt: skip


@pytest.mark.parametrize("value", ARRAYS, ids=lambda v: f"{v.dtype.str}{v.shape}")
def test_arrays_keep_dtype_byte_order_shape_and_bytes(value):
    live = thaw(freeze(value, "state"))
    assert live.dtype == value.dtype
    assert live.dtype.byteorder == value.dtype.byteorder
    assert live.shape == value.shape
    assert live.tobytes() == value.tobytes()
    assert live.flags.writeable
    assert not np.shares_memory(live, value)


def test_arrays_of_objects_fields_and_subclasses_are_refused():
    fields = np.zeros(2, dtype=[("a", "f4")])
    for value in (
        np.array([object()]),
        fields,
        np.ma.array([1]),
        np.rec.array(fields),
        np.array(["a"], np.dtypes.StringDType()),
    ):
        with pytest.raises(UnsupportedState, match="NumPy"):
            freeze([value], "state")


def test_numpy_scalars_keep_their_type():
    for value in (
        np.float32(0.1),
        np.int64(3),
        np.str_("a"),
        np.str_(""),
        np.bool_(True),
        np.datetime64("2020-01-01"),
    ):
        live = decode(encode(freeze(value, "state"), None), None)
        assert type(live) is type(value)
        assert live.dtype == value.dtype
        assert live == value


def test_sparse_and_quantized_values_are_plain_state_and_share_nothing():
    sparse = torch.sparse_coo_tensor([[1, 1]], [1.0, -0.0], (3,), is_coalesced=False, check_invariants=True)
    quantized = quant.quantize(torch.tensor([1.0, -2.0]), quant.QuantScheme(quant.QuantValue.Q8S))
    frozen = freeze({"s": sparse, "q": [quantized]}, "state")
    sparse._values().fill_(7)
    thawed = thaw(frozen)
    assert thawed["s"]._indices().tolist() == [[1, 1]]
    assert torch.signbit(thawed["s"]._values()).tolist() == [False, True]
    assert same(thawed["q"][0], quantized)
    assert thawed["q"][0].data.source is not quantized.data.source
