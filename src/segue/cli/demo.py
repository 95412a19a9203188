"""`segue demo`, plain and with adapters: from the settings to the report, printing on the way unless it is for JSON."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from rich.console import Console, RenderableType
from rich.text import Text

from segue.cli import adaptation, demonstration
from segue.cli.demonstration import Report
from segue.cli.terminal import stderr, stdout
from segue.demo import picture
from segue.demo.base import BASE
from segue.demo.evidence import EVIDENCE, OTHER_BASE, Evidence
from segue.demo.kills import plan_kills
from segue.demo.process import run_to_end
from segue.demo.settings import Kill, Role, RunSettings
from segue.demo.trial import RunResult, fresh_directory, run_trial

RUNS = "runs"
"""The folder of the runs inside that which `--out` names."""


def demonstrate(run: RunSettings, out: Path, *, json: bool) -> Report:
    """Train, kill, continue, compare and draw.

    Raises:
        TrialFailed: If a process does something other than train, stop to be killed, and end.
    """
    console, kills = stdout(), plan_kills(run)
    image = out / "loss.png" if picture.can_draw() else None
    if image is None:
        # Now and not after the training, so that one can still decide to install it first.
        stderr().print("no picture will be drawn: it needs matplotlib, pip install 'segue\\[demo]'")
    if not json:
        told = demonstration.story(run)
        console.print(demonstration.render_plan(told, run, kills, _again(run, out)))
    began = time.monotonic()
    results = _train(run, kills, fresh_directory(out), console, json=json)
    if image is not None:
        picture.draw(results, kills, run, image)
    report = demonstration.report_of(run, kills, results, time.monotonic() - began, image)
    if not json:
        runs = out / RUNS
        console.print(demonstration.render_report(report))
        console.print(_epilogue(report, [
            *([str(image)] if image is not None else []),
            f"{_program()} list {runs}/segue/checkpoints",
            f"{_program()} diff {runs}/uninterrupted/final {runs}/state-dicts/final",
        ]))  # fmt: skip
    return report


def demonstrate_adapters(run: RunSettings, out: Path, *, json: bool) -> Report:
    """Make a base, train an adapter on it, kill, continue, compare, and examine the checkpoints.

    Raises:
        TrialFailed: If a process does something other than it was started for.
    """
    console, kills = stdout(), plan_kills(run)
    if not json:
        told = adaptation.story(run)
        console.print(demonstration.render_plan(told, run, kills, _again(run, out)))
    began = time.monotonic()
    directory = fresh_directory(out)
    settings = directory / "settings.json"
    run.write(settings)
    with _working(console, "making the base", shown=not json):
        run_to_end("segue.demo.base", settings)
    results = _train(run, kills, directory, console, json=json)
    with _working(console, "examining the checkpoints", shown=not json):
        run_to_end("segue.demo.evidence", settings)
    report = adaptation.report_of(
        run,
        demonstration.report_of(run, kills, results, time.monotonic() - began, None),
        Evidence.read(directory / EVIDENCE),
    )
    if not json:
        console.print(adaptation.render_report(report))
        console.print(_epilogue(report, [
            f"{_program()} inspect {directory}/segue/final",
            f"{_program()} diff {directory}/uninterrupted/final {directory}/segue/final",
            f"cmp -l {directory}/{BASE} {directory}/{OTHER_BASE}",
        ]))  # fmt: skip
    return report


def _train(
    run: RunSettings, kills: Sequence[Kill], directory: Path, console: Console, *, json: bool
) -> Mapping[Role, RunResult]:
    with demonstration.Bars(console, run, shown=not json) as bars:
        return run_trial(run, kills, directory, bars.observe)


def _working(console: Console, what: str, *, shown: bool) -> AbstractContextManager[object]:
    return console.status(what) if shown and console.is_terminal else nullcontext()


def _again(run: RunSettings, out: Path) -> str:
    words = [_program(), "demo", *(["--adapters"] if run.adapter else []), "--seed", str(run.seed)]
    words += ["--text", run.text] if run.text else []
    words += ["--out", str(out)] if out != Path("demo") else []
    if run.num_microbatches != RunSettings.num_microbatches:
        words += ["--microbatches", str(run.num_microbatches)]
    return shlex.join(words)


def _program() -> str:
    """Return what to type to run this command again: its path, where it is not the one on the search path."""
    given = sys.argv[0]
    if os.path.basename(given) != "segue" or os.path.dirname(
        shutil.which("segue") or given
    ) == os.path.dirname(given):
        return "segue"
    return os.path.relpath(given) if os.path.isabs(given) else given


def _epilogue(report: Report, lines: Sequence[str]) -> RenderableType:
    return Text(
        "\n".join([f"{report['seconds']:.0f} seconds; to look closer:", *(f"  {line}" for line in lines)]),
        "dim",
    )
