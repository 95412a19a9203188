"""The plain window: fp32 sums outside `.grad`, divided once by the microbatches that are in it."""

import pytest
import torch

from segue import GradientAccumulator, Training
from segue.errors import WindowError
from tests._window.models import Pair


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_small_terms_are_not_lost_beside_a_large_sum_of_half_precision(dtype):
    model = Pair(dtype)
    window = GradientAccumulator(model)
    for value in [1024.0, *[0.125] * 8]:
        model.give(value)
        window.add()
    [(parameter, total)] = window.sums()
    assert parameter is model.a
    assert total.dtype is torch.float32
    assert total.tolist() == [1025.0, 1025.0]


def test_small_terms_survive_a_restore_in_mid_window():
    def fresh():
        model = Pair(torch.bfloat16)
        model.a.grad_dtype = torch.float32
        window = GradientAccumulator(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return model, window, Training(model, optimizer, accumulator=window, rng=None)

    def add(model, window, values):
        for value in values:
            model.give(value)
            window.add()

    model, window, training = fresh()
    add(model, window, [1024.0, *[0.125] * 4])
    model, window, resumed = fresh()
    resumed.restore(training.capture())
    add(model, window, [0.125] * 4)
    window.finish_sums()
    assert model.a.grad.dtype is torch.float32
    assert model.taken() == [[1025.0, 1025.0], None]


def test_adding_takes_the_gradient_and_absent_stays_absent():
    model = Pair()
    window = GradientAccumulator(model, microbatches=2)
    model.give(a=1)
    window.add()
    assert model.a.grad is None
    assert not window.is_full
    model.give(b=3)
    window.add()
    assert window.is_full
    window.finish_sums()
    assert model.taken() == [[1, 1], [3, 3]]
    assert window.sums() == []
    assert window.microbatches == 0


def test_a_parameter_without_any_gradient_gets_none():
    model = Pair()
    window = GradientAccumulator(model)
    model.give(a=4)
    window.add()
    window.add()
    window.finish_mean()
    assert model.taken() == [[2, 2], None]


def test_sums_are_in_the_order_of_the_model_whenever_they_came():
    model = Pair()
    window = GradientAccumulator(model)
    model.give(b=1)
    window.add()
    model.give(a=1)
    window.add()
    assert [parameter is model.a for parameter, _ in window.sums()] == [True, False]


def test_a_tied_parameter_is_added_once():
    model = Pair()
    model.c = model.a
    window = GradientAccumulator(model)
    for _ in range(2):
        model.give(a=1)
        window.add()
    window.finish_sums()
    assert model.taken() == [[2, 2], None]


def test_one_tensor_in_two_gradients_gives_two_sums():
    model = Pair()
    window = GradientAccumulator(model)
    for _ in range(2):
        model.a.grad = model.b.grad = torch.ones(2)
        window.add()
    window.finish_sums()
    assert model.taken() == [[2, 2], [2, 2]]


def test_a_view_of_a_bucket_is_not_kept_as_a_sum():
    model = Pair()
    window = GradientAccumulator(model)
    bucket = torch.ones(4)
    model.a.grad = bucket[:2]
    window.add()
    bucket.fill_(9)
    window.finish_sums()
    assert model.taken() == [[1, 1], None]


def test_a_short_window_is_divided_by_what_is_in_it():
    model = Pair()
    window = GradientAccumulator(model, microbatches=4)
    for value in (8, 9):
        model.give(value)
        window.add()
    window.finish_mean()
    assert model.taken()[0] == [8.5, 8.5]


def test_an_empty_window_has_sums_but_no_mean():
    model = Pair()
    window = GradientAccumulator(model)
    with pytest.raises(WindowError, match="empty") as caught:
        window.finish_mean()
    assert caught.value.code == "window.empty"
    window.finish_sums()
    assert model.taken() == [None, None]


def test_its_state_names_its_terms():
    window = GradientAccumulator(Pair(), torch.float64, 3)
    window.add()
    state = window.window_state()
    assert (state.kind, state.dtype, state.loss_scale) == ("plain", "float64", 1.0)
    assert (state.window_microbatches, state.microbatches, state.total_weight) == (3, 1, 1.0)
