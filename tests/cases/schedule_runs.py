"""One schedule in two processes: the first trains, saves and goes on; the second is new, restores and goes on."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Run:
    """The live objects of a program."""

    model: Any
    optimizer: Any
    scheduler: Any
    training: Any
    advance: Callable[[int], None]
    """One update and one move of the schedule, at this step."""
    also: Callable[[], Any] = lambda: None
    """What else decides how it goes on."""


@dataclass
class Program:
    """How a run begins, and the programs that try to go on with it."""

    build: Callable[[], Run]
    resumed: dict[str, Callable[[], Run]]
    accept: dict[str, list[str]] = field(default_factory=dict)
    steps: int = 4


def everything(run: Run) -> Any:
    """Every byte that is live: names of functions, attributes of schedulers and of objects that they call, and the rest."""
    from segue._capture.scheduler import family
    from tests.cases.state import live, raw

    def told(value: Any) -> Any:
        if isinstance(value, list) and any(map(callable, value)):
            return [told(item) for item in value]
        if callable(value):
            return getattr(value, "__qualname__", None) or (type(value).__qualname__, raw(vars(value)))
        return raw(value)

    members = [] if run.scheduler is None else list(family(run.scheduler))
    return {
        "live": live(run.model, run.optimizer),
        "schedulers": [
            {name: told(value) for name, value in sorted(vars(member).items()) if name not in ("optimizer", "_schedulers")}
            for member in members
        ],
        "also": raw(run.also()),
    }  # fmt: skip


def digest(run: Run) -> str:
    return hashlib.sha256(repr(everything(run)).encode()).hexdigest()


def rates(run: Run) -> list[Any]:
    keys = ("lr", "weight_decay", "momentum", "betas")
    return [[repr(group[key]) for key in keys if key in group] for group in run.optimizer.param_groups]


def go_on(run: Run, begin: int) -> dict[str, Any]:
    seen = []
    for step in range(begin, begin + 5):
        seen.append([rates(run), digest(run)])
        run.advance(step)
    return {"seen": seen}


def begin(program: Program, place: Path) -> dict[str, Any]:
    import segue
    from segue.errors import SegueError

    run = program.build()
    for step in range(program.steps):
        run.advance(step)
    before = everything(run)
    try:
        record = run.training.capture()
    except SegueError as error:
        return {"refused": [error.code], "text": str(error), "unchanged": everything(run) == before}
    segue.save(record, place)
    return {"unchanged": everything(run) == before, **go_on(run, program.steps)}


def resume(program: Program, variant: str, place: Path) -> dict[str, Any]:
    import segue
    from segue.errors import MismatchError

    run = program.resumed[variant]()
    before = everything(run)
    try:
        run.training.restore(segue.load(place), accept=program.accept.get(variant, ()))
    except MismatchError as error:
        codes = [finding.code for finding in error.findings]
        return {"refused": codes, "text": str(error), "unchanged": everything(run) == before}
    return go_on(run, program.steps)


def main(programs: dict[str, Program], mode: str, folder: str) -> None:
    """Run all programs in one process, and print what became of each."""
    if mode == "begin":
        found = {name: begin(program, Path(folder) / name) for name, program in programs.items()}
    else:
        found = {
            f"{name}/{variant}": resume(program, variant, Path(folder) / name)
            for name, program in programs.items()
            for variant in program.resumed
        }
    print(json.dumps(found))


def in_two_processes(module: str, folder: Path) -> dict[str, Any]:
    """Run the programs of a module in one process, and those that go on with them in another."""
    return {**_run(module, "begin", folder, "1"), **_run(module, "resume", folder, "2")}


def _run(module: str, mode: str, folder: Path, hash_seed: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", module, mode, str(folder)],
        capture_output=True, text=True, cwd=ROOT, timeout=240,
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found
