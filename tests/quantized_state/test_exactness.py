"""The claim, for quantized state: cut anywhere and continued in a new process, a training ends in the same bits.

One process trains every case and saves at every boundary; another, under another seed and hash seed, builds each
training anew, restores it from disk and goes on. Every boundary is compared by digests of everything.
"""

import pytest

from tests.quantized_state.plans import TOTAL, Plan
from tests.quantized_state.processes import assert_same, carried_out

QUICK = (
    "ao-8bit", "ao-4bit-bf16-stochastic", "ao-fp8-bf16", "bnb-adamw-8bit", "bnb-adamw-32bit", "bnb-lion-8bit-bf16",
    "bnb-ademamix-8bit", "base-int8-dynamic", "base-float8", "base-mxfp4", "base-nvfp4-scaled", "base-nf4",
    "trained-int8-and-ao-8bit",
)  # fmt: skip
# In the middle of a window, with a gradient pending; and after an update.
CUTS = (3, 6)
FAMILIES = ("TORCHAO", "BITSANDBYTES", "MODELS")


def test_cut_and_continued_in_a_new_process(trainings, tmp_path):
    check(QUICK, CUTS, tmp_path)


@pytest.mark.exact
@pytest.mark.parametrize("family", FAMILIES)
def test_cut_at_every_boundary_and_continued_in_a_new_process(family, trainings, tmp_path):
    check(tuple(getattr(trainings, family)), tuple(range(1, TOTAL)), tmp_path)


@pytest.mark.exact
@pytest.mark.parametrize("case", ["ao-8bit-bf16-stochastic", "trained-int8"])
def test_cut_and_continued_with_a_compiled_step(case, trainings, tmp_path):
    check((case,), (5,), tmp_path, compiled=True)


def check(cases, cuts, root, **options):
    carried_out(Plan(cases, str(root), seed=7, **options), hash_seed=1)
    carried_out(Plan(cases, str(root), cuts, seed=1000, **options), hash_seed=2)
    for case in cases:
        for cut in cuts:
            assert_same(root, case, cut, TOTAL)


@pytest.mark.exact
def test_the_comparison_notices_state_that_is_lost(trainings, tmp_path):
    case = "bnb-adamw-8bit"
    carried_out(Plan((case,), str(tmp_path), seed=7), hash_seed=1)
    carried_out(Plan((case,), str(tmp_path), (4,), seed=1000, lose_state=True), hash_seed=2)
    with pytest.raises(AssertionError, match="optimizers"):
        assert_same(tmp_path, case, 4, TOTAL)
