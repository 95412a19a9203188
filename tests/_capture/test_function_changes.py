"""What differs between two descriptions of a function is told by its place, as it was and as it is."""

import functools
import types

import pytest

from segue._capture.callables import fingerprint
from segue._capture.function_changes import (
    changes,
    reads_registered,
    registering,
    with_unregistered,
    without_registered,
)
from segue._record.tree import same
from tests._capture.test_callables import Factor, Kept, class_of, closing_over, program


def told(before, now):
    return [str(change) for change in changes(fingerprint(before, "f"), fingerprint(now, "f"))]


def with_args(cap, **more):
    args, box = types.SimpleNamespace(optim=types.SimpleNamespace(cap=cap)), {"cap": cap, "list": [1, cap]}
    return lambda e: args.optim.cap + box["cap"] + box["list"][1]


CHANGES = {
    "a closed-over value": (closing_over(1.0), closing_over(0.05), ["closed-over value: 1.0 -> 0.05"]),
    "attributes and entries": (
        with_args(1.0), with_args(0.5),
        [
            "closed-over args.optim.cap: 1.0 -> 0.5", 'closed-over box["cap"]: 1.0 -> 0.5',
            'closed-over box["list"][1]: 1.0 -> 0.5',
        ],
    ),
    "code": (lambda e: 0.9**e, lambda e: 0.8**e, ["its code"]),
    "a name": (program("def f(e): return 1"), program("def g(e): return 1\nf = g"), ["its name: f -> g"]),
    "a default": (program("def f(e, a=1): return a"), program("def f(e, a=2): return a"), ["default[0]: 1 -> 2"]),
    "a keyword's default": (
        program("def f(e, *, a=1): return a"), program("def f(e, *, a=2): return a"), ["default of a: 1 -> 2"],
    ),
    "a global": (program("f = lambda e: CAP", CAP=1), program("f = lambda e: CAP", CAP=2), ["global CAP: 1 -> 2"]),
    "a global that came": (
        program("f = lambda e: CAP"), program("f = lambda e: CAP", CAP=[2]), ["global CAP: not there -> [2]"],
    ),
    "a module": (
        program("f = lambda e: m", m=types), program("f = lambda e: m", m=functools),
        ["global m: module types -> module functools"],
    ),
    "a class": (program("f = lambda e: C", C=int), program("f = lambda e: C", C=str), ["global C: class int -> class str"]),
    "a global of a helper": (
        program("def h(e): return CAP\nf = lambda e: h(e)", CAP=1), program("def h(e): return CAP\nf = lambda e: h(e)", CAP=2),
        ["global h > global CAP: 1 -> 2"],
    ),
    "a helper's code": (
        program("def h(e): return 1\nf = lambda e: h(e)"), program("def h(e): return 2\nf = lambda e: h(e)"),
        ["global h > its code"],
    ),
    "an argument of a partial": (
        functools.partial(closing_over(1), 1, a=1), functools.partial(closing_over(1), 2, a=3),
        ["argument a: 1 -> 3", "argument[0]: 1 -> 2"],
    ),
    "what a partial applies": (
        functools.partial(closing_over(1)), functools.partial(closing_over(2)), ["closed-over value: 1 -> 2"],
    ),
    "a partial for a function": (
        functools.partial(closing_over(1)), closing_over(1),
        ["it: a partial -> function closing_over.<locals>.factor"],
    ),
    "a class of object": (Factor(), functools.partial, ["it: an object of class Factor -> class partial"]),
    "another class of object": (Factor(), class_of("class Warm:\n def __call__(self, e): pass")(), ["its class: Factor -> Warm"]),
    "a method": (
        class_of("class Warm:\n def __call__(self, e): return 1")(), class_of("class Warm:\n def __call__(self, e): return 2")(),
        ["method __call__ > its code"],
    ),
    "an attribute of a class": (
        class_of("class Warm:\n cap = 1\n def __call__(self, e): return self.cap")(),
        class_of("class Warm:\n cap = 2\n def __call__(self, e): return self.cap")(), ["Warm.cap: 1 -> 2"],
    ),
    "an object that is held": (closing_over(Factor(1.0)), closing_over(Factor(0.5)), ["closed-over value.cap: 1.0 -> 0.5"]),
    "an object for a number": (
        closing_over(Factor()), closing_over(1), ["closed-over value: an object of class Factor -> 1"],
    ),
    "a number more": (closing_over([1]), closing_over([1, 2]), ["closed-over value: [1] -> [1, 2]"]),
    "entries of a dictionary": (
        closing_over({"a": 1, "b": 2}), closing_over({"a": 3, 5: 4}),
        [
            'closed-over value["a"]: 1 -> 3', 'closed-over value["b"]: 2 -> not there',
            "closed-over value[5]: not there -> 4",
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", CHANGES)
def test_a_change_is_told_by_its_place(kind):
    before, now, expected = CHANGES[kind]
    assert told(before, now) == expected
    assert told(before, before) == told(now, now) == []


def test_of_several_functions_it_is_told_which():
    before = [fingerprint(closing_over(value), "f") for value in (1, 2)]
    now = [fingerprint(closing_over(value), "f") for value in (1, 3)]
    assert [str(change) for change in changes(before, now)] == ["function 1 > closed-over value: 2 -> 3"]
    assert [str(change) for change in changes(before[:1], now[1:])] == ["closed-over value: 1 -> 3"]
    assert len(changes(before, now[:1])) == 1
    assert [str(change) for change in changes(before, [None, now[0]])] == [
        "function 0: function closing_over.<locals>.factor -> None", "function 1 > closed-over value: 2 -> 1",
    ]  # fmt: skip


def test_what_would_register_it_is_written_down():
    def line(before, now):
        return registering(changes(fingerprint(before, "f"), fingerprint(now, "f")))

    assert line(with_args(1.0), with_args(0.5)) == (
        'components={"args_optim": segue.StateOf(args.optim, "cap"), "box": segue.StateOf(box, "cap", "list")}'
    )
    source = "f = lambda e: CAP"
    assert line(program(source, CAP=1), program(source, CAP=2)) == (
        'components={"globals": segue.StateOf(globals(), "CAP")}'
    )
    counting = (
        program("def f(e): return g.n\ndef g(e): pass\ng.n = 0"),
        program("def f(e): return g.n\ndef g(e): pass\ng.n = 1"),
    )
    assert line(*counting) == 'components={"g": segue.StateOf(g, "n")}'
    assert line(closing_over(1), closing_over(2)) is None
    assert line(lambda e: 1, lambda e: 2) is None


def of_python(description, version):
    """The description as another version of Python would have made it."""
    if isinstance(description, dict):
        found = {key: of_python(item, version) for key, item in description.items()}
        return {**found, "python": version, "code": f"of {version}"} if "code" in found else found
    return (
        [of_python(item, version) for item in description] if isinstance(description, list) else description
    )


def test_another_version_of_python_is_said_to_be_one():
    now = fingerprint(closing_over(1), "f")
    found = changes(of_python(now, "3.99"), now)
    assert [str(change) for change in found] == [
        f"the bytecode is of another Python (3.99 -> {now['python']}); the functions can't be compared"
    ]
    also = changes(of_python(fingerprint(closing_over(2), "f"), "3.99"), now)
    assert [str(change) for change in also[1:]] == ["closed-over value: 2 -> 1"]


def as_older(description):
    """The description as it was made before globals, versions of Python and methods were told."""
    if isinstance(description, dict):
        newer = ("python", "globals", "exceptions", "methods", "class_attributes")
        return {key: as_older(item) for key, item in description.items() if key not in newer}
    return [as_older(item) for item in description] if isinstance(description, list) else description


def older(function):
    return as_older(fingerprint(function, "f"))


def test_an_older_description_is_compared_as_far_as_it_tells():
    source = "def h(e): return CAP\ndef f(e, a=1):\n try: return h(a)\n except ValueError: return 0"
    function = program(source, CAP=1)
    assert changes(older(function), fingerprint(function, "f")) == []
    assert changes(older(function), fingerprint(program(source, CAP=2), "f")) == []
    other = fingerprint(program(source.replace("a=1", "a=2"), CAP=1), "f")
    assert [str(change) for change in changes(older(function), other)] == ["default[0]: 1 -> 2"]
    other = fingerprint(program(source.replace("return 0", "return 5"), CAP=1), "f")
    assert [str(change) for change in changes(older(function), other)] == ["its code"]
    assert changes(older(Factor()), fingerprint(Factor(), "f")) == []
    assert (
        changes(older(functools.partial(function, 1)), fingerprint(functools.partial(function, 1), "f")) == []
    )
    assert (
        changes(older(closing_over(closing_over(2))), fingerprint(closing_over(closing_over(2)), "f")) == []
    )


def test_an_older_description_of_a_whole_dictionary_is_compared_by_the_entries_that_are_read():
    def reading(box):
        return lambda e: box["cap"] + box["optim"]["end"]

    whole = {"cap": 1.0, "other": [1], "optim": {"end": 3, "begin": 2}}
    before = {**older(reading({})), "closure": {"box": whole}}
    assert changes(before, fingerprint(reading(whole), "f")) == []
    now = fingerprint(reading({**whole, "optim": {"end": 4}}), "f")
    assert [str(change) for change in changes(before, now)] == ['closed-over box["optim"]["end"]: 3 -> 4']


HOSTILE = [
    None, 3, "x", {}, [], {"function": 3, "code": None}, {"function": {}, "code": [], "closure": 5, "globals": [1]},
    {"class": []}, {"class": "Factor", "methods": 3}, {"object": {}}, {"partial": None, "arguments": 3},
    {"registered": {}}, {"function": "f", "code": "c", "python": {}, "closure": {1: 2}}, {"module": 3}, {"entries": []},
]  # fmt: skip


@pytest.mark.parametrize("before", HOSTILE, ids=range(len(HOSTILE)))
def test_a_description_that_lies_differs_and_breaks_nothing(before):
    args = types.SimpleNamespace(a=[Factor()], b=types)
    for function in (
        closing_over(1),
        closing_over({"a": args}),
        functools.partial(closing_over(1)),
        Factor(),
    ):
        now = fingerprint(function, "f")
        for found in (changes(before, now), changes([before], [now])):
            assert found
            assert all(str(change) for change in found)


def test_what_is_registered_by_now_and_what_no_longer_is_are_told_apart():
    box = {"cap": 1.0, "floor": 0.1}
    function = lambda e: box["cap"] + box["floor"]  # noqa: E731
    kept = Kept(parts=[(box, "cap")])
    first, registered = fingerprint(function, "f"), fingerprint(function, "f", kept)
    box["cap"] = 0.5
    now = fingerprint(function, "f")
    assert same(without_registered(first, registered), registered)
    assert same(without_registered(first, now), first)
    assert same(with_unregistered(registered, now), now)
    assert same(with_unregistered(first, now), first)
    assert same(with_unregistered([registered], [now]), [now])
    assert [str(change) for change in changes(registered, now)] == [
        'closed-over box["cap"]: registered -> 0.5'
    ]


def test_it_is_told_whether_a_function_reads_what_is_registered():
    box = {"cap": 1.0}
    function = closing_over(closing_over([box]))
    assert not reads_registered(fingerprint(function, "f"))
    assert reads_registered(fingerprint(function, "f", Kept({"box": box})))
    assert reads_registered([None, fingerprint(function, "f", Kept(parts=[(box, "cap")]))])
