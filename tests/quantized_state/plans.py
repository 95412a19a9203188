"""What one process does: train cases to their end and save at every boundary, or go on from where others were cut."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import segue
from segue._record.digest import digests

TOTAL = 8


@dataclass(frozen=True)
class Plan:
    """What one process does."""

    cases: tuple[str, ...]
    """By name, as in `CASES` of the trainings."""
    root: str
    cuts: tuple[int, ...] = ()
    """Go on from these boundaries of each case, each with a fresh training; none: train from the beginning."""
    seed: int = 7
    compiled: bool = False
    """Let torchao compile its step, as it does by itself."""
    lose_state: bool = False
    """Lose the optimizer's state after the restore."""
    trainings: str = "tests.quantized_state.trainings"
    """The module that has `CASES`, `Run` and `seed`."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def carry_out(plan: Plan) -> None:
    """Carry out a plan; writes what was seen at each boundary to `<case>-<cut>.json` in the folder."""
    trainings = importlib.import_module(plan.trainings)  # which takes seconds: libraries come with it
    if not plan.compiled:
        torch.compiler.set_stance("force_eager")
    for case in plan.cases:
        for cut in plan.cuts or (0,):
            trainings.seed(plan.seed + cut)
            seen = _train(plan, case, cut, trainings.Run(trainings.CASES[case]))
            Path(plan.root, f"{case}-{cut}.json").write_text(json.dumps(seen))


def _train(plan: Plan, case: str, cut: int, run: Any) -> dict[int, Any]:
    losses: list[float] = []
    if cut:
        record = segue.load(checkpoint(plan.root, case, cut))
        run.prepare(cut)
        losses = run.training.restore(record)["losses"]
        if plan.lose_state:
            run.optimizer.state.clear()
    seen = {cut: _seen(run, losses)}
    for number in range(cut, TOTAL):
        losses.append(run.microbatch(number))
        seen[number + 1] = _seen(run, losses)
        if not plan.cuts:
            segue.save(run.training.capture({"losses": losses}), checkpoint(plan.root, case, number + 1))
    return seen


def checkpoint(root: str | Path, case: str, boundary: int) -> Path:
    return Path(root, f"{case}-at-{boundary}")


def _seen(run: Any, losses: list[float]) -> dict[str, Any]:
    record = run.training.capture({"losses": losses})
    return {"losses": [loss.hex() for loss in losses], **digests(record)}


if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    carry_out(Plan(**{**arguments, "cases": tuple(arguments["cases"]), "cuts": tuple(arguments["cuts"])}))
