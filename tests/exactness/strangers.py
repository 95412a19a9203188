"""Optimizers that are not torch's, as people write them: state by position, or around an optimizer of torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim import AdamW


class OwnMomentum:
    """Gradient descent with momentum, of no class of torch."""

    def __init__(self, params: list[nn.Parameter], lr: float) -> None:
        self.param_groups: list[dict[str, Any]] = [{"params": list(params), "lr": lr}]
        self.defaults: dict[str, Any] = {}
        self.state: dict[nn.Parameter, dict[str, Any]] = {}
        self.num_steps = 0

    @torch.no_grad()
    def step(self) -> None:
        self.num_steps += 1
        for group in self.param_groups:
            group["lr"] *= 0.9  # a schedule of its own
            for parameter in group["params"]:
                if parameter.grad is not None:
                    slots = self.state.setdefault(parameter, {"momentum": torch.zeros_like(parameter)})
                    slots["momentum"].mul_(0.9).add_(parameter.grad, alpha=1 / self.num_steps)
                    parameter.sub_(slots["momentum"], alpha=group["lr"])

    def zero_grad(self, set_to_none: bool = True) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None if set_to_none or parameter.grad is None else parameter.grad.zero_()

    def state_dict(self) -> dict[str, Any]:
        members = [parameter for group in self.param_groups for parameter in group["params"]]
        state = {index: self.state[p] for index, p in enumerate(members) if p in self.state}
        return {
            "steps": self.num_steps,
            "rates": [group["lr"] for group in self.param_groups],
            "state": state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        members = [parameter for group in self.param_groups for parameter in group["params"]]
        self.num_steps = state["steps"]
        for group, rate in zip(self.param_groups, state["rates"], strict=True):
            group["lr"] = rate
        self.state = {members[index]: slots for index, slots in state["state"].items()}


class Lookahead:
    """Slow weights beside AdamW, which it holds; schedules drive that one."""

    def __init__(self, params: Any, lr: float) -> None:
        self.optimizer = AdamW(params, lr=lr)
        self.slow: dict[int, torch.Tensor] = {}
        self.num_steps = 0

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:
        return self.optimizer.state

    @property
    def defaults(self) -> dict[str, Any]:
        return self.optimizer.defaults

    @torch.no_grad()
    def step(self) -> None:
        self.optimizer.step()
        self.num_steps += 1
        for index, parameter in enumerate(p for group in self.param_groups for p in group["params"]):
            slow = self.slow.setdefault(index, parameter.detach().clone())
            if self.num_steps % 2 == 0:
                slow.lerp_(parameter, 0.5)
                parameter.copy_(slow)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        return {"fast": self.optimizer.state_dict(), "slow": self.slow, "steps": self.num_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state["fast"])
        self.slow = state["slow"]
        self.num_steps = state["steps"]
