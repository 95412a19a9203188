"""A training of two groups under one schedule, cut between any two of its acts, and what one process does with it.

An update is four acts: two microbatches, the optimizer's step, the schedule's move. Gradients stay until the move.
"""

from __future__ import annotations

import gc
import itertools
import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import segue
from segue.errors import ConsumedGradientsWarning, ScheduleWarning, SegueError
from tests.exactness import seen
from tests.exactness.scheduler_table import DTYPES, RATES, VARIANTS, Variant

torch.set_num_threads(1)

UPDATES = 8
ACTS = ("microbatch", "microbatch", "step", "move")
TOTAL = UPDATES * len(ACTS)
CUTS = {
    "in the window": 2 * len(ACTS) + 1,
    "after the step": 4 * len(ACTS) + 3,
    "after the move": 5 * len(ACTS),
}
"""Acts done at each cut. After the fifth step a milestone of several schedules is outstanding."""


@dataclass(frozen=True)
class Case:
    """One way to train."""

    variant: str
    dtype: str
    rate: str
    sampled: bool = False
    """Go on once from each cut, each time in another order, instead of in every order."""

    @property
    def ways(self) -> list[tuple[str, str]]:
        """The cuts and orders that are tried."""
        orders = VARIANTS[self.variant].orders
        if self.sampled:
            return list(zip(CUTS, itertools.cycle(orders), strict=False))
        return list(itertools.product(CUTS, orders))

    @property
    def folder(self) -> str:
        """Where it keeps its records: names have signs that paths don't take."""
        return f"{list(VARIANTS).index(self.variant)}-{self.dtype}-{self.rate}"


def model_of(case: Case) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(DTYPES[case.dtype])


def optimizer_of(case: Case, model: Any) -> torch.optim.Optimizer:
    groups = [
        {"params": [model[0].weight, model[2].weight]},
        {"params": [model[0].bias, model[2].bias], "weight_decay": 0.02, "tag": ("no", None)},
    ]
    return VARIANTS[case.variant].optimizer(groups, lr=RATES[case.rate](0.05))


