"""The claim: whatever happens to an optimizer as a run goes on, one that is cut before, in or after it goes on exactly."""

import itertools

import pytest
import torch
from torch import nn
from torch.optim import SGD

import segue
from segue.errors import MismatchError, UnsupportedState
from tests.exactness import optimizer_lives, seen
from tests.exactness.lives import EVENT, LIVES, OPTIMIZERS
from tests.exactness.matrix import property_of
from tests.exactness.optimizer_lives import AROUND, CUTS, Case, act, born, look, outcome, state_of
from tests.exactness.processes import in_new_process

seeds = itertools.count(4000)
SAMPLE = tuple(
    Case(life, "AdamW" if "AdamW" in LIVES[life].kinds else LIVES[life].kinds[0], "fp32", AROUND)
    for life in LIVES
)


def cases_of(life):
    """Every optimizer that can live it; in bf16 with fewer cuts."""
    kinds = LIVES[life].kinds
    return tuple(
        [Case(life, kind, "fp32") for kind in kinds] + [Case(life, kind, "bf16", AROUND) for kind in kinds]
    )


def rows(cases, root):
    assert in_new_process(optimizer_lives.record, cases, str(root)) == 0
    assert in_new_process(optimizer_lives.go_on, cases, str(root), next(seeds)) == 0
    return [
        {
            "class": type(OPTIMIZERS[case.kind]([nn.Parameter(torch.ones(1, 1))], lr=0.1)).__name__,
            "options": case.life,
            "dtype": case.dtype,
            "cut": cut,
            "verdict": outcome(case, root, cut),
        }
        for case in cases
        for cut in case.cuts
    ]


def assert_exact(found):
    wrong = [row for row in found if row["verdict"] != "exact"]
    assert not wrong, "\n".join(map(str, wrong))


def test_a_sample_of_every_life_goes_on_with_the_same_bits(tmp_path):
    assert_exact(rows(SAMPLE, tmp_path))


@pytest.mark.exact
@pytest.mark.parametrize("life", LIVES)
def test_every_life_goes_on_with_the_same_bits(life, tmp_path, record_property):
    found = rows(cases_of(life), tmp_path)
    for row in found:
        record_property(*property_of("lives of optimizers", row))
    assert_exact(found)


def lived(life, kind="AdamW", acts=CUTS["long after"]):
    """Live a life for a while; return it with its last training, and a record of where it stands."""
    torch.manual_seed(7)
    run = born(Case(life, kind, "fp32"))
    training, optimizers = run.training(), run.optimizers
    for number in range(acts):
        act(run, number)
        if run.optimizers is not optimizers:
            training, optimizers = run.training(), run.optimizers
    return run, training, training.capture(state_of(run, acts))


def test_every_life_is_another_one():
    parameters = {}
    for life in LIVES:
        run, _, _ = lived(life)
        parameters[life] = seen.digests(seen.sections(run.net, run.optimizers, run.schedulers, run.losses))
    alike = [
        {one, other}
        for one, other in itertools.combinations(LIVES, 2)
        if parameters[one] == parameters[other]
    ]
    # What differs between these is only how a program gets there again.
    assert alike == [
        {"trained, then frozen", "trained, then frozen, by the record"},
        {"frozen, then trained", "frozen, then trained, by the record"},
    ]


MUST_PREPARE = {
    "a group added": "optimizer.optimizer.groups",
    "an empty group filled": "optimizer.optimizer.missing.late.weight",
    "a group emptied": "optimizer.optimizer.extra.head.weight",
    "a group removed": "optimizer.optimizer.groups",
    "groups held by others": "optimizer.optimizer.groups",
    "made anew as another": "optimizer.optimizer.class",
}


@pytest.mark.parametrize("life", MUST_PREPARE)
def test_a_program_that_does_not_look_into_the_record_is_refused_and_nothing_changes(life):
    _, _, record = lived(life)
    run = born(Case(life, "AdamW", "fp32"))
    training = run.training()
    for number in range(6):
        act(run, number)
    before = look(run)
    with pytest.raises(MismatchError) as caught:
        training.restore(record)
    assert MUST_PREPARE[life] in [finding.code for finding in caught.value.findings]
    assert look(run) == before


def test_a_run_that_has_added_a_group_is_not_rolled_back_behind_that():
    run, training, _ = lived("a group added", acts=2 * EVENT)
    early = training.capture()
    for number in range(2 * EVENT, CUTS["long after"]):
        act(run, number)
    before = look(run)
    with pytest.raises(
        MismatchError, match="came later than the record: resume first, then `add_param_group`"
    ):
        training.restore(early)
    assert look(run) == before


def test_unfreezing_twice_is_torchs_own_error_and_leaves_a_resumed_run_as_it_is():
    _, _, record = lived("a group added")
    run = born(Case("a group added", "AdamW", "fp32"))
    run.prepare(record)
    run.training().restore(record)
    before = look(run)
    run.unfreeze()
    assert look(run) == before
    with pytest.raises(ValueError, match="more than one parameter group"):
        run.optimizer.add_param_group({"params": [run.net.late.weight]})
    assert look(run) == before


def test_wrappers_hold_the_groups_that_were_restored():
    _, _, record = lived("groups held by others")
    run = born(Case("groups held by others", "AdamW", "fp32"))
    held, group = run.warmup.param_groups, run.strength.group
    run.prepare(record)
    run.training().restore(record)
    assert held is run.optimizer.param_groups
    assert group is held[0]
    assert group["strength"] == record.optimizers["optimizer"].groups[0].options["strength"] != 1.0


@pytest.mark.parametrize("value", [object(), lambda: 1, {"deep": [object()]}, nn.Parameter(torch.ones(1))])
def test_a_key_of_the_user_that_can_not_be_kept_is_refused_with_its_place_and_nothing_changes(value):
    run, training, _ = lived("uneventful")
    run.optimizer.param_groups[1]["mine"] = value
    before = look(run)
    with pytest.raises(UnsupportedState) as caught:
        training.capture()
    assert "group 1 mine" in caught.value.where
    assert look(run) == before


def without_first(groups):
    """Make an optimizer of three groups, and take the first one out, as the run did."""
    model = nn.Sequential(*[nn.Linear(1, 1) for _ in range(3)])
    rates = (0.05, 0.02, 0.01)
    made = SGD([{"params": part.parameters(), "lr": rate} for part, rate in zip(model, rates, strict=True)])
    training = groups(model, made)
    model[0].requires_grad_(False)
    made.param_groups.pop(0)
    return model, made, training


def test_a_group_that_is_taken_out_takes_what_was_asked_for_it():
    _, optimizer, training = without_first(lambda model, made: segue.Training(model, made, rng=None))
    for group in optimizer.param_groups:
        group["lr"] *= 0.5
    record = training.capture()
    assert [group.configured["lr"] for group in record.optimizers["optimizer"].groups] == [0.02, 0.01]
    model, optimizer, _ = without_first(lambda model, made: None)
    segue.Training(model, optimizer, rng=None).restore(record)
