"""What processes noted at each boundary, and how to say where two runs part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import segue

Trace = dict[int, dict[str, Any]]


def read(root: Path) -> list[Trace]:
    """Read the traces of all processes of a run, each by boundary."""
    traces = []
    for file in sorted(root.glob("trace-*.jsonl"), key=lambda path: path.stat().st_mtime_ns):
        # A process that was killed as it wrote leaves an unfinished last line.
        lines = [line for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]
        entries = [json.loads(line) for line in lines]
        traces.append({entry["microbatch"]: entry for entry in entries})
    return traces


def assert_same(reference: Path, other: Path, *, reaches: int) -> None:
    """Assert that every boundary of every process of `other` is the reference's, and that the last is reached.

    The message names the first boundary and its sections, and the first differing value where both were stored.
    """
    [expected] = read(reference)
    last = 0
    for trace in read(other):
        for boundary, entry in trace.items():
            sections = [name for name in entry if entry[name] != expected[boundary][name]]
            assert not sections, (
                f"boundary {boundary}: {sections} differ; {_first(reference, other, boundary)}"
            )
            last = max(last, boundary)
    assert last == reaches


def _first(reference: Path, other: Path, boundary: int) -> object:
    paths = [root / "run" / f"ckpt-{boundary:09d}" for root in (reference, other)]
    return segue.diff(*paths).first if all(path.exists() for path in paths) else "not stored"
