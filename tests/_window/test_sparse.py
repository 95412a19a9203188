"""Sparse gradients are summed as torch sums them, and stay sparse."""

import pytest
import torch
from torch import nn

from segue import GradientAccumulator, WeightedAccumulator
from tests._window.models import bits

BATCHES = ([1, 1, 3], [0, 3], [2, 2, 2])


def embedding(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Embedding(5, 2, sparse=True, dtype=dtype)


def backward(model, rows, scale=1.0):
    (model(torch.tensor(rows)) * scale * torch.arange(1.0, 2 * len(rows) + 1).reshape(-1, 2)).sum().backward()


def parts(gradient):
    return gradient.is_coalesced(), gradient._indices().tolist(), gradient.dtype, bits(gradient._values())


def test_they_are_added_up_bit_for_bit_as_torch_adds_them():
    plain, model = embedding(), embedding()
    window = GradientAccumulator(model)
    for rows in BATCHES:
        backward(plain, rows)
        backward(model, rows)
        window.add()
        [(_, total)] = window.sums()
        assert total.is_sparse
    window.finish_sums()
    assert not model.weight.grad.is_coalesced()
    assert parts(model.weight.grad) == parts(plain.weight.grad)


def test_coalesced_ones_stay_coalesced_as_with_torch():
    plain, model = embedding(), embedding()
    window = GradientAccumulator(model)
    for rows in BATCHES:
        gradient = torch.sparse_coo_tensor(
            [rows], torch.ones(len(rows), 2), (5, 2), check_invariants=True
        ).coalesce()
        plain.weight.grad = gradient.clone() if plain.weight.grad is None else plain.weight.grad + gradient
        model.weight.grad = gradient.clone()
        window.add()
    window.finish_sums()
    assert model.weight.grad.is_coalesced()
    assert parts(model.weight.grad) == parts(plain.weight.grad)


def test_casts_weights_and_divisions_act_on_the_values():
    model = embedding(torch.bfloat16)
    window = WeightedAccumulator(model, loss_scale=3.0)
    total = None
    for rows, weight in zip(BATCHES, (2.0, 1.0, 0.3), strict=True):
        backward(model, rows, 0.1)
        values = model.weight.grad._values().float() * torch.tensor(weight)
        term = torch.sparse_coo_tensor(model.weight.grad._indices(), values, (5, 2), check_invariants=True)
        total = term if total is None else total + term
        window.add_mean(weight)
    window.finish_mean()
    expected = total._values() / torch.tensor(3.0) / torch.tensor(2.0 + 1.0 + 0.3)
    assert parts(model.weight.grad) == (
        False,
        total._indices().tolist(),
        torch.bfloat16,
        bits(expected.bfloat16()),
    )


@pytest.mark.parametrize("first", ["dense", "sparse"])
def test_a_dense_gradient_makes_the_sum_dense(first):
    model = embedding()
    window = WeightedAccumulator(model)
    kinds = ("dense", "sparse") if first == "dense" else ("sparse", "dense")
    for kind in (*kinds, "sparse", "dense"):
        if kind == "dense":
            model.weight.grad = torch.ones(5, 2)
        else:
            backward(model, [1, 1])
        window.add_mean(2)
    [(_, total)] = window.sums()
    assert not total.is_sparse
    window.finish_sums()
    sparse_part = torch.zeros(5, 2)
    sparse_part[1] = torch.tensor([1.0 + 3, 2.0 + 4])
    assert torch.equal(model.weight.grad, 2 * 2 * (torch.ones(5, 2) + sparse_part))


def test_a_sparse_gradient_of_weight_zero_contributes_nothing():
    model = embedding()
    window = WeightedAccumulator(model)
    backward(model, [1])
    window.add_sum(0)
    assert window.sums() == []
    assert model.weight.grad is None


def test_their_memory_is_the_windows_own():
    model = embedding()
    window = GradientAccumulator(model)
    backward(model, [1])
    theirs = model.weight.grad
    window.add()
    theirs._values().fill_(9)
    window.finish_sums()
    assert model.weight.grad.to_dense()[1].tolist() == [1, 2]


def test_the_mean_of_a_window_is_taken_by_sparse_adam():
    model = embedding()
    optimizer = torch.optim.SparseAdam(model.parameters(), lr=0.1)
    window = GradientAccumulator(model, microbatches=3)
    before = model.weight.detach().clone()
    for _ in range(2):
        for rows in BATCHES:
            backward(model, rows)
            window.add()
        window.finish_mean()
        assert model.weight.grad.is_sparse
        optimizer.step()
        optimizer.zero_grad()
    assert (model.weight[4] == before[4]).all()
    assert (model.weight[:4] != before[:4]).all()


def test_a_parameter_may_have_dense_gradients_in_one_window_and_sparse_ones_in_the_next():
    model = embedding(torch.bfloat16)
    window = GradientAccumulator(model, microbatches=1)
    for kind in ("dense", "sparse", "dense"):
        if kind == "dense":
            model.weight.grad = torch.ones(5, 2, dtype=torch.bfloat16)
        else:
            backward(model, [1])
        window.add()
        window.finish_mean()
        assert model.weight.grad.is_sparse == (kind == "sparse")
        model.zero_grad()
