"""A comparison that can't fail proves nothing: whatever is lost in a resume, the traces part, and the message says where."""

import itertools
import shutil

import pytest

from tests.exactness.losses import LOSSES
from tests.exactness.plans import Plan
from tests.exactness.processes import expect_end, forked
from tests.exactness.traces import assert_same
from tests.exactness.trainings import MODES, TOTAL, WINDOW, Run, seed

# One microbatch into the third window: the occasional parameter has no gradient, and an odd number of Gaussians
# has been drawn from each stream.
BOUNDARY = 2 * WINDOW + 1
seeds = itertools.count(2000)


@pytest.fixture(scope="module")
def cut_run(tmp_path_factory):
    made = {}

    def make(mode):
        if mode not in made:
            reference, cut = tmp_path_factory.mktemp("reference"), tmp_path_factory.mktemp("cut")
            for root, stop_after in ((reference, None), (cut, BOUNDARY)):
                plan = Plan(mode, str(root), seed=7, stop_after=stop_after)
                expect_end(plan, forked(plan))
            made[mode] = reference, cut
        return made[mode]

    return make


def resumed(cut, root, mode, lose=None):
    shutil.copytree(cut, root)
    plan = Plan(mode, str(root), seed=next(seeds), lose=lose, total=BOUNDARY + 2)
    expect_end(plan, forked(plan))


@pytest.mark.parametrize("lose", LOSSES)
def test_a_loss_is_noticed_and_its_section_is_named(lose, cut_run, tmp_path):
    mode = "adamw-foreach-fp32" if lose.endswith("of the window") else "adamw-loop-fp32"
    mode = "masters-of-bf16-muon-beside-adamw" if lose == "masters" else mode
    reference, cut = cut_run(mode)
    resumed(cut, tmp_path / "run", mode, lose)
    with pytest.raises(AssertionError, match=rf"boundary {BOUNDARY + 1}: .*'live {LOSSES[lose].shows_in}'"):
        assert_same(reference, tmp_path / "run", reaches=BOUNDARY + 2)


def test_without_a_loss_nothing_is_noticed(cut_run, tmp_path):
    reference, cut = cut_run("adamw-loop-fp32")
    resumed(cut, tmp_path / "run", "adamw-loop-fp32")
    assert_same(reference, tmp_path / "run", reaches=BOUNDARY + 2)


def test_a_run_that_stops_too_early_is_noticed(cut_run):
    reference, cut = cut_run("adamw-loop-fp32")
    with pytest.raises(AssertionError):
        assert_same(reference, cut, reaches=TOTAL)


def test_the_mode_that_skips_updates_does_so():
    seed(7)
    run = Run(MODES["autocast-fp16-fused-skipping"])
    for number in range(TOTAL):
        run.microbatch(number)
    assert run.optimizer.state[run.net.norm.weight]["step"].item() < TOTAL // WINDOW
