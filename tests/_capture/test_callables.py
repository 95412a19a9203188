"""Functions are told apart by what they do; state that can't be seen is refused."""

import argparse
import calendar
import copy
import dataclasses
import datetime
import decimal
import enum
import functools
import math
import operator
import os
import pathlib
import re
import subprocess
import sys
import threading
import types
from collections import Counter, OrderedDict, defaultdict, namedtuple

import numpy as np
import pytest
import torch

from segue._capture.callables import callable_state, fingerprint, restore_callable_state
from segue._record.tree import decode, encode, same
from segue.errors import UnsupportedState


def halves(epoch):
    return 0.5**epoch


def closing_over(value):
    def factor(epoch):
        return value * epoch

    return factor


class Factor:
    def __init__(self, cap=1.0):
        self.cap, self.seen = cap, []

    def __call__(self, epoch):
        self.seen.append(epoch)
        return self.cap

    def method(self, epoch):
        return self.cap


def nested(depth):
    function = halves
    for _ in range(depth):
        function = closing_over(function)
    return function


class Slotted:
    __slots__ = ("cap",)

    def __call__(self, epoch):
        return 1.0


def equal(left, right):
    return same(fingerprint(left, "f"), fingerprint(right, "f"))


def test_a_function_is_what_its_code_does():
    assert equal(lambda e: 0.9**e, lambda e: 0.9**e)
    assert not equal(lambda e: 0.9**e, lambda e: 0.8**e)
    assert not equal(lambda e: 0.9**e, lambda e: 0.9 * e)
    assert not equal(lambda e: e**2, lambda e: e + 2)
    assert not equal(lambda e: 1, lambda e: 1.0)
    assert not equal(lambda e: 0.0, lambda e: -0.0)
    assert not equal(math.cos, math.sin)


def test_line_numbers_make_no_difference():
    spaces = {}
    exec("def f(e):\n    return 0.9 ** e", spaces)  # the same function, elsewhere
    one = spaces["f"]
    exec("\n\n\n\ndef f(e):\n\n\n    return 0.9 ** e", spaces)
    assert equal(one, spaces["f"])


def test_names_that_a_function_uses_make_a_difference():
    assert not equal(lambda e: math.sin(e), lambda e: math.cos(e))


def test_nested_functions_and_constant_sets_are_looked_into():
    assert not equal(lambda e: [x * 2 for x in (e,)], lambda e: [x * 3 for x in (e,)])
    assert not equal(lambda e: (lambda: 1)(), lambda e: (lambda: 2)())
    assert equal(lambda e: e in {1, 2, "a"}, lambda e: e in {"a", 2, 1})


def test_defaults_and_closed_over_values_make_a_difference():
    assert equal(closing_over(0.5), closing_over(0.5))
    assert not equal(closing_over(0.5), closing_over(0.25))
    assert not equal(closing_over({"cap": 1}), closing_over({"cap": 2}))
    assert not equal(closing_over(math.cos), closing_over(math.sin))
    assert not equal(closing_over(closing_over(1)), closing_over(closing_over(2)))

    def with_default(epoch, cap=1.0):
        return cap

    before = fingerprint(with_default, "f")
    with_default.__defaults__ = (2.0,)
    assert not same(before, fingerprint(with_default, "f"))

    def with_keyword(epoch, *, cap=1.0):
        return cap

    before = fingerprint(with_keyword, "f")
    with_keyword.__kwdefaults__["cap"] = 2.0
    assert not same(before, fingerprint(with_keyword, "f"))


def test_a_partial_is_its_function_and_its_arguments():
    assert equal(functools.partial(pow, 0.5), functools.partial(pow, 0.5))
    assert not equal(functools.partial(pow, 0.5), functools.partial(pow, 0.25))
    assert not equal(functools.partial(halves, epoch=1), functools.partial(halves, epoch=2))


