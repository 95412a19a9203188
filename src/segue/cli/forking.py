"""`segue fork`: a new run from an old checkpoint."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

import segue
from segue._store.archive import open_checkpoint
from segue._store.url import local_path
from segue.cli.lineage import position
from segue.cli.terminal import size
from segue.errors import SkippedCheckpointWarning

Report = Mapping[str, Any]


def fork_run(checkpoint: str, into: str) -> Report:
    """Begin a new run from a checkpoint, or from the newest of a run that is intact.

    Raises:
        StoreError: As `segue.fork` does.
    """
    source, target = local_path(checkpoint), local_path(into)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = segue.fork(source, target)
    with open_checkpoint(made.checkpoint.path) as stored:
        run, origin = stored.manifest.run, stored.record().lineage[-1]["forked_from"]
    return {
        "path": made.path,
        "run": run,
        "checkpoint": asdict(made.checkpoint),
        "source": {"run": origin["run"], **asdict(made.source)},
        "passed_over": _passed_over(caught),
    }


def _passed_over(caught: list[warnings.WarningMessage]) -> list[str]:
    """Return what was said of damaged checkpoints; any other warning goes where warnings go."""
    for item in caught:
        if not issubclass(item.category, SkippedCheckpointWarning):
            warnings.warn_explicit(item.message, item.category, item.filename, item.lineno)
    return [str(item.message) for item in caught if issubclass(item.category, SkippedCheckpointWarning)]


def render_fork(report: Report) -> RenderableType:
    """Lay out what `fork_run` returns: what was passed over, what was copied, and where it is now."""
    source, made = report["source"], report["checkpoint"]
    of = f" of run {source['run']}" if source["run"] else ""
    at = position(source["step"], source["microbatch"])
    where = Text("copied  ", "bold").append(
        f"{os.path.basename(source['path'])}{of}{at and f' {at}'}", "not bold"
    )
    run = Text("into    ", "bold").append(
        f"run {report['run']}, {size(made['num_bytes'])} in {made['path']}", "not bold"
    )
    begin = (
        f'start the program with "{report["path"]}"; what it changes on purpose, resume(accept=[...]) admits'
    )
    return Group(*map(Text, report["passed_over"]), where, run, Text(begin, "dim"))
