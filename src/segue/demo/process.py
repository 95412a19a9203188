"""How a process of the demo is started, and what is told of one that fails."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

_STDERR_LINES = 15


class TrialFailed(Exception):
    """A process of the demo did something other than what it was started for."""


def start(module: str, settings: Path, stderr: Path) -> subprocess.Popen[bytes]:
    """Start a module as a process that is told its settings in a file.

    Args:
        module: Of `segue.demo`, with a `__main__` part.
        settings: The file.
        stderr: Where its standard error is appended.

    Returns:
        The process; its standard input is a pipe that nobody writes to.
    """
    with stderr.open("ab") as errors:
        return subprocess.Popen(
            [sys.executable, "-m", module, str(settings)],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip


def run_to_end(module: str, settings: Path) -> None:
    """Start a process and wait for it.

    Raises:
        TrialFailed: If it fails.
    """
    stderr = settings.with_suffix(".stderr.txt")
    # Leaving the block closes its standard input and waits.
    with start(module, settings, stderr) as process:
        try:
            code = process.wait()
        except BaseException:  # Ctrl-C
            process.kill()
            raise
    if code != 0:
        raise TrialFailed(f"{module} ended with {code}{last_words(stderr)}")


def last_words(stderr: Path) -> str:
    """Return the last lines that a process wrote to standard error, to be put behind a sentence."""
    with contextlib.suppress(OSError):
        lines = stderr.read_text(errors="replace").splitlines()[-_STDERR_LINES:]
        return ":\n" + "\n".join(lines) if lines else ""
    return ""