def test_an_object_is_its_class_and_its_attributes_are_state():
    assert equal(Factor(1.0), Factor(2.0))
    one, other = Factor(0.5), Factor(1.0)
    one(3)
    restore_callable_state(other, callable_state(one, "f"))
    assert (other.cap, other.seen) == (0.5, [3])
    other.seen.append(4)
    assert one.seen == [3]
    assert callable_state(halves, "f") is None
    assert callable_state(functools.partial(halves), "f") is None


def test_an_object_in_a_partial_keeps_its_state():
    one, other = functools.partial(Factor(0.5), 3), functools.partial(functools.partial(Factor(1.0)), 3)
    one()
    restore_callable_state(other, callable_state(one, "f"))
    assert (other.func.cap, other.func.seen) == (0.5, [3])


def test_attributes_of_a_function_make_a_difference():
    def counting(epoch):
        counting.calls += 1
        return 1 / counting.calls

    counting.calls = 0
    before = fingerprint(counting, "f")
    assert same(before, fingerprint(counting, "f"))
    counting(0)
    assert not same(before, fingerprint(counting, "f"))
    counting.helper = torch.nn.Linear(1, 1)
    with pytest.raises(UnsupportedState) as caught:
        fingerprint(counting, "f")
    assert caught.value.where == "f attribute helper"


def test_what_a_wrapper_wraps_is_described_once():
    wrapper = functools.wraps(halves)(closing_over(halves))
    assert "attributes" not in fingerprint(wrapper, "f")
    assert equal(wrapper, functools.wraps(halves)(closing_over(halves)))


def test_a_fingerprint_can_be_stored():
    for function in (
        halves,
        closing_over([1, (2,)]),
        functools.partial(halves, 1),
        math.cos,
        Factor(),
        lambda e: 1,
    ):
        made = fingerprint(function, "f")
        assert same(decode(encode(made, None), None), made)


def test_a_cell_that_is_still_empty_is_told():
    def outer():
        def inner():
            return later

        made = fingerprint(inner, "f")
        later = 1
        return made, fingerprint(inner, "f"), later

    before, after, _ = outer()
    assert before["closure"] == {"later": {"empty": True}}
    assert after["closure"] == {"later": 1}


def calling(value):
    return lambda epoch: value.method(epoch)


def reading(value):
    return lambda epoch: value.share


class Sharing:
    def __init__(self):
        self.cap = 1.0

    @property
    def share(self):
        return self.cap


class Guarded:
    def __getattribute__(self, name):
        raise AssertionError("no code of the program runs")


REFUSED = [
    (Factor().method, "bound method"), ([].append, "bound method"), (closing_over([].append), "bound method"),
    (closing_over(Factor().method), "bound method"), (calling(Factor()), "method or property"),
    (reading(Sharing()), "method or property"), (reading(Guarded()), "method or property"),
    (closing_over(iter([1])), "no exact encoding"), (functools.partial(halves, iter([1])), "no exact encoding"),
    (closing_over([threading.Lock()]), "no exact encoding"), (closing_over(torch.nn.Linear(1, 1)), "not registered"),
    (closing_over(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)), "not registered"),
    (closing_over(operator.itemgetter(0)), "no exact encoding"), (nested(40), "too much in it"),
    (closing_over(torch.zeros(17 << 20)), "too much in it"),
]  # fmt: skip


@pytest.mark.parametrize(("function", "what"), REFUSED, ids=range(len(REFUSED)))
def test_what_may_hide_state_is_refused(function, what):
    with pytest.raises(UnsupportedState, match=what):
        fingerprint(function, "scheduler.s lr_lambdas")


def test_a_refused_closure_says_which_name_and_what_to_do():
    with pytest.raises(UnsupportedState) as caught:
        fingerprint(closing_over(torch.nn.Linear(1, 1)), "scheduler.s lr_lambdas")
    assert caught.value.where == "scheduler.s lr_lambdas closed-over value"
    assert "__call__" in caught.value.hint


