"""The contract of trainable parameters: everything about them and nothing of the rest."""

import torch
from torch import nn

from segue._capture.trainable import contract_differences, trainable_contract


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.zeros(2, 3))
        self.b = nn.Parameter(torch.zeros(3))
        self.frozen = nn.Parameter(torch.zeros(4), requires_grad=False)


def codes(recorded, model, *, has_optimizers=True):
    return [item.code for item in contract_differences(recorded, model, has_optimizers=has_optimizers)]


def test_a_model_agrees_with_its_own_contract():
    assert codes(trainable_contract(Pair()), Pair()) == []
    assert [*trainable_contract(Pair()).tensors] == ["a", "b"]


def test_the_contract_of_everything_serves_as_well():
    from segue._capture.module import contract_of

    assert codes(contract_of(Pair(), "model"), Pair()) == []


def test_names_decide_and_no_order():
    other = Pair()
    del other.a
    other.a = nn.Parameter(torch.zeros(2, 3))
    assert codes(trainable_contract(Pair()), other) == []


def test_the_dtype_of_gradients_is_compared_once_the_optimizers_have_been_made():
    other = Pair()
    other.b.grad_dtype = torch.float64
    assert codes(trainable_contract(Pair()), other, has_optimizers=False) == []
    assert codes(trainable_contract(Pair()), other) == ["model.grad_dtype.b"]


def test_parameters_that_overlap_must_overlap_again():
    def overlapping():
        model = Pair()
        flat = torch.zeros(9)
        model.a, model.b = nn.Parameter(flat[:6].view(2, 3)), nn.Parameter(flat[5:8])
        return model

    assert codes(trainable_contract(overlapping()), overlapping()) == []
    assert codes(trainable_contract(overlapping()), Pair()) == ["model.tied.a"]


def test_a_frozen_neighbour_over_the_same_memory_makes_no_difference():
    model = Pair()
    model.frozen = nn.Parameter(model.a.detach().view(6), requires_grad=False)
    assert codes(trainable_contract(model), Pair()) == []


def test_no_value_is_read():
    model = Pair()
    before = [(parameter._version, parameter.data_ptr()) for parameter in model.parameters()]
    trainable_contract(model)
    assert [(parameter._version, parameter.data_ptr()) for parameter in model.parameters()] == before
