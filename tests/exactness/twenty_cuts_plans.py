"""What one process does of the twenty cuts: train by a plan, from the newest checkpoint on, and note what it sees."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import segue
from segue.errors import UncoveredStateWarning
from tests.exactness.twenty_cuts import MODES, PASSES, TOTAL, Run, seed
from tests.exactness.twenty_cuts_losses import LOSSES

Seen = dict[str, dict[str, str]]
"""Digests of all sections by boundary."""


@dataclass(frozen=True)
class Plan:
    """What one process does."""

    mode: str
    root: str
    seed: int = 7
    cut: int | None = None
    """Save at this boundary, and die by SIGKILL. Without one nothing is ever saved."""
    lose: str | None = None
    """What a program of this kind loses, as in `LOSSES`."""


def carry_out(plan: Plan) -> None:
    """Train by a plan; write what is seen at each boundary to `seen-<pid>.json` in the folder."""
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "'set_vital' is deprecated")  # torchdata 0.11 on torch 2.13
    loss = None if plan.lose is None else LOSSES[plan.lose]
    if loss is not None:
        warnings.simplefilter("ignore", UncoveredStateWarning)  # which says what was forgotten
    seed(plan.seed)
    run = Run(MODES[plan.mode], () if loss is None else loss.left_out)
    with segue.Checkpointer(run.training, Path(plan.root, "run"), every_microbatches=10**6) as checkpointer:
        state = checkpointer.resume(default=run.beginning())
        if loss is not None and state["microbatch"]:
            loss.spoil(run, state)
        seen: Seen = {}
        _train(plan, run, checkpointer, state, seen)
    Path(plan.root, "seen.json").write_text(json.dumps(seen))
    steps = run.optimizer.state[run.net.head.weight]["step"].item()
    Path(plan.root, "steps.json").write_text(json.dumps(steps))


def _train(plan: Plan, run: Run, checkpointer: segue.Checkpointer, state: dict[str, Any], seen: Seen) -> None:
    _boundary(plan, run, checkpointer, state, seen)
    while run.data.epoch < PASSES:
        run.net.train()
        for ids, tokens in run.data:
            if state["microbatch"] == TOTAL:
                break  # only a run that lost its position has more
            run.microbatch(ids, tokens, state)
            _boundary(plan, run, checkpointer, state, seen)
        state["evaluations"].append(run.evaluate())
    seen[str(TOTAL + 1)] = run.seen(state)  # behind the last evaluation


def _boundary(
    plan: Plan, run: Run, checkpointer: segue.Checkpointer, state: dict[str, Any], seen: Seen
) -> None:
    seen[str(state["microbatch"])] = run.seen(state)
    if state["microbatch"] == plan.cut:
        checkpointer.save(state)
        os.kill(os.getpid(), signal.SIGKILL)


def carry_out_apart(plans: list[Plan]) -> int:
    """Carry out plans, each in a process of its own that this interpreter forks; return how many failed."""
    failed = 0
    for plan in plans:
        child = os.fork()
        if child == 0:
            try:
                carry_out(plan)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        failed += os.waitpid(child, 0)[1] != 0
    return failed


if __name__ == "__main__":
    sys.exit(carry_out_apart([Plan(**plan) for plan in json.loads(sys.argv[1])]))
