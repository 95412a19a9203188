"""Everything at once, in three modes, cut at twenty boundaries and before the first: continued in a new process, the same bits."""

import itertools
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.exactness.matrix import EXACT, property_of
from tests.exactness.processes import ROOT, in_new_process
from tests.exactness.twenty_cuts import CUTS, MODES, TOTAL, WINDOW
from tests.exactness.twenty_cuts_losses import LOSSES
from tests.exactness.twenty_cuts_plans import Plan, carry_out

TABLE = "20 cuts x 3 modes"
# Before the first microbatch, in mid-window, and behind the last batch of a pass.
QUICK = ("fp16 autocast, scaler, fused", (0, 6, 9))
# In mid-window and in the midst of the second pass; the occasional parameter has no gradient.
LOST_AT = 2 * WINDOW + 5
seeds = itertools.count(1000)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What the uninterrupted run sees at each boundary, by mode. It never saves, nor captures."""
    made = {}

    def make(mode):
        if mode not in made:
            root = tmp_path_factory.mktemp("whole")
            assert in_new_process(carry_out, Plan(mode, str(root))) == 0
            made[mode] = seen(root)
            assert sorted(map(int, made[mode])) == list(range(TOTAL + 2))
        return made[mode]

    return make


def seen(root: Path):
    return json.loads((root / "seen.json").read_text())


def differing(expected, found):
    """Return the sections that differ, by boundary."""
    sections = {
        int(boundary): [name for name in expected[boundary] if entry[name] != expected[boundary][name]]
        for boundary, entry in found.items()
    }
    return {boundary: names for boundary, names in sections.items() if names}


def cut_and_continued(plan):
    """Train to the cut, die there, and go on in a whole interpreter with another seed and hash seed."""
    assert in_new_process(carry_out, plan) == -signal.SIGKILL
    rest = replace(plan, cut=None, seed=next(seeds))
    command = [sys.executable, "-m", "tests.exactness.twenty_cuts_plans", rest.to_json()]
    environment = {**os.environ, "PYTHONHASHSEED": str(rest.seed), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, timeout=120, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found = seen(Path(plan.root))
    assert sorted(map(int, found)) == list(range(plan.cut, TOTAL + 2))
    return found


@pytest.mark.exact
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("mode", MODES)
def test_cut_and_continued_in_a_new_process_it_ends_in_the_same_bits(
    mode, cut, whole, tmp_path, record_property
):
    found = differing(whole(mode), cut_and_continued(Plan(mode, str(tmp_path), cut=cut)))
    where = "after a step" if cut % WINDOW == 0 else "in mid-window"
    verdict = EXACT if not found else f"DIVERGES at {min(found)}: {', '.join(found[min(found)])}"
    row = {"class": f"cut {cut:02d}", "options": where, "dtype": mode, "cut": "any", "verdict": verdict}
    record_property(*property_of(TABLE, row))
    assert not found


@pytest.mark.parametrize("cut", QUICK[1])
def test_a_sample_of_the_cuts_ends_in_the_same_bits(cut, whole, tmp_path):
    assert not differing(whole(QUICK[0]), cut_and_continued(Plan(QUICK[0], str(tmp_path), cut=cut)))


def lossy(names):
    return [pytest.param(name, marks=() if name in names else pytest.mark.exact) for name in LOSSES]


@pytest.mark.parametrize("lose", lossy(("the random streams", "the position in the data")))
def test_whatever_is_lost_is_noticed(lose, whole, tmp_path):
    loss = LOSSES[lose]
    found = differing(
        whole(loss.mode), cut_and_continued(Plan(loss.mode, str(tmp_path), cut=LOST_AT, lose=lose))
    )
    assert found, f"losing {lose} is not noticed"
    assert any(loss.shows_in in names for names in found.values()), found


def test_the_scaler_takes_steps_and_skips_some(tmp_path):
    for mode, made in MODES.items():
        assert in_new_process(carry_out, Plan(mode, str(tmp_path))) == 0
        steps = json.loads((tmp_path / "steps.json").read_text())
        assert (0 < steps < TOTAL // WINDOW) if made.scaler else (steps == TOTAL // WINDOW)
