"""`segue list` and `segue verify`: the checkpoints of a run, and whether they are intact."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

import segue
from segue._store import layout
from segue._store.file_store import FileStore
from segue._store.reader import CheckpointInfo
from segue._store.store import DirectoryStore
from segue._store.url import local_path
from segue.cli.exit_codes import ExitCode, exit_code
from segue.cli.terminal import count, size
from segue.errors import CheckpointNotFound, StoreError

Report = Mapping[str, Any]


def list_run(url: str) -> Report:
    """List the checkpoints of a run by their manifests, newest first; damaged ones with what is wrong.

    Raises:
        CheckpointNotFound: If there is no such folder.
        StoreUnavailable: If it can't be listed.
    """
    path = local_path(url)
    store = FileStore(path) if os.path.isfile(path) else DirectoryStore(path)
    found = [_entry(candidate.path, partial(store.summary, candidate)) for candidate in store.candidates()]
    if os.path.isfile(path):
        return {"path": path, "checkpoints": found, "unfinished": []}
    if not found and not os.path.isdir(path):
        raise CheckpointNotFound("no such run", where=path)
    if not found and not os.path.exists(os.path.join(path, layout.RUN_FILE)):
        is_checkpoint = os.path.exists(os.path.join(path, layout.MANIFEST_FILE))
        hint = "this is one checkpoint: `segue inspect` shows it" if is_checkpoint else None
        raise CheckpointNotFound("not the folder of a run", where=path, hint=hint)
    return {"path": path, "checkpoints": found, "unfinished": _unfinished(path)}


def verify_any(url: str, observe: Callable[[int, int], None]) -> Report:
    """Read every byte of a checkpoint, or of all checkpoints of a run, and compare it with its checksum.

    Args:
        url: Of a checkpoint or a run.
        observe: Called with how many checkpoints are done, of how many.

    Raises:
        CheckpointNotFound: If there is nothing to verify.
        StoreUnavailable: If a run can't be listed.
    """
    path = local_path(url)
    paths = (
        [] if os.path.isfile(path) else [candidate.path for candidate in DirectoryStore(path).candidates()]
    )
    if not paths and os.path.exists(os.path.join(path, layout.RUN_FILE)):
        raise CheckpointNotFound("the run has no checkpoint yet", where=path)
    found = []
    for done, each in enumerate(paths or [path]):
        observe(done, len(paths) or 1)
        found.append(_entry(each, partial(segue.verify, each)))
    return {"path": path, "intact": all(entry["error"] is None for entry in found), "checkpoints": found}


def verdict_code(report: Report) -> ExitCode:
    """Return the gravest exit code among the checkpoints of a report."""
    return max((ExitCode(entry["exit_code"]) for entry in report["checkpoints"]), default=ExitCode.FINE)


def _entry(path: str, look: Callable[[], CheckpointInfo]) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": os.path.basename(path), "path": path, "seq": layout.checkpoint_seq(os.path.basename(path)),
        "step": None, "microbatch": None, "num_bytes": None, "saved": _saved(path), "error": None,
        "exit_code": int(ExitCode.FINE),
    }  # fmt: skip
    try:
        info = look()
    except StoreError as error:
        problem = {"code": error.code, "what": error.what, "where": error.where, "message": str(error)}
        return {**entry, "error": problem, "exit_code": int(exit_code(error))}
    return {
        **entry,
        "seq": info.seq,
        "step": info.step,
        "microbatch": info.microbatch,
        "num_bytes": info.num_bytes,
    }


def _saved(path: str) -> str | None:
    """Return when the commit line, or the one file, was written, by its own clock; copying may have changed it."""
    last_written = path if os.path.isfile(path) else os.path.join(path, layout.COMMIT_FILE)
    try:
        moment = os.stat(last_written).st_mtime
    except OSError:
        return None
    return datetime.fromtimestamp(moment).astimezone().isoformat(timespec="seconds")


def _unfinished(path: str) -> list[str]:
    return sorted(name for name in os.listdir(path) if layout.is_litter(name))


def render_list(report: Report) -> RenderableType:
    """Lay out what `list_run` returns."""
    parts: list[RenderableType] = [_table(report, fine="")]
    if not report["checkpoints"]:
        parts = [Text("no checkpoints yet")]
    if report["unfinished"]:
        parts.append(
            Text(
                f"{count(len(report['unfinished']), 'unfinished attempt')}; the next writer removes it", "dim"
            )
        )
    return Group(*parts)


def render_verification(report: Report) -> RenderableType:
    """Lay out what `verify_any` returns; the message of each damaged checkpoint below the table."""
    messages = [Text(entry["error"]["message"]) for entry in report["checkpoints"] if entry["error"]]
    return Group(_table(report, fine="intact"), *messages)


def _table(report: Report, fine: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("checkpoint", no_wrap=True)
    for label in ("step", "microbatch", "size"):
        table.add_column(label, justify="right")
    table.add_column("saved", no_wrap=True)
    table.add_column("")
    for entry in report["checkpoints"]:
        state = f"[red]{escape(entry['error']['what'])}[/]" if entry["error"] else f"[green]{fine}[/]"
        num_bytes = entry["num_bytes"]
        table.add_row(
            escape(entry["name"]), _number(entry["step"]), _number(entry["microbatch"]),
            "" if num_bytes is None else size(num_bytes), (entry["saved"] or "").replace("T", " ")[:19], state,
        )  # fmt: skip
    return table


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"
