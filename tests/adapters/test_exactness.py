"""The claim, for adapters: cut anywhere and continued in a new process, beside the same base, a training ends in the same bits.

One process trains every case and saves the adapter at every boundary; another, under another seed and hash seed, builds
base and adapter anew, restores and goes on. Every boundary is compared by digests of everything.
"""

import pytest
from safetensors import safe_open

import segue
from tests.quantized_state.plans import TOTAL, Plan, checkpoint
from tests.quantized_state.processes import assert_same, carried_out

TRAININGS = "tests.adapters.trainings"
QUICK = ("lora-and-a-trained-head", "pissa", "two-adapters", "nf4-llama", "whole")
CUTS = (4, 6)


def test_cut_and_continued_in_a_new_process(trainings, tmp_path):
    check(QUICK, CUTS, tmp_path)
    for case in QUICK:
        assert_nothing_of_the_base(trainings.CASES[case], checkpoint(tmp_path, case, TOTAL))


@pytest.mark.exact
def test_cut_at_every_boundary_and_continued_in_a_new_process(trainings, tmp_path):
    check(tuple(trainings.CASES), tuple(range(1, TOTAL)), tmp_path)
    for name, case in trainings.CASES.items():
        assert_nothing_of_the_base(case, checkpoint(tmp_path, name, TOTAL))


@pytest.mark.exact
def test_the_whole_cut_at_every_microbatch_each_in_a_process_of_its_own(trainings, tmp_path):
    carried_out(Plan(("whole",), str(tmp_path), seed=7, trainings=TRAININGS), hash_seed=1)
    for cut in range(1, TOTAL):
        plan = Plan(("whole",), str(tmp_path), (cut,), seed=1000 + cut, trainings=TRAININGS)
        carried_out(plan, hash_seed=cut)
        assert_same(tmp_path, "whole", cut, TOTAL)


def check(cases, cuts, root):
    carried_out(Plan(cases, str(root), seed=7, trainings=TRAININGS), hash_seed=1)
    carried_out(Plan(cases, str(root), cuts, seed=1000, trainings=TRAININGS), hash_seed=2)
    for case in cases:
        for cut in cuts:
            assert_same(root, case, cut, TOTAL)


def assert_nothing_of_the_base(case, path):
    """The file of the model has what belongs to an adapter, or to a normalisation's statistics, and nothing else."""
    with safe_open(path / "model.safetensors", "pt") as file:
        names = list(file.keys())
    assert names
    own = ("lora_", "modules_to_save", "running_", "num_batches_tracked")
    assert all(any(mark in name for mark in own) for name in names), names
    record = segue.load(path)
    assert not any(any(mark in name for mark in own) for name in record.model.base.omitted)