class Run:
    """The live objects of one process, and the loop.

    Args:
        case: How to train.
        model: The model.
        optimizer: Its optimizer.
        scheduler: The schedule; made here if there is none yet.
    """

    def __init__(
        self, case: Case, model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any = None
    ) -> None:
        self.variant: Variant = VARIANTS[case.variant]
        self.model, self.optimizer = model, optimizer
        self.scheduler = self.variant.make(optimizer) if scheduler is None else scheduler
        self.losses: list[float] = []

    def training(self) -> segue.Training:
        handed = {"schedule": self.scheduler}
        schedulers, components = ({}, handed) if self.variant.is_component else (handed, {})
        return segue.Training(self.model, self.optimizer, schedulers, components=components)

    def act(self, number: int) -> None:
        """Do one act of the loop."""
        kind = ACTS[number % len(ACTS)]
        if kind == "microbatch":
            generator = torch.Generator().manual_seed(1000 + number)
            batch = torch.randn(4, 3, generator=generator).to(next(self.model.parameters()).dtype)
            loss = self.model(batch).float().pow(2).mean()
            loss.backward()
            self.losses.append(loss.item())
        elif kind == "step":
            self.optimizer.step()
        else:
            metric = self.variant.metric
            self.scheduler.step(*([] if metric is None else [metric(number // len(ACTS))]))
            self.optimizer.zero_grad()

    def seen(self) -> dict[str, str]:
        """Digest everything live, with the losses so far."""
        return seen.digests(
            seen.sections(
                self.model, {"optimizer": self.optimizer}, {"schedule": self.scheduler}, self.losses
            )
        )


def fresh(case: Case, seed: int) -> Run:
    torch.manual_seed(seed)
    model = model_of(case)
    return Run(case, model, optimizer_of(case, model))


def prepare_process() -> None:
    """Make warnings errors, and what the imports have made no place to look for schedules in: first captures do."""
    gc.freeze()
    warnings.simplefilter("error")
    warnings.simplefilter("ignore", ConsumedGradientsWarning)
    # A nested chain moves once more as it is nested, before any step of the optimizer (torch 2.13).
    warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step", UserWarning)


def record(cases: tuple[Case, ...], root: str) -> None:
    """Train each case to its end without segue, and note everything; then once more, and save at every cut."""
    prepare_process()
    for case in cases:
        folder = Path(root, case.folder)
        folder.mkdir()
        run = fresh(case, seed=7)
        whole = {0: run.seen()}
        for number in range(TOTAL):
            run.act(number)
            whole[number + 1] = run.seen()
        (folder / "whole.json").write_text(json.dumps(whole))
        _save_at_cuts(case, folder)


def _save_at_cuts(case: Case, folder: Path) -> None:
    run = fresh(case, seed=7)
    training = run.training()
    told = {}
    for number in range(max(CUTS.values())):
        run.act(number)
        for cut, at in CUTS.items():
            if at == number + 1:
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    made = training.capture({"losses": run.losses})
                outstanding = [item.outstanding_steps for item in made.schedulers.values()]
                names = [
                    each.category.__name__ for each in caught if each.category is not ConsumedGradientsWarning
                ]
                told[cut] = [names, outstanding]
                segue.save(made, folder / cut)
    (folder / "told.json").write_text(json.dumps(told))


def go_on(cases: tuple[Case, ...], root: str, seed: int) -> None:
    """Go on with each case from every cut, in each order of building and restoring, and note everything."""
    prepare_process()
    torch.manual_seed(seed)
    for case in cases:
        folder = Path(root, case.folder)
        for cut in CUTS:
            made = segue.load(folder / cut)
            for order in (order for at, order in case.ways if at == cut):
                rest = _rest(case, made, order, CUTS[cut])
                (folder / f"{cut}, {order}.json").write_text(json.dumps(rest))


def _rest(case: Case, made: segue.TrainingRecord, order: str, at: int) -> dict[Any, Any]:
    try:
        run = resumed(case, made, order)
    except SegueError as error:
        return {"refused": error.code}
    rest = {at: run.seen()}
    for number in range(at, TOTAL):
        run.act(number)
        if ACTS[number % len(ACTS)] != "microbatch":
            rest[number + 1] = run.seen()
    return rest


def resumed(case: Case, made: segue.TrainingRecord, order: str) -> Run:
    """Resume a run in one of the orders of building and restoring."""
    model = model_of(case)
    if order == "scheduler last":
        return _by_functions(case, made, model)
    optimizer = optimizer_of(case, model)
    if order == "optimizer first":
        segue.restore_optimizer(made.optimizers["optimizer"], optimizer, model)
    run = Run(case, model, optimizer)
    run.losses = run.training().restore(made)["losses"]
    return run


def _by_functions(case: Case, made: segue.TrainingRecord, model: nn.Module) -> Run:
    """Restore by functions, of which the last makes the schedule of the restored optimizer."""

    def restore_groups(model: nn.Module, groups: Any) -> Any:
        optimizer = optimizer_of(case, model)
        segue.restore_optimizer(groups["optimizer"], optimizer, model)
        return model, {"optimizer": optimizer}

    restored = made.restore(
        model,
        lambda optimizers: {"schedule": VARIANTS[case.variant].make(optimizers["optimizer"])},
        restore_model=lambda module, model: segue.restore_module(module, model),
        restore_groups=restore_groups,
    )
    run = Run(case, restored.model, restored.optimizer["optimizer"], restored.scheduler["schedule"])
    run.losses = restored.state["losses"]
    return run


def outcome(case: Case, root: str | Path, cut: str, order: str) -> str:
    """Return `exact`, or what differs first from the uninterrupted run."""
    folder = Path(root, case.folder)
    told = json.loads((folder / "told.json").read_text())[cut]
    if told != _expected_to_be_told(case, cut):
        return f"the capture tells {told}"
    whole = json.loads((folder / "whole.json").read_text())
    rest = json.loads((folder / f"{cut}, {order}.json").read_text())
    if "refused" in rest:
        return f"refused: {rest['refused']}"
    if max(map(int, rest)) != TOTAL or str(CUTS[cut]) not in rest:
        return "it is not seen from the cut to the end"
    for act, found in rest.items():
        differing = [name for name in whole[act] if found.get(name) != whole[act][name]]
        if differing or found.keys() != whole[act].keys():
            return f"after act {act}: {', '.join(differing)} differ"
    return "exact"


def _expected_to_be_told(case: Case, cut: str) -> list[Any]:
    """Return the warnings of a capture, and the steps that it says are outstanding: the move is, right after a step."""
    if VARIANTS[case.variant].is_component:
        return [[], []]
    return [[ScheduleWarning.__name__], [1]] if cut == "after the step" else [[], [0]]
