"""Autocast and a gradient scaler that overflows: cut at any boundary a run goes on exactly, and at no odd moment is it cut."""

import itertools

import pytest
import torch
from torch import nn
from torch.optim import SGD

import segue
from segue.errors import NotAtBoundary
from tests.exactness import scaled_runs
from tests.exactness.live import Look
from tests.exactness.matrix import property_of
from tests.exactness.processes import in_new_process
from tests.exactness.scaled_runs import PAIRS, POLICIES, SCALES, TOTAL, Case, Run, outcome

# The first steps are skipped, and some schedules move all the same. And where one optimizer skips and the other does not,
# no schedule moves: the other's may be due, for all that a capture can see.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step"),
    pytest.mark.filterwarnings("ignore::segue.errors.ScheduleWarning"),
    pytest.mark.filterwarnings("ignore:state that segue can see"),  # `moments` counts on
]
seeds = itertools.count(5000)
CASES = tuple(Case(*case) for case in itertools.product(PAIRS, SCALES, POLICIES))
# Each pair, dtype and policy once, in mid-window and after an update.
SAMPLE = tuple(Case(pair, *way) for pair, way in zip(PAIRS, itertools.product(SCALES, POLICIES), strict=True))


def rows(cases, root, cuts):
    assert in_new_process(scaled_runs.record, cases, str(root), cuts) == 0
    assert in_new_process(scaled_runs.go_on, cases, str(root), cuts, next(seeds)) == 0
    return [
        {
            "class": case.pair,
            "options": f"scaler, {case.policy}",
            "dtype": f"autocast {case.autocast}",
            "cut": str(cut),
            "verdict": outcome(case, root, cut),
        }
        for case in cases
        for cut in cuts
    ]


def assert_exact(found):
    wrong = [row for row in found if row["verdict"] != "exact"]
    assert not wrong, "\n".join(map(str, wrong))


def test_a_sample_goes_on_with_the_same_bits_steps_and_skips(tmp_path):
    assert_exact(rows(SAMPLE, tmp_path, (5, 14)))


@pytest.mark.exact
@pytest.mark.parametrize("pair", PAIRS)
def test_every_pair_goes_on_with_the_same_bits_from_each_boundary(pair, tmp_path, record_property):
    cases = tuple(case for case in CASES if case.pair == pair)
    found = rows(cases, tmp_path, tuple(range(1, TOTAL)))
    for row in found:
        record_property(*property_of("scaling", row))
    assert_exact(found)


def trained(case, microbatches):
    torch.manual_seed(7)
    run = Run(case)
    for _ in range(microbatches):
        run.microbatch()
    return run


def counters(run):
    """Return every counter of a run, each where it is kept."""
    steps = [
        {int(state["step"]) for state in optimizer.state.values()} for optimizer in run.optimizers.values()
    ]
    return {
        "microbatches": run.counts["microbatches"],
        "updates": run.counts["updates"],
        "steps": steps,
        "moves": [scheduler.last_epoch for scheduler in run.schedulers.values()],
        "skipped": run.counts["skipped"],
        "growth": run.scaler.state_dict()["_growth_tracker"],
        "scale": run.scaler.get_scale(),
    }


@pytest.mark.parametrize("policy", POLICIES)
def test_counters_that_have_parted_come_back_each_as_it_was(policy):
    case = Case("Adam fused, NAdam", "fp16", policy)
    run = trained(case, TOTAL - 1)
    told = counters(run)
    # No two are equal, so that none could have been made from another.
    ours = [told["microbatches"], told["updates"], told["skipped"], *set.union(*told["steps"])]
    assert len(set(ours)) == len(ours)
    assert set(told["moves"]) == (
        {told["updates"] - told["skipped"]} if "taken" in policy else {told["updates"]}
    )
    record = run.training().capture({"counts": run.counts, "losses": run.losses})
    other = Run(case)
    state = other.training().restore(record)
    other.counts, other.losses = state["counts"], state["losses"]
    assert counters(other) == told


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.folder)
def test_the_scale_overflows_and_some_updates_are_skipped(case):
    run = trained(case, TOTAL)
    assert 1 < run.counts["skipped"] < run.counts["updates"] - 4
    assert all(torch.isfinite(parameter).all() for parameter in run.net.parameters())
    assert torch.tensor(run.losses).isfinite().all()


PLACED = Look(placed=True)


def everything(run):
    """Everything live, and where it is; of the scaler also what no state dictionary has."""
    return (
        PLACED.module(run.net),
        [PLACED.optimizer(optimizer) for optimizer in run.optimizers.values()],
        [PLACED.scheduler(scheduler) for scheduler in run.schedulers.values()],
        [(key, _in_flight(value)) for key, value in vars(run.scaler).items()],
        (dict(run.counts), list(run.losses)),
    )


def _in_flight(value):
    if isinstance(value, dict):
        return [(key, _in_flight(item)) for key, item in value.items()]
    return PLACED.plain(value)


def test_no_capture_in_the_midst_of_an_update_and_nothing_changes_by_asking():
    case = Case("AdamW foreach, SGD", "fp16", "moves with taken steps")
    reference = trained(case, TOTAL)
    torch.manual_seed(7)
    run = Run(case)
    training = run.training()
    odd = set()
    for number in range(TOTAL):
        run.backward()
        training.capture()
        for moment in run.update() if number % 2 else ():
            before = everything(run)
            if moment == "updated":
                training.capture()
            else:
                with pytest.raises(NotAtBoundary, match="between `unscale_` and `update`") as caught:
                    training.capture()
                assert caught.value.where == "component.scaler"
                odd.add(moment)
            assert everything(run) == before
    assert odd == {"unscaled first", "unscaled second", "stepped first", "stepped second"}
    assert run.seen() == reference.seen()


def test_no_restore_in_the_midst_of_an_update_either():
    case = Case("AdamW foreach, SGD", "fp16", "moves with taken steps")
    run = trained(case, 4)
    training = run.training()
    record = training.capture()
    run.backward()
    run.backward()
    for _ in run.update():
        before = everything(run)
        if any(state["stage"].name != "READY" for state in run.scaler._per_optimizer_states.values()):
            with pytest.raises(NotAtBoundary):
                training.restore(record)
            assert everything(run) == before
    training.restore(record)


def test_an_optimizer_that_divides_by_itself_is_between_step_and_update_too():
    case = Case("fp32 masters of AdamW, SGD", "fp16", "moves with taken steps")
    run = trained(case, 4)
    training = run.training()
    run.backward()
    run.backward()
    moments = run.update()
    assert next(moments) == "unscaled second"
    assert next(moments) == "stepped first"
    before = everything(run)
    with pytest.raises(NotAtBoundary):
        training.capture()
    assert everything(run) == before


def test_what_was_unscaled_and_never_stepped_is_told_until_the_scaler_is_updated():
    # As of a program that gives up an update when it has looked at the gradients.
    net = nn.Linear(2, 1)
    optimizer = SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    training = segue.Training(net, optimizer, components={"scaler": scaler})
    scaler.scale(net(torch.ones(1, 2)).sum()).backward()
    scaler.unscale_(optimizer)
    optimizer.zero_grad()
    with pytest.raises(NotAtBoundary, match=r"scaler\.update\(\)"):
        training.capture()
    scaler.update()
    training.capture()
