"""New processes for the price of a fork: from a server that has imported torch and segue and has one thread.

`fresh` starts a whole interpreter instead, with another hash seed.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from tests.exactness.plans import Plan, carry_out

ROOT = Path(__file__).resolve().parents[2]
_context = multiprocessing.get_context("forkserver")
# The first optimizer of a process imports `torch._dynamo`, which takes seconds.
_context.set_forkserver_preload(
    ["tests.exactness.plans", "tests.exactness.data_runs", "tests.exactness.rank_lives", "torch._dynamo"]
)


def forked(plan: Plan) -> int:
    """Carry out a plan in a new process; return its exit code."""
    return in_new_process(carry_out, plan)


def in_new_process(function: Callable[..., None], *arguments: object) -> int:
    """Call a function in a new process; return its exit code."""
    process = _context.Process(target=_as_a_program, args=(function, *arguments))
    process.start()
    process.join(120)
    assert process.exitcode is not None, "the process hangs"
    return process.exitcode


def _as_a_program(function: Callable[..., None], *arguments: object) -> None:
    # A child of the server would have workers of loaders from a server of its own. Where it is killed, those
    # never end: each holds that server open, and looks only whether the server lives.
    multiprocessing.set_start_method(multiprocessing.get_all_start_methods()[0], force=True)
    function(*arguments)


def killed_after(plan: Plan, seconds: float) -> int:
    """Carry out a plan in a new process, and kill that with SIGKILL unless it ends before; return its exit code."""
    process = _context.Process(target=_as_a_program, args=(carry_out, plan))
    process.start()
    process.join(seconds)
    process.kill()
    process.join(30)
    assert process.exitcode is not None, "the process hangs"
    return process.exitcode


def fresh(plan: Plan, hash_seed: int) -> int:
    """Carry out a plan in a new interpreter; return its exit code."""
    command = [sys.executable, "-W", "error", "-m", "tests.exactness.plans", json.dumps(asdict(plan))]
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, timeout=120).returncode


def expect_end(plan: Plan, code: int) -> None:
    """Assert that a process ended as planned: by SIGKILL, or well."""
    stops = plan.stop_after is not None and plan.stop_after <= plan.total
    assert code == (-signal.SIGKILL if stops else 0)
