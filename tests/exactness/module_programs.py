"""Programs whose modules keep state in unusual places, or are averaged: each is written once, for its beginning and a resume."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_avg_fn, get_ema_multi_avg_fn, update_bn

import segue

STEPS = 8


def batch(number: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1000 + number))


class Program:
    """An uneventful one: a layer, a dropout, a norm."""

    def __init__(self) -> None:
        self.net = self.make()
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=0.05)
        self.schedulers: dict[str, Any] = {}
        self.components: dict[str, Any] = {}
        self.losses: list[str] = []
        self.bind()
        self.training = segue.Training(self.net, self.optimizer, self.schedulers, components=self.components)

    def make(self) -> nn.Module:
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 2))

    def bind(self) -> None:
        """Make what stands beside the model."""

    def input(self, number: int) -> torch.Tensor:
        return batch(number, 6, 3)

    def begin(self, number: int) -> None:
        """Do what happens before a microbatch."""

    def step(self, number: int) -> None:
        self.begin(number)
        loss = self.net(self.input(number)).pow(2).mean()
        loss.backward()
        self.losses.append(loss.item().hex())
        if number % 2:
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.updated(number)

    def updated(self, number: int) -> None:
        """Do what happens after an update."""

    def modules(self) -> dict[str, nn.Module]:
        return {"net": self.net} | {k: v for k, v in self.components.items() if isinstance(v, nn.Module)}

    def told(self) -> list[Any]:
        """Return what else a resume must bring back, read by hand."""
        return []


class AnnealedDropout(Program):
    """A probability that falls by itself: nothing else knows where it is."""

    def updated(self, number: int) -> None:
        self.net[3].p *= 0.8

    def told(self) -> list[Any]:
        return [float(self.net[3].p).hex()]


class AnnealedMomentum(Program):
    """The momentum of a norm falls, as in PointNet."""

    def begin(self, number: int) -> None:
        self.net[1].momentum *= 0.9

    def told(self) -> list[Any]:
        return [float(self.net[1].momentum).hex()]


class ReplacedDropout(Program):
    """A dropout is exchanged for another in mid-run."""

    def begin(self, number: int) -> None:
        if number == 4:
            self.net[3] = nn.Dropout(0.1)

    def told(self) -> list[Any]:
        return [self.net[3].p]


class NormOfAllBatches(Program):
    def make(self) -> nn.Module:
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, momentum=None), nn.Linear(4, 2))


class NormWithoutMemory(Program):
    def make(self) -> nn.Module:
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 2))


class NormThatForgets(Program):
    """Its statistics are taken away in mid-run: buffers become `None`, and a flag tells so."""

    def begin(self, number: int) -> None:
        norm = self.net[1]
        if number == 3:
            norm.track_running_stats = False
            norm.running_mean = norm.running_var = norm.num_batches_tracked = None

    def told(self) -> list[Any]:
        return [self.net[1].track_running_stats]


class NormFrozenInTraining(Program):
    """From the middle on, a norm in a training model stands still."""

    def begin(self, number: int) -> None:
        if number == 3:
            self.net[1].eval()


class Told(nn.Linear):
    """Counts in an attribute, and says so by `get_extra_state`; its output depends on it."""

    def __init__(self, size: int) -> None:
        super().__init__(size, size)
        self.count = 0
        self.history: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        self.history = [*self.history[-2:], self.count]
        return super().forward(x) * (1 + sum(self.history) / 100)

    def get_extra_state(self) -> Any:
        return {"count": self.count, "history": self.history}

    def set_extra_state(self, state: Any) -> None:
        self.count, self.history = state["count"], state["history"]


class ExtraState(Program):
    def make(self) -> nn.Module:
        return nn.Sequential(Told(3), nn.Tanh(), Told(3))

    def bind(self) -> None:
        self.components = {"beside": nn.Sequential(Told(3))}

    def begin(self, number: int) -> None:
        self.components["beside"](self.input(number))

    def told(self) -> list[Any]:
        layers = [self.net[0], self.net[2], self.components["beside"][0]]
        return [[layer.count, layer.history] for layer in layers]


class LazilyBuilt(Program):
    def make(self) -> nn.Module:
        return nn.Sequential(
            nn.LazyConv1d(4, 2),
            nn.LazyBatchNorm1d(),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(0.3),
            nn.LazyLinear(2),
        )

    def input(self, number: int) -> torch.Tensor:
        return batch(number, 6, 3, 5)


class LazyInstanceNorm(Program):
    def make(self) -> nn.Module:
        return nn.Sequential(
            nn.LazyConvTranspose1d(4, 2), nn.LazyInstanceNorm1d(affine=True, track_running_stats=True), nn.Flatten(),
            nn.LazyLinear(2),
        )  # fmt: skip

    def input(self, number: int) -> torch.Tensor:
        return batch(number, 6, 3, 5)


class Averaged(Program):
    """An exponential average of parameters."""

    def average(self) -> AveragedModel:
        return AveragedModel(self.net, multi_avg_fn=get_ema_multi_avg_fn(0.9))

    def bind(self) -> None:
        self.components = {"ema": self.average()}

    def updated(self, number: int) -> None:
        self.components["ema"].update_parameters(self.net)


class AveragedWithBuffers(Averaged):
    def average(self) -> AveragedModel:
        return AveragedModel(self.net, avg_fn=get_ema_avg_fn(0.9), use_buffers=True)


class Swa(Averaged):
    """Averages of equal weight from the middle on, under a schedule of their own; the norm's statistics are taken anew."""

    def average(self) -> AveragedModel:
        return AveragedModel(self.net)

    def bind(self) -> None:
        super().bind()
        self.schedulers = {
            "steps": StepLR(self.optimizer, 2, 0.5), "swa": SWALR(self.optimizer, swa_lr=0.01, anneal_epochs=4),
        }  # fmt: skip

    def updated(self, number: int) -> None:
        if number < 3:
            self.schedulers["steps"].step()
            return
        super().updated(number)
        self.schedulers["swa"].step()
        if number == STEPS - 1:
            update_bn([self.input(each) for each in range(4)], self.components["ema"])


