"""A training under autocast and a gradient scaler that overflows by nature, with two optimizers and their schedules.

Four counters part in it: microbatches, updates, steps that were taken (of each optimizer), and moves of the schedules.
"""

from __future__ import annotations

import gc
import json
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW, NAdam, Optimizer, RMSprop
from torch.optim.lr_scheduler import OneCycleLR, StepLR

import segue
from segue.errors import ConsumedGradientsWarning, ScheduleWarning
from segue.optim import FP32Master
from tests.exactness import seen

torch.set_num_threads(1)

WINDOW = 2
TOTAL = 14 * WINDOW
PAIRS: dict[str, tuple[Callable[..., Optimizer], Callable[..., Optimizer]]] = {
    "AdamW foreach, SGD": (partial(AdamW, foreach=True), partial(SGD, momentum=0.9)),
    "Adam fused, NAdam": (partial(Adam, fused=True), NAdam),
    "RMSprop, Adagrad fused": (partial(RMSprop, momentum=0.5), partial(Adagrad, fused=True)),
    "fp32 masters of AdamW, SGD": (partial(FP32Master, inner=AdamW), partial(SGD, momentum=0.9)),
}
# A scale at which some updates of each fits, and the next does not.
SCALES = {"fp16": (torch.float16, 2.0**14), "bf16": (torch.bfloat16, 2.0**122)}
POLICIES = ("moves with taken steps", "moves at each update")


@dataclass(frozen=True)
class Case:
    """One way to train."""

    pair: str
    autocast: str
    policy: str

    @property
    def folder(self) -> str:
        """Where it keeps its records."""
        return f"{self.pair} {self.autocast} {self.policy}"


class Run:
    """The live objects, and the loop.

    Args:
        case: How to train.
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        self.autocast, scale = SCALES[case.autocast]
        self.net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
        first, second = PAIRS[case.pair]
        self.optimizers = {
            "first": first(self.net[0].parameters(), lr=0.01),
            "second": second(self.net[2].parameters(), lr=0.005),
        }
        self.schedulers = {
            "first": OneCycleLR(self.optimizers["first"], 0.02, total_steps=TOTAL),
            "second": StepLR(self.optimizers["second"], 3, 0.5),
        }
        self.scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=2)
        self.counts = {"microbatches": 0, "updates": 0, "skipped": 0, "moves": 0}
        self.losses: list[float] = []

    def training(self) -> segue.Training:
        return segue.Training(self.net, self.optimizers, self.schedulers, components={"scaler": self.scaler})

    def microbatch(self) -> None:
        """Do one microbatch, and the update at the end of a window."""
        self.backward()
        if self.counts["microbatches"] % WINDOW == 0:
            for _ in self.update():
                pass

    def backward(self) -> None:
        generator = torch.Generator().manual_seed(self.counts["microbatches"])
        batch = torch.randn(6, 3, generator=generator)
        with torch.autocast("cpu", self.autocast):
            output = self.net(batch)
        loss = (output.float() - 1).pow(2).sum()
        self.scaler.scale(loss).backward()
        self.losses.append(loss.item())
        self.counts["microbatches"] += 1

    def update(self) -> Iterator[str]:
        """Do an update; yield what has been done at each moment within it."""
        for name, optimizer in self.optimizers.items():
            if not isinstance(optimizer, FP32Master):  # which divides by itself
                self.scaler.unscale_(optimizer)
                yield f"unscaled {name}"
        before = self.scaler.get_scale()
        for name, optimizer in self.optimizers.items():
            self.scaler.step(optimizer)
            yield f"stepped {name}"
        self.scaler.update()
        yield "updated"
        skipped = self.scaler.get_scale() < before
        self.counts["updates"] += 1
        self.counts["skipped"] += skipped
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()
        if not skipped or self.case.policy == "moves at each update":
            self.counts["moves"] += 1
            for scheduler in self.schedulers.values():
                scheduler.step()

    def seen(self) -> dict[str, Any]:
        more = [self.losses, self.counts, self.scaler.state_dict()]
        return seen.sections(self.net, self.optimizers, self.schedulers, more)


def prepare_process() -> None:
    """Make warnings errors, and what the imports have made no place to look for schedules in: first captures do."""
    gc.freeze()
    warnings.simplefilter("error")
    warnings.simplefilter("ignore", ConsumedGradientsWarning)
    # The first steps are skipped, and some schedules move all the same.
    warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step", UserWarning)
    # One optimizer skips and the other does not, and no schedule moves: the other's may be due, for all that one can see.
    warnings.simplefilter("ignore", ScheduleWarning)


def record(cases: tuple[Case, ...], root: str, cuts: tuple[int, ...]) -> None:
    """Train each case to its end without segue, and note everything; then once more, and save at every cut."""
    prepare_process()
    for case in cases:
        folder = Path(root, case.folder)
        folder.mkdir()
        torch.manual_seed(7)
        run = Run(case)
        whole = {0: seen.digests(run.seen())}
        for _ in range(TOTAL):
            run.microbatch()
            whole[run.counts["microbatches"]] = seen.digests(run.seen())
        (folder / "whole.json").write_text(json.dumps(whole))
        torch.manual_seed(7)
        run = Run(case)
        training = run.training()
        for cut in cuts:
            while run.counts["microbatches"] < cut:
                run.microbatch()
            segue.save(training.capture({"counts": run.counts, "losses": run.losses}), folder / str(cut))


def go_on(cases: tuple[Case, ...], root: str, cuts: tuple[int, ...], seed: int) -> None:
    """Go on with each case from every cut, and note everything."""
    prepare_process()
    torch.manual_seed(seed)
    for case in cases:
        for cut in cuts:
            run = Run(case)
            state = run.training().restore(segue.load(Path(root, case.folder, str(cut))))
            run.counts, run.losses = state["counts"], state["losses"]
            rest = {cut: seen.digests(run.seen())}
            for _ in range(cut, TOTAL):
                run.microbatch()
                rest[run.counts["microbatches"]] = seen.digests(run.seen())
            Path(root, case.folder, f"{cut}.json").write_text(json.dumps(rest))


def outcome(case: Case, root: str | Path, cut: int) -> str:
    """Return `exact`, or what differs first from the uninterrupted run."""
    folder = Path(root, case.folder)
    whole = json.loads((folder / "whole.json").read_text())
    rest = json.loads((folder / f"{cut}.json").read_text())
    if list(map(int, rest)) != list(range(cut, TOTAL + 1)):
        return "it is not seen from the cut to the end"
    for boundary, found in rest.items():
        expected = whole[boundary]
        differing = [name for name in {**expected, **found} if found.get(name) != expected.get(name)]
        if differing:
            return f"after microbatch {boundary}: {', '.join(differing)} differ"
    return "exact"
