"""Whole interpreters, since a fork server with both libraries would be one more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.quantized_state.plans import Plan

ROOT = Path(__file__).resolve().parents[2]


def carried_out(plan: Plan, hash_seed: int) -> None:
    """Carry out a plan in a new interpreter, and expect that it ends well."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.quantized_state.plans", plan.to_json()]
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, timeout=280, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


def seen(root: Path, case: str, cut: int) -> dict[str, Any]:
    """Read what a process saw at each boundary after a cut."""
    found: dict[str, Any] = json.loads((root / f"{case}-{cut}.json").read_text())
    return found


def assert_same(root: Path, case: str, cut: int, total: int) -> None:
    """Assert that a continuation saw the same bits as the uninterrupted run, at its cut and at every boundary after."""
    expected, found = seen(root, case, 0), seen(root, case, cut)
    assert sorted(map(int, found)) == list(range(cut, total + 1))
    for boundary, entry in found.items():
        differing = [name for name in entry if entry[name] != expected[boundary][name]]
        assert not differing, f"{case} cut at {cut}: {differing} differ at boundary {boundary}"
