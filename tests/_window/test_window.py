"""What every window refuses and keeps, whatever it divides by."""

import pytest
import torch

from segue import GradientAccumulator, WeightedAccumulator
from segue.errors import WindowError
from tests._window.models import Pair

KINDS = {
    "plain": (GradientAccumulator, lambda window: window.add()),
    "weighted": (WeightedAccumulator, lambda window: window.add_sum(1)),
}


@pytest.fixture(params=KINDS, ids=str)
def kind(request):
    return KINDS[request.param]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int32, torch.complex64])
def test_sums_are_kept_in_single_or_double_precision_only(kind, dtype):
    with pytest.raises(WindowError) as caught:
        kind[0](Pair(), dtype)
    assert caught.value.code == "window.dtype"


@pytest.mark.parametrize("size", [0, -1, 1.5, True, "2"])
def test_a_window_has_a_whole_number_of_microbatches(kind, size):
    with pytest.raises(WindowError) as caught:
        kind[0](Pair(), microbatches=size)
    assert caught.value.code == "window.size"


def test_a_window_whose_size_was_not_told_is_never_full(kind):
    window = kind[0](Pair())
    for _ in range(5):
        kind[1](window)
    assert not window.is_full


def test_a_gradient_that_was_handed_out_must_be_used_before_the_next(kind):
    make, add = kind
    model = Pair()
    window = make(model)
    model.give(1)
    add(window)
    window.finish_mean()
    model.give(b=1)
    with pytest.raises(WindowError) as caught:
        add(window)
    assert caught.value.code == "window.not_consumed"
    assert "zero_grad" in caught.value.hint
    assert model.a.grad is not None
    assert model.b.grad is not None
    assert window.microbatches == 0
    model.zero_grad()
    model.give(1)
    add(window)
    assert window.microbatches == 1


def test_a_new_gradient_at_the_old_address_is_not_taken_for_the_old_one(kind):
    make, add = kind
    model = Pair()
    window = make(model)
    for _ in range(20):
        model.give(1)
        add(window)
        window.finish_mean()
        model.zero_grad()


def test_a_gradient_that_was_never_added_keeps_the_window_open(kind):
    make, add = kind
    model = Pair()
    window = make(model)
    model.give(1)
    add(window)
    model.give(b=2)
    for finish in (window.finish_mean, window.finish_sums):
        with pytest.raises(WindowError) as caught:
            finish()
        assert caught.value.code == "window.not_added"
        assert caught.value.where == "gradient of b"
    assert window.microbatches == 1
    assert model.a.grad is None


def subclass(model):
    class Marked(torch.Tensor):
        pass

    model.a.grad = torch.ones(2).as_subclass(Marked)


def whole_numbers(model):
    model.a.grad_dtype = torch.int32
    model.a.grad = torch.ones(2, dtype=torch.int32)


def eight_bits(model):
    model.a.grad_dtype = torch.float8_e4m3fn
    model.a.grad = torch.ones(2).to(torch.float8_e4m3fn)


def truth_values(model):
    model.a.grad_dtype = None
    model.a.grad = torch.ones(2, dtype=torch.bool)


def complex_numbers(model):
    model.a.grad_dtype = None
    model.a.grad = torch.ones(2, dtype=torch.complex64)


def quantized(model):
    model.a.grad_dtype = None
    model.a.grad = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)


def compressed(model):
    # A strided parameter takes no such gradient (torch 2.13).
    model.a = torch.nn.Parameter(torch.eye(2).to_sparse_csr())
    model.a.grad = torch.eye(2).to_sparse_csr()


def frozen(model):
    model.a.grad = torch.ones(2)
    model.a.requires_grad_(False)


def reshaped(model):
    model.a.grad = torch.ones(2)
    model.a.data = model.a.data.reshape(2, 1)


def resized(model):
    model.a.grad = torch.ones(2)
    model.a.grad.resize_(1)


def in_a_graph(model):
    (model.a * model.a).sum().backward(create_graph=True)


UNFIT = {
    subclass: ("window.gradient", "torch.Tensor", "Marked"),
    whole_numbers: ("window.gradient", "a real floating-point dtype", torch.int32),
    truth_values: ("window.gradient", "a real floating-point dtype", torch.bool),
    complex_numbers: ("window.gradient", "a real floating-point dtype", torch.complex64),
    eight_bits: ("window.gradient", "a real floating-point dtype", torch.float8_e4m3fn),
    quantized: ("window.gradient", "a real floating-point dtype", torch.qint8),
    compressed: ("window.layout", "strided or sparse_coo", torch.sparse_csr),
    in_a_graph: ("window.graph", "requires_grad=False", "requires_grad=True"),
    frozen: ("window.frozen", "requires_grad=True", "requires_grad=False"),
    reshaped: ("window.shape", (2, 1), (2,)),
    resized: ("window.shape", (2,), (1,)),
}


