"""Contexts that change what torch allocates, in which a program may save or resume."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import AdamW

from segue import Training, WeightedAccumulator
from segue._record.diff import diff


def fresh():
    torch.manual_seed(0)
    model = nn.Linear(2, 2).to(torch.bfloat16)
    model.register_buffer("t", torch.zeros(3, 2).t())
    optimizer = AdamW(model.parameters(), lr=0.1)
    window = WeightedAccumulator(model)
    training = Training(model, optimizer, accumulator=window)
    return model, optimizer, window, training


def advance(model, optimizer, window):
    for tokens in (3, 1):
        model(torch.ones(1, 2, dtype=torch.bfloat16, device="cpu")).sum().backward()
        window.add_mean(tokens)
    window.finish_mean()
    optimizer.step()
    optimizer.zero_grad()


CONTEXTS = {
    # A default device of another kind, as `torch.set_default_device("cuda")` makes it.
    "default device": lambda: torch.device("meta"),
    "inference mode": torch.inference_mode,
    "no grad": torch.no_grad,
}


@pytest.mark.parametrize("kind", CONTEXTS)
def test_capture_and_restore_do_not_depend_on_the_context(kind):
    model, optimizer, window, training = fresh()
    advance(model, optimizer, window)
    state = {"array": np.arange(3), "empty": torch.empty(0, 2), "x": torch.arange(6.0).view(2, 3).t()}
    outside = training.capture(state)
    with CONTEXTS[kind]():
        inside = training.capture(state)
    assert diff(outside, inside).identical
    model_2, optimizer_2, window_2, resumed = fresh()
    with CONTEXTS[kind]():
        resumed.restore(inside)
    assert diff(resumed.capture(state), outside).identical
    advance(model, optimizer, window)
    advance(model_2, optimizer_2, window_2)
    assert diff(resumed.capture(state), training.capture(state)).identical


def test_a_window_can_be_fed_under_a_default_device():
    model, _, window, _ = fresh()
    model.weight.grad = torch.ones_like(model.weight)
    with torch.device("meta"):
        window.add_sum(2.0)
        window.finish_mean()
    assert model.weight.grad.tolist() == [[0.5, 0.5], [0.5, 0.5]]