def test_slots_hide_state():
    with pytest.raises(UnsupportedState, match="__slots__"):
        callable_state(Slotted(), "f")


def recursive():
    def down(epoch):
        return 1.0 if epoch <= 0 else 0.5 * down(epoch - 1)

    return down


def test_a_function_that_calls_itself_has_a_fingerprint():
    assert fingerprint(recursive(), "f") == fingerprint(recursive(), "f")


# Globals. Each function here gets a space of its own: what a program's module is to it.


def program(source, **space):
    """The function `f` of a program, whose globals are `space`; its `space` can be changed afterwards."""
    made = {"__name__": "a_program_of_a_test", **space}
    exec(source, made)
    return made["f"]


def changed(source, space, **others):
    """Whether another global makes it another function."""
    return not equal(program(source, **space), program(source, **{**space, **others}))


def test_globals_that_are_read_make_a_difference_and_no_others():
    source = "def f(e): return e / WARMUP"
    assert changed(source, {"WARMUP": 10}, WARMUP=20)
    assert not changed(source, {"WARMUP": 10}, OTHER=object())
    assert changed("f = lambda e: min(box['cap'], 1)", {"box": {"cap": 1.0}}, box={"cap": 0.05})
    assert changed("f = lambda e: [r * e for r in rates]", {"rates": [1, 2]}, rates=[1, 3])
    assert changed("f = lambda e: (lambda: CAP)()", {"CAP": 1}, CAP=2)


def test_helpers_of_the_program_are_looked_into_with_what_they_read():
    source = "def helper(e): return e / WARMUP\ndef f(e): return helper(e)"
    assert changed(source, {"WARMUP": 10}, WARMUP=20)
    assert not equal(program(source, WARMUP=1), program(source.replace("e /", "e *"), WARMUP=1))
    both = "def up(e): return down(e - 1) if e else 1\ndef down(e): return up(e)\ndef f(e): return up(e) + down(e) + CAP"
    assert changed(both, {"CAP": 1}, CAP=2)
    assert not changed(both, {"CAP": 1}, OTHER=2)


def test_functions_that_call_many_of_each_other_are_told_once_each():
    lines = [f"def f{i}(e): return " + " + ".join(f"f{j}(e)" for j in range(i)) for i in range(1, 14)]
    source = "\n".join(["def f0(e): return CAP", *lines, "f = f13"])
    module = types.ModuleType("many_of_each_other")
    sys.modules[module.__name__] = module
    try:
        exec(source, vars(module))
        module.CAP = 1
        before = fingerprint(module.f, "f")
        module.CAP = 2
        assert not same(before, fingerprint(module.f, "f"))
        assert len(repr(before)) < 100_000
    finally:
        del sys.modules[module.__name__]


def test_modules_classes_and_builtins_are_named():
    source = "def f(e): return math.cos(e) + np.sin(e) + len([e]) + Fraction(1) + sin(e) + F.relu(e)"
    space = {
        "math": math, "np": np, "Fraction": int, "sin": np.sin, "F": torch.nn.functional,
    }  # fmt: skip
    found = fingerprint(program(source, **space), "f")["globals"]
    assert found == {
        "math": {"module": "math"}, "np": {"module": "numpy"}, "Fraction": {"type": "int"},
        "sin": {"builtin": "numpy.sin"}, "F": {"module": "torch.nn.functional"},
    }  # fmt: skip
    assert changed(source, space, sin=np.cos)
    assert changed(source, space, Fraction=float)
    assert changed(source, space, math=np)


def test_a_global_that_is_not_there_yet_is_told():
    found = fingerprint(program("def f(e): return LATER + len([])"), "f")["globals"]
    assert found == {"LATER": {"empty": True}}


def test_how_a_program_was_started_makes_no_difference():
    source = "def f(e): return 1 if __name__ == '__main__' else __file__"
    assert not changed(source, {"__name__": "__main__", "__file__": "a"}, __name__="train", __file__="b")


