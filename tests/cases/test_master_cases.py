"""B37: fp32 masters are state that is kept; and what an optimizer steps but no module has is never dropped."""

import pytest
import torch
from torch import nn
from torch.optim import AdamW

from segue import Checkpointer, Training
from segue.errors import UnsupportedState
from segue.optim import FP32Master
from tests.cases.state import live, raw, stored


def fresh():
    torch.manual_seed(0)
    model = nn.Linear(8, 8).bfloat16()
    return model, FP32Master(model.parameters(), AdamW, lr=1e-3)


def step(model, optimizer, seed):
    optimizer.zero_grad()
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(seed)).bfloat16()
    model(x).float().pow(2).mean().backward()
    optimizer.step()


def test_b37_masters_and_model_go_on_with_the_same_bits(tmp_path):
    a, one = fresh()
    with Checkpointer(Training(a, one), tmp_path / "run") as checkpointer:
        for seed in range(20):
            step(a, one, seed)
        checkpointer.save()
    b, other = fresh()
    with Checkpointer(Training(b, other), tmp_path / "run") as checkpointer:
        checkpointer.resume()
    assert live(b, other) == live(a, one)
    # What a rebuilt copy would have lost.
    assert raw(other.master(b.weight)) != raw(b.weight.detach().float())
    for seed in range(20, 60):
        step(a, one, seed)
        step(b, other, seed)
        assert live(b, other) == live(a, one)


def rebuilt(saved):
    """A program that saves the model and the inner optimizer's slots, and builds masters from the model."""
    model, optimizer = fresh()
    Training(model, optimizer).restore(saved)
    for parameter in model.parameters():
        optimizer.state[parameter]["master"] = parameter.detach().float()
    return model, optimizer


def test_b37_masters_that_are_built_again_part_from_the_run(tmp_path):
    a, one = fresh()
    training = Training(a, one)
    for seed in range(20):
        step(a, one, seed)
    b, other = rebuilt(stored(training.capture(), tmp_path))
    assert raw(b.weight) == raw(a.weight)
    for seed in range(20, 60):
        step(a, one, seed)
        step(b, other, seed)
    assert (a.weight != b.weight).any()


class OwnMasters:
    """What programs do by hand: copies that belong to no module."""

    def __init__(self, model):
        self.model = model
        self.copies = [nn.Parameter(p.detach().float()) for p in model.parameters()]
        self.inner = AdamW(self.copies, lr=1e-3)

    def step(self):
        for copy, parameter in zip(self.copies, self.model.parameters(), strict=True):
            copy.grad = parameter.grad.float()
        self.inner.step()
        for copy, parameter in zip(self.copies, self.model.parameters(), strict=True):
            parameter.data.copy_(copy.data)


def looked_at(model, masters):
    return live(model), raw([(copy, dict(masters.inner.state[copy])) for copy in masters.copies])


def test_b37_a_tensor_that_an_optimizer_steps_but_no_module_has_is_refused_at_save(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(8, 8).bfloat16()
    masters = OwnMasters(model)
    step(model, masters.inner, 0)
    masters.step()
    before = looked_at(model, masters)
    with (
        Checkpointer(Training(model, masters.inner), tmp_path / "run") as checkpointer,
        pytest.raises(UnsupportedState, match="a parameter of no registered module") as caught,
    ):
        checkpointer.save()
    assert caught.value.code == "capture.unregistered_parameter"
    assert caught.value.where == "optimizer.optimizer group 0 parameter 0"
    assert looked_at(model, masters) == before
    assert not list((tmp_path / "run").glob("ckpt-*"))


def test_b37_such_tensors_in_a_module_among_the_components_are_kept(tmp_path):
    def made():
        torch.manual_seed(0)
        model = nn.Linear(8, 8).bfloat16()
        masters = OwnMasters(model)
        training = Training(
            model, masters.inner, components={"masters": nn.ParameterList(masters.copies)}, rng=None
        )
        return model, masters, training

    def go(model, masters, seed):
        model.zero_grad()
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(seed)).bfloat16()
        model(x).float().pow(2).mean().backward()
        masters.step()

    a, one, training = made()
    for seed in range(20):
        go(a, one, seed)
    b, other, resumed = made()
    resumed.restore(stored(training.capture(), tmp_path))
    for seed in range(20, 60):
        go(a, one, seed)
        go(b, other, seed)
    assert raw(list(b.parameters())) == raw(list(a.parameters()))
    assert raw(other.copies) == raw(one.copies)
