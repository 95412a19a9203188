"""B33: a gradient scaler is part of a training: restored it skips and grows as it would have, absent it is refused."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import AdamW

import segue
from segue.errors import ComponentMismatch
from tests.cases.state import live, raw, stored
from tests.exactness.processes import in_new_process

pytestmark = pytest.mark.filterwarnings("ignore:state that segue can see")  # of a run that stands beside

SAVED_AFTER, MORE = 14, 4


def program(with_scaler=True):
    """The case's own: so large a scale that fp32 overflows by nature, and a scale that grows at every third step."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = AdamW(model.parameters(), lr=0.1)
    scaler = new_scaler()
    components = {"scaler": scaler} if with_scaler else None
    return model, optimizer, scaler, segue.Training(model, optimizer, components=components)


def new_scaler():
    return torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=3)


def step(model, optimizer, scaler, number):
    """One update; tell whether it was taken, and the scaler's scale and growth after it."""
    optimizer.zero_grad()
    inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(number)) * 8
    scaler.scale(model(inputs).pow(2).mean()).backward()
    before = model.weight.detach().clone()
    scaler.step(optimizer)
    scaler.update()
    taken = not torch.equal(before, model.weight)
    return [taken, scaler.get_scale().hex(), scaler._get_growth_tracker()]


def train(model, optimizer, scaler, first, last):
    return [step(model, optimizer, scaler, number) for number in range(first, last)]


def everything(model, optimizer, scaler):
    attributes = {**vars(scaler), "_per_optimizer_states": len(vars(scaler).get("_per_optimizer_states", ()))}
    return live(model, optimizer), raw(attributes)


def state_of(model, optimizer, scaler):
    """Everything but what a scaler begins with, which nothing reads once it has begun (torch 2.13)."""
    objects, attributes = everything(model, optimizer, scaler)
    return objects, {key: value for key, value in attributes.items() if not key.startswith("_init_")}


def expected_end():
    model, optimizer, scaler, _ = program()
    train(model, optimizer, scaler, 0, SAVED_AFTER)
    steps = train(model, optimizer, scaler, SAVED_AFTER, SAVED_AFTER + MORE)
    return steps, state_of(model, optimizer, scaler)


def save(place, with_scaler=True):
    model, optimizer, scaler, training = program(with_scaler)
    train(model, optimizer, scaler, 0, SAVED_AFTER)
    segue.save(training.capture(), place)


def go_on(place, report):
    torch.manual_seed(99)
    model, optimizer, scaler, training = program()
    training.restore(segue.load(place))
    steps = train(model, optimizer, scaler, SAVED_AFTER, SAVED_AFTER + MORE)
    Path(report).write_text(json.dumps([steps, repr(state_of(model, optimizer, scaler))]))


def test_b33_restored_in_a_new_process_it_takes_and_skips_the_same_steps_at_the_same_scale(tmp_path):
    steps, end = expected_end()
    assert {taken for taken, _, _ in steps} == {True, False}, "the case needs an overflow after the save"
    assert in_new_process(save, str(tmp_path / "record")) == 0
    assert in_new_process(go_on, str(tmp_path / "record"), str(tmp_path / "report")) == 0
    assert json.loads((tmp_path / "report").read_text()) == [steps, repr(end)]


def test_b33_the_loss_would_show_without_a_scaler_or_with_a_new_one(tmp_path):
    # Not a test of segue: that what is compared above can differ.
    steps, _end = expected_end()
    save(tmp_path / "record", with_scaler=False)
    model, optimizer, scaler, training = program(with_scaler=False)
    training.restore(segue.load(tmp_path / "record"))
    assert train(model, optimizer, scaler, SAVED_AFTER, SAVED_AFTER + MORE) != steps


@pytest.mark.parametrize("cut", range(1, SAVED_AFTER + MORE))
def test_b33_after_every_step_taken_or_skipped(cut, tmp_path):
    model, optimizer, scaler, training = program()
    train(model, optimizer, scaler, 0, cut)
    record = stored(training.capture(), tmp_path)
    rest = train(model, optimizer, scaler, cut, SAVED_AFTER + MORE)
    b, other, fresh, resumed = program()
    resumed.restore(record)
    assert train(b, other, fresh, cut, SAVED_AFTER + MORE) == rest
    assert state_of(b, other, fresh) == state_of(model, optimizer, scaler)


