"""State in attributes and in dictionaries: what comes back, in place where it can, and what is refused."""

import struct
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD

import segue
from segue import StateOf, Training
from segue.errors import ComponentMismatch, UnsupportedState

NAN = struct.unpack("f", b"\x01\x00\xc0\x7f")[0]


class Holder:
    def __init__(self, **values):
        vars(self).update(values)


class Slotted:
    __slots__ = ("__hidden", "count")

    def __init__(self, count):
        self.count, self.__hidden = count, count * 2

    def hidden(self):
        return self.__hidden


class Computed:
    def __init__(self):
        self.inner = Holder(global_d=1.0)
        self._rate = 1

    def __getattr__(self, name):
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    @property
    def double(self):
        return 2

    @property
    def rate(self):
        return self._rate

    @rate.setter
    def rate(self, value):
        self._rate = value

    def method(self):
        pass


def bound(**components):
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    return Training(model, SGD(model.parameters(), lr=0.1), components=components, rng=None)


def carried(owner, into, *names):
    """Capture one owner's state, through bytes, and restore it into another."""
    record = segue.from_bytes(segue.to_bytes(bound(box=StateOf(owner, *names)).capture()))
    bound(box=StateOf(into, *names)).restore(record)


def everything():
    return {
        "count": 3, "rate": -0.0, "huge": float("inf"), "text": "a", "none": None, "pair": (1, [2.5]), "flag": True,
        "t": torch.tensor([1.0, NAN]), "wide": torch.arange(6.0).view(2, 3).t(), "array": np.arange(3, dtype=">i2"),
        "list": [1, torch.ones(2), {"x": torch.full((1,), 2, dtype=torch.bfloat16)}], "map": {3: "three", (1, 2): None},
        "ordered": OrderedDict(b=1, a=2), "tally": Counter("aab"), "queue": deque([1, 2, 3], 3), "set": {1, 2},
        "bytes": bytearray(b"xy"), "empty": [], "nothing": {}, "single": torch.tensor(7, dtype=torch.int64),
    }  # fmt: skip


def raw(value):
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.stride(), value.contiguous().numpy().tobytes() \
            if value.dtype != torch.bfloat16 else value.view(torch.int16).numpy().tobytes()  # fmt: skip
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, dict):
        return type(value), [(key, raw(item)) for key, item in value.items()]
    if isinstance(value, list | tuple | deque):
        return type(value), getattr(value, "maxlen", None), [raw(item) for item in value]
    return type(value), repr(value)


def test_every_kind_of_value_comes_back_from_an_object_and_from_a_dictionary():
    for names in ((), tuple(everything())):
        into = Holder(**dict.fromkeys(everything()))
        carried(Holder(**everything()), into, *names)
        assert raw(vars(into)) == raw(everything())
        box = dict.fromkeys(everything())
        carried(everything(), box, *names)
        assert raw(box) == raw(everything())


def test_containers_tensors_and_arrays_that_fit_are_filled_in_place():
    held = everything()
    before = {name: value for name, value in held.items() if name not in ("pair",)}
    inner = held["list"][1], held["list"][2], held["list"][2]["x"], held["pair"][1]
    for value in (held["t"], held["wide"], held["single"], held["list"][1]):
        value.zero_()
    held["array"][:] = 9
    held["queue"].append(9)
    held["list"].pop()
    held["list"].append({"x": inner[2]})
    held["map"].clear()
    into = Holder(**held)
    into.count = 99
    carried(Holder(**everything()), into)
    assert raw(vars(into)) == raw(everything())
    for name in ("t", "wide", "single", "array", "list", "map", "ordered", "tally", "queue", "set", "bytes"):
        assert getattr(into, name) is before[name], name
    assert into.list[1] is inner[0]
    assert into.list[2]["x"] is inner[2]
    assert into.pair[1] is inner[3]


def test_a_tensor_of_another_layout_is_set_and_the_old_one_is_not_touched():
    old = torch.zeros(3)
    into = Holder(t=old, u=torch.zeros(2, 3), n=np.zeros(2))
    carried(Holder(t=torch.ones(2), u=torch.ones(3, 2).t(), n=np.ones(3)), into)
    assert torch.equal(old, torch.zeros(3))
    assert raw(into.t) == raw(torch.ones(2))
    assert into.u.stride() == (1, 2)
    assert raw(into.n) == raw(np.ones(3))


def test_what_was_not_one_object_is_never_filled_as_one():
    shared, flat, listed = torch.zeros(2), np.zeros(4), [0]
    into = Holder(a=shared, b=shared, c=flat[:3], d=flat[1:], e=listed, f=listed)
    made = Holder(a=torch.ones(2), b=torch.full((2,), 2.0), c=np.ones(3), d=np.full(3, 2.0), e=[1], f=[2])
    StateOf(into).restore(StateOf(made).capture())
    assert raw(vars(into)) == raw(vars(made))
    with pytest.raises(
        UnsupportedState, match="shares memory"
    ):  # a training refuses it, since it keeps an undo copy
        carried(made, Holder(a=shared, b=shared, c=0, d=0, e=0, f=0))


