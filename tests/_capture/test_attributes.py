"""Attributes of optimizers: registered, derived, configuration, or hidden state that is refused."""

import enum
import functools
import gc
import itertools
import logging
import operator
import random
import threading
import types
from collections import OrderedDict, defaultdict, deque, namedtuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer, lr_scheduler

import segue
from segue import StateOf, Training
from segue._capture.attributes import base_attributes
from segue._capture.description import describe
from segue._capture.first_seen import remembered, seen_of
from segue._capture.registered import NOTHING
from segue.errors import OptimizerMismatch, UnsupportedState
from tests.cases.state import live


class Own(SGD):
    """SGD with whatever attributes a test gives it."""

    def __init__(self, params, **attributes):
        super().__init__(params, lr=0.1, momentum=0.9)
        vars(self).update(attributes)


def made(make=Own, components=(), **attributes):
    torch.manual_seed(0)
    model = nn.Linear(3, 3)
    optimizer = make(model.parameters(), **attributes)
    return model, optimizer, Training(model, optimizer, components=dict(components), rng=None)


def step(model, optimizer):
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def attributes(training):
    return training.capture().optimizers["optimizer"].attributes


def hidden(training):
    with pytest.raises(UnsupportedState) as caught:
        training.capture()
    assert caught.value.code == "capture.hidden_state"
    assert caught.value.where == "optimizer.optimizer"
    return caught.value


class Kind(enum.Enum):
    FAST = 1
    SLOW = 2


Point = namedtuple("Point", "x y")


class Helper:
    def __init__(self, factor):
        self.factor = factor
        self.me = self

    def scaled(self, value):
        return value * self.factor


class Slotted:
    __slots__ = ("factor",)

    def __init__(self, factor):
        self.factor = factor


def halved(value):
    return value / 2


def doubled(value):
    return value * 2


# Two values of each kind that an attribute may have, which have to be told apart.
PAIRS = {
    "int": (3, 4),
    "flag": (True, 1),
    "zero": (0.0, -0.0),
    "text": ("a", "b"),
    "none": (None, 0),
    "dtype": (torch.float32, torch.bfloat16),
    "device": (torch.device("cpu"), torch.device("meta")),
    "list": ([1, [2]], [1, [3]]),
    "tuple": ((1,), [1]),
    "dict": ({"a": 1, 3: "x"}, {"a": 1, 3: "y"}),
    "set": ({1, 2}, {1, 3}),
    "frozenset": (frozenset({"a"}), frozenset({"b"})),
    "deque": (deque([1], 2), deque([1], 3)),
    "ordered": (OrderedDict(a=1, b=2), OrderedDict(b=2, a=1)),
    "defaults": (defaultdict(list, a=[1]), defaultdict(dict, a=[1])),
    "tensor": (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0000002])),
    "dtype of a tensor": (torch.ones(1), torch.ones(1, dtype=torch.float64)),
    "trainable": (torch.ones(1), torch.ones(1).requires_grad_()),
    "array": (np.arange(3), np.arange(1, 4)),
    "scalar": (np.float32(1), np.float64(1)),
    "bytes": (bytearray(b"a"), bytearray(b"b")),
    "named tuple": (Point(1, 2), Point(1, 3)),
    "member": (Kind.FAST, Kind.SLOW),
    "class": (SGD, AdamW),
    "module": (torch, np),
    "logger": (logging.getLogger("a"), logging.getLogger("b")),
    "function": (halved, doubled),
    "lambda": (lambda x: x, lambda x: x + 1),
    "decorated function": (torch.no_grad()(halved), torch.no_grad()(doubled)),
    "decorator": (torch.set_grad_enabled(True)(halved), torch.set_grad_enabled(False)(halved)),
    "partial": (functools.partial(halved, 1), functools.partial(halved, 2)),
    "builtin": (min, max),
    "method": (Helper(1).scaled, Helper(2).scaled),
    "object": (Helper(1), Helper(2)),
    "nested object": ({"a": [Helper(1)]}, {"a": [Helper(2)]}),
    "slots": (Slotted(1), Slotted(2)),
    "namespace": (types.SimpleNamespace(a=1), types.SimpleNamespace(a=2)),
}


