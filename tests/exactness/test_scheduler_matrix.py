"""The claim: cut anywhere, under any schedule, a training goes on in a new process with the same bits of everything."""

import copy
import itertools

import pytest
import torch
from torch.optim import SGD
from torch.optim.lr_scheduler import ExponentialLR, LambdaLR, OneCycleLR, SequentialLR

import segue
from segue.errors import MismatchError, UnsupportedState
from tests.exactness import scheduled_runs, seen
from tests.exactness.matrix import property_of
from tests.exactness.processes import in_new_process
from tests.exactness.scheduled_runs import CUTS, Case, Run, fresh, model_of, optimizer_of, outcome
from tests.exactness.scheduler_table import DTYPES, OF_TRANSFORMERS, VARIANTS, classes_of_torch

seeds = itertools.count(3000)


def cases_of(name):
    return tuple(Case(name, dtype, rate) for rate in VARIANTS[name].rates for dtype in DTYPES)


def sample():
    """One variant of each class of torch, and of one's own, in the two ways that differ most."""
    names = {variant.class_name: name for name, variant in VARIANTS.items() if name not in OF_TRANSFORMERS}
    ways = itertools.cycle([("fp32", "float"), ("bf16", "tensor")])
    return tuple(Case(name, *next(ways), sampled=True) for name in names.values())


def chunks():
    """Return the cases of each class, which share processes; those of transformers together, as its import takes seconds."""
    found = {}
    for name, variant in VARIANTS.items():
        chunk = "transformers" if name in OF_TRANSFORMERS else variant.class_name
        found.setdefault(chunk, []).extend(cases_of(name))
    return {chunk: tuple(cases) for chunk, cases in found.items()}


CHUNKS = chunks()


def carried_out(cases, root):
    assert in_new_process(scheduled_runs.record, cases, str(root)) == 0
    assert in_new_process(scheduled_runs.go_on, cases, str(root), next(seeds)) == 0


def rows(cases, root):
    for case in cases:
        variant = VARIANTS[case.variant]
        options = ", ".join(filter(None, [variant.options, {"none": ""}.get(case.rate, f"{case.rate} lr")]))
        for cut, order in case.ways:
            verdict = outcome(case, root, cut, order)
            yield {
                "class": variant.class_name,
                "options": options,
                "dtype": case.dtype,
                "cut": f"{cut}, {order}",
                "verdict": verdict,
            }


def assert_exact(found):
    wrong = [row for row in found if row["verdict"] != "exact"]
    assert not wrong, "\n".join(map(str, wrong))


def test_every_class_of_torch_is_in_the_table():
    assert classes_of_torch() - {variant.class_name for variant in VARIANTS.values()} == set()
    assert len(VARIANTS) >= 28


def test_a_sample_of_every_class_goes_on_with_the_same_bits(tmp_path):
    carried_out(sample(), tmp_path)
    assert_exact(rows(sample(), tmp_path))


@pytest.mark.exact
@pytest.mark.parametrize("chunk", CHUNKS)
def test_every_schedule_goes_on_with_the_same_bits(chunk, tmp_path, record_property):
    carried_out(CHUNKS[chunk], tmp_path)
    found = list(rows(CHUNKS[chunk], tmp_path))
    for row in found:
        record_property(*property_of("schedulers", row))
    assert_exact(found)


# The rates that torch's own state dictionaries leave behind are wrong, if a schedule is built after its optimizer was
# loaded (torch 2.13); of what people write, the other options that it moves.
WRONG_BY_TORCH = {
    "LambdaLR", "ConstantLR", "LinearLR", "CosineAnnealingWarmRestarts", "CyclicLR", "OneCycleLR", "SequentialLR",
    "ChainedScheduler", "WeightDecayRamp", "OwnClock",
}  # fmt: skip


def fresh_case(name):
    case = Case(name, "fp32", "float")
    return case, fresh(case, seed=7)


def at_cut(name):
    case, run = fresh_case(name)
    for number in range(CUTS["after the step"]):
        run.act(number)
    return case, run


def captured_at_cut(run, cut):
    training = run.training()
    for number in range(CUTS[cut]):
        run.act(number)
    return training.capture({"losses": run.losses})


def by_torch(case, run):
    """Resume as torch's tutorials do, but for the order: the schedule is built when the optimizer has been loaded."""
    model = model_of(case)
    model.load_state_dict(run.model.state_dict())
    for parameter, other in zip(model.parameters(), run.model.parameters(), strict=True):
        parameter.grad = None if other.grad is None else other.grad.clone()
    optimizer = optimizer_of(case, model)
    optimizer.load_state_dict(copy.deepcopy(run.optimizer.state_dict()))
    resumed = Run(case, model, optimizer)
    resumed.scheduler.load_state_dict(copy.deepcopy(run.scheduler.state_dict()))
    resumed.losses = run.losses
    return resumed


