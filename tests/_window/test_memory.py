"""Whose memory a sum is in: nobody else's, and no bit depends on whether it is fresh, kept or used again."""

import gc
import weakref

import pytest
import torch
from torch import nn

from segue import GradientAccumulator, WeightedAccumulator
from tests._window.models import Pair, bits


def total_of(window, parameter):
    return next(total for other, total in window.sums() if other is parameter)


def test_a_first_gradient_of_the_work_dtype_becomes_the_sum_and_the_sum_the_gradient():
    model = Pair()
    window = GradientAccumulator(model)
    model.give(1)
    place = model.a.grad.data_ptr()
    window.add()
    model.give(2)
    window.add()
    assert total_of(window, model.a).data_ptr() == place
    window.finish_mean()
    assert model.a.grad.data_ptr() == place
    assert model.taken() == [[1.5, 1.5], None]


def held(gradient):
    return gradient


def held_by_a_view(gradient):
    return gradient[:1]


def held_detached(gradient):
    return gradient.detach()


def held_as_an_array(gradient):
    return gradient.numpy()


def held_as_a_storage(gradient):
    return gradient.untyped_storage()


@pytest.mark.parametrize("hold", [held, held_by_a_view, held_detached, held_as_an_array, held_as_a_storage])
def test_a_gradient_that_someone_holds_is_copied(hold):
    model = Pair()
    window = GradientAccumulator(model)
    model.give(1)
    theirs = hold(model.a.grad)
    window.add()
    model.give(2)
    window.add()
    seen = (
        torch.as_tensor(theirs, dtype=torch.float32) if not isinstance(theirs, torch.UntypedStorage) else None
    )
    assert seen is None or seen.tolist() == [1.0] * len(seen)
    if seen is None:
        assert bytes(theirs) == bytes(torch.ones(2).untyped_storage())
    else:
        theirs[...] = 9
    window.finish_sums()
    assert model.taken() == [[3, 3], None]


def test_a_gradient_in_memory_of_another_program_is_copied():
    import numpy as np

    model = Pair()
    window = GradientAccumulator(model)
    array = np.ones(2, dtype=np.float32)
    model.a.grad = torch.from_numpy(array)
    window.add()
    array[:] = 9
    window.finish_sums()
    assert model.taken() == [[1, 1], None]


def test_a_gradient_saved_for_a_backward_is_copied():
    model = Pair()
    window = GradientAccumulator(model)
    model.give(2)
    x = torch.ones(2, requires_grad=True)
    y = (x * model.a.grad).sum()
    window.add()
    model.give(5)
    window.add()
    y.backward()
    assert x.grad.tolist() == [2, 2]


def test_a_gradient_whose_elements_share_memory_is_copied():
    model = Pair()
    window = GradientAccumulator(model)
    for _ in range(2):
        model.a.grad = torch.ones(1).expand(2)
        window.add()
    window.finish_sums()
    assert model.taken() == [[2, 2], None]


def test_a_gradient_made_in_inference_mode_is_copied():
    model = Pair()
    window = GradientAccumulator(model)
    with torch.inference_mode():
        model.a.grad = torch.ones(2)
        window.add()
    model.give(1)
    window.add()
    window.finish_sums()
    assert model.taken() == [[2, 2], None]


def test_editing_what_was_handed_out_does_not_reach_the_next_window():
    for dtype in (torch.float32, torch.bfloat16):
        model = Pair(dtype)
        window = GradientAccumulator(model, microbatches=2)
        kept = []
        for value in (1, 2, 3):
            for _ in range(2):
                model.give(value)
                window.add()
            window.finish_mean()
            assert model.a.grad.tolist() == [value, value]
            kept.append(model.a.grad)
            model.a.grad.mul_(7)
            model.zero_grad()
        assert [gradient.tolist() for gradient in kept] == [[7, 7], [14, 14], [21, 21]]


def test_sums_of_another_dtype_keep_their_memory_for_the_next_window():
    model = Pair(torch.bfloat16)
    window = GradientAccumulator(model)
    places = set()
    for value in (1, 2, 3):
        model.give(value)
        window.add()
        places.add(total_of(window, model.a).data_ptr())
        window.finish_sums()
        assert model.taken() == [[value, value], None]
    assert len(places) == 1


def test_the_last_microbatch_of_a_window_gives_its_memory_to_the_mean():
    model = Pair(torch.bfloat16)
    window = GradientAccumulator(model, microbatches=2)
    for value in (1, 3):
        model.give(value)
        place = model.a.grad.data_ptr()
        window.add()
    window.finish_mean()
    assert model.a.grad.data_ptr() == place
    assert model.taken() == [[2, 2], None]


