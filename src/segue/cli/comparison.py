"""`segue diff`: what differs between two checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

import segue
from segue._record.diff import Difference, RecordDiff
from segue.cli.plain import plain
from segue.cli.terminal import count

Report = Mapping[str, Any]


def compare_checkpoints(left: str, right: str) -> Report:
    """Compare two stored checkpoints bit by bit.

    Raises:
        StoreError: If one can't be opened or is damaged.
    """
    return report_of(segue.diff(left, right), left, right)


def report_of(found: RecordDiff, left: str, right: str) -> Report:
    """Turn a diff into the shape that `--json` prints."""
    return {
        "left": left,
        "right": right,
        "identical": found.identical,
        "num_differences": len(found.differences),
        "first": _plain(found.first),
        "worst": _plain(found.worst),
        "differences": [_plain(item) for item in found.differences],
    }


def _plain(item: Difference | None) -> Any:
    return None if item is None else plain(asdict(item))


def render_comparison(report: Report, limit: int) -> RenderableType:
    """Lay out a report: the verdict, the first and the worst difference, and a table of up to `limit`."""
    if report["identical"]:
        return Text("identical: every bit of state is the same", style="bold green")
    sections = list(dict.fromkeys(item["section"] for item in report["differences"]))
    verdict = Text(
        f"{count(report['num_differences'], 'difference')} in {', '.join(sections)}", style="bold red"
    )
    parts: list[RenderableType] = [
        verdict,
        _named("first", report["first"]),
        _named("worst", report["worst"]),
        Text(),
    ]
    parts.append(_table(report["differences"][:limit]))
    hidden = report["num_differences"] - limit
    if hidden > 0:
        parts.append(Text(f"and {hidden:,} more; --limit shows more, --json all", style="dim"))
    return Group(*parts)


def _named(label: str, item: Report) -> Text:
    return Text(f"{label}: ", style="bold").append(
        f"{item['section']} {item['path']}: {_told(item)}", "not bold"
    )


def _told(item: Report) -> str:
    values = f"{item['left']} and {item['right']}"
    if not item["num_differing"]:
        return values
    text = f"{item['num_differing']:,} of {count(item['num_elements'], 'element')} differ"
    if item["max_ulps"] is not None:
        text += f", by up to {count(item['max_ulps'], 'ulp')}"
    return f"{text}; {values} at {item['first_index']}"


def _table(differences: list[Report]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("section", no_wrap=True)
    table.add_column("path", overflow="fold")
    for label in ("differing", "ulps", "largest"):
        table.add_column(label, justify="right")
    for item in differences:
        table.add_row(*(escape(cell) for cell in (item["section"], item["path"], *_cells(item))))
    return table


def _cells(item: Report) -> tuple[str, str, str]:
    if not item["num_differing"]:
        return f"{_short(item['left'])} | {_short(item['right'])}", "", ""
    ulps, absolute = item["max_ulps"], item["max_absolute"]
    largest = f"{absolute:.3g}" if isinstance(absolute, float) else str(absolute)
    return f"{item['num_differing']:,} of {item['num_elements']:,}", _compact(ulps), largest


def _compact(ulps: int | None) -> str:
    """Render a distance exactly while a person can take it in: beyond that, numbers of other sign or size."""
    if ulps is None:
        return ""
    return f"{ulps:,}" if ulps < 10_000_000 else f"{ulps:.1e}"


def _short(value: str) -> str:
    return value if len(value) <= 24 else value[:21] + "..."