@pytest.mark.parametrize("kind", PAIRS)
def test_what_does_not_move_is_configuration_and_compared_at_restore(kind):
    one, other = PAIRS[kind]
    _, _, training = made(knob=one)
    record = segue.from_bytes(segue.to_bytes(training.capture()))
    _, same, again = made(knob=one)
    again.restore(record)
    assert vars(same)["knob"] is one
    model, optimizer, changed = made(knob=other)
    before = live(model, optimizer)
    with pytest.raises(OptimizerMismatch) as caught:
        changed.restore(record)
    assert [finding.code for finding in caught.value.findings] == ["optimizer.optimizer.attribute.knob"]
    assert 'accept=["optimizer.optimizer.attribute.knob"]' in str(caught.value)
    assert live(model, optimizer) == before
    changed.restore(record, accept=["optimizer.optimizer.attribute.knob"])
    assert vars(optimizer)["knob"] is other


@pytest.mark.parametrize("kind", PAIRS)
def test_what_has_moved_is_refused(kind):
    one, other = PAIRS[kind]
    _, optimizer, training = made(knob=one)
    training.capture()
    optimizer.knob = other
    error = hidden(training)
    assert "knob (" in error.what
    assert " -> " in error.what or "other content" in error.what
    optimizer.knob = one
    training.capture()


def test_a_value_that_moves_in_place_has_moved():
    box, tensor, helper = [1], torch.zeros(2), Helper(1)
    training = made(box=box, tensor=tensor, helper=helper)[2]
    box.append(2)
    tensor.add_(1)
    helper.factor = 2
    error = hidden(training)
    for told in ("box ([1] -> [1, 2])", "tensor ([0.0, 0.0] -> [1.0, 1.0])", "helper ("):
        assert told in error.what
    # Only what can be kept is in the line to paste.
    assert '`components={"optimizer_state": segue.StateOf(optimizer, "box", "tensor")}`' in error.hint
    assert "helper can't be kept as plain values" in error.hint


def test_what_comes_and_goes_has_moved():
    _, optimizer, training = made(old=1)
    del optimizer.old
    optimizer.counter = 3  # as a trainer does it
    error = hidden(training)
    assert "counter (absent -> 3)" in error.what
    assert "old (1 -> absent)" in error.what
    assert "give it counter as it is made" in error.hint


def test_a_plain_optimizer_of_torch_may_get_attributes_too():
    _, optimizer, training = made(lambda params: AdamW(params))
    assert attributes(training) is None
    optimizer.my_counter = 3
    assert "my_counter (absent -> 3)" in hidden(training).what


def test_a_registered_attribute_is_no_configuration_and_comes_back():
    torch.manual_seed(0)
    model = nn.Linear(3, 3)
    optimizer = AdamW(model.parameters())
    optimizer.my_counter = 0
    components = {"count": StateOf(optimizer, "my_counter")}
    training = Training(model, optimizer, components=components, rng=None)
    optimizer.my_counter = 3
    record = segue.from_bytes(segue.to_bytes(training.capture()))
    assert record.optimizers["optimizer"].attributes is None
    optimizer.my_counter = 9
    training.restore(record)
    assert optimizer.my_counter == 3


UNSEEN = {
    "lock": threading.Lock(),
    "iterator": itertools.count(),
    "getter": operator.itemgetter(1),
    "cache": functools.lru_cache(len),
    "generator": (value for value in [1]),
    "in a list": [1, {"a": threading.Lock()}],
    "unregistered module": nn.Linear(1, 1),
    "unregistered optimizer": SGD([nn.Parameter(torch.zeros(1))], lr=0.1),
    "unregistered scheduler": lr_scheduler.StepLR(SGD([nn.Parameter(torch.zeros(1))], lr=0.1), 1),
}


@pytest.mark.parametrize("kind", UNSEEN)
def test_what_can_not_be_looked_into_is_refused(kind):
    _, _, training = made(knob=UNSEEN[kind])
    error = hidden(training)
    assert "knob (" in error.what
    assert "it can't be looked into" in error.what or "it has state, and is not registered" in error.what
    assert "knob can't be kept" in error.hint


def test_what_is_too_large_to_look_into_is_refused():
    deep = []
    for _ in range(50):
        deep = [deep]
    assert "too much in it" in hidden(made(knob=deep)[2]).what
    with pytest.raises(UnsupportedState, match="too much in it"):
        describe(deep, "knob", NOTHING)
    with pytest.raises(UnsupportedState, match="too much in it"):
        describe([[] for _ in range(20_000)], "knob", NOTHING)


def test_an_attribute_that_fails_when_it_is_looked_at_is_refused():
    class Failing:
        def __init__(self):
            vars(self)["value"] = 1

        @property
        def value(self):
            raise RuntimeError("no")

    assert "it can't be looked into: RuntimeError" in hidden(made(knob=Failing())[2]).what