def test_a_view_is_filled_where_it_is():
    whole = torch.zeros(4)
    into = Holder(part=whole[1:3])
    carried(Holder(part=torch.ones(2)), into)
    assert whole.tolist() == [0, 1, 1, 0]


@pytest.mark.parametrize(
    "values",
    [
        {"a": (shared := torch.zeros(4)), "b": shared},
        {"a": shared[:3], "b": [shared[2:]]},
        {"a": (listed := [1]), "b": (listed,)},
        {"a": (numbers := np.zeros(4))[:3], "b": numbers[2:]},
        {"a": numbers, "b": torch.from_numpy(numbers)},
    ],
    ids=["tensor", "overlapping views", "container", "arrays", "tensor over an array"],
)
def test_what_is_one_memory_at_two_places_is_refused_since_it_would_come_back_as_two(values):
    with pytest.raises(UnsupportedState, match="shares memory") as caught:
        bound(box=StateOf(Holder(**values))).capture()
    assert caught.value.code == "capture.shared_state"
    assert "b" in caught.value.where
    assert caught.value.found == "shared with a"


def test_what_contains_itself_is_refused():
    box = {"items": []}
    box["items"].append(box["items"])
    with pytest.raises(UnsupportedState, match="shares memory"):
        bound(box=StateOf(box)).capture()


def test_what_is_nested_too_deeply_is_refused():
    nested = ()
    for _ in range(2000):
        nested = (nested,)
    with pytest.raises(UnsupportedState, match="too deeply"):
        bound(box=StateOf({"deep": nested})).capture()


def test_a_value_that_is_no_plain_state_is_refused_by_its_path():
    with pytest.raises(UnsupportedState, match="no exact encoding") as caught:
        bound(box=StateOf(Holder(good=1, bad=[1, object()]))).capture()
    assert "'bad'" in caught.value.where
    assert "[1]" in caught.value.where


def test_only_what_is_named_is_captured_and_restored():
    into = Holder(a=0, b=0)
    carried(Holder(a=1, b=2), into, "a")
    assert vars(into) == {"a": 1, "b": 0}


def test_without_names_an_owner_gets_exactly_the_attributes_that_it_had():
    into = Holder(later=1, a=0)
    carried(Holder(a=1, lazy=[2]), into)
    assert vars(into) == {"a": 1, "lazy": [2]}
    box = {"later": 1, 5: 0}
    carried({"a": 1, 7: "seven"}, box)
    assert list(box.items()) == [("a", 1), (7, "seven")]


def test_slots_and_properties_with_a_setter_are_attributes():
    into = Slotted(0)
    carried(Slotted(4), into)
    assert (into.count, into.hidden()) == (4, 8)
    source, target = Computed(), Computed()
    source.rate = 5
    carried(source, target, "rate")
    assert target.rate == 5


def test_attributes_of_a_class_and_of_a_module_can_be_named():
    class Run:
        step = 3

    owner = StateOf(Run, "step")
    training = bound(run=owner)
    record = training.capture()
    Run.step = 9
    training.restore(record)
    assert Run.step == 3


def test_owner_and_names_are_told_and_fixed():
    owner = Holder(a=1, b=2)
    state = StateOf(owner, "a", "b", "a")
    assert state.owner is owner
    assert state.names == ("a", "b")
    assert StateOf(owner).names == ()
    assert repr(state) == f"StateOf({__name__}.Holder, 'a', 'b')"
    with pytest.raises(AttributeError):
        state.owner = 3
    with pytest.raises(AttributeError):
        state.names = ()
    with pytest.raises(TypeError, match="named by strings"):
        StateOf({3: 4}, 3)
    with pytest.raises(TypeError, match="hand in the owner"):
        StateOf(state)


@dataclass(frozen=True)
class Frozen:
    a: int = 1


@pytest.mark.parametrize(
    ("owner", "names", "what", "hint"),
    [
        (Holder(b=1, _c=2, a=3), ("d", "a"), "an attribute that is not there", "there is a, b, _c"),
        ({"b": 1, "a": 3}, ("d",), "an entry that is not there", "there is a, b"),
        ({}, ("d",), "an entry that is not there", "there is nothing"),
        (Computed(), ("global_d",), "only passes on", "the object that holds it"),
        (Computed(), ("double",), "can't be set", "computed from"),
        (Computed(), ("method",), "can't be set", "computed from"),
        (Frozen(), ("a",), "frozen dataclass", "mutable parts"),
        (3.5, (), "without attributes", "the object that holds it"),
        (nn.Linear(1, 1), ("weight",), "only passes on", "the object that holds it"),
    ],
)
def test_what_can_not_be_kept_is_refused_at_construction(owner, names, what, hint):
    with pytest.raises(UnsupportedState, match=what) as caught:
        StateOf(owner, *names)
    assert caught.value.code == "capture.state_of"
    assert hint in caught.value.hint


