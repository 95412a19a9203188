"""The parent: starts the processes of the runs, kills them where it was planned, and collects what they tell."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from segue.demo.child import CHECKPOINTS, JOURNAL
from segue.demo.journal import Event, JournalReader
from segue.demo.process import TrialFailed, last_words, start
from segue.demo.settings import Kill, ProcessSettings, Role, RunSettings

_MARKER = ".segue-demo"
_POLL_SECONDS = 0.02


@dataclass
class Progress:
    """How far one run is; its observer is told at each change."""

    role: Role
    done: int = 0
    """Microbatches whose loss is known in the current process; falls when the run continues from a checkpoint."""
    processes: int = 0
    kills: int = 0
    is_finished: bool = False


@dataclass
class RunResult:
    """What a run told."""

    role: Role
    losses: dict[int, list[str]] = field(default_factory=dict)
    """By microbatch, counted from 1, every loss it ever had, as hexadecimal floats: more than one where it was
    computed again after a kill."""
    continued_from: list[int] = field(default_factory=list)
    """For each process after the first, how many microbatches were done when it began."""
    files_at_kill: dict[int, list[str]] = field(default_factory=dict)
    """For each kill during a save, by microbatch, what the unfinished attempt had written."""
    digests: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    def final_losses(self) -> list[float]:
        """Return the loss of each microbatch, as it was computed last, in order."""
        return [float.fromhex(self.losses[microbatch][-1]) for microbatch in sorted(self.losses)]


def fresh_directory(out: Path) -> Path:
    """Make an empty folder for the runs inside `out`, removing one that an earlier demo made.

    Raises:
        TrialFailed: If there is a folder of that name which no demo made.
    """
    runs = out / "runs"
    if runs.exists():
        if not (runs / _MARKER).exists():
            raise TrialFailed(f"{runs} exists and was not made by the demo; choose another --out")
        shutil.rmtree(runs)
    runs.mkdir(parents=True)
    (runs / _MARKER).touch()
    return runs


def run_trial(
    run: RunSettings, kills: Sequence[Kill], directory: Path, observe: Callable[[Progress], None]
) -> dict[Role, RunResult]:
    """Run all to their ends, at the same time.

    Args:
        run: The training.
        kills: Where all but the first are killed, in ascending order.
        directory: From `fresh_directory`; each run gets a folder in it.
        observe: Called whenever a run has moved.

    Returns:
        The results by role.

    Raises:
        TrialFailed: If a process fails or is not where it was to be killed.
    """
    runs = [
        _Run(role, run, () if role is Role.UNINTERRUPTED else kills, directory, observe) for role in run.roles
    ]
    try:
        for one in runs:
            one.start()
        running = list(runs)
        while running:
            running = [one for one in running if not one.poll()]
            time.sleep(_POLL_SECONDS)
    finally:
        for one in runs:
            one.stop()
    return {one.result.role: one.result for one in runs}


class _Run:
    """One run: a process at a time, until one comes to the end."""

    def __init__(
        self,
        role: Role,
        run: RunSettings,
        kills: Sequence[Kill],
        parent: Path,
        observe: Callable[[Progress], None],
    ) -> None:
        self.result = RunResult(role)
        self._run = run
        self._kills = list(kills)
        self._directory = parent / role.value
        self._directory.mkdir()
        self._reader = JournalReader(self._directory / JOURNAL)
        self._progress = Progress(role)
        self._observe = observe
        self._process: subprocess.Popen[bytes] | None = None
        self._began = time.monotonic()

    @property
    def _kill(self) -> Kill | None:
        done = self._progress.kills
        return self._kills[done] if done < len(self._kills) else None

    def start(self) -> None:
        """Start the next process."""
        settings = ProcessSettings(self.result.role, str(self._directory), self._run, self._kill)
        path = self._directory / "settings.json"
        settings.write(path)
        self._process = start("segue.demo.child", path, self._stderr)
        self._progress.processes += 1

    @property
    def _stderr(self) -> Path:
        return self._directory / "stderr.txt"

    def poll(self) -> bool:
        """Take in what is new, kill if it is time, and tell whether the run is finished."""
        if self._progress.is_finished or self._process is None:
            return self._progress.is_finished
        # Asked before reading: what a process wrote before it ended is then certainly read.
        code = self._process.poll()
        events = self._reader.new_events()
        for event in events:
            self._take(event)
        if code is not None and not self._progress.is_finished:
            raise TrialFailed(
                f"a process of the run {self.result.role} ended with {code}{last_words(self._stderr)}"
            )
        if events:
            self._observe(self._progress)
        return self._progress.is_finished

    def _take(self, event: Event) -> None:
        match event["event"]:
            case "begin":
                self._progress.done = event["done"]
                if self._progress.processes > 1:
                    self.result.continued_from.append(event["done"])
            case "loss":
                self._progress.done = event["microbatch"]
                self.result.losses.setdefault(event["microbatch"], []).append(event["loss"])
            case "held":
                self._kill_here(event["microbatch"])
            case "end":
                self.result.digests = dict(event["digests"])
                self.result.seconds = time.monotonic() - self._began
                self._progress.is_finished = True

    def _kill_here(self, microbatch: int) -> None:
        kill, process = self._kill, self._process
        if kill is None or process is None or kill.microbatch != microbatch:
            raise TrialFailed(
                f"the run {self.result.role} stopped at microbatch {microbatch}, where nothing was planned"
            )
        process.send_signal(signal.SIGKILL)
        if process.wait() != -signal.SIGKILL:
            raise TrialFailed(f"a process of the run {self.result.role} did not die of SIGKILL")
        self._close()
        if kill.is_during_save and self.result.role is Role.SEGUE:
            self.result.files_at_kill[microbatch] = self._unfinished_attempt(kill)
        self._progress.kills += 1
        self.start()

    def _unfinished_attempt(self, kill: Kill) -> list[str]:
        """List what the killed save had written; looked at after the death, when it can't go on any more."""
        attempts = list((self._directory / CHECKPOINTS).glob(".tmp-*"))
        if len(attempts) != 1 or (attempts[0] / str(kill.file)).exists():
            raise TrialFailed(f"the kill after microbatch {kill.microbatch} did not land inside a save")
        return sorted(path.name for path in attempts[0].iterdir())

    def stop(self) -> None:
        """End the process, if one is left, as after an error or Ctrl-C."""
        if self._process is not None and self._process.poll() is None:
            if self._progress.is_finished:
                self._process.wait()
            else:
                self._process.kill()
                self._process.wait()
        self._close()

    def _close(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
