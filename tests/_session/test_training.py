import asyncio
import dataclasses
import warnings

import pytest
import torch
from torch import nn

import segue
from segue.errors import (
    EnvironmentMismatch,
    EnvironmentWarning,
    InvalidRecord,
    NotAtBoundary,
    ScheduleWarning,
    UnsupportedState,
)
from tests._session.small import make, step
from tests._store.records import subclass


def test_an_awaited_capture_is_the_same_record():
    model, optimizer, training = make()
    step(model, optimizer)

    async def capture():
        return await training.capture_async({"n": 1})

    record = asyncio.run(capture())
    assert segue.diff(record, training.capture({"n": 1})).identical
    assert segue.diff(record, training.capture_async({"n": 1}).result()).identical
    with pytest.raises(UnsupportedState):
        training.capture_async({"n": open}).result()


def test_a_capture_inside_a_backward_is_refused():
    model, _, training = make()
    caught = []

    def hook(gradient):
        with pytest.raises(NotAtBoundary) as error:
            training.capture()
        caught.append(error.value)

    model.weight.register_hook(hook)
    model(torch.ones(1, 3)).sum().backward()
    assert len(caught) == 1


def test_another_environment_warns_and_is_refused_when_strict():
    _, _, training = make()
    record = training.capture({"n": 1})
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        with pytest.warns(EnvironmentWarning, match=r"environment\.num_threads"):
            assert training.restore(record) == {"n": 1}
        _, _, strict = make(strict=True)
        with pytest.raises(EnvironmentMismatch, match="num_threads"):
            strict.restore(record)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert strict.restore(record, accept=["environment.num_threads"]) == {"n": 1}
    finally:
        torch.set_num_threads(threads)


def test_a_single_code_instead_of_a_collection_is_an_error_of_its_own():
    _, _, training = make()
    with pytest.raises(TypeError, match=r"accept=\['a\.b'\]"):
        training.restore(training.capture(), accept="a.b")


def test_streams_can_be_left_out():
    _, _, training = make(rng=None)
    record = training.capture()
    assert record.streams is None
    expected = torch.rand(2, generator=torch.Generator().manual_seed(3))
    torch.manual_seed(3)
    training.restore(record)
    assert torch.equal(torch.rand(2), expected)


def test_a_schedule_that_is_due_warns_at_capture():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    training = segue.Training(model, optimizer, scheduler)
    for _ in range(3):
        step(model, optimizer)
        scheduler.step()
        training.capture()
    step(model, optimizer)
    with pytest.warns(ScheduleWarning, match=r"scheduler\.scheduler is due"):
        training.capture()


def test_only_the_whole_model_can_be_asked_for():
    model = nn.Linear(2, 2)
    with pytest.raises(UnsupportedState, match="FullModel"):
        segue.Training(model, {}, model_state="adapters")
    segue.Training(model, {}, model_state=segue.FullModel()).capture()


def test_a_component_named_rng_replaces_the_streams_and_comes_last():
    order = []

    class Component:
        def __init__(self, name):
            self.name = name

        def capture(self):
            order.append(("capture", self.name))
            return {}

        def check(self, state):
            return None

        def restore(self, state):
            order.append(("restore", self.name))

    model = nn.Linear(2, 2)
    training = segue.Training(model, {}, components={"rng": Component("rng"), "z": Component("z")})
    record = training.capture()
    assert record.streams is None
    assert order == [("capture", "z"), ("capture", "rng")]
    training.restore(record)
    assert [entry for entry in order if entry[0] == "restore"] == [("restore", "z"), ("restore", "rng")]


def test_lists_are_refused_with_the_way_to_give_names():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for arguments in (([optimizer],), (optimizer, [torch.optim.lr_scheduler.StepLR(optimizer, 1)])):
        with pytest.raises(UnsupportedState, match="by name"):
            segue.Training(model, *arguments)
    with pytest.raises(UnsupportedState, match="by name"):
        segue.Training(model, optimizer, components=[model])


def test_an_entry_of_accept_that_can_not_admit_says_so():
    _, _, training = make()
    _, _, larger = make(size=4)
    with pytest.raises(segue.errors.ContractMismatch, match="can't be accepted"):
        larger.restore(training.capture(), accept=["model.shape.weight"])


def test_caller_state_that_cannot_be_made_here_is_refused_before_anything_changes():
    """As a quantized tensor in a program that has not imported the library."""
    model = nn.Linear(2, 2)
    training = segue.Training(model, torch.optim.SGD(model.parameters(), lr=0.1))
    record = dataclasses.replace(training.capture(), caller_state={"x": subclass(name="some.library.Packed")})
    with torch.no_grad():
        model.weight.fill_(7)
    before = model.weight.clone(), torch.get_rng_state()
    torch.rand(1)
    moved = torch.get_rng_state()
    with pytest.raises(InvalidRecord):
        training.restore(record)
    assert torch.equal(model.weight, before[0])
    assert torch.equal(torch.get_rng_state(), moved)
    training.capture()


def test_a_scaler_steps_over_gradients_that_were_scaled_before_the_capture():
    def build():
        torch.manual_seed(0)
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1)
        return model, optimizer, scaler, segue.Training(model, optimizer, components={"scaler": scaler})

    model, optimizer, scaler, training = build()
    scaler.scale(model(torch.ones(1, 2)).sum()).backward()
    record = training.capture()
    again, fresh, other, resumed = build()
    resumed.restore(record)
    for one, stepped, by in ((model, optimizer, scaler), (again, fresh, other)):
        by.step(stepped)
        by.update()
        assert one.weight.grad.tolist() == [[1.0, 1.0]]
    assert torch.equal(model.weight, again.weight)
    assert scaler.state_dict() == other.state_dict()
