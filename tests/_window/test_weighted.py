"""The weighted window: what a weight may be, and that one division at the end is all there is."""

import math

import pytest
import torch
from torch import nn

from segue import GradientAccumulator, WeightedAccumulator
from segue._record.window import WindowState
from segue._window.window import MAX_MICROBATCHES
from segue.errors import WindowError
from tests._window.models import Pair, bits


def made():
    model = Pair()
    return model, WeightedAccumulator(model)


def losses(reduction):
    """Microbatches of three and five samples, with the loss reduced as told, and the same eight in one batch."""
    torch.manual_seed(0)
    model = nn.Linear(4, 6, dtype=torch.float64)
    x, y = torch.randn(8, 4, dtype=torch.float64), torch.randint(0, 6, (8,))

    def loss(part):
        return nn.functional.cross_entropy(model(x[part]), y[part], reduction=reduction)

    return model, loss, [(slice(0, 3), 3), (slice(3, 8), 5)]


def gradient(model):
    found = model.weight.grad.clone()
    model.zero_grad()
    return found


def test_unequal_microbatches_weigh_what_they_count():
    model, mean_loss, parts = losses("mean")
    mean_loss(slice(0, 8)).backward()
    whole = gradient(model)
    window = WeightedAccumulator(model, torch.float64)
    for part, tokens in parts:
        mean_loss(part).backward()
        window.add_mean(tokens)
    window.finish_mean()
    weighted = gradient(model)
    plain = GradientAccumulator(model, torch.float64)
    for part, _ in parts:
        mean_loss(part).backward()
        plain.add()
    plain.finish_mean()
    # The order of additions differs from the one batch, so this is no matter of bits.
    assert (weighted - whole).abs().max() < 1e-14
    assert (gradient(model) - whole).abs().max() > 1e-3


def test_sums_and_means_tell_the_same():
    model, sum_loss, parts = losses("sum")
    window = WeightedAccumulator(model, torch.float64)
    for part, tokens in parts:
        sum_loss(part).backward()
        window.add_sum(tokens)
    window.finish_mean()
    by_sum = gradient(model)
    model, mean_loss, parts = losses("mean")
    window = WeightedAccumulator(model, torch.float64)
    for part, tokens in parts:
        mean_loss(part).backward()
        window.add_mean(tokens)
    window.finish_mean()
    assert (gradient(model) - by_sum).abs().max() < 1e-14


def test_a_weight_of_zero_counts_and_contributes_nothing():
    model = Pair()
    window = WeightedAccumulator(model)
    for value, weight in ((2, 4), (float("nan"), 0), (6, 4), (1, -0.0)):
        model.give(value)
        window.add_sum(weight)
        assert model.a.grad is None
    assert (window.microbatches, window.total_weight) == (4, 8.0)
    window.finish_mean()
    assert model.taken() == [[1, 1], None]


def test_a_weight_of_zero_is_no_licence_for_a_gradient_that_cannot_be_summed():
    model = Pair()
    window = WeightedAccumulator(model)
    model.a.grad_dtype = torch.int32
    model.a.grad = torch.ones(2, dtype=torch.int32)
    with pytest.raises(WindowError):
        window.add_sum(0)
    assert window.microbatches == 0
    assert model.a.grad is not None


BAD_WEIGHTS = [-1, -1e-300, math.nan, math.inf, -math.inf, 1e39, 1e-46]


@pytest.mark.parametrize("weight", BAD_WEIGHTS)
@pytest.mark.parametrize("add", ["add_sum", "add_mean"])
def test_a_bad_weight_changes_nothing(add, weight):
    model = Pair()
    window = WeightedAccumulator(model)
    model.give(1, 2)
    window.add_sum(3)
    model.give(5)
    standing, before = model.a.grad, window.window_state()
    totals = [bits(total) for _, total in window.sums()]
    with pytest.raises(WindowError) as caught:
        getattr(window, add)(weight)
    assert caught.value.code == "window.weight"
    assert window.window_state() == before
    assert model.a.grad is standing
    assert standing.tolist() == [5, 5]
    assert [bits(total) for _, total in window.sums()] == totals


@pytest.mark.parametrize("weight", [1e39, 1e-46])
def test_double_sums_take_weights_that_single_ones_cannot(weight):
    model = Pair()
    window = WeightedAccumulator(model, torch.float64)
    model.give(1)
    window.add_mean(weight)
    window.finish_mean()
    assert model.taken()[0] == [1, 1]


