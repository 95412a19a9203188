"""A loop that captures at every microbatch and goes on at once is the loop that never does, and each record is whole."""

import pytest
import torch
from torch import nn

import segue
from segue._record.digest import digests
from segue.optim import FP32Master

WINDOW = 3
TOTAL = 7


def adamw(model, **options):
    return {"adamw": torch.optim.AdamW(model.parameters(), lr=0.01, **options)}


def sgd(model, **options):
    return {"sgd": torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, **options)}


def muon_and_adamw(model):
    matrices = [parameter for parameter in model.parameters() if parameter.ndim == 2]
    others = [parameter for parameter in model.parameters() if parameter.ndim != 2]
    return {
        "muon": torch.optim.Muon(matrices, lr=0.01, ns_steps=1),
        "adamw": torch.optim.AdamW(others, lr=0.01, fused=True),
    }


def masters(model):
    return {"master": FP32Master(model.to(torch.bfloat16).parameters(), torch.optim.AdamW, lr=0.01)}


OPTIMIZERS = {
    "adamw foreach": lambda model: adamw(model, foreach=True),
    "adamw fused": lambda model: adamw(model, fused=True),
    "sgd for-loop": lambda model: sgd(model, foreach=False),
    "sgd fused": lambda model: sgd(model, fused=True),
    "muon and adamw": muon_and_adamw,
    "fp32 masters": masters,
}


class Run:
    """A window of microbatches to a step; sums stand in `.grad`."""

    def __init__(self, kind):
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(64, 8192), nn.GELU(), nn.Linear(8192, 4), nn.Dropout(0.1))
        self.optimizers = OPTIMIZERS[kind](self.model)
        self.schedulers = {
            name: torch.optim.lr_scheduler.StepLR(optimizer, 1) for name, optimizer in self.optimizers.items()
        }
        self.training = segue.Training(self.model, self.optimizers, self.schedulers)
        self.state = {"losses": []}

    def microbatch(self, number):
        inputs = torch.randn(2, 64).to(self.model[0].weight.dtype)
        loss = self.model(inputs).float().pow(2).sum()
        loss.backward()
        self.state["losses"].append(loss.item())
        if number % WINDOW == WINDOW - 1:
            for name, optimizer in self.optimizers.items():
                optimizer.step()
                optimizer.zero_grad()
                self.schedulers[name].step()


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_loop_that_captures_at_every_microbatch_and_goes_on(kind):
    plain = Run(kind)
    expected = []
    for number in range(TOTAL):
        expected.append(plain.training.capture(plain.state, microbatch=number))
        plain.microbatch(number)
    end = plain.training.capture(plain.state)

    run = Run(kind)
    pending = []
    for number in range(TOTAL):
        pending.append(run.training.capture_async(run.state, microbatch=number))
        run.microbatch(number)
    assert segue.diff(run.training.capture(run.state), end).identical
    for sync, future in zip(expected, pending, strict=True):
        assert segue.diff(future.result(), sync).identical
        assert digests(future.result()) == digests(sync)


def test_a_record_of_a_capture_that_went_on_restores_and_goes_on():
    run = Run("adamw fused")
    for number in range(4):
        run.microbatch(number)
    pending = run.training.capture_async(run.state, microbatch=4)
    for number in range(4, TOTAL):
        run.microbatch(number)
    end = run.training.capture(run.state)
    again = Run("adamw fused")
    again.state = again.training.restore(pending.result())
    for number in range(4, TOTAL):
        again.microbatch(number)
    assert segue.diff(again.training.capture(again.state), end).identical
