"""A microbatch by its loss: what is checked before backward, and that a failing backward leaves no trace."""

import math

import pytest
import torch
from torch import nn

from segue import WeightedAccumulator
from segue.errors import WindowError
from tests._window.models import Pair, look


class Failing(torch.autograd.Function):
    """Raises in backward."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ArithmeticError("backward broke")


def weight(value, dtype=torch.float64):
    return torch.tensor([value], dtype=dtype)


def loss_of(model, factor=1.0):
    return (model.a.sum() * factor).reshape(1)


def started(**options):
    model = Pair()
    window = WeightedAccumulator(model, **options)
    model.give(1, 2)
    window.add_sum(3)
    return model, window


def test_it_is_backward_and_add_sum():
    model, window = started(loss_scale=4.0)
    done = window.backward_sum(loss_of(model, 0.5), weight(2))
    assert (done.loss_sum, done.weight, done.backward_ran, done.mean) == (0.0, 2.0, True, 0.0)
    assert model.a.grad is None
    assert (window.microbatches, window.total_weight) == (2, 5.0)
    window.finish_sums()
    assert model.taken() == [[1 + 4 * 0.5] * 2, [2, 2]]


def test_behaviour_75_with_weight_zero_no_backward_runs():
    model, window = started()
    state, sums, _ = look(model, window)
    done = window.backward_sum(Failing.apply(loss_of(model)), weight(0))
    assert not done.backward_ran
    assert (window.microbatches, window.total_weight) == (2, state.total_weight)
    assert look(model, window)[1] == sums
    with pytest.raises(WindowError) as caught:
        _ = done.mean
    assert caught.value.code == "window.mean"


@pytest.mark.parametrize("name", ["loss_sum", "weight"])
@pytest.mark.parametrize(
    ("tensor", "found"),
    [
        (torch.tensor(1.0), "()"),
        (torch.ones(2), "(2,)"),
        (torch.ones(1, 1), "(1, 1)"),
        (torch.ones(1, dtype=torch.int64), "torch.int64"),
        (torch.ones(1, dtype=torch.complex64), "torch.complex64"),
        (1.0, "float"),
        (torch.ones(1).to_sparse(), "Tensor"),
    ],
)
def test_behaviour_75_loss_and_weight_are_floats_of_shape_1(name, tensor, found):
    model, window = started()
    before = look(model, window)
    arguments = {"loss_sum": Failing.apply(loss_of(model)), "weight": weight(1), name: tensor}
    with pytest.raises(WindowError) as caught:
        window.backward_sum(**arguments)
    assert (caught.value.code, caught.value.where, caught.value.found) == ("window.loss", name, found)
    assert look(model, window) == before


def test_behaviour_75_loss_and_weight_are_on_one_device():
    model, window = started()
    before = look(model, window)
    with pytest.raises(WindowError) as caught:
        window.backward_sum(loss_of(model), torch.ones(1, device="meta"))
    assert (caught.value.expected, caught.value.found) == (torch.device("cpu"), torch.device("meta"))
    assert look(model, window) == before


@pytest.mark.parametrize(
    ("value", "code"),
    [(-1.0, "window.weight"), (math.nan, "window.weight"), (math.inf, "window.weight"), (1e39, "window.weight"),
     (1e-46, "window.weight"), (3.4e38, "window.overflow")],
)  # fmt: skip
def test_behaviour_75_the_weight_is_read_and_refused_before_backward(value, code):
    model = Pair()
    window = WeightedAccumulator(model)
    window.add_sum(3e38)
    before = look(model, window)
    with pytest.raises(WindowError) as caught:
        window.backward_sum(Failing.apply(loss_of(model)), weight(value))
    assert caught.value.code == code
    assert look(model, window) == before


def test_behaviour_75_no_gradient_flows_to_the_weight():
    model, window = started()
    tokens = torch.tensor([2.0], requires_grad=True)
    window.backward_sum(loss_of(model), tokens)
    assert tokens.grad is None


def test_a_full_window_runs_no_backward():
    model, window = started(microbatches=1)
    with pytest.raises(WindowError) as caught:
        window.backward_sum(Failing.apply(loss_of(model)), weight(1))
    assert caught.value.code == "window.full"


def test_values_that_cannot_be_read_run_no_backward():
    model, window = started()
    before = look(model, window)
    with pytest.raises((NotImplementedError, RuntimeError)):
        window.backward_sum(torch.ones(1, device="meta"), torch.ones(1, device="meta"))
    assert look(model, window) == before


@pytest.mark.parametrize("handed_out", [True, False])
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_gradient_that_stood_before_is_refused_before_backward(handed_out, value):
    model, window = started()
    if handed_out:
        window.finish_mean()
    else:
        model.give(b=4)
    before = look(model, window)
    with pytest.raises(WindowError) as caught:
        window.backward_sum(Failing.apply(loss_of(model)), weight(value))
    assert caught.value.code == ("window.not_consumed" if handed_out else "window.not_added")
    assert look(model, window) == before


def test_a_backward_that_raises_leaves_no_gradient_that_it_had_written():
    model, window = started()
    before = look(model, window)
    written = []
    model.b.register_post_accumulate_grad_hook(lambda parameter: written.append(parameter.grad))
    # What is computed last is differentiated first: b's gradient is there when a's backward breaks.
    loss = Failing.apply(model.a).sum().reshape(1) + (model.b * 2).sum().reshape(1)
    with pytest.raises(ArithmeticError, match="backward broke"):
        window.backward_sum(loss, weight(1))
    assert [gradient.tolist() for gradient in written] == [[2, 2]]
    assert look(model, window) == before


def test_gradients_that_cannot_be_summed_leave_no_trace_either():
    class Marked(torch.Tensor):
        pass

    model, window = started()
    before = look(model, window)

    def mark(parameter):
        parameter.grad = torch.ones(2).as_subclass(Marked)

    model.a.register_post_accumulate_grad_hook(mark)
    with pytest.raises(WindowError) as caught:
        window.backward_sum(loss_of(model) + model.b.sum(), weight(1))
    assert caught.value.code == "window.gradient"
    assert look(model, window) == before


def test_a_loss_without_a_graph_is_torchs_to_refuse():
    model, window = started()
    before = look(model, window)
    with pytest.raises(RuntimeError, match="does not require grad"):
        window.backward_sum(torch.ones(1), weight(1))
    assert look(model, window) == before


def test_behaviour_68_a_gradient_for_a_tensor_of_no_model_is_refused_before_backward():
    model, window = started()
    centers = nn.Parameter(torch.ones(2))
    for loss in (
        Failing.apply(loss_of(model)) + (centers * model.b).sum(),
        nn.Parameter(torch.ones(1)),
    ):
        before = look(model, window)
        with pytest.raises(WindowError) as caught:
            window.backward_sum(loss, weight(1))
        assert caught.value.code == "window.unknown"
        assert look(model, window) == before
        assert centers.grad is None


def test_a_loss_that_is_a_parameter_has_a_gradient():
    model = nn.Module()
    model.weight = nn.Parameter(torch.tensor([3.0]))
    window = WeightedAccumulator(model)
    done = window.backward_sum(model.weight, weight(2))
    window.finish_mean()
    assert (done.mean, model.weight.grad.tolist()) == (1.5, [0.5])


def test_a_loss_that_is_not_finite_is_not_hidden():
    model, window = started()
    done = window.backward_sum(loss_of(model) + model.b.log().sum(), weight(2))
    assert done.loss_sum == -math.inf
    window.finish_mean()
    assert model.b.grad.tolist() == [math.inf] * 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_loss_and_weight_are_read_in_double_precision_whatever_their_dtype(dtype):
    model = Pair(torch.float64)
    window = WeightedAccumulator(model, torch.float64)
    loss = (model.a.sum() + 1 / 3).reshape(1).to(dtype)
    done = window.backward_sum(loss, weight(0.1, dtype))
    assert done.loss_sum == loss.double().item()
    assert window.total_weight == torch.tensor(0.1, dtype=dtype).double().item()


def test_the_scale_is_multiplied_in_the_work_dtype_and_divided_out_once():
    model = Pair()
    window = WeightedAccumulator(model, torch.float64, loss_scale=257.0)
    scaled = []
    model.a.register_hook(lambda gradient: scaled.append(gradient.tolist()))
    done = window.backward_sum(loss_of(model, 3.0) + 1, weight(2))
    assert done.loss_sum == 1.0
    assert scaled == [[771, 771]]
    window.finish_mean()
    assert model.taken() == [[1.5, 1.5], None]


def test_it_runs_backward_where_gradients_are_switched_off():
    model, window = started()
    loss = loss_of(model)
    with torch.no_grad():
        window.backward_sum(loss, weight(1))
    window.finish_sums()
    assert model.taken() == [[2, 2], [2, 2]]


def test_what_it_returns_is_frozen():
    model, window = started()
    done = window.backward_sum(loss_of(model), weight(1))
    with pytest.raises(AttributeError):
        done.weight = 3.0


def test_an_input_that_requires_grad_is_the_programs_own_affair():
    """As activation checkpointing needs it over a frozen base."""
    model = nn.Linear(2, 1)
    window = WeightedAccumulator(model)
    x = torch.ones(3, 2, requires_grad=True)
    window.backward_sum(model(x).sum().reshape(1), torch.tensor([3.0]))
    assert x.grad is not None
    window.finish_mean()
    assert model.bias.grad.tolist() == [1.0]
