"""Killed at any moment, not only at boundaries: in a forward, in a backward, in the middle of a write."""

import itertools
import random
import signal

import pytest

from tests.exactness.plans import Plan
from tests.exactness.processes import expect_end, forked, killed_after
from tests.exactness.traces import assert_same

MODES = ("adamw-foreach-fp32", "adamw-fused-bf16", "autocast-bf16", "autocast-fp16-scaler")


def storm(mode, root, total, at_least):
    """Start and kill a training until it ends; return how often it was killed."""
    chance = random.Random(0)
    seeds = itertools.count(1000)
    kills = 0
    while True:
        # Before anything is saved a program begins anew, and then it is the seed that makes it the same.
        saved = any((root / "run").glob("ckpt-*"))
        plan = Plan(mode, str(root), seed=next(seeds) if saved else 7, total=total)
        patience = chance.uniform(0.02, 0.3) if kills < at_least else 60
        code = killed_after(plan, patience)
        if code == 0:
            return kills
        assert code == -signal.SIGKILL
        kills += 1


def check(mode, tmp_path, total, at_least):
    reference, root = tmp_path / "reference", tmp_path / "storm"
    plan = Plan(mode, str(reference), seed=7, total=total)
    expect_end(plan, forked(plan))
    kills = storm(mode, root, total, at_least)
    assert_same(reference, root, reaches=total)
    assert kills > at_least // 2


@pytest.mark.exact
def test_killed_at_random_moments(tmp_path):
    check("adamw-foreach-fp32", tmp_path, total=120, at_least=12)


@pytest.mark.soak
@pytest.mark.parametrize("mode", MODES)
def test_killed_at_many_random_moments(mode, tmp_path):
    check(mode, tmp_path, total=1000, at_least=300)
