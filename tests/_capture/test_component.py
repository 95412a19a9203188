"""Objects registered by name: what each kind promises, what is refused, and that a refusal undoes everything."""

import pytest
import torch
from torch import nn
from torch.optim import SGD, lr_scheduler
from torch.utils.data import DataLoader, WeightedRandomSampler

from segue import Component, Training
from segue._capture.component import (
    ObjectRestore,
    capture_component,
    check_component,
    kind_of,
    refuse_scaler_in_flight,
    streams_last,
)
from segue._record.diff import diff
from segue.errors import ComponentMismatch, NotAtBoundary, RestoreInterrupted, UnsupportedState

pytestmark = pytest.mark.filterwarnings("ignore:state that segue can see")  # counts of calls are none


class Counter:
    """Can only be loaded."""

    def __init__(self, count=0, limit=None):
        self.count, self.limit, self.loads = count, limit, 0

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.loads += 1
        self.count = state["count"]
        if self.limit is not None and self.count > self.limit:
            raise ValueError("too much")


class Position:
    """Says beforehand what would not fit."""

    def __init__(self, at=0, length=10):
        self.at, self.length = at, length

    def capture(self):
        return {"at": self.at, "seen": [(1, torch.ones(2))]}

    def check(self, state):
        if state["at"] > self.length:
            yield f"position {state['at']} is beyond the end, {self.length}"

    def restore(self, state):
        self.at = state["at"]


class Averages(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(2))


def bound(**components):
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    return Training(model, SGD(model.parameters(), lr=0.1), components=components, rng=None)


def test_kinds_are_told_apart():
    assert kind_of(Averages(), "x") == "module"
    assert kind_of(Position(), "x") == "component"
    assert kind_of(Counter(), "x") == "state_dict"
    assert isinstance(Position(), Component)
    with pytest.raises(UnsupportedState, match="needs `state_dict`") as caught:
        kind_of(object(), "x")
    assert (caught.value.where, caught.value.found) == ("component.x", "builtins.object")


def test_each_kind_comes_back():
    one = bound(ema=Averages(), data=Position(7), counter=Counter(3))
    record = one.capture()
    data, counter, ema = Position(), Counter(), Averages()
    other = bound(ema=ema, data=data, counter=counter)
    with torch.no_grad():
        ema.mean.fill_(9)
    other.restore(record)
    assert (data.at, counter.count, ema.mean.tolist()) == (7, 3, [0, 0])
    assert diff(record, other.capture()).identical


