"""What one process does: train by a plan, from the newest checkpoint on, and note what it sees at each boundary."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import segue
from segue._record.digest import digests
from tests.exactness import live
from tests.exactness.losses import LOSSES
from tests.exactness.trainings import MODES, TOTAL, Run, seed


@dataclass(frozen=True)
class Plan:
    """What one process does."""

    mode: str
    root: str
    seed: int
    stop_after: int | None = None
    """Kill this process at this boundary, after `save_if_due`."""
    save_every: int | None = 1
    """`None` never saves, and never captures before the end."""
    total: int = TOTAL
    preempt_in: int | None = None
    """Send SIGTERM in the middle of this microbatch."""
    lose: str | None = None
    """Spoil this part of the state after the resume."""


def carry_out(plan: Plan) -> None:
    """Train by a plan; write digests and losses of every boundary to `trace-<pid>.jsonl` in the run's folder."""
    seed(plan.seed)
    mode = MODES[plan.mode]
    run = Run(mode)
    root = Path(plan.root)
    root.mkdir(parents=True, exist_ok=True)
    trace = root / f"trace-{os.getpid()}.jsonl"
    if plan.save_every is None:
        state = beginning()
        for number in range(plan.total):
            advance(run, state, number)
        note(trace, run, state)
        return
    checkpointer = segue.Checkpointer(
        run.training, root / "run", every_microbatches=plan.save_every, background=mode.background
    )
    with checkpointer:
        state = checkpointer.resume(default=beginning())
        if plan.lose is not None:
            LOSSES[plan.lose].spoil(run)
        for number in range(state["microbatch"], plan.total):
            if number == plan.preempt_in:
                os.kill(os.getpid(), signal.SIGTERM)
            advance(run, state, number)
            is_preempted = checkpointer.save_if_due(state)
            note(trace, run, state)
            if state["microbatch"] == plan.stop_after:
                if mode.background:
                    checkpointer.close()  # or the last save may be lost, and which is left to chance
                os.kill(os.getpid(), signal.SIGKILL)
            if is_preempted:
                return


def beginning() -> dict[str, Any]:
    return {
        "microbatch": 0,
        "losses": [],
        "epoch": (0, "train"),
        "ids": torch.arange(5),
        "seen": {"some", "words", "in", "no", "order"},
    }


def advance(run: Run, state: dict[str, Any], number: int) -> None:
    state["losses"].append(run.microbatch(number))
    state["microbatch"] = number + 1
    state["seen"].add(str(number))


def note(trace: Path, run: Run, state: dict[str, Any]) -> None:
    """Write down the record's digests, and beside them those that were taken without segue."""
    entry = {
        "microbatch": state["microbatch"],
        "losses": [loss.hex() for loss in state["losses"]],
        **live.digests(run),
        **digests(run.training.capture(state)),
    }
    with trace.open("a") as file:
        file.write(json.dumps(entry) + "\n")


if __name__ == "__main__":
    carry_out(Plan(**json.loads(sys.argv[1])))