class Counting(nn.Module):
    """An average whose decay warms up with a number that no tensor keeps, but extra state."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.updates = 0
        for index, parameter in enumerate(net.parameters()):
            self.register_buffer(f"of_{index}", parameter.detach().clone())

    def update(self, net: nn.Module) -> None:
        self.updates += 1
        decay = min(0.99, (1 + self.updates) / (10 + self.updates))
        for index, parameter in enumerate(net.parameters()):
            getattr(self, f"of_{index}").mul_(decay).add_(parameter.detach(), alpha=1 - decay)

    def get_extra_state(self) -> int:
        return self.updates

    def set_extra_state(self, state: int) -> None:
        self.updates = state


class CountingAverage(Program):
    def bind(self) -> None:
        self.components = {"ema": Counting(self.net)}

    def updated(self, number: int) -> None:
        self.components["ema"].update(self.net)

    def told(self) -> list[Any]:
        return [self.components["ema"].updates]


class SwappedForEvaluation(CountingAverage):
    """Evaluates with the average in the model, and puts the trained weights back, before each update."""

    def begin(self, number: int) -> None:
        ema, parameters = self.components["ema"], list(self.net.parameters())
        kept = [parameter.data for parameter in parameters]
        for index, parameter in enumerate(parameters):
            parameter.data = getattr(ema, f"of_{index}").clone()
        with torch.no_grad():
            self.net.eval()
            self.losses.append(self.net(self.input(99)).sum().item().hex())
            self.net.train()
        for parameter, value in zip(parameters, kept, strict=True):
            parameter.data = value


class Rolled(nn.Module):
    """Buffers that a forward replaces: one persistent, one not, one `None` at first."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.register_buffer("queue", torch.zeros(2, 3))
        self.register_buffer("count", torch.zeros((), dtype=torch.long), persistent=False)
        self.register_buffer("last", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.detach().mean(0, keepdim=True)
        self.queue = torch.cat([self.queue[1:], mean])
        self.count = self.count + 1
        last = mean if self.last is None else self.last * 0.5 + mean
        self.last = last.t().contiguous().t()
        return self.layer(x) + self.queue.sum() / self.count + self.last


class ReplacedBuffers(Program):
    def make(self) -> nn.Module:
        return Rolled()


class Views(nn.Module):
    """A buffer that is a row of a weight, and two that overlap."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.register_buffer("row", self.layer.weight.data[0])
        whole = torch.zeros(6)
        self.register_buffer("front", whole[:4])
        self.register_buffer("back", whole[2:], persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.front += 1
        self.back *= 0.9
        return self.layer(x) + self.row + self.back.sum()


class SharedBuffers(Program):
    def make(self) -> nn.Module:
        return Views()


PROGRAMS: dict[str, type[Program]] = {
    cls.__name__: cls
    for cls in (
        Program, AnnealedDropout, AnnealedMomentum, ReplacedDropout, NormOfAllBatches, NormWithoutMemory, NormThatForgets,
        NormFrozenInTraining, ExtraState, LazilyBuilt, LazyInstanceNorm, Averaged, AveragedWithBuffers, Swa, CountingAverage,
        SwappedForEvaluation, ReplacedBuffers, SharedBuffers,
    )
}  # fmt: skip
