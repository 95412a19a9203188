"""Parameters that come, go or change in mid-window are noticed, though the model isn't walked anew each time."""

import pytest
import torch
from torch import nn

from segue import GradientAccumulator
from segue._window.refusals import refuse_unfit
from segue._window.running import RunningSum
from segue._window.walk import ModelWalk
from segue.errors import WindowError
from tests._window.models import Pair


def nested():
    shared = nn.Linear(2, 2)
    model = nn.Sequential(shared, nn.Sequential(shared, nn.Linear(2, 2, bias=False)), nn.Identity())
    model.register_parameter("nothing", None)
    model.register_module("none", None)
    model[2].tied = shared.weight
    return model


def test_a_walk_is_what_torch_gives():
    model = nested()
    expected = list(model.named_parameters())
    found = ModelWalk(model).parameters
    assert [name for name, _ in found] == [name for name, _ in expected]
    assert all(one is other for (_, one), (_, other) in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.register_parameter("new", nn.Parameter(torch.zeros(1))),
        lambda model: model.register_module("new", nn.Linear(1, 1)),
        lambda model: setattr(model[1][1], "weight", nn.Parameter(torch.zeros(2, 2))),
        lambda model: model[1].__setitem__(1, nn.Linear(2, 2)),
        lambda model: model.__delattr__("nothing"),
    ],
)
def test_every_change_of_the_model_is_seen(change):
    model = nested()
    walk = ModelWalk(model)
    assert walk.is_current()
    change(model)
    assert not walk.is_current()


def test_a_parameter_that_comes_in_mid_window_takes_part_from_then_on():
    model = Pair()
    window = GradientAccumulator(model)
    model.give(1)
    window.add()
    model.c = nn.Parameter(torch.zeros(2))
    model.give(1)
    model.c.grad = torch.ones(2)
    window.add()
    window.finish_mean()
    assert model.taken() == [[1, 1], None]
    window.add()  # nothing stands: c's was taken by zero_grad too


def test_a_parameter_whose_gradient_came_too_late_is_noticed_at_the_end():
    model = Pair()
    window = GradientAccumulator(model)
    model.give(1)
    window.add()
    model.late = nn.Module()
    model.late.weight = nn.Parameter(torch.zeros(2))
    model.late.weight.grad = torch.ones(2)
    with pytest.raises(WindowError) as caught:
        window.finish_mean()
    assert (caught.value.code, caught.value.where) == ("window.not_added", "gradient of late.weight")
    assert window.microbatches == 1


def test_behaviour_68_a_sum_of_a_parameter_that_left_the_model_is_refused():
    model = Pair()
    window = GradientAccumulator(model)
    model.give(1, 1)
    window.add()
    gone, model.a = model.a, nn.Parameter(torch.zeros(2))
    model.give(b=1)
    before = window.window_state(), [total.tolist() for _, total in window.sums()]
    for act in (window.add, window.finish_mean, window.finish_sums):
        standing = model.b.grad
        with pytest.raises(WindowError) as caught:
            act()
        assert (caught.value.code, caught.value.where) == ("window.unknown", "gradient of a")
        assert model.b.grad is standing
        assert before == (window.window_state(), [total.tolist() for _, total in window.sums()])
        model.b.grad = None
    model.a = gone
    window.finish_sums()
    assert model.taken() == [[1, 1], [1, 1]]


def test_a_parameter_without_a_sum_may_leave():
    model = Pair()
    window = GradientAccumulator(model)
    model.give(b=1)
    window.add()
    del model.a
    window.finish_sums()
    assert model.b.grad.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("change", "code", "expected", "found"),
    [
        (lambda p: setattr(p, "data", p.data.reshape(2, 1)), "window.shape", (2, 1), (2,)),
        (lambda p: setattr(p, "data", torch.zeros(5)), "window.shape", (5,), (2,)),
        (lambda p: p.requires_grad_(False), "window.frozen", "requires_grad=True", "requires_grad=False"),
        (lambda p: setattr(p, "grad_dtype", torch.int32), "window.grad_dtype", "a real floating-point dtype", torch.int32),
        (lambda p: torch.utils.swap_tensors(p, nn.Parameter(torch.zeros(2, device="meta"))),
         "window.device", torch.device("meta"), torch.device("cpu")),
    ],
)  # fmt: skip
def test_a_sum_that_no_longer_fits_its_parameter_is_not_handed_out(change, code, expected, found):
    model = Pair()
    window = GradientAccumulator(model)
    model.give(1, 1)
    window.add()
    before = [total.tolist() for _, total in window.sums()]
    change(model.b)
    for finish in (window.finish_mean, window.finish_sums):
        with pytest.raises(WindowError) as caught:
            finish()
        error = caught.value
        assert (error.code, error.where, error.expected, error.found) == (
            code,
            "gradient of b",
            expected,
            found,
        )
        assert (model.a.grad, model.b.grad) == (None, None)
        assert [total.tolist() for _, total in window.sums()] == before


def test_a_parameter_that_changed_its_shape_in_mid_window_is_noticed_by_the_next_gradient():
    model = Pair()
    window = GradientAccumulator(model)
    model.give(1)
    window.add()
    model.a.data = torch.zeros(1, 2)
    model.a.grad = torch.ones(1, 2)  # it would broadcast
    with pytest.raises(WindowError) as caught:
        window.add()
    assert (caught.value.code, caught.value.expected, caught.value.found) == ("window.shape", (1, 2), (2,))
    assert [total.tolist() for _, total in window.sums()] == [[1, 1]]


def test_between_windows_a_parameter_may_change_its_shape():
    for dtype in (torch.float32, torch.bfloat16):
        model = Pair(dtype)
        window = GradientAccumulator(model)
        for shape in ((2,), (1, 2), (3,)):
            model.a.data = torch.zeros(shape, dtype=dtype)
            model.a.grad = torch.ones(shape, dtype=dtype)
            window.add()
            window.finish_sums()
            assert model.a.grad.shape == shape
            model.zero_grad()


def test_a_gradient_on_another_device_is_refused():
    parameter = nn.Parameter(torch.zeros(2, device="meta"))
    with pytest.raises(WindowError) as caught:
        refuse_unfit(RunningSum("a", parameter), torch.zeros(2))
    assert caught.value.code == "window.device"
    assert (caught.value.expected, caught.value.found) == (torch.device("meta"), torch.device("cpu"))


def test_a_model_that_becomes_bf16_in_mid_window_is_handed_a_bf16_mean():
    model = Pair()
    window = GradientAccumulator(model)
    model.give(1)
    window.add()
    model.to(torch.bfloat16)
    model.give(2)
    window.add()
    window.finish_mean()
    assert model.a.grad.dtype is torch.bfloat16
    assert model.taken() == [[1.5, 1.5], None]