def test_many_attributes_are_not_all_listed():
    with pytest.raises(UnsupportedState) as caught:
        StateOf(Holder(**{f"a{index:02}": 0 for index in range(30)}), "x")
    assert caught.value.hint.endswith("a19 and 10 more")


def test_an_attribute_that_is_gone_is_refused_at_capture():
    owner = Holder(a=1, b=2)
    training = bound(box=StateOf(owner, "a", "b"))
    del owner.a
    with pytest.raises(UnsupportedState, match="not there"):
        training.capture()


def mismatch(record, **components):
    with pytest.raises(ComponentMismatch) as caught:
        bound(**components).restore(record)
    return str(caught.value)


def test_another_owner_other_names_and_another_kind_are_refused_before_anything_changes():
    into = Holder(a=5, b=6)
    record = bound(box=StateOf(Holder(a=1, b=2), "a")).capture()
    assert "only the program registers 'b'" in mismatch(record, box=StateOf(into, "a", "b"))
    told = mismatch(record, box=StateOf(into, "b"))
    assert "only the record registers 'a'" in told
    assert "only the program registers 'b'" in told
    assert "it names everything, and 'a' in the record" in mismatch(record, box=StateOf(into))
    assert "its owner is of another class" in mismatch(record, box=StateOf({"a": 5}, "a"))
    whole = bound(box=StateOf(Holder(a=1, b=2))).capture()
    assert "it names 'a', and everything in the record" in mismatch(whole, box=StateOf(into, "a"))
    assert vars(into) == {"a": 5, "b": 6}


GOOD = {"owner": f"{__name__}.Holder", "all": True, "values": {"a": 1}, "devices": {}}


@pytest.mark.parametrize(
    ("state", "clause"),
    [
        (3, "not what a StateOf captures"),
        ({**GOOD, "more": 1}, "not what a StateOf captures"),
        ({**GOOD, "values": [1]}, "not what a StateOf captures"),
        ({**GOOD, "all": False, "values": {3: 1}}, "not what a StateOf captures"),
        ({**GOOD, "devices": {("a",): 3}}, "not what a StateOf captures"),
        ({**GOOD, "devices": {("a",): "nowhere:3"}}, "it was on device nowhere:3"),
        ({**GOOD, "values": {"__class__": 1}}, "Python's own"),
        ({**GOOD, "owner": 3}, "not what a StateOf captures"),
    ],
)
def test_a_state_that_lies_is_refused(state, clause):
    owner = Holder(a=0)
    assert any(clause in each for each in StateOf(owner).check(state))
    assert not list(StateOf(owner).check(GOOD))


def test_a_later_refusal_puts_it_back():
    class Refuses:
        def __init__(self, count):
            self.count = count

        def state_dict(self):
            return {"count": self.count}

        def load_state_dict(self, state):
            if state["count"] > 0:
                raise ValueError("too much")

    record = bound(a=StateOf(Holder(n=1, t=torch.ones(2))), b=Refuses(1)).capture()
    held = torch.zeros(2)
    into = Holder(n=0, t=held)
    with pytest.raises(ComponentMismatch, match="refused its state"):
        bound(a=StateOf(into), b=Refuses(0)).restore(record)
    assert into.n == 0
    assert into.t is held
    assert torch.equal(held, torch.zeros(2))


def test_a_record_can_be_restored_many_times_and_never_shares_anything_with_the_live_owner():
    owner = Holder(t=torch.zeros(2), items=[torch.zeros(1)], n=0)
    training = bound(box=StateOf(owner))
    record = training.capture()
    for _ in range(3):
        owner.t += 1
        owner.items.append(torch.ones(1))
        owner.items[0] += 1
        owner.n += 1
        owner.late = 1
        training.restore(record)
        assert raw(vars(owner)) == raw({"t": torch.zeros(2), "items": [torch.zeros(1)], "n": 0})


def test_capture_changes_nothing():
    owner = Holder(**everything())
    identities = {name: id(value) for name, value in vars(owner).items()}
    versions = owner.t._version, owner.list[1]._version
    bound(box=StateOf(owner)).capture()
    assert identities == {name: id(value) for name, value in vars(owner).items()}
    assert versions == (owner.t._version, owner.list[1]._version)
    assert raw(vars(owner)) == raw(everything())