def test_a_module_of_the_program_is_told_as_far_as_it_is_read():
    settings, inner = types.ModuleType("settings"), types.ModuleType("settings.inner")
    settings.__file__ = inner.__file__ = "/home/someone/settings.py"
    settings.inner, settings.WARMUP, inner.CAP, settings.lock = inner, 10, 1.0, threading.Lock()
    function = program("def f(e): return settings.WARMUP * settings.inner.CAP", settings=settings)
    before = fingerprint(function, "f")
    settings.OTHER = 3
    assert same(before, fingerprint(function, "f"))
    inner.CAP = 2.0
    assert not same(before, fingerprint(function, "f"))


def test_a_class_of_the_program_is_told_as_far_as_it_is_read():
    class Config:
        WARMUP, OTHER = 10, 3

        @classmethod
        def scaled(cls, epoch):
            return cls.WARMUP * epoch

        @staticmethod
        def plain(epoch):
            return epoch

    for source in ("Config.WARMUP", "Config.scaled(e)", "Config.plain(e) * Config.WARMUP"):
        function = program(f"f = lambda e: {source}", Config=Config)
        Config.WARMUP = 10
        before = fingerprint(function, "f")
        Config.OTHER += 1
        assert same(before, fingerprint(function, "f"))
        Config.WARMUP = 20
        assert not same(before, fingerprint(function, "f"))


# Objects.


@dataclasses.dataclass
class Settings:
    warmup: int = 10
    output: str = "runs"


@dataclasses.dataclass(frozen=True, slots=True)
class SlottedSettings:
    warmup: int = 10
    output: str = "runs"


class Defaults:
    warmup = 10
    output = "runs"

    def __init__(self, **own):
        vars(self).update(own)


class Dotted(dict):
    __getattr__ = dict.__getitem__


class SelfDotted(dict):
    def __init__(self, **items):
        super().__init__(items)
        self.__dict__ = self


class Passing:
    """As many configurations: attributes are made by code, from what one attribute holds."""

    def __init__(self, **content):
        vars(self)["_content"] = content

    def __getattr__(self, name):
        return vars(self)["_content"][name]


Fields = namedtuple("Fields", ["warmup", "output"])
OBJECTS = {
    "argparse": argparse.Namespace, "namespace": types.SimpleNamespace, "dataclass": Settings, "slots": SlottedSettings,
    "class attributes": Defaults, "named tuple": Fields, "self-dotted": SelfDotted,
}  # fmt: skip


@pytest.mark.parametrize("kind", OBJECTS)
@pytest.mark.parametrize("source", ["lambda e: args.warmup * e", "lambda e: [args.warmup for _ in (e,)]"])
def test_of_an_object_only_the_attributes_that_are_read_make_a_difference(kind, source):
    def function(**values):
        return program(f"f = {source}", args=OBJECTS[kind](**values))

    one = function(warmup=10, output="a")
    assert equal(one, function(warmup=10, output="b"))
    assert not equal(one, function(warmup=20, output="a"))


@pytest.mark.parametrize("kind", [*OBJECTS, "dotted", "passing"])
def test_an_object_that_is_handed_on_is_told_whole(kind):
    make = {**OBJECTS, "dotted": Dotted, "passing": Passing}[kind]

    def function(**values):
        args = make(**values)
        return lambda e: print(args)

    assert equal(function(warmup=10, output="a"), function(warmup=10, output="a"))
    assert not equal(function(warmup=10, output="a"), function(warmup=10, output="b"))


@pytest.mark.parametrize("make", [Dotted, Passing])
def test_an_object_whose_attributes_are_made_by_code_is_told_whole(make):
    def function(**values):
        args = make(**values)
        return lambda e: args.warmup

    assert equal(function(warmup=10, output="a"), function(warmup=10, output="a"))
    assert not equal(function(warmup=10, output="a"), function(warmup=10, output="b"))
    assert not equal(function(warmup=20, output="a"), function(warmup=10, output="a"))


