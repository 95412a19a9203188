"""What became of each case of a plan that two processes have carried out: its verdicts, and its rows in the matrix."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.exactness.matrix import EXACT, HOLE, REFUSES, property_of
from tests.exactness.optimizer_runs import Case, Plan, go_on, record
from tests.exactness.processes import ROOT, in_new_process

Verdicts = dict[str, str]
"""By cut."""


def carried_out(plan: Plan) -> dict[Case, Verdicts]:
    """Train all cases in one new process, go on with them in another; return what became of each."""
    assert in_new_process(record, plan) == 0
    assert in_new_process(go_on, replace(plan, seed=1000)) == 0
    return {case: verdicts(plan, case) for case in plan.cases}


def carried_out_afresh(plan: Plan) -> dict[Case, Verdicts]:
    """Do the same, and go on in a whole interpreter with another hash seed."""
    assert in_new_process(record, plan) == 0
    command = [
        sys.executable,
        "-m",
        "tests.exactness.optimizer_runs",
        replace(plan, seed=1000).to_json(),
    ]
    environment = {**os.environ, "PYTHONHASHSEED": "2", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, timeout=280, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return {case: verdicts(plan, case) for case in plan.cases}


def verdicts(plan: Plan, case: Case) -> Verdicts:
    """Tell for each cut whether the run that went on from there is the uninterrupted one, or why there is none."""
    refused = refusal_of(plan, case)
    if refused is not None:
        who = plan.configuration(case).library
        return {"any": f"{who}{REFUSES}{textwrap.shorten(refused, 34, placeholder='...')}"}
    whole = _read(plan.folder(case) / "whole.json")
    return {cut: _verdict(plan, case, cut) for cut in whole["cuts"]} if whole else {"any": HOLE}


def refusal_of(plan: Plan, case: Case) -> str | None:
    """Return what torch said where it refused a case, all of it."""
    found: str | None = _read(plan.folder(case) / "refusal.json")
    return found


def _verdict(plan: Plan, case: Case, cut: str) -> str:
    for file in ("saving.json", f"{cut}.json"):
        found = _read(plan.folder(case) / file)
        if found is None:
            return HOLE
        if "error" in found:
            return f"SEGUE REFUSES: {found['error'].splitlines()[0]}"
    for file in ("saving.json", f"{cut}.json"):
        for boundary, names in differing(plan, case, file).items():
            if names:
                what = "the run that saves " if file == "saving.json" else ""
                return f"{what}DIVERGES at act {boundary}: {', '.join(names[:3])}"
    return EXACT


def differing(plan: Plan, case: Case, file: str) -> dict[int, list[str]]:
    """Return what differs from the uninterrupted run at each boundary that a process has noted."""
    whole = _read(plan.folder(case) / "whole.json")["seen"]
    seen: dict[str, dict[str, str]] = _read(plan.folder(case) / file)["seen"]
    return {
        int(boundary): [
            name
            for name in {**found, **whole[boundary]}
            if found.get(name, "absent") != whole[boundary].get(name, "absent")
        ]
        for boundary, found in seen.items()
    }


def report(
    table: str, plan: Plan, found: dict[Case, Verdicts], record_property: Callable[[str, Any], None]
) -> None:
    """Report a row for each case and cut."""
    for case, by_cut in found.items():
        made = plan.configuration(case)
        for cut, verdict in by_cut.items():
            row = {"class": made.class_name, "options": made.label, "dtype": case.dtype}
            record_property(*property_of(table, {**row, "cut": cut, "verdict": verdict}))


def not_exact(found: dict[Case, Verdicts]) -> dict[Case, Verdicts]:
    """Return the cases that are not exact at every cut."""
    return {case: by_cut for case, by_cut in found.items() if set(by_cut.values()) != {EXACT}}


def _read(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else None
