"""`segue demo --adapters`: what is said of an adapter and its base, and of the three checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from segue.cli.demonstration import Report, render_runs, render_verdict, source
from segue.cli.exit_codes import ExitCode
from segue.cli.terminal import count, size
from segue.demo.base import NUM_STEPS
from segue.demo.evidence import BLOCK_BYTES, Evidence
from segue.demo.settings import RunSettings

_PLAIN = "not bold default"
_MOST_NAMES = 3
_ABSENT, _REFUSED, _IDENTICAL = "base_is_absent", "other_base_is_refused", "identical"


def story(run: RunSettings) -> tuple[str, ...]:
    """Say what is about to happen."""
    return (
        f"The base is a transformer, frozen after {NUM_STEPS} steps on a text inside CPython.",
        f"A LoRA adapter on it learns {source(run)} in {run.num_steps} steps.",
        "One run is left alone; one is killed three times and goes on in new processes.",
    )


def report_of(run: RunSettings, trained: Report, evidence: Evidence) -> Report:
    """Add what was examined to the report of the runs.

    Args:
        run: With an adapter.
        trained: From `demonstration.report_of`.
        evidence: From the process that examined.
    """
    search, refusal = evidence.search, evidence.refusal
    return {
        **trained,
        "adapter": None if run.adapter is None else asdict(run.adapter),
        "checks": {
            _ABSENT: {"passed": search.has_passed, **asdict(search)},
            _REFUSED: {"passed": refusal.has_passed, **asdict(refusal)},
            _IDENTICAL: {"passed": trained["identical"]},
        },
    }


def verdict_code(report: Report) -> ExitCode:
    """Return the exit code of a report: that all three checks have passed, or not."""
    has_passed = all(check["passed"] for check in report["checks"].values())
    return ExitCode.FINE if has_passed else ExitCode.DIFFERS


def render_report(report: Report) -> RenderableType:
    """Lay out what `report_of` returns: the table, and a line for each check, with its evidence below."""
    checks = report["checks"]
    return Group(
        render_runs(report), _absence(checks[_ABSENT]), _refusal(checks[_REFUSED]), render_verdict(report)
    )


def _absence(check: Mapping[str, Any]) -> RenderableType:
    sizes = f"{size(check['num_checkpoint_bytes'])} beside a base of {size(check['num_base_bytes'])}"
    found = (
        f"{check['num_base_blocks_found']:,} of the base's {check['num_base_blocks']:,} {BLOCK_BYTES}-byte blocks are in "
        f"any of {count(check['num_checkpoints'], 'checkpoint')} ({size(check['num_searched_bytes'])})"
        f"{_listed(check['found_in'], ': ')}",
        "the same search finds the adapter's in the final one: "
        f"{check['num_adapter_blocks_found']:,} of {check['num_adapter_blocks']:,}",
        f"its model.safetensors {_names(check)}",
    )
    head = _head(check, "no byte of the base is in the checkpoint", "the checkpoint is not the adapter alone")
    return _laid_out(head.append(f": {sizes}", _PLAIN), *found)


def _names(check: Mapping[str, Any]) -> str:
    differences = [
        _listed(check["names_missing"], "lacks "),
        _listed(check["names_unexpected"], "also holds "),
    ]
    held = f"holds the adapter's {count(check['num_adapter_tensors'], 'tensor')} and nothing else"
    return ", ".join(filter(None, differences)) or held


def _refusal(check: Mapping[str, Any]) -> RenderableType:
    head = _head(check, "another base is refused", "another base is not refused as it must be")
    head.append(f": {check['difference']} is flipped", _PLAIN)
    if check["error"] is None:
        return _laid_out(head, "the checkpoint was restored over it")
    changed = _listed(check["changed"], "changed all the same: ") or "nothing of that training has changed"
    first, *rest = check["message"].splitlines()
    return _laid_out(head, f"{check['error']}: {first}", *rest, changed)


def _head(check: Mapping[str, Any], passed: str, failed: str) -> Text:
    return Text(passed, "bold green") if check["passed"] else Text(failed, "bold red")


def _listed(names: list[str] | tuple[str, ...], before: str) -> str:
    if not names:
        return ""
    more = f" and {len(names) - _MOST_NAMES:,} more" if len(names) > _MOST_NAMES else ""
    return before + ", ".join(names[:_MOST_NAMES]) + more


def _laid_out(head: Text, *lines: str) -> RenderableType:
    return Group(head, *map(_below, lines))


def _below(line: str) -> RenderableType:
    """Indent a line, and what of it must be wrapped."""
    told = line.lstrip()
    return Padding(Text(told, "dim"), (0, 0, 0, 2 + len(line) - len(told)), expand=False)