def test_of_what_is_only_measured_the_length_makes_a_difference():
    for make in (
        list,
        tuple,
        set,
        dict.fromkeys,
        lambda items: torch.tensor(list(items)),
        lambda items: np.array(list(items)),
    ):
        assert not changed("f = lambda e: e / len(data)", {"data": make(range(3))}, data=make(range(1, 4)))
        assert changed("f = lambda e: e / len(data)", {"data": make(range(3))}, data=make(range(4)))
    with pytest.raises(UnsupportedState) as caught:
        fingerprint(program("f = lambda e: e / len(loader)", loader=torch.utils.data.DataLoader([1])), "f")
    assert "`steps = len(loader)`" in caught.value.hint


def test_what_a_decorator_of_a_library_wraps_is_looked_into():
    def wrapped(text):
        module = types.ModuleType("a_decorated_module")
        sys.modules[module.__name__] = module
        try:
            exec(f"def f(e): return {text}", vars(module))
            exec("from contextlib import contextmanager\n@contextmanager\ndef g(e): yield f(e)", vars(module))
            return fingerprint(module.g, "f")
        finally:
            del sys.modules[module.__name__]

    assert not same(wrapped("1"), wrapped("2"))


def test_a_librarys_function_that_decides_is_told_with_what_it_holds(monkeypatch):
    monkeypatch.setattr(calendar.leapdays, "calls", 0, raising=False)
    before = fingerprint(calendar.leapdays, "f")
    calendar.leapdays.calls += 1
    assert not same(before, fingerprint(calendar.leapdays, "f"))
    partial = functools.partial(calendar.leapdays, 1)
    assert fingerprint(partial, "f")["partial"]["attributes"] == {"calls": 1}


def test_chains_of_attributes_and_entries_lead_to_what_is_read():
    def function(warmup, other):
        optim = types.SimpleNamespace(warmup=warmup, other=other)
        cfg = types.SimpleNamespace(optim=optim, tables={"a": {"cap": warmup, "other": other}}, lock=other)
        return lambda e: cfg.optim.warmup + cfg.tables["a"]["cap"]

    assert equal(function(1, 2), function(1, 3))
    assert equal(function(1, 2), function(1, threading.Lock()))
    assert not equal(function(1, 2), function(2, 2))


def test_defaults_are_told_as_closed_over_values_are():
    def function(**values):
        args = types.SimpleNamespace(**values)
        scale = closing_over(values["warmup"])
        return lambda e, cfg=args, *, helper=scale: helper(e) * cfg.warmup

    assert equal(function(warmup=1, other=2), function(warmup=1, other=3))
    assert not equal(function(warmup=1, other=2), function(warmup=2, other=2))


def test_no_code_of_the_program_runs_to_describe_it():
    class Trap:
        cap = 1.0

        def __eq__(self, other):
            raise AssertionError

        __hash__ = __len__ = __iter__ = __bool__ = __repr__ = __reduce__ = __eq__

        def __getattr__(self, name):
            raise AssertionError

    trap = Trap()
    trap.warmup = 10
    described = fingerprint(lambda e: trap.warmup * trap.cap, "f")["closure"]["trap"]
    assert described["attributes"] == {"cap": 1.0, "warmup": 10}
    assert fingerprint(lambda e: print(trap), "f")["closure"]["trap"]["attributes"] == {"warmup": 10}


def test_containers_are_looked_into():
    class Own(dict):
        pass

    for make in (
        lambda value: [1, (value,)], lambda value: {"a": [value]}, lambda value: [types.SimpleNamespace(cap=value)],
        lambda value: OrderedDict(a=value), lambda value: Counter(a=int(value)), lambda value: {int(value)},
        lambda value: defaultdict(list, a=value), lambda value: Own(a=value), lambda value: torch.tensor([value]),
        lambda value: np.array([value]), lambda value: [closing_over(value)], lambda value: pathlib.Path(str(value)),
    ):  # fmt: skip
        assert equal(closing_over(make(1.0)), closing_over(make(1.0)))
        assert not equal(closing_over(make(1.0)), closing_over(make(2.0)))
    assert not equal(closing_over(defaultdict(list)), closing_over(defaultdict(dict)))
    itself = []
    itself.append(itself)
    assert fingerprint(closing_over(itself), "f")["closure"]["value"] == [{"recursion": 1}]


