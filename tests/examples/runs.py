"""The examples at a small size, each run in a new process: to its end, or killed in a save, or from outside."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from segue import errors
from tests.exactness.processes import ROOT, in_new_process
from tests.examples.killed import run_script


@dataclass(frozen=True)
class Example:
    """One example, small."""

    script: str
    arguments: tuple[str, ...]
    total: int
    """Microbatches of the whole run."""

    @property
    def path(self) -> str:
        return str(ROOT / "examples" / self.script)

    def command(self, run: Path, *, seed: int = 0, save_every: int = 1) -> list[str]:
        """Return the arguments of a run in this folder."""
        options = ["--run", str(run), "--seed", str(seed), "--save-every", str(save_every)]
        return [*self.arguments, *options]


# The last batch of a pass is smaller than the others, unless compiled; a pass ends in mid-window, where there are windows.
_GPT = ("--epochs", "2", "--paragraphs", "31", "--batch", "4", "--layers", "1")
EXAMPLES = {
    "image_classifier": Example(
        "image_classifier.py", ("--epochs", "2", "--images", "36", "--batch", "8"), total=10
    ),
    "gpt": Example("gpt.py", (*_GPT, "--no-compile"), total=14),
    "gpt, compiled": Example("gpt.py", _GPT, total=14),
    "lora_datasets": Example("lora_datasets.py", ("--epochs", "2", "--words", "5", "--batch", "4"), total=10),
}
UNCOMPILED = "runs uncompiled"
_WARNINGS = [
    name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Warning)
]
_SECONDS = 120


@dataclass(frozen=True)
class Ended:
    """How a process ended."""

    code: int
    output: str

    @property
    def digest(self) -> str:
        """What the script printed at its end; segue had nothing to warn about."""
        lines = [line for line in self.output.splitlines() if line.startswith("digest ")]
        assert self.code == 0, self.output[-3000:]
        assert len(lines) == 1, self.output[-3000:]
        assert not any(f"{name}: " in self.output for name in _WARNINGS), self.output[-3000:]
        return lines[0]


def forked(example: Example, command: list[str], output: Path, kill_in_save: int | None = None) -> Ended:
    """Run an example in a new process that has imported torch already."""
    code = in_new_process(_run, example.path, command, str(output), kill_in_save)
    return Ended(code, output.read_text())


def _run(script: str, command: list[str], output: str, kill_in_save: int | None) -> None:
    warnings.simplefilter("default")  # libraries of the examples have their own
    file = open(output, "w", buffering=1)  # noqa: SIM115  (for as long as this process lives)
    os.dup2(file.fileno(), 1)
    os.dup2(file.fileno(), 2)
    sys.stdout = sys.stderr = file
    run_script(script, command, kill_in_save)


def fresh(
    example: Example, command: list[str], output: Path, hash_seed: int, kill_in_save: int | None = None
) -> Ended:
    """Run an example as its users do, in a whole interpreter."""
    with _started(example, command, output, hash_seed, kill_in_save) as process:
        process.wait(_SECONDS)
    return Ended(process.returncode, output.read_text())


def signalled(
    example: Example, command: list[str], output: Path, signum: signal.Signals, once: int, run: Path
) -> Ended:
    """Run an example as its users do, and send it a signal from outside once its run has so many checkpoints."""
    with _started(example, command, output, hash_seed=3) as process:
        limit = time.monotonic() + _SECONDS
        while _newest(run) < once and process.poll() is None and time.monotonic() < limit:
            time.sleep(0.002)
        process.send_signal(signum)
        process.wait(_SECONDS)
    return Ended(process.returncode, output.read_text())


@contextlib.contextmanager
def _started(
    example: Example, command: list[str], output: Path, hash_seed: int, kill_in_save: int | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    program = [example.path]
    if kill_in_save is not None:
        program = ["-m", "tests.examples.killed", str(kill_in_save), example.path]
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed), "OMP_NUM_THREADS": "1"}
    # Into a file: workers of a killed process live on for seconds, and would hold a pipe open.
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, *program, *command], cwd=ROOT, env=environment, stdout=file, stderr=file
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _newest(run: Path) -> int:
    return max((int(path.name.removeprefix("ckpt-")) for path in run.glob("ckpt-*")), default=0)


def newest(run: Path) -> Path:
    """Return the newest checkpoint of a run."""
    return run / f"ckpt-{_newest(run):09d}"
