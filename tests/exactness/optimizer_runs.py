"""A training under one optimizer, cut between any two of its acts, and what one process does with many of them.

An update is five acts: three microbatches, whose gradients add up in `.grad`, the step, and the clearing of gradients.
Optimizers that have a mode are also put into that of evaluation, and back.
"""

from __future__ import annotations

import gc
import importlib
import json
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # the first optimizer of a process imports it, which takes longer than all else here

import segue
from segue.errors import ConsumedGradientsWarning, SegueError, SegueWarning
from tests.exactness import bits
from tests.exactness.optimizer_nets import WINDOW, net_for
from tests.exactness.optimizer_table import Configuration

torch.set_num_threads(1)

UPDATES = 4
ACTS = (*["microbatch"] * WINDOW, "step", "zero")
MODES = ("eval", "train")
CUTS = {
    "mid-window": ("microbatch", 1, WINDOW - 2),
    "after a step": ("step", 1, 0),
    "after zero_grad": ("zero", 1, 0),
    "in eval mode": ("eval", 1, 0),
}
"""After which act: its kind, in which update (from 0), and which of its kind there."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Case:
    """A configuration in a dtype."""

    name: str
    dtype: str


@dataclass(frozen=True)
class Plan:
    """What one process does."""

    cases: tuple[Case, ...]
    root: str
    table: str = "tests.exactness.optimizer_table"
    """The module that has `CONFIGURATIONS`."""
    seed: int = 7
    by_torch: bool = False
    """Hand the restored optimizer's state on through torch's `state_dict` and `load_state_dict`."""

    def configuration(self, case: Case) -> Configuration:
        found: Configuration = importlib.import_module(self.table).CONFIGURATIONS[case.name]
        return found

    def folder(self, case: Case) -> Path:
        """Where the files of a case are: names have signs that paths don't take."""
        names = list(importlib.import_module(self.table).CONFIGURATIONS)
        return Path(self.root, f"{names.index(case.name)}-{case.dtype}")

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        found = json.loads(text)
        return cls(**{**found, "cases": tuple(Case(**case) for case in found["cases"])})


class Refused(Exception):
    """An optimizer can't be made, or can't step."""


@contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        raise Refused(str(error) or type(error).__name__) from error


class Run:
    """The live objects of one process, and the loop."""

    def __init__(self, made: Configuration, dtype: str) -> None:
        self.made = made
        self.net = net_for(made.net, DTYPES[dtype])
        with _refusing():
            self.optimizer = made.optimizer(self.groups())
        self.losses: list[float] = []
        if hasattr(self.optimizer, "train"):
            self.optimizer.train()
        acts = (*ACTS, *(MODES if hasattr(self.optimizer, "eval") else ()))
        self.acts = [
            (kind, update, acts[:index].count(kind))
            for update in range(UPDATES)
            for index, kind in enumerate(acts)
        ]
        self.cuts = {cut: self.acts.index(act) + 1 for cut, act in CUTS.items() if act in self.acts}

    def groups(self) -> Any:
        """Return two groups: the second with an option and a key of its own."""
        parameters = list(self.net.parameters())
        if not self.made.has_groups:
            return parameters
        own = {"lr": 0.02} if self.made.net == "sparse" else {"weight_decay": 0.05}
        return [{"params": parameters[::2]}, {"params": parameters[1::2], **own, "tag": ("no", None)}]

    def act(self, number: int) -> None:
        """Do one act of the loop."""
        kind, update, index = self.acts[number]
        if kind == "microbatch":
            loss = self.net(update * WINDOW + index)
            loss.backward()
            self.losses.append(loss.item())
        elif kind == "step":
            with _refusing():
                self.step(update)
        elif kind == "zero":
            self.optimizer.zero_grad()
        else:
            getattr(self.optimizer, kind)()

    def step(self, update: int) -> None:
        if not self.made.has_closure:
            self.optimizer.step()
            return

        def closure() -> torch.Tensor:
            self.optimizer.zero_grad()
            losses = [self.net(update * WINDOW + index) for index in range(WINDOW)]
            sum(losses).backward()
            return sum(losses).detach()

        self.losses.append(float(self.optimizer.step(closure)))

    def from_here(self, at: int) -> dict[int, dict[str, str]]:
        """Train to the end; return digests of everything live and the losses, now and after each step and cut."""
        seen = {at: self.seen()}
        for number in range(at, len(self.acts)):
            self.act(number)
            if self.acts[number][0] == "step" or number + 1 in (*self.cuts.values(), len(self.acts)):
                seen[number + 1] = self.seen()
        return seen

    def seen(self) -> dict[str, str]:
        return bits.digests(self.net, self.optimizer, self.losses)


def record(plan: Plan) -> None:
    """Train each case to its end without segue, and note everything; then once more, and save at every cut."""
    _prepare(plan)
    for case in plan.cases:
        folder = plan.folder(case)
        folder.mkdir(parents=True)
        made = plan.configuration(case)
        torch.manual_seed(plan.seed)
        try:
            run = Run(made, case.dtype)
            whole = run.from_here(0)
        except Refused as refusal:
            _write(folder / "refusal.json", str(refusal))
            continue
        _write(folder / "whole.json", {"cuts": run.cuts, "seen": whole})
        try:
            _save_at_cuts(plan, case)
        except SegueError as error:
            _write(folder / "saving.json", {"error": str(error)})


def _save_at_cuts(plan: Plan, case: Case) -> None:
    torch.manual_seed(plan.seed)
    run = Run(plan.configuration(case), case.dtype)
    training = segue.Training(run.net, run.optimizer)
    last = max(run.cuts.values())
    for number in range(last):
        run.act(number)
        for cut, at in run.cuts.items():
            if at == number + 1:
                segue.save(training.capture({"losses": run.losses}), plan.folder(case) / cut)
    _write(plan.folder(case) / "saving.json", {"seen": {last: run.seen()}})


def go_on(plan: Plan) -> None:
    """Go on with each case from every cut, and note everything."""
    _prepare(plan)
    torch.manual_seed(plan.seed)
    for case in plan.cases:
        for cut in CUTS:
            checkpoint = plan.folder(case) / cut
            if checkpoint.exists():
                try:
                    found: Any = {"seen": _continued(plan, case, checkpoint)}
                except SegueError as error:
                    found = {"error": str(error)}
                _write(checkpoint.with_name(f"{cut}.json"), found)


def _continued(plan: Plan, case: Case, checkpoint: Path) -> dict[int, dict[str, str]]:
    run = Run(plan.configuration(case), case.dtype)
    run.losses = segue.Training(run.net, run.optimizer).restore(segue.load(checkpoint))["losses"]
    if plan.by_torch:
        restored, run.optimizer = run.optimizer, run.made.optimizer(run.groups())
        run.optimizer.load_state_dict(restored.state_dict())
    return run.from_here(run.cuts[checkpoint.name])


def _prepare(plan: Plan) -> None:
    # Libraries step without compiling, which takes half a minute, and warn of what a CPU does not have.
    warnings.simplefilter("error" if plan.table == Plan.table else "ignore")
    warnings.filterwarnings("error", category=SegueWarning)
    warnings.simplefilter("ignore", ConsumedGradientsWarning)  # cut after `step`, before `zero_grad`
    torch.compiler.set_stance("force_eager")
    # Capture looks for schedulers among all objects that can be collected, of which imports leave hundreds of thousands.
    gc.collect()
    gc.freeze()


def _write(path: Path, found: Any) -> None:
    path.write_text(json.dumps(found))


if __name__ == "__main__":
    go_on(Plan.from_json(sys.argv[1]))