class Mode(enum.Enum):
    SLOW, FAST = 1, 2


class Rank(enum.IntEnum):
    LOW, HIGH = 1, 2


def test_members_of_enumerations_are_told_by_name_and_value():
    assert equal(closing_over(Mode.SLOW), closing_over(Mode.SLOW))
    assert not equal(closing_over(Mode.SLOW), closing_over(Mode.FAST))
    assert not equal(closing_over(Rank.LOW), closing_over(Rank.HIGH))
    assert changed("f = lambda e: Mode.SLOW", {"Mode": Mode}, Mode=enum.Enum("Mode", {"SLOW": 3}))


# Objects that are called.


def class_of(source, **space):
    made = {"__name__": "a_program_of_a_test", **space}
    exec(source, made)
    return made["Warm"]


def test_an_object_that_is_called_is_also_what_its_methods_do():
    source = (
        "class Warm:\n"
        "    floor = 0.1\n"
        "    def __call__(self, e): return self.scaled(e) * CAP + self.share\n"
        "    def scaled(self, e): return e * self.floor\n"
        "    @property\n"
        "    def share(self): return 2\n"
        "    def unused(self): return 3\n"
    )
    one = class_of(source, CAP=1)()
    assert equal(one, class_of(source, CAP=1)())
    assert not equal(one, class_of(source, CAP=2)())
    for before, after in (("e * self", "e + self"), ("return 2", "return 4"), ("floor = 0.1", "floor = 0.2")):
        assert not equal(one, class_of(source.replace(before, after), CAP=1)())
    assert equal(one, class_of(source.replace("return 3", "return 4"), CAP=1)())


def test_attributes_of_the_class_stay_told_when_the_object_gets_its_own():
    class Counting:
        calls = 0

        def __call__(self, epoch):
            self.calls += 1
            return self.calls

    one = Counting()
    before = fingerprint(one, "f")
    one(0)
    assert same(before, fingerprint(one, "f"))


def test_an_object_that_is_only_held_is_told_with_its_attributes():
    assert equal(closing_over(Factor(1.0)), closing_over(Factor(1.0)))
    assert not equal(closing_over(Factor(1.0)), closing_over(Factor(0.5)))
    held = closing_over(functools.partial(Factor(1.0), 1))
    assert not equal(held, closing_over(functools.partial(Factor(0.5), 1)))


def test_a_cached_function_is_what_it_caches():
    cached = functools.lru_cache(maxsize=None)
    assert equal(cached(closing_over(1)), cached(closing_over(1)))
    assert not equal(cached(closing_over(1)), cached(closing_over(2)))
    assert callable_state(cached(halves), "f") is None


def test_functions_that_are_not_written_in_python_are_named():
    assert callable_state(np.cos, "f") is callable_state(math.cos, "f") is None
    assert not equal(np.cos, np.sin)
    assert not equal(closing_over(torch.cos), closing_over(torch.sin))
    assert not equal(closing_over(str.upper), closing_over(str.lower))
    assert not equal(int, float)


def test_functions_of_libraries_are_not_looked_into():
    found = fingerprint(closing_over(torch.nn.functional.relu), "f")["closure"]["value"]
    assert found.keys() == {"function", "code", "python"}


# What is registered.


class Kept:
    """What `Registered` of a training is: names of objects, and parts that are components of their own."""

    def __init__(self, objects=(), parts=()):
        self._objects = {id(value): name for name, value in dict(objects).items()}
        self._parts = {(id(owner), name) for owner, name in parts}

    def name(self, value):
        return self._objects.get(id(value))

    def keeps(self, owner, name):
        return (id(owner), name) in self._parts