def pointing(params, **attributes):
    optimizer = Own(params, **attributes)
    optimizer.lead = optimizer.param_groups[0]
    optimizer.all_groups = optimizer.param_groups
    optimizer.members = list(optimizer.param_groups[0]["params"])
    optimizer.slots = optimizer.state
    optimizer.by_parameter = dict.fromkeys(optimizer.members, 0.5)
    optimizer.by_id = {id(parameter): "x" for parameter in optimizer.members}
    optimizer.own_step = optimizer.update
    optimizer.me = optimizer
    return optimizer


Own.update = lambda self: None


def test_what_points_to_groups_parameters_or_itself_is_derived_and_told_by_name():
    model, optimizer, training = made(pointing)
    step(model, optimizer)
    told = attributes(training)
    assert told["lead"] == {"reference": "group 0"}
    assert told["all_groups"] == {"reference": "param_groups"}
    assert told["slots"] == {"reference": "state"}
    assert told["me"] == {"reference": "itself"}
    members = [{"reference": "parameter weight"}, {"reference": "parameter bias"}]
    assert told["members"]["items"] == members
    assert told["by_parameter"]["items"] == [[member, 0.5] for member in members]
    assert told["by_id"]["items"] == [[member, "x"] for member in members]
    assert told["own_step"]["of"] == {"reference": "itself"}
    record = training.capture()
    other_model, other, resumed = made(pointing)
    resumed.restore(record)
    assert live(other_model, other) == live(model, optimizer)
    assert other.lead is other.param_groups[0]
    assert other.slots is other.state


def test_pointing_elsewhere_than_it_did_is_a_change():
    torch.manual_seed(0)
    model = nn.Linear(3, 3)

    def training(lead):
        optimizer = Own([{"params": [model.weight]}, {"params": [model.bias]}])
        optimizer.lead = optimizer.param_groups[lead]
        return optimizer, Training(model, optimizer, rng=None)

    optimizer, one = training(0)
    record = one.capture()
    with pytest.raises(OptimizerMismatch) as caught:
        training(1)[1].restore(record)
    assert (caught.value.expected, caught.value.found) == ({"reference": "group 0"}, {"reference": "group 1"})
    optimizer.lead = optimizer.param_groups[1]
    assert "lead (" in hidden(one).what


def test_what_points_to_something_registered_is_derived():
    ema, box, model = nn.Linear(3, 3), {"cap": 1.0}, nn.Sequential(nn.Linear(3, 3))
    optimizer = Own(model.parameters(), ema=ema, box=box, layer=model[0], buffers=[ema.weight])
    scheduler = lr_scheduler.StepLR(optimizer, 1)
    optimizer.schedule = scheduler
    components = {"ema": ema, "box": StateOf(box)}
    training = Training(model, optimizer, scheduler, components=components, rng=None)
    box["cap"] = 2.0
    with torch.no_grad():
        ema.weight.add_(1)
    told = attributes(training)
    names = {name: told[name]["reference"] for name in ("ema", "box", "layer", "schedule")}
    assert names == {
        "ema": "component.ema", "box": "component.box", "layer": "model.0", "schedule": "scheduler.scheduler",
    }  # fmt: skip
    assert told["buffers"]["items"] == [{"reference": "parameter ema/weight"}]


def test_what_an_attribute_points_to_follows_a_rename():
    def made(name):
        torch.manual_seed(0)
        model, ema = nn.ModuleDict({name: nn.Linear(3, 3)}), nn.ModuleDict({name: nn.Linear(3, 3)})
        optimizer = Own(model.parameters())
        optimizer.members = list(model.parameters())
        optimizer.layers = [model[name], ema[name], ema[name].weight, "other"]
        return Training(model, optimizer, components={"ema": ema}, rng=None)

    record = segue.from_bytes(segue.to_bytes(made("a").capture()))
    with pytest.raises(segue.errors.MismatchError):
        made("b").restore(record)
    made("b").restore(record, rename={"a": "b", "ema/a": "ema/b"})


def test_parts_of_a_helper_can_be_registered():
    helper, box = Helper(1), {"a": 1, "b": 2}
    model, optimizer, _ = made(helper=helper, box=box)
    components = {"factor": StateOf(helper, "factor"), "b": StateOf(box, "b")}
    training = Training(model, optimizer, components=components, rng=None)
    told = attributes(training)
    helper.factor, box["b"] = 5, 6
    assert attributes(training) == told
    record = training.capture()
    helper.factor, box["b"] = 7, 8
    training.restore(record)
    assert (helper.factor, box["b"]) == (5, 6)
    box["a"] = 9
    assert "box (" in hidden(training).what