def test_the_last_gradient_is_left_alone_where_someone_holds_it():
    model = Pair(torch.bfloat16)
    window = GradientAccumulator(model, microbatches=2)
    for value in (1, 3):
        model.give(value)
        theirs = model.a.grad
        window.add()
    window.finish_mean()
    assert theirs.tolist() == [3, 3]
    assert model.taken() == [[2, 2], None]


def test_memory_of_another_layout_is_not_used_again():
    weight = torch.zeros(2, 3, 4, 5)
    model = nn.Module()
    model.weight = nn.Parameter(weight.bfloat16())
    window = GradientAccumulator(model)
    for layout in (torch.contiguous_format, torch.channels_last, torch.contiguous_format):
        model.weight.grad = torch.ones_like(model.weight).contiguous(memory_format=layout)
        window.add()
        [(_, total)] = window.sums()
        assert total.is_contiguous(memory_format=layout)
        window.finish_sums()
        assert model.weight.grad.is_contiguous(memory_format=layout)
        model.zero_grad()


def test_nothing_stays_of_a_window_whose_sums_were_handed_out_as_they_are():
    model = Pair()
    window = GradientAccumulator(model)
    model.give(1)
    window.add()
    total = weakref.ref(total_of(window, model.a))
    window.finish_mean()
    model.zero_grad()
    gc.collect()
    assert total() is None


# Some fit the scratch together, some only one after the other, and the last two are larger, one of them in each row.
SHAPES = [(3,), (600, 500), (), (500, 600), (0,), (7, 300, 300), (2, 9, 260, 250)]


def random_model(dtype):
    model = nn.ParameterList(nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in SHAPES)
    model[-1].data = model[-1].data.contiguous(memory_format=torch.channels_last)
    return model


def gradient_for(parameter, seed, layout):
    generator = torch.Generator().manual_seed(seed)
    value = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
    if parameter.dim() == 4 and layout != "contiguous":
        return value.contiguous(memory_format=torch.channels_last)
    return value


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("work", [torch.float32, torch.float64])
@pytest.mark.parametrize("layout", ["channels_last", "contiguous"])
def test_bits_are_those_of_cast_times_weight_add_one_tensor_at_a_time(dtype, work, layout):
    weights = [3.0, 0.1, 1.0, 7.0]
    model = random_model(dtype)
    window = WeightedAccumulator(model, work, loss_scale=3.0)
    for start in (0, 100):  # the second window finds the memory of the first
        for place, weight in enumerate(weights):
            for parameter in model:
                # Every other gradient is of another layout than the sum.
                parameter.grad = gradient_for(
                    parameter, start + place, layout if place % 2 else "channels_last"
                )
            window.add_mean(weight)
        window.finish_mean()
        for parameter in model:
            expected = None
            for place, weight in enumerate(weights):
                term = gradient_for(parameter, start + place, layout).to(work)
                term = term * torch.tensor(weight, dtype=work)
                expected = term if expected is None else expected + term
            expected = expected / torch.tensor(3.0, dtype=work) / torch.tensor(sum(weights), dtype=work)
            assert bits(parameter.grad) == bits(expected.to(dtype))
            assert parameter.grad.stride() == parameter.stride() or parameter.dim() == 4
        model.zero_grad()


def test_strange_bits_survive_a_window_of_one_microbatch():
    model = Pair()
    payload = torch.tensor([0x7FC00123, -2147483648], dtype=torch.int32).view(torch.float32)
    for held_elsewhere in (False, True):
        window = GradientAccumulator(model)
        model.a.grad = payload.clone()
        _held = model.a.grad if held_elsewhere else None
        window.add()
        window.finish_mean()
        assert bits(model.a.grad) == bits(payload)
        model.zero_grad()


def test_a_zero_is_no_absence():
    model = Pair()
    window = GradientAccumulator(model)
    model.give(a=0)
    window.add()
    window.finish_mean()
    assert model.taken() == [[0, 0], None]


def test_a_large_gradient_may_come_alone_after_small_ones():
    model = nn.ParameterList(nn.Parameter(torch.zeros(size, dtype=torch.bfloat16)) for size in (3, 600_000))
    window = GradientAccumulator(model)
    for present in ((0, 1), (0, 1), (1,)):
        for place in present:
            model[place].grad = torch.ones_like(model[place])
        window.add()
    window.finish_sums()
    assert [set(parameter.grad.tolist()) for parameter in model] == [{2}, {3}]
