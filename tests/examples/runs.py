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

from tests.exactness.processes import ROOT, in_new_process
from tests.examples.killed import run_script


@dataclass(frozen=True)
class Example:
    """One example, small."""

    name: str
    arguments: tuple[str, ...]
    total: int
    """Microbatches of the whole run."""

    @property
    def script(self) -> str:
        return str(ROOT / "examples" / f"{self.name}.py")

    def command(self, run: Path, *, seed: int = 0, save_every: int = 1) -> list[str]:
        """Return the arguments of a run in this folder."""
        options = ["--run", str(run), "--seed", str(seed), "--save-every", str(save_every)]
        return [*self.arguments, *options]


# The last batch of a pass is smaller than the others, and a pass ends in mid-window, where there are windows.
EXAMPLES = {
    made.name: made
    for made in (
        Example("image_classifier", ("--epochs", "2", "--images", "36", "--batch", "8"), total=10),
        Example("gpt", ("--epochs", "2", "--paragraphs", "31", "--batch", "4", "--no-compile"), total=14),
        Example("lora_datasets", ("--epochs", "2", "--words", "5", "--batch", "4"), total=10),
    )
}
_SECONDS = 120


@dataclass(frozen=True)
class Ended:
    """How a process ended."""

    code: int
    output: str

    @property
    def digest(self) -> str:
        """What the script printed at its end."""
        lines = [line for line in self.output.splitlines() if line.startswith("digest ")]
        assert self.code == 0, self.output[-3000:]
        assert len(lines) == 1, self.output[-3000:]
        return lines[0]


def forked(example: Example, command: list[str], output: Path, kill_in_save: int | None = None) -> Ended:
    """Run an example in a new process that has imported torch already."""
    code = in_new_process(_run, example.script, command, str(output), kill_in_save)
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
    program = [example.script]
    if kill_in_save is not None:
        program = ["-m", "tests.examples.killed", str(kill_in_save), example.script]
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
