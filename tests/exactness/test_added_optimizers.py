"""The optimizers that people add, cut and continued in new processes as those of torch are.

torchao and bitsandbytes at every boundary, also compiled: `tests/quantized_state`.
"""

import importlib.util
import itertools

import pytest

from tests.exactness.added_optimizers import CONFIGURATIONS, FAMILIES
from tests.exactness.optimizer_runs import DTYPES, Case, Plan
from tests.exactness.optimizer_verdicts import (
    carried_out,
    carried_out_afresh,
    not_exact,
    refusal_of,
    report,
)

TABLE = "tests.exactness.added_optimizers"
SAMPLE = (
    "schedulefree AdamWScheduleFree foreach=True",
    "schedulefree RAdamScheduleFreeClosure foreach=False",
    "schedulefree ScheduleFreeWrapper of SGD weight_decay_at_y=0.1, r=0.5",
    "segue FP32Master of Muon max_norm=0.5, ns_steps=3",
    "segue FP32Master of NAdam foreach=True",
)
# What the libraries themselves can't do here.
REFUSED = {
    Case("bitsandbytes PytorchLARS momentum=0.9", "bf16"),
    Case("torchao AdamW4bit amsgrad=True", "bf16"),
    Case("torchao AdamW4bit amsgrad=True", "fp32"),
}


def plan_of(names, root):
    return Plan(tuple(itertools.starmap(Case, itertools.product(names, DTYPES))), str(root), TABLE)


def need(*libraries):
    for library in libraries:
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed")


def test_a_sample_goes_on_in_the_same_bits(tmp_path):
    need("schedulefree")
    assert not not_exact(carried_out(plan_of(SAMPLE, tmp_path)))


@pytest.mark.exact
@pytest.mark.parametrize("family", FAMILIES)
def test_every_optimizer_of_a_library_goes_on_in_the_same_bits(family, tmp_path, record_property):
    # The module that imports either of these imports both.
    need(*({"torchao", "bitsandbytes"} if family in ("torchao", "bitsandbytes") else {family}))
    plan = plan_of([made.name for made in FAMILIES[family]], tmp_path)
    found = carried_out_afresh(plan)
    report("optimizers that people add", plan, found, record_property)
    refused = {case for case in plan.cases if refusal_of(plan, case)}
    assert refused == REFUSED & set(plan.cases)
    assert not not_exact({case: by_cut for case, by_cut in found.items() if case not in refused})


def test_no_two_configurations_have_one_name():
    assert len(CONFIGURATIONS) == sum(map(len, FAMILIES.values()))


def test_a_cut_in_eval_mode_is_one_of_those_with_modes(tmp_path):
    need("schedulefree")
    found = carried_out(plan_of(["schedulefree SGDScheduleFree foreach=True"], tmp_path))
    assert {cut: verdict for by_cut in found.values() for cut, verdict in by_cut.items()} == dict.fromkeys(
        ("mid-window", "after a step", "after zero_grad", "in eval mode"), "exact"
    )