def test_what_is_registered_is_named_and_not_looked_into():
    model, box = torch.nn.Linear(1, 1), {"cap": 1.0, "floor": 0.1}
    kept = Kept({"model": model}, [(box, "cap")])
    function = lambda e: model(e) * min(box["cap"], box["floor"])  # noqa: E731
    found = fingerprint(function, "f", kept)["closure"]
    assert found == {
        "model": {"registered": "model"},
        "box": {"entries": {"cap": {"registered": True}, "floor": 0.1}},
    }
    whole = fingerprint(
        lambda e: (box, model.weight), "f", Kept({"m": model, "w": model.weight}, [(box, "cap")])
    )
    assert whole["closure"]["box"] == {"cap": {"registered": True}, "floor": 0.1}
    assert fingerprint(closing_over([model.weight]), "f", Kept({"w": model.weight}))["closure"]["value"] == [
        {"registered": "w"}
    ]


def test_a_registered_global_or_attribute_is_not_looked_into():
    function = program(
        "def f(e): return CAP + args.warmup + f.calls", CAP=1, args=types.SimpleNamespace(warmup=1)
    )
    function.calls = 0
    space = function.__globals__
    kept = Kept(parts=[(space, "CAP"), (space["args"], "warmup"), (function, "calls")])
    before = fingerprint(function, "f", kept)
    space["CAP"], space["args"].warmup, function.calls = 2, 2, 2
    assert same(before, fingerprint(function, "f", kept))


def test_a_global_that_is_registered_with_its_module_is_not_looked_into():
    module = types.ModuleType("a_module_of_a_test")
    sys.modules[module.__name__] = module
    try:
        exec("CAP = 1\ndef f(e): return CAP", vars(module))
        kept = Kept(parts=[(module, "CAP")])
        before = fingerprint(module.f, "f", kept)
        module.CAP = 2
        assert same(before, fingerprint(module.f, "f", kept))
    finally:
        del sys.modules[module.__name__]


def test_a_method_of_a_registered_object_is_admitted():
    factor, other = Factor(0.5), Factor(1.0)
    kept = Kept({"component.factor": factor})
    found = fingerprint(factor.method, "f", kept)
    assert found["of"] == {"registered": "component.factor"}
    assert found["method"]["function"] == "Factor.method"
    assert callable_state(factor.method, "f", kept) is None
    assert fingerprint(closing_over(factor.method), "f", kept)["closure"]["value"] == found
    with pytest.raises(UnsupportedState, match="bound method"):
        fingerprint(other.method, "f", kept)


def test_a_registered_object_that_is_called_has_its_state_there():
    factor = Factor(0.5)
    kept = Kept({"component.factor": factor})
    assert fingerprint(factor, "f", kept) == {"registered": "component.factor"}
    assert callable_state(factor, "f", kept) is None


def test_what_a_partial_applies_to_is_looked_into():
    args = types.SimpleNamespace(warmup=1)
    before = fingerprint(functools.partial(halves, args), "f")
    args.warmup = 2
    assert not same(before, fingerprint(functools.partial(halves, args), "f"))


PROGRAM = """
import sys
sys.path.insert(0, {root!r})
from segue._capture.callables import fingerprint
from segue._record.tree import encode
import argparse, json, math
args, MODES, box = argparse.Namespace(warmup=10, names={{"a", "b", "c"}}), {{"x", "y"}}, {{"cap": 1.0}}
def helper(e): return e in MODES or e in {{"p", "q", "r"}}
f = lambda e: min(box["cap"], math.cos(helper(e)), args.warmup, len(args.names))
print(json.dumps(encode(fingerprint(f, "f"), None), sort_keys=True))
"""