@pytest.mark.filterwarnings("ignore:Using backward:UserWarning", "ignore:Sparse CSR:UserWarning")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
@pytest.mark.parametrize("set_gradient", UNFIT)
@pytest.mark.parametrize("place", ["first", "last"])
def test_a_gradient_that_cannot_be_summed_is_refused_before_any_is_taken(kind, set_gradient, place):
    make, add = kind
    model = Pair()
    if place == "last":
        # `parameters()` gives b before a now.
        model._parameters["a"] = model._parameters.pop("a")
    window = make(model)
    model.give(b=1)
    add(window)
    model.give(b=1)
    set_gradient(model)
    standing, before = model.a.grad, window.window_state()
    with pytest.raises(WindowError) as caught:
        add(window)
    error = caught.value
    assert error.where == "gradient of a"
    assert (error.code, error.expected, error.found) == UNFIT[set_gradient]
    assert model.a.grad is standing
    assert model.b.grad.tolist() == [1, 1]
    assert [(parameter is model.b, total.tolist()) for parameter, total in window.sums()] == [(True, [1, 1])]
    assert window.window_state() == before
    model.zero_grad()


@pytest.mark.parametrize("work", [torch.float32, torch.float64])
def test_a_mean_is_cast_once_to_the_dtype_that_the_gradient_may_have(kind, work):
    make, add = kind
    for dtype, grad_dtype, expected in (
        (torch.bfloat16, torch.bfloat16, torch.bfloat16), (torch.bfloat16, torch.float32, torch.float32),
        (torch.bfloat16, None, work), (torch.float32, torch.float32, torch.float32),
    ):  # fmt: skip
        model = Pair(dtype)
        model.a.grad_dtype = grad_dtype
        window = make(model, work)
        for value in (1.0, 1.0078125):
            model.a.grad = torch.full((2,), value, dtype=grad_dtype or torch.float32)
            add(window)
        window.finish_mean()
        assert model.a.grad.dtype is expected
        # 1.00390625 needs nine bits of fraction: exact in fp32, a tie that goes to 1.0 in bf16.
        assert model.a.grad.tolist() == ([1.0, 1.0] if expected is torch.bfloat16 else [1.00390625] * 2)


def test_the_division_is_made_in_the_work_dtype(kind):
    make, add = kind
    model = Pair()
    window = make(model, torch.float64)
    for _ in range(3):
        model.give(0.1)
        add(window)
    [(_, total)] = window.sums()
    assert total.dtype is torch.float64
    window.finish_mean()
    once = (torch.full((2,), 0.1, dtype=torch.float32).double() * 3 / 3).float()
    assert model.a.grad.tolist() == once.tolist()


def test_a_gradient_keeps_its_memory_layout_as_a_sum(kind):
    make, add = kind
    model = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    window = make(model)
    for _ in range(2):
        model.weight.grad = torch.ones_like(model.weight)
        add(window)
    window.finish_mean()
    assert model.weight.grad.is_contiguous(memory_format=torch.channels_last)


def test_a_restored_window_replaces_what_was_there(kind):
    make, add = kind
    model = Pair()
    window = make(model)
    model.give(1)
    add(window)
    state, sums = window.window_state(), [(p, t.clone()) for p, t in window.sums()]
    model.give(7, 7)
    add(window)
    window.replace_window(state, sums)
    assert window.window_state() == state
    window.finish_sums()
    assert model.taken() == [[1, 1], None]


def test_a_frozen_or_absent_gradient_leaves_the_count(kind):
    make, add = kind
    window = make(Pair())
    add(window)
    assert window.microbatches == 1
    assert window.sums() == []


def test_a_full_window_takes_no_more(kind):
    make, add = kind
    model = Pair()
    window = make(model, microbatches=2)
    for _ in range(2):
        model.give(1)
        add(window)
    model.give(5)
    before = window.window_state(), [total.tolist() for _, total in window.sums()]
    with pytest.raises(WindowError) as caught:
        add(window)
    assert caught.value.code == "window.full"
    assert "finish_mean" in caught.value.hint
    assert (window.window_state(), [total.tolist() for _, total in window.sums()]) == before
    assert model.a.grad.tolist() == [5, 5]
    model.zero_grad()
    window.finish_mean()
    assert model.taken() == [[1, 1], None]


def test_a_sum_of_another_model_is_refused_by_the_next_microbatch(kind):
    make, add = kind
    model, other = Pair(), Pair()
    window = make(model)
    model.give(1)
    add(window)
    window.replace_window(window.window_state(), [(other.a, torch.ones(2))], [other.a, other.b])
    with pytest.raises(WindowError) as caught:
        add(window)
    assert caught.value.code == "window.unknown"
    assert [parameter is other.a for parameter, _ in window.sums()] == [True]


def test_a_window_may_take_over_its_own_sums(kind):
    make, add = kind
    model = Pair()
    window = make(model)
    model.give(1, 2)
    add(window)
    window.replace_window(window.window_state(), window.sums())
    window.finish_sums()
    assert model.taken() == [[1, 1], [2, 2]]


def test_a_sum_that_no_memory_can_hold_changes_nothing(kind):
    make, add = kind
    model = Pair()
    # An element for each of 2^44 places: a gradient that costs four bytes, and a sum that costs 64 TiB.
    model.huge = torch.nn.Parameter(torch.zeros(1).expand(2**44))
    window = make(model)
    model.give(1)
    add(window)
    model.give(5, 6)
    model.huge.grad = torch.zeros(1).expand(2**44)
    standing, before = (model.a.grad, model.b.grad), window.window_state()
    with pytest.raises(RuntimeError, match="allocate"):
        add(window)
    assert window.window_state() == before
    assert [total.tolist() for _, total in window.sums()] == [[1, 1]]
    assert (model.a.grad is standing[0], model.b.grad is standing[1]) == (True, True)
    assert [gradient.tolist() for gradient in standing] == [[5, 5], [6, 6]]