def test_a_total_that_overflows_is_refused_and_the_first_part_stays():
    window = WeightedAccumulator(Pair())
    window.add_sum(3e38)
    with pytest.raises(WindowError) as caught:
        window.add_sum(3e38)
    assert caught.value.code == "window.overflow"
    assert (window.microbatches, window.total_weight) == (1, 3e38)


def test_the_total_is_kept_in_double_precision():
    window = WeightedAccumulator(Pair())
    window.add_sum(2**24)
    window.add_sum(1)
    assert window.total_weight == 2**24 + 1


def test_the_count_of_microbatches_does_not_wrap():
    window = WeightedAccumulator(Pair())
    state = WindowState("weighted", "float32", 1.0, None, MAX_MICROBATCHES, 1.0)
    window.replace_window(state, [])
    with pytest.raises(WindowError) as caught:
        window.add_sum(1)
    assert caught.value.code == "window.counter"
    assert window.window_state() == state


def test_scale_and_weight_are_divided_out_one_after_the_other():
    # Their product, 1e60, is infinite in single precision.
    model = Pair()
    window = WeightedAccumulator(model, loss_scale=1e30)
    model.give(1e30)
    window.add_mean(1e30 / 1e30)
    window.replace_window(WindowState("weighted", "float32", 1e30, None, 1, 1e30), window.sums())
    window.finish_mean()
    expected = (torch.full((2,), 1e30) / 1e30 / 1e30).tolist()
    assert model.taken()[0] == expected
    assert 0 < expected[0] < 1


def test_a_window_without_weight_has_no_mean_and_stays():
    model = Pair()
    window = WeightedAccumulator(model, loss_scale=8.0)
    model.give(1)
    window.add_sum(0)
    before = window.window_state()
    with pytest.raises(WindowError) as caught:
        window.finish_mean()
    assert caught.value.code == "window.empty"
    assert window.window_state() == before
    assert window.finish_sums() == before
    assert (window.microbatches, window.total_weight, window.window_state().loss_scale) == (0, 0.0, 8.0)


def test_sums_are_handed_out_undivided_with_what_to_divide_by():
    model = Pair()
    window = WeightedAccumulator(model, loss_scale=2.0)
    model.give(6)
    window.add_sum(3)
    state = window.finish_sums()
    assert (state.total_weight, state.loss_scale, state.microbatches) == (3.0, 2.0, 1)
    assert model.taken()[0] == [6, 6]


def test_a_weight_of_one_leaves_every_bit():
    model = Pair()
    window = WeightedAccumulator(model)
    payload = torch.tensor([0x7FC00123, -2147483648], dtype=torch.int32).view(torch.float32)
    model.a.grad = payload.clone()
    window.add_mean(1)
    window.finish_mean()
    assert bits(model.a.grad) == bits(payload)


@pytest.mark.parametrize("value", ["3", b"3", None, [1], torch.ones(2), object()])
def test_a_weight_is_a_number(value):
    model, window = made()
    model.give(1, 2)
    with pytest.raises(WindowError) as caught:
        window.add_sum(value)
    assert (caught.value.code, caught.value.found) == ("window.weight", type(value).__name__)
    assert model.a.grad is not None


def test_a_weight_may_be_a_tensor_of_one_element_even_one_with_a_graph():
    model, window = made()
    model.give(1, 2)
    window.add_sum(torch.tensor([3.0], requires_grad=True))
    assert window.total_weight == 3.0


def test_a_weight_that_is_lost_says_so():
    model, window = made()
    model.give(1, 2)
    with pytest.raises(WindowError, match="lost"):
        window.add_sum(1e-60)


def test_a_gradient_that_was_never_added_is_told_before_the_window_is_empty():
    model, window = made()
    model.give(1, 2)
    with pytest.raises(WindowError) as caught:
        window.finish_mean()
    assert caught.value.code == "window.not_added"


@pytest.mark.parametrize("model", [nn.Linear(1, 1).parameters(), [nn.Parameter(torch.ones(1))], None])
def test_an_accumulator_is_made_over_a_module(model):
    with pytest.raises(WindowError) as caught:
        WeightedAccumulator(model)
    assert caught.value.code == "window.model"


def test_a_number_in_the_place_of_the_dtype_gets_a_hint():
    with pytest.raises(WindowError) as caught:
        WeightedAccumulator(Pair(), 4)
    assert "microbatches=4" in caught.value.hint