def test_a_new_process_with_another_hash_seed_makes_the_same_description():
    root = str(pathlib.Path(__file__).resolve().parents[2] / "src")
    made = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM.format(root=root)], capture_output=True, text=True, check=True,
            env={"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("0", "1", "2")
    }  # fmt: skip
    assert len(made) == 1
    assert "MODES" in made.pop()


CONSTANTS = [
    (..., NotImplemented), (datetime.date(2020, 1, 1), datetime.date(2020, 1, 2)),
    (datetime.timedelta(days=3), datetime.timedelta(days=4)), (datetime.time(1), datetime.time(2)),
    (datetime.datetime(2020, 1, 1), datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)),
    (decimal.Decimal("0.5"), decimal.Decimal("0.50")), (slice(1, 3), slice(1, 4)),
    (re.compile("a"), re.compile("a", re.IGNORECASE)), (np.dtype("f4"), np.dtype("f8")), (int | None, int | str),
    (torch.contiguous_format, torch.channels_last), (torch.finfo(torch.float32), torch.finfo(torch.float64)),
    (", ".join, "; ".join),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), CONSTANTS, ids=range(len(CONSTANTS)))
def test_what_never_changes_is_told_by_its_value(one, other):
    assert equal(closing_over(one), closing_over(one))
    assert not equal(closing_over(one), closing_over(other))
    found = fingerprint(closing_over(one), "f")
    assert same(decode(encode(found, lambda path, blob: ""), lambda name: None), found)


def test_constants_are_told_alike_whichever_object_they_are():
    for make in (
        lambda: decimal.Decimal("0.5"), lambda: datetime.timedelta(days=3), lambda: slice(1, int("3")),
        lambda: copy.copy(np.dtype("f4")), lambda: torch.finfo(torch.float32), lambda: int | None,
        lambda: "".join([",", " "]).join,
    ):  # fmt: skip
        assert make() is not make()
        assert equal(closing_over(make()), closing_over(make()))


def test_constants_that_may_hold_more_than_they_show_are_refused():
    class Zone(datetime.tzinfo):
        pass

    for value in (datetime.datetime(2020, 1, 1, tzinfo=Zone()), slice([1], None)):
        with pytest.raises(UnsupportedState, match="no exact encoding"):
            fingerprint(closing_over(value), "f")


@pytest.mark.parametrize("read", ["environ['SEGUE_X']", "environ.get('SEGUE_X')", "os.environ['SEGUE_X']"])
def test_the_environment_is_not_part_of_a_function(monkeypatch, read):
    function = program(f"def f(e): return {read}", environ=os.environ, os=os)
    monkeypatch.setenv("SEGUE_X", "a secret")
    before = fingerprint(function, "f")
    monkeypatch.setenv("SEGUE_X", "2")
    assert same(before, fingerprint(function, "f"))
    assert "secret" not in repr(before)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_a_function_in_a_gradient_mode_is_admitted(mode):
    def decorated(gamma):
        return mode()(lambda e: gamma**e)

    first = decorated(0.9)
    before = fingerprint(first, "f")
    first(2)
    assert same(before, fingerprint(first, "f"))
    assert equal(first, decorated(0.9))
    assert not equal(first, decorated(0.8))


def test_a_classmethod_is_the_same_by_the_class_and_by_an_object():
    source = "class A:\n    cap = {}\n    @classmethod\n    def go(cls, e): return cls.cap * e"
    one, other = (program(source.format(cap) + "\na = A()\ndef f(e): return a.go(e)") for cap in (1, 2))
    assert not equal(one, other)
    assert equal(one, program(source.format(1) + "\na = A()\ndef f(e): return a.go(e)"))


def test_a_librarys_object_with_names_of_its_own_is_told_whole():
    transformers = pytest.importorskip("transformers")
    configs = [transformers.GPT2Config(n_layer=count) for count in (2, 2, 3)]
    one, again, other = (program("def f(e): return e / config.n_layer", config=each) for each in configs)
    assert equal(one, again)
    assert not equal(one, other)
