"""Everything at once, in three modes, cut at twenty boundaries and before the first: continued in a new process, the same bits."""

import itertools
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, replace
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


def cut_and_continued(plans):
    """Train to each cut, die there, and go on in a process of a new interpreter, with other seeds and hash seed.

    Returns:
        What each of those saw at each boundary.
    """
    for plan in plans:
        Path(plan.root).mkdir(exist_ok=True)
        assert in_new_process(carry_out, plan) == -signal.SIGKILL
    rest = [asdict(replace(plan, cut=None, seed=next(seeds))) for plan in plans]
    command = [sys.executable, "-m", "tests.exactness.twenty_cuts_plans", json.dumps(rest)]
    environment = {**os.environ, "PYTHONHASHSEED": str(rest[0]["seed"]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, timeout=600, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found = [seen(Path(plan.root)) for plan in plans]
    for plan, entries in zip(plans, found, strict=True):
        assert sorted(map(int, entries)) == list(range(plan.cut, TOTAL + 2))
    return found


@pytest.mark.exact
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("third", range(3))
@pytest.mark.parametrize("mode", MODES)
def test_cut_and_continued_in_a_new_process_it_ends_in_the_same_bits(
    mode, third, whole, tmp_path, record_property
):
    cuts = CUTS[third::3]
    found = cut_and_continued([Plan(mode, str(tmp_path / str(cut)), cut=cut) for cut in cuts])
    diverging = {cut: differing(whole(mode), entries) for cut, entries in zip(cuts, found, strict=True)}
    for cut, sections in diverging.items():
        where = "after a step" if cut % WINDOW == 0 else "in mid-window"
        verdict = (
            EXACT if not sections else f"DIVERGES at {min(sections)}: {', '.join(sections[min(sections)])}"
        )
        row = {"class": f"cut {cut:02d}", "options": where, "dtype": mode, "cut": "any", "verdict": verdict}
        record_property(*property_of(TABLE, row))
    assert not any(diverging.values()), diverging


def test_a_sample_of_the_cuts_ends_in_the_same_bits(whole, tmp_path):
    mode, cuts = QUICK
    found = cut_and_continued([Plan(mode, str(tmp_path / str(cut)), cut=cut) for cut in cuts])
    assert not any(differing(whole(mode), entries) for entries in found)


def check_noticed(losses, whole, root):
    plans = [Plan(LOSSES[lose].mode, str(root / lose), cut=LOST_AT, lose=lose) for lose in losses]
    found = [
        differing(whole(plan.mode), entries)
        for plan, entries in zip(plans, cut_and_continued(plans), strict=True)
    ]
    unnoticed = {
        lose: sections
        for lose, sections in zip(losses, found, strict=True)
        if not any(LOSSES[lose].shows_in in names for names in sections.values())
    }
    assert not unnoticed


def test_a_program_that_forgets_its_streams_or_its_position_is_noticed(whole, tmp_path):
    check_noticed(("the random streams", "the position in the data"), whole, tmp_path)


@pytest.mark.exact
@pytest.mark.timeout(1200)
def test_whatever_is_lost_is_noticed(whole, tmp_path):
    check_noticed(tuple(LOSSES), whole, tmp_path)


def test_the_scaler_takes_steps_and_skips_some(tmp_path):
    for mode, made in MODES.items():
        assert in_new_process(carry_out, Plan(mode, str(tmp_path))) == 0
        steps = json.loads((tmp_path / "steps.json").read_text())
        assert (0 < steps < TOTAL // WINDOW) if made.scaler else (steps == TOTAL // WINDOW)
