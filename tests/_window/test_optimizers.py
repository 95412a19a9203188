"""What a window hands out is what every optimizer of torch, clipping and the gradient scaler expect."""

import copy

import pytest
import torch
from torch import nn

from segue import GradientAccumulator, WeightedAccumulator
from tests._window.models import bits

CLASSES = [
    value
    for value in vars(torch.optim).values()
    if isinstance(value, type)
    and issubclass(value, torch.optim.Optimizer)
    and value is not torch.optim.Optimizer
]
MICROBATCHES = 3


def test_these_are_all_optimizers_of_torch():
    assert len(CLASSES) == 15


class Net(nn.Module):
    """Tied, unused and channels-last parameters; matrices only for Muon."""

    def __init__(self, dtype, optimizer):
        super().__init__()
        torch.manual_seed(0)
        if optimizer is torch.optim.SparseAdam:
            self.embedding = nn.Embedding(6, 4, sparse=True)
        elif optimizer is torch.optim.Muon:
            self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
            self.second.weight = self.first.weight
        else:
            if (
                optimizer is not torch.optim.LBFGS
            ):  # which takes no gradient that is not contiguous (torch 2.13)
                self.convolution = nn.Conv2d(2, 4, 3).to(memory_format=torch.channels_last)
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
            self.second.weight = self.first.weight
            self.unused = nn.Parameter(torch.ones(2))
        self.to(dtype)

    def loss(self, seed):
        generator = torch.Generator().manual_seed(seed)
        if hasattr(self, "embedding"):
            return self.embedding(torch.randint(0, 6, (5,), generator=generator)).pow(2).sum()
        x = torch.randn(3, 4, generator=generator).to(self.first.weight.dtype)
        if hasattr(self, "convolution"):
            image = torch.randn(3, 2, 5, 5, generator=generator).to(x.dtype)
            x = x + self.convolution(image.contiguous(memory_format=torch.channels_last)).mean((2, 3))
        return self.second(torch.tanh(self.first(x))).pow(2).sum()


def step(optimizer, model):
    if isinstance(optimizer, torch.optim.LBFGS):
        optimizer.step(lambda: torch.tensor(1.0))
    else:
        optimizer.step()
    optimizer.zero_grad()


def by_hand(model, step_number):
    """Sum the microbatches' gradients in fp32, one tensor at a time, and let their mean stand."""
    totals = {}
    for place in range(MICROBATCHES):
        model.loss(10 * step_number + place).backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                term = parameter.grad.float()
                totals[parameter] = totals[parameter] + term if parameter in totals else term
                parameter.grad = None
    for parameter, total in totals.items():
        parameter.grad = (total / MICROBATCHES).to(parameter.grad_dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("make", CLASSES, ids=lambda cls: cls.__name__)
def test_every_optimizer_takes_a_mean_as_it_takes_one_made_by_hand(make, dtype):
    model = Net(dtype, make)
    other = copy.deepcopy(model)
    optimizer, other_optimizer = make(model.parameters(), lr=0.01), make(other.parameters(), lr=0.01)
    window = GradientAccumulator(model, microbatches=MICROBATCHES)
    for number in range(3):
        for place in range(MICROBATCHES):
            model.loss(10 * number + place).backward()
            window.add()
        window.finish_mean()
        by_hand(other, number)
        for parameter, twin in zip(model.parameters(), other.parameters(), strict=True):
            assert (parameter.grad is None) == (twin.grad is None)
            if parameter.grad is not None:
                assert parameter.grad.dtype is dtype
                assert parameter.grad.layout is twin.grad.layout
            if parameter.grad is not None and not parameter.grad.is_sparse:
                assert parameter.grad.stride() == twin.grad.stride()
        step(optimizer, model)
        step(other_optimizer, other)
    for parameter, twin in zip(model.parameters(), other.parameters(), strict=True):
        assert bits(parameter) == bits(twin)


def test_a_parameter_that_takes_single_precision_gets_it():
    model = Net(torch.bfloat16, torch.optim.SGD)
    for parameter in model.parameters():
        parameter.grad_dtype = torch.float32
    window = GradientAccumulator(model)
    model.loss(0).backward()
    window.add()
    window.finish_mean()
    assert {p.grad.dtype for p in model.parameters() if p.grad is not None} == {torch.float32}


def test_a_mean_is_clipped_as_any_gradient():
    model = Net(torch.bfloat16, torch.optim.SGD)
    other = copy.deepcopy(model)
    window = GradientAccumulator(model)
    for place in range(MICROBATCHES):
        model.loss(place).backward()
        window.add()
    window.finish_mean()
    by_hand(other, 0)
    norms = [nn.utils.clip_grad_norm_(net.parameters(), 0.1) for net in (model, other)]
    assert bits(norms[0]) == bits(norms[1])
    assert [bits(p.grad) for p in model.parameters() if p.grad is not None] == [
        bits(p.grad) for p in other.parameters() if p.grad is not None
    ]


def test_scaled_gradients_come_in_and_the_scaler_unscales_the_mean():
    model = Net(torch.float32, torch.optim.SGD)
    other = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    other_optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**6, growth_interval=1)
    window = WeightedAccumulator(model)
    for number in range(2):
        for place in range(MICROBATCHES):
            scaler.scale(model.loss(10 * number + place)).backward()
            window.add_mean(1)
        window.finish_mean()
        scaler.unscale_(optimizer)
        by_hand(other, number)
        # Powers of two leave every bit of the fraction.
        for parameter, twin in zip(model.parameters(), other.parameters(), strict=True):
            assert parameter.grad is None or bits(parameter.grad) == bits(twin.grad)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        step(other_optimizer, other)
    assert [bits(p) for p in model.parameters()] == [bits(p) for p in other.parameters()]
    assert scaler.get_scale() == 2.0**8


def test_an_infinite_sum_reaches_the_scaler_which_skips_the_update():
    model = Net(torch.float32, torch.optim.SGD)
    before = [bits(p) for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**6)
    window = GradientAccumulator(model)
    for factor in (float("inf"), 1.0):
        scaler.scale(model.loss(0) * factor).backward()
        window.add()
    window.finish_mean()
    scaler.step(optimizer)
    scaler.update()
    assert [bits(p) for p in model.parameters()] == before
    assert scaler.get_scale() == 2.0**5