def misplaced():
    model = nn.Linear(1, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    data = list(range(4))
    return {
        "optimizer": (optimizer, "one of the optimizers"),
        "scheduler": (lr_scheduler.StepLR(optimizer, 1), "one of the schedulers"),
        "plateau": (lr_scheduler.ReduceLROnPlateau(optimizer), "one of the schedulers"),
        "shuffling loader": (DataLoader(data, shuffle=True), "shuffles anew"),
        "drawing loader": (
            DataLoader(data, sampler=WeightedRandomSampler([1.0] * 4, 4)),
            "draws its own order",
        ),
        "plain loader": (DataLoader(data), "segue.DataPosition(loader)"),
    }


@pytest.mark.parametrize("kind", misplaced())
def test_what_has_a_place_of_its_own_is_refused_with_that_place(kind):
    value, hint = misplaced()[kind]
    with pytest.raises(UnsupportedState, match="can't be a component") as caught:
        bound(it=value)
    assert caught.value.where == "component.it"
    assert caught.value.found.endswith(type(value).__qualname__)
    assert hint in caught.value.hint


def test_a_stateful_loader_is_refused_by_the_name_of_its_class():
    class StatefulDataLoader(DataLoader):
        pass

    StatefulDataLoader.__qualname__ = "StatefulDataLoader"
    StatefulDataLoader.__module__ = "torchdata.stateful_dataloader.stateful_dataloader"
    with pytest.raises(UnsupportedState, match="can't be a component") as caught:
        kind_of(StatefulDataLoader([1]), "data")
    assert "segue.DataPosition(loader)" in caught.value.hint


def test_an_object_that_cannot_save_itself_is_refused_with_the_line_that_keeps_its_attributes():
    class Ema:
        def __init__(self):
            self.shadow, self.updates, self.owner = [torch.ones(2)], 0, object()

    with pytest.raises(UnsupportedState) as caught:
        kind_of(Ema(), "ema")
    assert '`components={"ema": segue.StateOf(ema, "shadow", "updates")}`' in caught.value.hint


def test_what_a_component_returns_must_be_plain():
    class Odd(Counter):
        def state_dict(self):
            return {"nested": {"hook": lambda: None}}

    with pytest.raises(UnsupportedState) as caught:
        capture_component(Odd(), "odd")
    assert caught.value.where == "component.odd['nested']['hook']"


def test_a_component_on_one_side_only_is_refused():
    with_it, without = bound(data=Position()), bound()
    with pytest.raises(ComponentMismatch, match="missing in the program") as caught:
        without.check(with_it.capture())
    assert caught.value.code == "component.data"
    with pytest.raises(ComponentMismatch, match="not in the record"):
        with_it.check(without.capture())


def test_another_class_is_refused_before_it_is_asked():
    record = capture_component(Counter(), "x")
    [finding] = check_component(record, Position(), "x")
    assert finding.code == "component.x.class"


def test_a_component_refuses_in_its_own_words_before_anything_changes():
    record = bound(data=Position(50)).capture()
    data, counter = Position(1, length=10), Counter(3)
    training = bound(data=data)
    with pytest.raises(ComponentMismatch, match="position 50 is beyond the end, 10") as caught:
        training.restore(record)
    assert caught.value.code == "component.data.check"
    assert data.at == 1
    assert counter.loads == 0


def test_one_that_can_only_be_loaded_is_put_back_when_it_refuses():
    record = bound(a=Counter(5), b=Counter(50)).capture()
    a, b = Counter(1), Counter(2, limit=10)
    training = bound(a=a, b=b)
    before = training.capture()
    with pytest.raises(ComponentMismatch, match="too much") as caught:
        training.restore(record)
    assert caught.value.code == "component.b.refused"
    assert isinstance(caught.value.__cause__, ValueError)
    assert (a.count, b.count) == (1, 2)
    assert diff(before, training.capture()).identical


def test_one_that_cannot_be_put_back_is_told():
    class Stuck(Counter):
        def load_state_dict(self, state):
            self.count += 1
            raise ValueError("never")

    record = bound(a=Stuck(5)).capture()
    with pytest.raises(RestoreInterrupted, match="could not be put back"):
        bound(a=Stuck(1)).restore(record)


def test_objects_are_restored_in_order_of_name_and_streams_behind():
    assert streams_last(["z", "rng", "a"], {}) == ["a", "z", "rng"]
    order = []

    class Noting(Counter):
        def load_state_dict(self, state):
            order.append(self)
            super().load_state_dict(state)

    values = {"z": Noting(), "rng": Noting(), "a": Noting()}
    records = {name: capture_component(values[name], name) for name in streams_last(values, {})}
    ObjectRestore(records, values).run()
    assert order == [values["a"], values["z"], values["rng"]]


def test_a_restored_component_does_not_share_with_the_record():
    class Keeping(Counter):
        def __init__(self):
            super().__init__()
            self.log = [1]

        def state_dict(self):
            return {"count": 0, "log": self.log}

        def load_state_dict(self, state):
            self.log = state["log"]

    keeper = Keeping()
    training = bound(k=keeper)
    record = training.capture()
    training.restore(record)
    keeper.log.append(2)
    training.restore(record)
    assert keeper.log == [1]


def test_a_scaler_in_flight_is_no_boundary():
    model = nn.Linear(1, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    training = Training(model, optimizer, components={"scaler": scaler}, rng=None)
    scaler.scale(model(torch.ones(1, 1)).sum()).backward()
    training.capture()
    scaler.unscale_(optimizer)
    with pytest.raises(NotAtBoundary, match="unscale_") as caught:
        training.capture()
    assert (caught.value.where, caught.value.found) == ("component.scaler", "UNSCALED")
    scaler.step(optimizer)
    with pytest.raises(NotAtBoundary):
        training.capture()
    scaler.update()
    training.capture()
    refuse_scaler_in_flight(object(), "x")


def test_a_module_among_the_components_gives_its_parameters_its_name():
    torch.manual_seed(0)
    model, loss = nn.Linear(2, 2), nn.Linear(2, 1)
    optimizer = SGD([*model.parameters(), *loss.parameters()], lr=0.1)
    record = Training(model, optimizer, components={"loss": loss}, rng=None).capture()
    assert record.optimizers["optimizer"].groups[0].parameters == (
        "weight",
        "bias",
        "loss/weight",
        "loss/bias",
    )


class Metric(torch.nn.Module):
    """A module with state of its own that says how to keep it."""

    def __init__(self):
        super().__init__()
        self.total = 0

    def capture(self):
        return {"total": self.total}

    def check(self, state):
        return []

    def restore(self, state):
        self.total = state["total"]


def test_a_module_that_is_a_component_is_asked():
    assert kind_of(Metric(), "m") == "component"
    metric = Metric()
    metric.total = 3
    assert capture_component(metric, "m").tree == {"total": 3}


def test_a_compiled_module_is_of_the_class_that_it_wraps():
    plain = torch.nn.Linear(2, 2)
    compiled = torch.compile(torch.nn.Linear(2, 2), backend="eager")
    record = capture_component(plain, "m")
    assert list(check_component(record, compiled, "m")) == []
    assert list(check_component(capture_component(compiled, "m"), plain, "m")) == []


@pytest.mark.parametrize("enabled", [True, False])
def test_a_scaler_that_is_enabled_on_one_side_only_is_refused(enabled):
    def with_scaler(enabled):
        model = nn.Linear(1, 1)
        scaler = torch.amp.GradScaler("cpu", enabled=enabled)
        return Training(model, SGD(model.parameters(), lr=0.1), components={"scaler": scaler}, rng=None)

    record = with_scaler(enabled).capture()
    with_scaler(enabled).restore(record)
    with pytest.raises(ComponentMismatch) as caught:
        with_scaler(not enabled).check(record)
    assert caught.value.code == "component.scaler.enabled"
