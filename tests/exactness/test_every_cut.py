"""The claim: cut anywhere, continued in a new process under another seed, a training ends in the same bits."""

import itertools
import shutil
from pathlib import Path

import pytest

from tests.exactness.plans import Plan
from tests.exactness.processes import expect_end, forked, fresh
from tests.exactness.traces import assert_same
from tests.exactness.trainings import MODES, TOTAL, WINDOW

QUICK = ("adamw-foreach-fp32", "adamw-fused-bf16", "adamw-loop-bf16")
FRESH = (*QUICK, "adam-amsgrad-tensor-lr", "muon-beside-adamw", "autocast-fp16-fused-skipping")
seeds = itertools.count(1000)


def full(quick):
    """Mark the modes that only `make exact` runs."""
    return [pytest.param(mode, marks=() if mode in quick else pytest.mark.exact) for mode in MODES]


def go(plan, run=forked):
    expect_end(plan, run(plan))


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    made = {}

    def make(mode):
        if mode not in made:
            made[mode] = tmp_path_factory.mktemp(mode)
            go(Plan(mode, str(made[mode]), seed=7))
        return made[mode]

    return make


def cut(reference: Path, root: Path, boundary: int) -> Path:
    """Leave a run as it was when it was killed at this boundary."""
    shutil.copytree(reference / "run", root / "run")
    for checkpoint in (root / "run").glob("ckpt-*"):
        if int(checkpoint.name.removeprefix("ckpt-")) > boundary:
            shutil.rmtree(checkpoint)
    return root


@pytest.mark.parametrize("mode", full(QUICK))
def test_cut_once_at_each_microbatch(mode, reference, tmp_path):
    for boundary in range(1, TOTAL):
        root = cut(reference(mode), tmp_path / str(boundary), boundary)
        go(Plan(mode, str(root), seed=next(seeds)))
        assert_same(reference(mode), root, reaches=TOTAL)


@pytest.mark.parametrize("mode", full(QUICK[:1]))
def test_killed_at_every_microbatch_in_turn(mode, reference, tmp_path):
    kill_in_turn(mode, tmp_path, range(1, TOTAL + 1))
    assert_same(reference(mode), tmp_path, reaches=TOTAL)


@pytest.mark.parametrize("mode", MODES)
def test_killed_before_within_and_after_windows(mode, reference, tmp_path):
    kill_in_turn(mode, tmp_path, (WINDOW - 1, 2 * WINDOW, TOTAL - 1, TOTAL))
    assert_same(reference(mode), tmp_path, reaches=TOTAL)


def kill_in_turn(mode, root, boundaries):
    for index, boundary in enumerate(boundaries):
        go(Plan(mode, str(root), seed=7 if index == 0 else next(seeds), stop_after=boundary))


@pytest.mark.parametrize("mode", full(QUICK))
@pytest.mark.parametrize("save_every", [3, 5])
def test_killed_between_saves_some_microbatches_are_done_again(mode, save_every, reference, tmp_path):
    for index, boundary in enumerate((2, 7, 11)):
        first = Plan(
            mode, str(tmp_path), 7 if index == 0 else next(seeds), stop_after=boundary, save_every=save_every
        )
        # Nothing was saved yet at the first kill, so the second process begins anew, as it would by hand.
        go(first if index != 1 else Plan(mode, str(tmp_path), 7, stop_after=boundary, save_every=save_every))
    go(Plan(mode, str(tmp_path), seed=next(seeds), save_every=save_every))
    assert_same(reference(mode), tmp_path, reaches=TOTAL)


@pytest.mark.parametrize("mode", full(QUICK))
def test_preempted_in_mid_window_it_ends_by_itself_and_goes_on(mode, reference, tmp_path):
    moments = (1, 6, 11)
    for index, number in enumerate(moments):
        plan = Plan(
            mode, str(tmp_path), seed=7 if index == 0 else next(seeds), save_every=1000, preempt_in=number
        )
        go(plan)
    go(Plan(mode, str(tmp_path), seed=next(seeds), save_every=1000))
    saved = sorted(path.name for path in (tmp_path / "run").glob("ckpt-*"))
    assert saved == ["ckpt-000000001", "ckpt-000000002", "ckpt-000000003"]
    assert_same(reference(mode), tmp_path, reaches=TOTAL)


@pytest.mark.parametrize("mode", full(FRESH))
def test_continued_in_a_fresh_interpreter_with_another_hash_seed(mode, reference, tmp_path):
    boundary = WINDOW + 1 + list(MODES).index(mode) % (WINDOW - 1)
    root = cut(reference(mode), tmp_path, boundary)
    plan = Plan(mode, str(root), seed=next(seeds))
    expect_end(plan, fresh(plan, hash_seed=boundary))
    assert_same(reference(mode), root, reaches=TOTAL)


@pytest.mark.parametrize("mode", full(QUICK))
def test_a_run_that_is_captured_at_every_microbatch_is_the_run_that_never_was(mode, reference, tmp_path):
    go(Plan(mode, str(tmp_path), seed=7, save_every=None))
    assert_same(reference(mode), tmp_path, reaches=TOTAL)
