"""An accumulator goes on only with a window of its own kind, dtype, scale and size."""

import dataclasses
import math

import pytest
import torch

from segue import GradientAccumulator, WeightedAccumulator
from segue._record.window import WindowState
from segue.errors import WindowError
from tests._window.models import Pair

OWN = WindowState("weighted", "float32", 2.0, 4, 3, 12.0)


def accumulator():
    window = WeightedAccumulator(Pair(), microbatches=4, loss_scale=2.0)
    window.add_sum(5)
    return window


def test_a_window_of_the_same_terms_is_admitted():
    accumulator().check_window(OWN)


@pytest.mark.parametrize(
    ("field", "value"),
    [("kind", "plain"), ("dtype", "float64"), ("loss_scale", math.nextafter(2.0, 3)), ("window_microbatches", 5),
     ("window_microbatches", None)],
)  # fmt: skip
def test_other_terms_are_refused_by_name_and_leave_the_window(field, value):
    window = accumulator()
    before = window.window_state()
    with pytest.raises(WindowError) as caught:
        window.check_window(dataclasses.replace(OWN, **{field: value}))
    assert caught.value.code == f"window.{field}"
    assert (caught.value.expected, caught.value.found) == (value, getattr(OWN, field))
    assert window.window_state() == before


@pytest.mark.parametrize(
    ("microbatches", "total_weight"), [(0, 1.0), (-1, 0.0), (1, -1.0), (1, math.nan), (1, math.inf)]
)
def test_counters_that_contradict_each_other_are_refused(microbatches, total_weight):
    state = dataclasses.replace(OWN, microbatches=microbatches, total_weight=total_weight)
    with pytest.raises(WindowError) as caught:
        accumulator().check_window(state)
    assert caught.value.code == "window.state"


def test_empty_microbatches_alone_are_a_window():
    accumulator().check_window(dataclasses.replace(OWN, microbatches=2, total_weight=0.0))


def test_plain_and_weighted_windows_do_not_mix():
    plain, weighted = GradientAccumulator(Pair()), WeightedAccumulator(Pair())
    for one, other in ((plain, weighted), (weighted, plain)):
        with pytest.raises(WindowError) as caught:
            one.check_window(other.window_state())
        assert caught.value.code == "window.kind"


def test_a_window_in_double_precision_does_not_go_on_in_single():
    with pytest.raises(WindowError, match="another dtype"):
        GradientAccumulator(Pair()).check_window(GradientAccumulator(Pair(), torch.float64).window_state())


@pytest.mark.parametrize("make", [GradientAccumulator, WeightedAccumulator])
@pytest.mark.parametrize("size", [None, 1 << 20001], ids=["any", "larger"])
def test_counters_that_python_does_not_write_out_are_refused_all_the_same(make, size):
    window = make(torch.nn.Linear(1, 1))
    state = dataclasses.replace(window.window_state(), microbatches=1 << 20000, window_microbatches=size)
    with pytest.raises(WindowError, match="too many digits to show"):
        window.check_window(state)
