"""Gradients that `step` has used and that still stand are stored, and what they cost is told once."""

import gc
import warnings

import pytest
import torch
from torch import nn

from segue import Checkpointer, Training
from segue.errors import ConsumedGradientsWarning


@pytest.fixture(autouse=True)
def told_if_at_all():
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConsumedGradientsWarning)
        yield


def built(optimizer=torch.optim.SGD):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    owner = optimizer(model.parameters(), lr=0.1)
    return model, owner, Training(model, owner)


def backward(model):
    model(torch.ones(2, 4)).square().sum().backward()


def test_what_stands_after_a_step_is_told_once_with_its_bytes_and_stored():
    model, optimizer, training = built()
    backward(model)
    optimizer.step()
    with pytest.warns(ConsumedGradientsWarning, match=r"optimizer\.optimizer: 92 bytes") as caught:
        record = training.capture()
    assert caught[0].filename == __file__
    assert len(record.gradients.tensors) == 4
    backward(model)
    optimizer.step()
    training.capture()  # warnings are errors here: not told again


def test_it_points_at_the_line_of_the_program_that_saves(tmp_path):
    model, optimizer, training = built()
    backward(model)
    optimizer.step()
    with (
        Checkpointer(training, tmp_path) as checkpointer,
        pytest.warns(ConsumedGradientsWarning) as caught,
    ):
        checkpointer.save(step=1)
    assert caught[0].filename == __file__


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.Adagrad, torch.optim.LBFGS])
def test_every_kind_of_step_counts(optimizer):
    model, owner, training = built(optimizer)

    def closure():
        owner.zero_grad()
        loss = model(torch.ones(2, 4)).square().sum()
        loss.backward()
        return loss

    owner.step(closure)
    with pytest.warns(ConsumedGradientsWarning):
        training.capture()


def test_gradients_that_are_pending_are_not_told():
    model, optimizer, training = built()
    training.capture()
    backward(model)
    training.capture()
    optimizer.step()
    optimizer.zero_grad()
    training.capture()
    backward(model)
    training.capture()


def test_gradients_that_were_added_to_since_are_pending_again():
    model, optimizer, training = built()
    backward(model)
    optimizer.step()
    backward(model)  # adds in place
    training.capture()


def test_gradients_that_were_zeroed_in_place_are_not_told():
    model, optimizer, training = built()
    backward(model)
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    training.capture()


def test_only_the_optimizer_that_stepped_is_named():
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    first, second = (torch.optim.SGD(layer.parameters(), lr=0.1) for layer in model)
    training = Training(model, {"first": first, "second": second})
    backward(model)
    second.step()
    with pytest.warns(ConsumedGradientsWarning) as caught:
        training.capture()
    assert "optimizer.second: 32 bytes" in str(caught[0].message)
    assert "optimizer.first" not in str(caught[0].message)


def test_a_sparse_gradient_is_counted_by_what_it_holds():
    model = nn.Embedding(1000, 4, sparse=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = Training(model, optimizer)
    model(torch.tensor([1, 2])).sum().backward()
    optimizer.step()
    with pytest.warns(ConsumedGradientsWarning, match=r"optimizer\.optimizer: 48 bytes"):
        training.capture()


def test_the_record_that_stores_them_restores_them():
    model, optimizer, training = built()
    backward(model)
    optimizer.step()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConsumedGradientsWarning)
        record = training.capture()
    other, _, again = built()
    again.restore(record)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter.grad, other.get_parameter(name).grad)


def test_looking_keeps_neither_training_nor_gradients_alive():
    model, optimizer, training = built()
    backward(model)
    optimizer.step()
    hooks = len(optimizer._optimizer_step_post_hooks)
    del training
    gc.collect()
    assert len(optimizer._optimizer_step_post_hooks) < hooks
