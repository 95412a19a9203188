"""What happens to optimizers as a run goes on: groups come and go, parameters are frozen, state is thrown away.

Each life is a program that was written once, for its beginning and for a resume: `prepare` looks into the newest record
and builds what the run has built since, as `Checkpointer.newest` is for. What happens, happens before microbatch `EVENT`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import (
    LBFGS,
    SGD,
    Adafactor,
    Adagrad,
    AdamW,
    Muon,
    NAdam,
    Optimizer,
    RMSprop,
    SparseAdam,
)
from torch.optim.lr_scheduler import ExponentialLR

import segue

WINDOW = 2
EVENT = 2 * WINDOW

OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "SGD": partial(SGD, momentum=0.9),
    "AdamW": partial(AdamW, foreach=True),
    "NAdam": partial(NAdam, foreach=True),
    "Adafactor": Adafactor,
    "Adagrad": Adagrad,
    "RMSprop": partial(RMSprop, centered=True, momentum=0.5),
    "Muon": Muon,
    "SparseAdam": SparseAdam,
    "LBFGS": partial(LBFGS, max_iter=2, history_size=3),
}
ALL = tuple(OPTIMIZERS)
# Takes one group alone.
SEVERAL_GROUPS = tuple(kind for kind in ALL if kind != "LBFGS")
# Makes state as it is made, and can't do without (torch 2.13): neither for parameters that come later, nor afresh.
LATE_STATE = tuple(kind for kind in ALL if kind != "Adagrad")


class Dense(nn.Module):
    """Three matrices, and one that never gets a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 4, bias=False)
        self.late = nn.Linear(4, 4, bias=False)
        self.head = nn.Linear(4, 2, bias=False)
        self.never = nn.Linear(2, 2, bias=False)

    def forward(self, number: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(1000 + number)
        batch = torch.randn(5, 3, generator=generator).to(self.body.weight.dtype)
        hidden = torch.tanh(self.body(batch))
        return self.head(hidden + self.late(hidden)).float().pow(2).mean()


class Sparse(nn.Module):
    """The same of tables with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Embedding(8, 3, sparse=True)
        self.late = nn.Embedding(8, 3, sparse=True)
        self.head = nn.Embedding(8, 3, sparse=True)
        self.never = nn.Embedding(8, 3, sparse=True)

    def forward(self, number: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(1000 + number)
        rows = torch.randint(0, 8, (6,), generator=generator)
        return (torch.tanh(self.body(rows) + self.late(rows)) * self.head(rows)).float().pow(2).mean()


class Life:
    """An uneventful one: two groups, and a part that stays frozen.

    Args:
        kind: The optimizer.
        dtype: Of the parameters.
    """

    kinds: tuple[str, ...] = ALL

    def __init__(self, kind: str, dtype: torch.dtype) -> None:
        self.kind = kind
        self.net: Any = (Sparse() if kind == "SparseAdam" else Dense()).to(dtype)
        self.net.late.requires_grad_(False)
        self.losses: list[float] = []
        self.schedulers: dict[str, Any] = {}
        self.components: dict[str, Any] = {}
        self.optimizers = {"optimizer": self.make(self.groups())}
        self.bind()

    def bind(self) -> None:
        """Do what a program does when its objects are there."""

    def training(self) -> segue.Training:
        return segue.Training(self.net, self.optimizers, self.schedulers, components=self.components)

    @property
    def optimizer(self) -> Optimizer:
        return self.optimizers["optimizer"]

    def make(self, groups: list[dict[str, Any]], lr: float = 0.05) -> Optimizer:
        if self.kind == "LBFGS":
            groups = [{"params": [parameter for group in groups for parameter in group["params"]]}]
        return OPTIMIZERS[self.kind](groups, lr=lr)

    def groups(self) -> list[dict[str, Any]]:
        net = self.net
        return [
            {"params": [net.body.weight, net.never.weight]},
            {"params": [net.head.weight], "lr": 0.02},
        ]

    def prepare(self, record: segue.TrainingRecord) -> None:
        """Build what the run has built since its beginning."""

    def begin(self, number: int) -> None:
        """Do what happens before a microbatch."""

    def microbatch(self, number: int) -> None:
        loss = self.net(number)
        loss.backward()
        self.losses.append(loss.item())
        if (number + 1) % WINDOW == 0:
            self.update(number)

    def update(self, number: int) -> None:
        for name, optimizer in self.optimizers.items():
            if self.steps(name):
                optimizer.step(*([partial(self.closure, number)] if self.kind == "LBFGS" else []))
            optimizer.zero_grad()
        for scheduler in self.schedulers.values():
            scheduler.step()

    def steps(self, name: str) -> bool:
        """Tell whether this optimizer takes a step."""
        return True

    def closure(self, number: int) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss: torch.Tensor = self.net(number)
        loss.backward()
        return loss


class GroupAdded(Life):
    """A part is unfrozen, and its group added. The code that does so is called again and again."""

    kinds = tuple(kind for kind in SEVERAL_GROUPS if kind in LATE_STATE)

    def begin(self, number: int) -> None:
        if number >= EVENT:
            self.unfreeze()

    def prepare(self, record: segue.TrainingRecord) -> None:
        names = {name for group in record.optimizers["optimizer"].groups for name in group.parameters}
        if "late.weight" in names:
            self.unfreeze()

    def unfreeze(self) -> None:
        late = self.net.late.weight
        if not any(member is late for group in self.optimizer.param_groups for member in group["params"]):
            late.requires_grad_(True)
            self.optimizer.add_param_group({"params": [late], "lr": 0.03, "tag": ("late", 1)})


class GroupAddedUnderASchedule(GroupAdded):
    """The same, where a schedule knows of two groups."""

    def bind(self) -> None:
        self.schedulers = {"schedule": ExponentialLR(self.optimizer, 0.9)}


class EmptyGroupFilled(Life):
    """A group is empty until a parameter is put into it."""

    kinds = GroupAdded.kinds

    def groups(self) -> list[dict[str, Any]]:
        first, second = super().groups()
        return [first, {"params": [], "lr": 0.03, "tag": None}, second]

    def begin(self, number: int) -> None:
        if number == EVENT:
            self.fill()

    def prepare(self, record: segue.TrainingRecord) -> None:
        if record.optimizers["optimizer"].groups[1].parameters:
            self.fill()

    def fill(self) -> None:
        self.net.late.requires_grad_(True)
        self.optimizer.param_groups[1]["params"].append(self.net.late.weight)


class GroupEmptied(Life):
    """What a group has is frozen and taken out of it, and its state thrown away; the empty group stays."""

    kinds = SEVERAL_GROUPS

    def begin(self, number: int) -> None:
        if number == EVENT:
            self.empty()

    def prepare(self, record: segue.TrainingRecord) -> None:
        if not record.optimizers["optimizer"].groups[1].parameters:
            self.empty()

    def empty(self) -> None:
        head = self.net.head.weight
        head.requires_grad_(False)
        head.grad = None
        self.optimizer.param_groups[1]["params"].clear()
        self.optimizer.state.pop(head, None)


class GroupRemoved(Life):
    """The first group is taken out, with what it has trained, and the others go on at other rates."""

    kinds = SEVERAL_GROUPS

    def begin(self, number: int) -> None:
        if number == EVENT:
            self.remove()

    def prepare(self, record: segue.TrainingRecord) -> None:
        if len(record.optimizers["optimizer"].groups) < len(self.optimizer.param_groups):
            self.remove()

    def remove(self) -> None:
        for parameter in self.optimizer.param_groups.pop(0)["params"]:
            parameter.requires_grad_(False)
            parameter.grad = None
            self.optimizer.state.pop(parameter, None)

    def update(self, number: int) -> None:
        super().update(number)
        for group in self.optimizer.param_groups:
            group["lr"] *= 0.9


class UserKeys(Life):
    """Groups have keys of the user's own, of every plain kind, some of which change."""

    kinds = SEVERAL_GROUPS

    def groups(self) -> list[dict[str, Any]]:
        first, second = super().groups()
        first |= {
            "tag": "body",
            "layers": (0, "all"),
            "note": None,
            "counts": {"steps": 0, ("a", 1): [1.5, None]},
        }
        second |= {
            "scale": torch.tensor([1.0, 2.0], dtype=torch.float64),
            "flag": True,
            "extent": range(3),
            7: "seven",
        }
        return [first, second]

    def update(self, number: int) -> None:
        super().update(number)
        first, second = self.optimizer.param_groups
        first["counts"]["steps"] += 1
        first["counts"]["a", 1].append(float(number))
        second["scale"].mul_(1.1)
        if number > EVENT:
            first["note"] = {"since": number}
            second["lr_scale"] = 0.5 + number
            second.pop("flag", None)


class Warmup:
    """Holds the list of groups, and moves their rates by a count of its own."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.param_groups = optimizer.param_groups
        self.calls = 0

    def step(self) -> None:
        self.calls += 1
        for group in self.param_groups:
            group["lr"] *= 1.0 + 0.1 / self.calls

    def state_dict(self) -> dict[str, Any]:
        return {"calls": self.calls}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.calls = state["calls"]


class Strength:
    """Holds one group, without any state: all it knows stands in that."""

    def __init__(self, group: dict[str, Any]) -> None:
        self.group = group

    def step(self) -> None:
        self.group["strength"] = self.group.get("strength", 1.0) * 0.9
        self.group["lr"] *= self.group["strength"]


class HeldGroups(GroupAdded):
    """Objects around an optimizer hold its groups: the list, to which one is added, and a single one."""

    def bind(self) -> None:
        self.warmup = Warmup(self.optimizer)
        self.strength = Strength(self.optimizer.param_groups[0])
        self.components = {"warmup": self.warmup}

    def update(self, number: int) -> None:
        super().update(number)
        self.warmup.step()
        self.strength.step()


class Frozen(Life):
    """A parameter is trained, then frozen: its state stays, and it has no gradient."""

    def begin(self, number: int) -> None:
        if number == EVENT:
            self.net.body.requires_grad_(False)
            self.net.body.weight.grad = None


class FrozenByTheRecord(Frozen):
    """The same; the program freezes what the newest record says, and again at each microbatch."""

    def begin(self, number: int) -> None:
        if number >= EVENT:
            super().begin(EVENT)

    def prepare(self, record: segue.TrainingRecord) -> None:
        if not record.model.contract.tensors["body.weight"].requires_grad:
            self.net.body.requires_grad_(False)


class Thawed(Life):
    """A parameter is in a group, frozen, and trained later."""

    def groups(self) -> list[dict[str, Any]]:
        first, second = super().groups()
        return [first, {**second, "params": [*second["params"], self.net.late.weight]}]

    def begin(self, number: int) -> None:
        if number == EVENT:
            self.net.late.requires_grad_(True)


class ThawedByTheRecord(Thawed):
    """The same; the program trains what the newest record says."""

    def prepare(self, record: segue.TrainingRecord) -> None:
        self.net.late.requires_grad_(record.model.contract.tensors["late.weight"].requires_grad)


class OptionsByHand(Life):
    """Options are written by hand: the rate at each update, others once."""

    def update(self, number: int) -> None:
        super().update(number)
        for group in self.optimizer.param_groups:
            group["lr"] *= 0.9
            if "weight_decay" in group:
                group["weight_decay"] = 0.01 * number
            if number > EVENT and "betas" in group:
                group["betas"] = (0.8, 0.95)
            if number > EVENT and "momentum" in group:
                group["momentum"] = 0.7


class StateCleared(Life):
    """All state is thrown away."""

    kinds = LATE_STATE

    def begin(self, number: int) -> None:
        if number == EVENT:
            self.optimizer.state.clear()


class StateDeleted(Life):
    """One parameter's state is thrown away."""

    kinds = LATE_STATE

    def begin(self, number: int) -> None:
        if number == EVENT:
            del self.optimizer.state[self.net.body.weight]


class NeverSteps(Life):
    """A second optimizer never takes a step."""

    def bind(self) -> None:
        self.net.late.requires_grad_(True)
        self.optimizers["idle"] = self.make([{"params": [self.net.late.weight]}])

    def steps(self, name: str) -> bool:
        return name != "idle"


class Rebuilt(Life):
    """The optimizer is made anew under its old name, as is its schedule, with a training around them."""

    def bind(self) -> None:
        self.schedulers = {"schedule": ExponentialLR(self.optimizer, 0.9)}

    def begin(self, number: int) -> None:
        if number == EVENT:
            self.rebuild()

    def prepare(self, record: segue.TrainingRecord) -> None:
        if record.state["rebuilt"]:
            self.rebuild()

    def rebuild(self) -> None:
        self.components = {}
        self.optimizers = {"optimizer": self.make(self.groups(), lr=0.04)}
        self.bind()


class RebuiltAsAnother(Rebuilt):
    """The second optimizer is of another class."""

    kinds = ("SGD", "AdamW", "NAdam", "Adafactor", "RMSprop", "Muon")

    def rebuild(self) -> None:
        self.kind = self.kinds[(self.kinds.index(self.kind) + 1) % len(self.kinds)]
        super().rebuild()


LIVES: dict[str, type[Life]] = {
    "uneventful": Life,
    "a group added": GroupAdded,
    "a group added under a schedule": GroupAddedUnderASchedule,
    "an empty group filled": EmptyGroupFilled,
    "a group emptied": GroupEmptied,
    "a group removed": GroupRemoved,
    "keys of the user": UserKeys,
    "groups held by others": HeldGroups,
    "trained, then frozen": Frozen,
    "trained, then frozen, by the record": FrozenByTheRecord,
    "frozen, then trained": Thawed,
    "frozen, then trained, by the record": ThawedByTheRecord,
    "options by hand": OptionsByHand,
    "state cleared": StateCleared,
    "one state deleted": StateDeleted,
    "one never steps": NeverSteps,
    "made anew": Rebuilt,
    "made anew as another": RebuiltAsAnother,
}