def test_an_optimizer_over_the_same_groups_that_keeps_nothing_is_derived():
    def make(params):
        optimizer = Own(params)
        optimizer.base = SGD(optimizer.param_groups, lr=0.1)
        optimizer.base.param_groups = optimizer.param_groups
        return optimizer

    model, optimizer, training = made(make)
    assert attributes(training) == {"base": {"reference": "torch.optim.sgd.SGD over its groups"}}
    optimizer.base.state[model.weight]["momentum_buffer"] = torch.ones(3, 3)
    assert "base (torch.optim.sgd.SGD: it has state" in hidden(training).what


def test_one_that_had_stepped_before_it_was_first_seen_has_to_register():
    torch.manual_seed(0)
    model = nn.Linear(3, 3)
    optimizer = Own(model.parameters(), count=7, scale=halved, lead=None)
    optimizer.lead = optimizer.param_groups[0]
    step(model, optimizer)
    error = hidden(Training(model, optimizer, rng=None))
    assert "count (7; it had stepped before it was first seen" in error.what
    assert "lead" not in error.what
    assert "scale" not in error.what
    components = {"count": StateOf(optimizer, "count")}
    training = Training(model, optimizer, components=components, rng=None)
    assert attributes(training)["lead"] == {"reference": "group 0"}


def test_one_that_is_captured_alone_takes_what_it_holds_for_configuration():
    model = nn.Linear(3, 3)
    optimizer = Own(model.parameters(), count=7)
    step(model, optimizer)
    record = segue.capture_optimizer(optimizer, model)
    assert record.attributes == {"count": 7}
    fresh = Own(model.parameters(), count=0)
    with pytest.raises(OptimizerMismatch) as caught:
        segue.restore_optimizer(record, fresh, model)
    assert caught.value.code == "optimizer.attribute.count"
    assert not fresh.state
    segue.restore_optimizer(record, Own(model.parameters(), count=7), model)
    optimizer.count = 8
    with pytest.raises(UnsupportedState, match=r"count \(7 -> 8\)"):
        segue.capture_optimizer(optimizer, model)


def test_marks_of_torch_are_no_attributes():
    torch.manual_seed(0)
    model = nn.Linear(3, 3)
    for options in ({"fused": True}, {"foreach": True}, {}):
        optimizer = AdamW(model.parameters(), lr=1e-3, **options)
        scheduler, scaler = lr_scheduler.StepLR(optimizer, 2), torch.amp.GradScaler("cpu")
        training = Training(model, optimizer, scheduler, components={"scaler": scaler}, rng=None)
        scaler.scale(model(torch.ones(1, 3)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        assert not vars(optimizer).keys() - base_attributes()
        assert attributes(training) is None


def test_state_that_is_keyed_by_the_id_of_something_is_refused():
    model, optimizer, _ = made(masks={})
    optimizer.masks[id(model.weight)] = 3
    components = {"masks": StateOf(optimizer, "masks")}
    training = Training(model, optimizer, components=components, rng=None)
    with pytest.raises(UnsupportedState) as caught:
        training.capture()
    assert (caught.value.code, caught.value.where) == ("capture.address", "component.masks")
    assert caught.value.found == "the id of weight"


def test_what_is_remembered_goes_with_the_optimizer_and_is_of_it_alone():
    _, optimizer, training = made(count=1)
    assert seen_of(optimizer) is not None
    assert seen_of(Own([nn.Parameter(torch.zeros(1))])) is None
    del optimizer, training
    gc.collect()
    for _ in range(20):  # many of these lie where an earlier one was
        _, optimizer, training = made(count=random.random())
        training.capture()
        del optimizer, training


def test_an_object_that_can_not_be_remembered_is_seen_for_the_first_time_each_time():
    thing = Slotted(1)
    seen = remembered(thing, {}, None, has_state=False)
    assert remembered(thing, {}, None, has_state=False) is not seen


def test_capture_reads_and_changes_nothing():
    stream, tensor = torch.Generator().manual_seed(3), torch.ones(2)
    _, optimizer, training = made(stream=stream, tensor=tensor, helper=Helper(2), items=[tensor])
    before = stream.get_state(), tensor._version, dict(vars(optimizer))
    training.capture()
    assert torch.equal(stream.get_state(), before[0])
    assert tensor._version == before[1]
    assert vars(optimizer) == before[2]


class Slow(Optimizer):
    """With an attribute in a slot."""

    __slots__ = ("distance",)

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})
        self.distance = 1.0

    def step(self, closure=None):
        self.distance *= 2


def test_a_slot_is_an_attribute():
    _, optimizer, training = made(Slow)
    assert attributes(training) == {"distance": 1.0}
    optimizer.step()
    assert "distance (1.0 -> 2.0)" in hidden(training).what
