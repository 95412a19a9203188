"""`segue demo`: how the runs look while they go on, and what came of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from segue.cli.exit_codes import ExitCode
from segue.cli.terminal import count
from segue.demo.kills import continued_from
from segue.demo.settings import Kill, Role, RunSettings
from segue.demo.trial import Progress as RunProgress
from segue.demo.trial import RunResult
from segue.demo.verdict import Comparison, compare, digest

Report = Mapping[str, Any]

_LABELS = {
    Role.UNINTERRUPTED: "uninterrupted",
    Role.SEGUE: "segue",
    Role.STATE_DICTS: "state dicts",
}


class Bars(AbstractContextManager["Bars"]):
    """A progress bar for each run, which falls back when the run does; nothing at all where it is no terminal."""

    def __init__(self, console: Console, run: RunSettings, *, shown: bool) -> None:
        self._progress = Progress(
            TextColumn("{task.description:<13}"), BarColumn(bar_width=32), MofNCompleteColumn(),
            TimeElapsedColumn(), TextColumn("{task.fields[note]}"),
            console=console, transient=True, disable=not (shown and console.is_terminal),
        )  # fmt: skip
        self._tasks: dict[Role, TaskID] = {
            role: self._progress.add_task(_LABELS[role], total=run.num_microbatches, note="starting")
            for role in run.roles
        }

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def observe(self, run: RunProgress) -> None:
        """Move the bar of a run to where the run is."""
        note = (
            "[green]finished[/]"
            if run.is_finished
            else f"killed {count(run.kills, 'time')}"
            if run.kills
            else ""
        )
        self._progress.update(self._tasks[run.role], completed=run.done, note=note)


def report_of(
    run: RunSettings,
    kills: Sequence[Kill],
    results: Mapping[Role, RunResult],
    seconds: float,
    picture: Path | None,
) -> Report:
    """Turn the results into the shape that `--json` prints."""
    whole = results[Role.UNINTERRUPTED]
    comparisons = {role: compare(whole, result) for role, result in results.items()}
    return {
        "identical": comparisons[Role.SEGUE].is_identical,
        "seed": run.seed,
        "text": run.text,
        "num_microbatches": run.num_microbatches,
        "num_steps": run.num_steps,
        "kills": [_kill(kill, run, results[Role.SEGUE]) for kill in kills],
        "runs": {role.value: _run(result, comparisons[role]) for role, result in results.items()},
        "picture": None if picture is None else str(picture),
        "seconds": round(seconds, 2),
    }


def verdict_code(report: Report) -> ExitCode:
    """Return the exit code of a report: that segue's run is identical, or not."""
    return ExitCode.FINE if report["identical"] else ExitCode.DIFFERS


def _kill(kill: Kill, run: RunSettings, killed: RunResult) -> Report:
    done = continued_from(kill, run)
    return {
        "microbatch": kill.microbatch,
        "during_save": kill.is_during_save,
        "written_of_checkpoint": killed.files_at_kill.get(kill.microbatch),
        "continued_from": done,
        "pending_microbatches": done % run.window_microbatches,
    }


def _run(result: RunResult, comparison: Comparison) -> Report:
    return {
        "num_processes": 1 + len(result.continued_from),
        "continued_from": result.continued_from,
        "num_losses": comparison.num_losses,
        "num_losses_differing": comparison.num_losses_differing,
        "first_differing": comparison.first_differing,
        "largest_difference": comparison.largest_difference,
        "num_replayed": comparison.num_replayed,
        "num_replayed_differing": comparison.num_replayed_differing,
        "sections_differing": list(comparison.sections_differing),
        "final_loss": result.final_losses()[-1],
        "digest": digest(result),
        "section_digests": result.digests,
        "seconds": round(result.seconds, 2),
    }


def story(run: RunSettings) -> tuple[str, ...]:
    """Say what is about to happen."""
    return (
        f"A transformer learns {source(run)} in {run.num_steps} steps.",
        "One run is left alone; two are killed three times and go on in new processes.",
    )


def source(run: RunSettings) -> str:
    """Name the text."""
    return "the language reference inside CPython" if run.text is None else run.text


def render_plan(told: Sequence[str], run: RunSettings, kills: Sequence[Kill], again: str) -> RenderableType:
    """Lay out the story, the command that repeats it, and the places of the kills."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("SIGKILL at", justify="right")
    table.add_column("")
    table.add_column("segue's last checkpoint")
    for kill in kills:
        table.add_row(f"microbatch {kill.microbatch}", *_place(kill, run))
    return Group(
        *map(Text, told),
        Text(f"Repeat it with: {again}", style="dim"),
        Text(), table, Text(),
    )  # fmt: skip


def _place(kill: Kill, run: RunSettings) -> tuple[str, str]:
    done = continued_from(kill, run)
    pending = done % run.window_microbatches
    place = "while writing its checkpoint" if kill.is_during_save else "in mid-computation"
    inside = f"{pending} of {run.window_microbatches} into a window" if pending else "between windows"
    return place, f"{done}, {inside}"


def render_report(report: Report) -> RenderableType:
    """Lay out what `report_of` returns: the table, and the verdict last."""
    return Group(render_runs(report), render_verdict(report))


def render_runs(report: Report) -> RenderableType:
    """Lay out the runs side by side."""
    runs = {Role(name): run for name, run in report["runs"].items()}
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
    table.add_column("")
    for role, run in runs.items():
        table.add_column(_LABELS[role], justify="right", style=_style(role, run))
    for label, tell in _ROWS:
        table.add_row(label, *map(tell, runs.values()))
    return table


def _style(role: Role, run: Report) -> str | None:
    if role is Role.UNINTERRUPTED:
        return None
    return "red" if _differs(run) else "green"


def _differs(run: Report) -> bool:
    return bool(run["num_losses_differing"] or run["num_replayed_differing"] or run["sections_differing"])


_ROWS: tuple[tuple[str, Callable[[Report], str]], ...] = (
    ("processes", lambda run: str(run["num_processes"])),
    ("continued from", lambda run: ", ".join(map(str, run["continued_from"])) or "-"),
    ("losses that differ", lambda run: f"{run['num_losses_differing']} of {run['num_losses']}"),
    ("first that differs", lambda run: str(run["first_differing"] or "-")),
    ("largest difference", lambda run: f"{run['largest_difference']:.3g}"),
    ("redone and differ", lambda run: f"{run['num_replayed_differing']} of {run['num_replayed']}"),
    ("final loss", lambda run: f"{run['final_loss']:.6f}"),
    ("state that differs", lambda run: "\n".join(run["sections_differing"]) or "-"),
    ("final digest", lambda run: str(run["digest"])[:16]),
)


def render_verdict(report: Report) -> Text:
    """Say whether segue's run is that which was left alone, in a line."""
    run = report["runs"][Role.SEGUE]
    if report["identical"]:
        text = Text("identical", style="bold green")
        told = f": all {run['num_losses']} losses and every bit of the final training"
        return text.append(told, style="not bold default")
    text = Text("different", style="bold red")
    told = (
        f": {run['num_losses_differing']} losses and {run['num_replayed_differing']} that were computed twice"
    )
    return text.append(
        f"{told}; {', '.join(run['sections_differing']) or 'no section'}", style="not bold default"
    )
