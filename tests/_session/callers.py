"""A training whose model and optimizers the caller captures and restores: two algorithms over one small model."""

from __future__ import annotations

import torch
from torch import nn

import segue


class Net(nn.Module):
    """A trained layer, a frozen one, one more trained one, and statistics."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Linear(3, 4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.second = nn.Linear(4, 2)
        self.register_buffer("seen", torch.zeros(2, dtype=torch.int64))

    def forward(self, x):
        return self.second(self.frozen(self.first(x)).tanh())


def optimizers_of(model):
    return {
        "adamw": torch.optim.AdamW(model.first.parameters(), lr=0.01),
        "sgd": torch.optim.SGD(model.second.parameters(), lr=0.05, momentum=0.9),
    }


def scheduler_of(optimizers):
    return torch.optim.lr_scheduler.StepLR(optimizers["sgd"], step_size=1, gamma=0.5)


class Loop:
    """Model, optimizers, scheduler and window, with what a caller captures and restores of them."""

    def __init__(self, seed=0, make_window=segue.GradientAccumulator, **options):
        self.model = Net(seed)
        self.optimizers = optimizers_of(self.model)
        self.scheduler = scheduler_of(self.optimizers)
        self.window = None if make_window is None else make_window(self.model, **options)

    def microbatch(self, index):
        generator = torch.Generator().manual_seed(index)
        self.model(torch.randn(2, 3, generator=generator)).pow(2).sum().backward()
        if isinstance(self.window, segue.WeightedAccumulator):
            self.window.add_sum(weight=2 + index)
        elif self.window is not None:
            self.window.add()

    def update(self):
        if self.window is not None:
            self.window.finish_mean()
        for optimizer in self.optimizers.values():
            optimizer.step()
            optimizer.zero_grad()
        self.scheduler.step()

    def groups(self):
        return {
            name: segue.capture_optimizer(optimizer, self.model)
            for name, optimizer in self.optimizers.items()
        }

    def capture(self, **given):
        settings = {
            "model_state": segue.capture_module(self.model),
            "groups": self.groups(),
            "scheduler": self.scheduler,
            "accumulator": self.window,
            "state": {"microbatch": 3},
        }
        return segue.TrainingRecord.capture(self.model, **{**settings, **given})


def restore_model(state, model):
    segue.restore_module(state, model)
    return model


def restore_groups(model, groups):
    optimizers = optimizers_of(model)
    for name, optimizer in optimizers.items():
        segue.restore_optimizer(groups[name], optimizer, model)
    return model, optimizers


CALLBACKS = {"restore_model": restore_model, "restore_groups": restore_groups}


def bits(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist()


def everything(model, optimizers):
    """Every bit of a model, its gradients and its optimizers' state."""
    return (
        {name: bits(item) for name, item in [*model.named_parameters(), *model.named_buffers()]},
        {name: None if item.grad is None else bits(item.grad) for name, item in model.named_parameters()},
        [
            [
                {key: bits(value) for key, value in state.items() if isinstance(value, torch.Tensor)}
                for state in optimizer.state.values()
            ]
            for optimizer in optimizers.values()
        ],
        [{k: v for k, v in group.items() if k != "params"} for o in optimizers.values() for group in o.param_groups],
    )  # fmt: skip