def refused(training, record, objects, **options):
    before = everything(*objects)
    with pytest.raises(ComponentMismatch) as caught:
        training.restore(record, **options)
    assert everything(*objects) == before
    [finding] = caught.value.findings
    assert finding.code == "component.scaler"
    assert 'accept=["component.scaler"]' in str(caught.value)
    return finding


def trained_record(folder, with_scaler=True):
    model, optimizer, scaler, training = program(with_scaler)
    train(model, optimizer, scaler, 0, SAVED_AFTER)
    return stored(training.capture(), folder)


@pytest.mark.parametrize("steps_before", [0, 5])
def test_b33_in_the_record_and_not_in_the_program_it_is_refused(steps_before, tmp_path):
    record = trained_record(tmp_path)
    *objects, training = program(with_scaler=False)
    train(*objects, 0, steps_before)
    refused(training, record, objects)


@pytest.mark.parametrize("steps_before", [0, 5])
def test_b33_in_the_program_and_not_in_the_record_it_is_refused(steps_before, tmp_path):
    record = trained_record(tmp_path, with_scaler=False)
    *objects, training = program()
    train(*objects, 0, steps_before)
    refused(training, record, objects)
    # Accepted, it begins as the program made it.
    _, _, scaler, training = program()
    training.restore(record, accept=["component.scaler"])
    assert scaler.get_scale() == 2.0**127
    assert training.capture().lineage[-1]["accepted"] == ["component.scaler"]


def test_b33_a_scaler_that_is_made_after_the_load_is_refused_first_and_restored_when_it_is_bound(tmp_path):
    steps, end = expected_end()
    record = trained_record(tmp_path)
    model, optimizer, _, training = program(with_scaler=False)
    before = live(model, optimizer)
    with pytest.raises(ComponentMismatch, match=r"component\.scaler"):
        training.restore(record)
    assert live(model, optimizer) == before
    scaler = new_scaler()
    segue.Training(model, optimizer, components={"scaler": scaler}).restore(record)
    assert train(model, optimizer, scaler, SAVED_AFTER, SAVED_AFTER + MORE) == steps
    assert state_of(model, optimizer, scaler) == end


def test_b33_a_scaler_that_is_made_after_the_load_and_never_bound_is_not_kept_and_the_next_resume_tells(
    tmp_path,
):
    record = trained_record(tmp_path)
    model, optimizer, _, training = program(with_scaler=False)
    training.restore(record, accept=["component.scaler"])  # drops it, in so many words
    late = new_scaler()
    train(model, optimizer, late, SAVED_AFTER, SAVED_AFTER + MORE)
    dropped = stored(training.capture(), tmp_path)
    assert dropped.lineage[-1]["accepted"] == ["component.scaler"]
    *objects, resumed = program()
    refused(resumed, dropped, objects)


@pytest.mark.parametrize("enabled_in", ["record", "program"])
def test_b33_a_disabled_scaler_on_one_side_is_refused(enabled_in, tmp_path):
    def made(enabled):
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        optimizer = AdamW(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=3, enabled=enabled)
        return model, optimizer, scaler, segue.Training(model, optimizer, components={"scaler": scaler})

    *_, training = made(enabled_in == "record")
    record = stored(training.capture(), tmp_path)
    model, optimizer, scaler, resumed = made(enabled_in == "program")
    before = everything(model, optimizer, scaler)
    with pytest.raises(ComponentMismatch, match="enabled on one side only"):
        resumed.restore(record)
    assert everything(model, optimizer, scaler) == before


def test_b33_a_resume_tells_too_and_leaves_the_run_as_it_is(tmp_path):
    model, optimizer, scaler, training = program()
    with segue.Checkpointer(training, tmp_path / "run") as checkpointer:
        checkpointer.resume()
        train(model, optimizer, scaler, 0, SAVED_AFTER)
        checkpointer.save()
    *objects, resumed = program(with_scaler=False)
    before = everything(*objects)
    with segue.Checkpointer(resumed, tmp_path / "run") as checkpointer:
        with pytest.raises(ComponentMismatch):
            checkpointer.resume()
        assert everything(*objects) == before
        with pytest.raises(segue.errors.CheckpointExists):  # and no save over it
            checkpointer.save()
