"""Schedulers made for restored optimizers begin where the program began, and leave no option changed."""

import pytest
import torch
from torch import nn

from segue._capture.rebuilding import as_they_began, optimizers_in


def sgd(lr=0.1):
    return torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=lr, momentum=0.9)


def decayed(lr=0.1):
    optimizer = sgd(lr)
    optimizer.param_groups[0]["initial_lr"] = 0.1 if not isinstance(lr, torch.Tensor) else torch.tensor(0.1)
    if isinstance(lr, torch.Tensor):
        lr.fill_(0.025)
    else:
        optimizer.param_groups[0]["lr"] = 0.025
    return optimizer


def test_a_schedule_takes_the_initial_rate_for_its_base_and_leaves_the_present_one():
    optimizer = decayed()
    with as_they_began([optimizer]):
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    assert scheduler.base_lrs == [0.1]
    assert optimizer.param_groups[0]["lr"] == 0.025


def test_a_tensor_rate_stays_the_same_tensor():
    rate = torch.tensor(0.1)
    optimizer = decayed(rate)
    with as_they_began([optimizer]):
        torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.5)
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate.item() == torch.tensor(0.025).item()


def test_momentum_that_a_schedule_writes_is_put_back():
    optimizer = decayed()
    optimizer.param_groups[0]["momentum"] = 0.87
    with as_they_began([optimizer]):
        torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=10)
    assert (optimizer.param_groups[0]["momentum"], optimizer.param_groups[0]["lr"]) == (0.87, 0.025)


def test_after_an_error_too():
    optimizer = decayed()
    with pytest.raises(ValueError, match="mode"), as_they_began([optimizer]):
        torch.optim.lr_scheduler.CyclicLR(optimizer, base_lr=0.3, max_lr=1.0, mode="mine")
    assert optimizer.param_groups[0]["lr"] == 0.025


def test_an_optimizer_that_no_schedule_ever_drove_keeps_its_rate_meanwhile():
    optimizer = sgd()
    with as_they_began([optimizer]):
        assert optimizer.param_groups[0]["lr"] == 0.1


def test_optimizers_are_found_in_containers_and_inside_other_objects():
    class Wrapper:
        def __init__(self, optimizer):
            self.optimizer = optimizer

    first, second, third = sgd(), sgd(), sgd()
    assert optimizers_in({"a": [first, (second,)], "b": Wrapper(third), "c": 5}) == [first, second, third]
    assert optimizers_in(None) == []
