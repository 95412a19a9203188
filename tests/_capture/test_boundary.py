"""Inside a backward is no boundary."""

import pytest
import torch
from torch import nn

from segue import Training
from segue._capture.boundary import refuse_inside_backward
from segue.errors import NotAtBoundary


def test_outside_a_backward_nothing_is_refused():
    refuse_inside_backward()
    with torch.no_grad():
        refuse_inside_backward()


def test_a_capture_from_a_gradient_hook_is_refused_and_the_backward_ends_in_that_error():
    model = nn.Linear(1, 1)
    training = Training(model, torch.optim.SGD(model.parameters(), lr=0.1), rng=None)
    model.weight.register_hook(lambda gradient: training.capture() and None)
    with pytest.raises(NotAtBoundary, match="backward is in flight"):
        model(torch.ones(1, 1)).sum().backward()
    refuse_inside_backward()


def test_a_capture_from_a_post_accumulate_hook_is_refused():
    model = nn.Linear(1, 1)
    training = Training(model, torch.optim.SGD(model.parameters(), lr=0.1), rng=None)
    model.weight.register_post_accumulate_grad_hook(lambda parameter: training.capture() and None)
    with pytest.raises(NotAtBoundary):
        model(torch.ones(1, 1)).sum().backward()
