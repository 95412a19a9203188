"""B18, B23 and B25: where a schedule stands, resumed in a new process."""

import dataclasses

import pytest
from torch import nn
from torch.optim import SGD, lr_scheduler

from segue import Training
from segue.errors import SchedulerMismatch, UnsupportedState
from tests.cases.schedule_runs import everything, in_two_processes
from tests.cases.scheduler_state_programs import METRICS, PRESENT, SCHEDULES, plateau
from tests.cases.state import stored


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return in_two_processes("tests.cases.scheduler_state_programs", tmp_path_factory.mktemp("schedulers"))


def rates(outcome):
    return [float(step[0][0][0]) for step in outcome["seen"]]


@pytest.mark.parametrize("built", ["fresh", "last_epoch"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_b18_the_rate_is_that_of_the_record_however_the_program_built_its_schedule(found, name, built):
    outcome = found[f"{name}/{built}"]
    assert outcome["seen"] == found[name]["seen"]
    assert rates(outcome)[0] == pytest.approx(PRESENT[name], abs=1e-12)
    assert found[name]["unchanged"]


def test_b18_a_sequence_goes_on_as_it_would_have(found):
    assert rates(found["SequentialLR/last_epoch"])[:2] == [0.9, 0.81]


def test_b23_a_plateau_with_all_fields_goes_on(found):
    assert found["plateau/same"]["seen"] == found["plateau"]["seen"]
    assert rates(found["plateau"]) == [1.0, 0.1, 0.1, 0.1, 0.1]


@pytest.mark.parametrize(
    ("name", "keys"), [("mode", ["mode"]), ("threshold", ["threshold"]), ("factor", ["factor"])]
)
def test_b23_another_configuration_is_refused_by_its_field_and_nothing_has_changed(found, name, keys):
    outcome = found[f"plateau/{name}"]
    assert outcome["refused"] == [f"scheduler.scheduler.{key}" for key in keys]
    assert outcome["unchanged"]


def test_b23_a_record_with_two_fields_is_refused_by_those_that_are_missing(tmp_path):
    run = plateau()()
    for step in range(4):
        run.advance(step)
    record = run.training.capture()
    whole = record.schedulers["scheduler"]
    part = {key: whole.position[key] for key in ("best", "last_epoch")}
    record = dataclasses.replace(record, schedulers={"scheduler": dataclasses.replace(whole, position=part)})
    other = plateau()()
    before = everything(other)
    with pytest.raises(SchedulerMismatch) as caught:
        other.training.restore(stored(record, tmp_path))
    codes = [finding.code for finding in caught.value.findings]
    assert {
        f"scheduler.scheduler.{key}" for key in ("num_bad_epochs", "cooldown_counter", "_last_lr")
    } <= set(codes)
    assert everything(other) == before


class KeepsTwoFields:
    """A common wrapper, which forgets the counters."""

    def __init__(self, scheduler):
        self.inner = scheduler

    def state_dict(self):
        return {"best": self.inner.best, "last_epoch": self.inner.last_epoch}

    def load_state_dict(self, state):
        vars(self.inner).update(state)


def test_b23_a_wrapper_that_keeps_two_fields_is_refused_when_it_is_saved():
    model = nn.Linear(3, 2)
    optimizer = SGD(model.parameters(), lr=1.0)
    wrapper = KeepsTwoFields(lr_scheduler.ReduceLROnPlateau(optimizer, patience=2, cooldown=1))
    training = Training(model, optimizer, components={"plateau": wrapper})
    for value in METRICS[:4]:
        wrapper.inner.step(value)
    before = wrapper.state_dict()
    with pytest.raises(UnsupportedState) as caught:
        training.capture()
    assert caught.value.code == "capture.unregistered_scheduler"
    assert "ReduceLROnPlateau" in caught.value.found
    assert wrapper.state_dict() == before


DECAYS = ["decay", "own decay", "early decay"]


@pytest.mark.parametrize("name", DECAYS)
def test_b25_the_decay_is_right_before_the_first_update(found, name):
    assert found[name]["seen"][0][0] == [["0.1", "0.2", "(0.9, 0.999)"]]
    assert found[f"{name}/same"]["seen"] == found[name]["seen"]


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        (
            "decay",
            ["optimizer.optimizer.weight_decay", "scheduler.scheduler.begin", "scheduler.scheduler.end"],
        ),
        ("own decay", ["optimizer.optimizer.weight_decay"]),
    ],
)
def test_b25_a_program_that_asks_for_another_decay_is_refused_and_nothing_has_changed(found, name, keys):
    outcome = found[f"{name}/another"]
    assert outcome["refused"] == keys
    assert outcome["unchanged"]


def test_b25_accepted_the_objects_own_loading_says_what_the_decay_is(found):
    assert found["own decay/accepted"]["seen"] == found["own decay"]["seen"]


@pytest.mark.parametrize("name", ["own decay", "early decay"])
def test_b25_a_program_that_asks_for_another_end_has_the_records_decay_at_once(found, name):
    # Also where the object's own loading has applied what the program asked for: the groups come last.
    assert found[f"{name}/end"]["seen"] == found[name]["seen"]