def differing(run, other):
    before, after = run.seen(), other.seen()
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_the_comparison_notices_what_torch_does_in_the_other_order():
    noticed = {}
    for name in VARIANTS:
        if name not in OF_TRANSFORMERS and "built-in" not in name:  # torch can't save that
            found = differing(at_cut(name)[1], by_torch(*at_cut(name)))
            noticed.setdefault(VARIANTS[name].class_name, set()).update(found)
    assert {name for name, found in noticed.items() if "options of optimizer" in found} == WRONG_BY_TORCH
    assert set().union(*noticed.values()) <= {"options of optimizer", "scheduler schedule"}


def test_an_optimizer_that_was_restored_by_hand_is_no_other_request_when_its_schedule_is_made_then():
    for name in ("StepLR", "OneCycleLR two phases", "SWALR cos", "WeightDecayRamp weight decay"):
        case, run = fresh_case(name)
        made = captured_at_cut(run, "after the move")
        assert differing(run, scheduled_runs.resumed(case, made, "optimizer first")) == set()


SPOILS = {
    "a position": (lambda run: setattr(run.scheduler, "last_epoch", 3), "scheduler schedule"),
    "the kind of a number": (lambda run: setattr(run.scheduler, "_step_count", 3.0), "scheduler schedule"),
    "an attribute": (lambda run: vars(run.scheduler).pop("_last_lr"), "scheduler schedule"),
    "a rate": (lambda run: run.optimizer.param_groups[1].update(lr=0.1), "options of optimizer"),
    "the kind of a rate": (
        lambda run: run.optimizer.param_groups[0].update(lr=torch.tensor(run.optimizer.param_groups[0]["lr"])),
        "options of optimizer",
    ),
    "a key of the user": (lambda run: run.optimizer.param_groups[1].pop("tag"), "options of optimizer"),
    "a moment": (lambda run: next(iter(run.optimizer.state.values()))["momentum_buffer"].mul_(-1), "state of optimizer"),
    "a gradient": (lambda run: run.optimizer.zero_grad(), "gradients"),
    "a shared tensor": (
        lambda run: next(iter(run.optimizer.state.values())).update(momentum_buffer=run.model[0].weight.data),
        "shared",
    ),
}  # fmt: skip


@pytest.mark.parametrize("spoil", SPOILS)
def test_the_comparison_notices_a_loss_and_names_its_section(spoil):
    (_, run), (_, other) = at_cut("CosineAnnealingLR"), at_cut("CosineAnnealingLR")
    assert differing(run, other) == set()
    change, section = SPOILS[spoil]
    change(other)
    assert section in differing(run, other)


def test_a_schedule_that_begins_where_another_has_put_the_rate_is_refused_when_it_is_made_last():
    # OneCycleLR writes `initial_lr`, so of a restored optimizer nobody can tell what the first part has begun from.
    case, run = fresh_case("SequentialLR with a one-cycle")
    made = captured_at_cut(run, "after the move")
    with pytest.raises(MismatchError) as caught:
        scheduled_runs.resumed(case, made, "scheduler last")
    assert {finding.code for finding in caught.value.findings} == {"scheduler.schedule.0.base_lrs"}


def test_a_function_that_keeps_the_live_rate_is_refused_as_its_schedule_moves_that():
    # As transformers' polynomial decay does, which keeps `optimizer.defaults["lr"]`.
    model = torch.nn.Linear(2, 1)
    optimizer = SGD(model.parameters(), lr=torch.tensor(0.1))
    start = optimizer.defaults["lr"]
    scheduler = LambdaLR(optimizer, lambda epoch: 1 / (1 + epoch * start))
    training = segue.Training(model, optimizer, scheduler)
    training.capture()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    scheduler.step()
    before = seen.sections(model, {"optimizer": optimizer}, {"schedule": scheduler})
    with pytest.raises(UnsupportedState, match="use an object with `__call__`") as caught:
        training.capture()
    assert caught.value.code == "capture.changed_function"
    assert seen.sections(model, {"optimizer": optimizer}, {"schedule": scheduler}) == before


def test_what_torch_nests_is_in_the_table_and_the_rest_torch_refuses_itself():
    optimizer = SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    parts = [ExponentialLR(optimizer, 0.9), SequentialLR(optimizer, [OneCycleLR(optimizer, 0.1, 4)], [])]
    nested = SequentialLR(optimizer, parts, [1])
    optimizer.step()
    with pytest.raises(NotImplementedError):
        nested.step()
