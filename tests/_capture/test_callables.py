"""Functions are told apart by what they do; state that can't be seen is refused."""

import functools
import math

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
    counting.helper = Factor()
    with pytest.raises(UnsupportedState, match="attribute helper"):
        fingerprint(counting, "f")


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


REFUSED = [
    (Factor().method, "bound method"), ([].append, "bound method"), (closing_over(object()), "no exact encoding"),
    (closing_over(Factor()), "no exact encoding"), (functools.partial(halves, object()), "no exact encoding"),
    (closing_over(functools.partial(Factor(), 1)), "no exact encoding"),
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
