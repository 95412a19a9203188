"""B59 to B62, B65: counters in Python, averages, what is swapped in, modes that differ, memory of the best."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import StepLR
from torch.optim.swa_utils import SWALR, AveragedModel

import segue
from segue import Training
from segue.errors import NotAtBoundary, UncoveredStateWarning, UnsupportedState
from tests.cases.state import codes_of, everything, live, raw, stored


class Ema(nn.Module):
    """Its decay warms up with a number that no state dict has."""

    def __init__(self, model):
        super().__init__()
        self.average = copy.deepcopy(model).requires_grad_(False)
        self.updates = 0

    def update(self, model):
        self.updates += 1
        decay = 0.999 * (1 - 2.718281828 ** (-self.updates / 50))
        for average, parameter in zip(self.average.parameters(), model.parameters(), strict=True):
            average.data.mul_(decay).add_(parameter.data, alpha=1 - decay)


class EmaThatTells(Ema):
    def get_extra_state(self):
        return {"updates": self.updates}

    def set_extra_state(self, state):
        self.updates = state["updates"]


class Annealed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.register_buffer("t", torch.tensor(0.0), persistent=False)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(self.layer(x)) + self.t


def with_ema(cls, **components):
    torch.manual_seed(0)
    model = nn.Linear(3, 3)
    ema = cls(model)
    registered = {"ema": ema, **{name: make(ema) for name, make in components.items()}}
    return model, ema, Training(model, SGD(model.parameters(), lr=0.1), components=registered)


def updated(model, ema, times):
    for _ in range(times):
        model.weight.data += 0.01
        ema.update(model)


HOW = {
    "told as extra state": (EmaThatTells, {}),
    "registered beside it": (Ema, {"updates": lambda ema: segue.StateOf(ema, "updates")}),
}


@pytest.mark.parametrize("how", HOW)
def test_b59_a_counter_in_python_goes_on_when_it_is_told(how, tmp_path):
    cls, components = HOW[how]
    model, ema, training = with_ema(cls, **components)
    updated(model, ema, 200)
    other_model, other_ema, resumed = with_ema(cls, **components)
    resumed.restore(stored(training.capture(), tmp_path))
    assert other_ema.updates == 200
    for one, average in ((model, ema), (other_model, other_ema)):
        one.weight.data += 1.0
        average.update(one)
    assert live(ema) == live(other_ema)


def test_b59_a_counter_that_nobody_tells_is_listed_at_the_save_with_the_line_that_registers_it():
    model, ema, training = with_ema(Ema)
    training.capture()
    updated(model, ema, 3)
    with pytest.warns(UncoveredStateWarning, match=r"component\.ema\.updates: 0 -> 3") as caught:
        training.capture()
    assert 'segue.StateOf(ema, "updates")' in str(caught[0].message)


def test_b59_a_buffer_that_is_not_persistent_and_an_annealed_probability_come_back(tmp_path):
    def fresh():
        model = Annealed()
        return model, Training(model, SGD(model.parameters(), lr=0.1))

    a, training = fresh()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is captured, so it is not reported
        training.capture()
        a.t += 7
        a.drop.p = 0.1
        record = stored(training.capture(), tmp_path)
    b, resumed = fresh()
    resumed.restore(record)
    assert (b.t.item(), b.drop.p) == (7.0, 0.1)
    torch.manual_seed(5)
    out = a(torch.ones(4, 3))
    torch.manual_seed(5)
    assert raw(b(torch.ones(4, 3))) == raw(out)


def test_b59_an_edited_probability_is_told_instead_of_trained_on():
    def fresh(p):
        model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(p))
        return model, Training(model, SGD(model.parameters(), lr=0.1))

    record = fresh(0.1)[1].capture()
    model, training = fresh(0.5)
    before = everything(model)
    assert codes_of(training, record) == ["model.setting.1.p"]
    assert everything(model) == before
    training.restore(record, accept=["model.setting.1.p"])
    assert model[1].p == 0.5
    assert training.capture().lineage[-1]["accepted"] == ["model.setting.1.p"]


def test_b59_one_entry_admits_what_was_edited_in_many_layers():
    def fresh(p):
        layers = nn.ModuleList(
            nn.ModuleDict({"drop": nn.Dropout(p), "body": nn.Linear(2, 2)}) for _ in range(12)
        )
        model = nn.ModuleDict({"layers": layers, "drop": nn.Dropout(p)})
        return model, Training(model, SGD(model.parameters(), lr=0.1))

    record = fresh(0.1)[1].capture()
    _, training = fresh(0.5)
    with pytest.raises(segue.errors.ContractMismatch) as caught:
        training.restore(record)
    assert 'resume(accept=["model.setting.drop.p", "model.setting.layers.*"])' in str(caught.value)
    training.restore(record, accept=["model.setting.drop.p", "model.setting.layers.*"])


def test_b59_an_average_that_is_made_after_the_load_is_not_taken_for_the_restored_one(tmp_path):
    model, ema, training = with_ema(EmaThatTells)
    updated(model, ema, 5)
    record = stored(training.capture(), tmp_path)
    # Made anew after a resume that did not know of it, it would begin at the model's weights: so it is missing there.
    torch.manual_seed(0)
    other = nn.Linear(3, 3)
    without = Training(other, SGD(other.parameters(), lr=0.1))
    assert codes_of(without, record) == ["component.ema"]


def step(model, optimizer, number):
    optimizer.zero_grad()
    model(torch.full((1, 3), 1.0 + number % 3)).pow(2).sum().backward()
    optimizer.step()


class Average:
    def __init__(self, model):
        self.values = copy.deepcopy(model.state_dict())

    def update(self, model):
        self.values = {key: 0.9 * self.values[key] + 0.1 * value for key, value in model.state_dict().items()}

    def state_dict(self):
        return self.values

    def load_state_dict(self, state):
        self.values = dict(state)


def with_average():
    torch.manual_seed(0)
    model = nn.Linear(3, 3)
    optimizer, average = AdamW(model.parameters(), lr=0.1), Average(model)
    return model, optimizer, average, Training(model, optimizer, components={"ema": average})


def test_b60_a_save_while_averaged_weights_stand_in_the_model_is_refused(tmp_path):
    model, optimizer, average, training = with_average()
    for number in range(6):
        step(model, optimizer, number)
        average.update(model)
    raw_weights = copy.deepcopy(model.state_dict())
    model.load_state_dict(average.values)
    before = everything(model, optimizer)
    with pytest.raises(NotAtBoundary) as caught:
        training.capture()
    assert (caught.value.code, caught.value.where) == ("capture.averaged_weights", "component.ema")
    assert everything(model, optimizer) == before
    model.load_state_dict(raw_weights)
    record = stored(training.capture(), tmp_path)
    other, other_optimizer, other_average, resumed = with_average()
    resumed.restore(record)
    assert raw(other.weight) == raw(raw_weights["weight"])
    for number in (6, 7):
        step(model, optimizer, number)
        average.update(model)
        step(other, other_optimizer, number)
        other_average.update(other)
    assert everything(other, other_optimizer) == everything(model, optimizer)
    assert raw(other_average.values) == raw(average.values)


def test_b60_through_a_checkpointer_too(tmp_path):
    model, optimizer, average, training = with_average()
    with segue.Checkpointer(training, tmp_path / "run") as checkpointer:
        for number in range(4):
            step(model, optimizer, number)
            average.update(model)
        checkpointer.save({"number": 4}).wait()
        backup = copy.deepcopy(model.state_dict())
        model.load_state_dict(average.values)
        with pytest.raises(NotAtBoundary):
            checkpointer.save({"number": 4}).wait()
        model.load_state_dict(backup)
        checkpointer.save({"number": 4}).wait()
    assert len([path for path in (tmp_path / "run").iterdir() if path.name.startswith("ckpt-")]) == 2


class SwaRun:
    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        self.optimizer = SGD(self.model.parameters(), lr=0.1)
        self.average = AveragedModel(self.model)
        self.schedulers = {"steps": StepLR(self.optimizer, 2)}
        self.bind()

    def bind(self):
        self.training = Training(
            self.model, self.optimizer, self.schedulers, components={"swa": self.average}
        )

    def begin_swa(self):
        self.schedulers["swa"] = SWALR(self.optimizer, swa_lr=0.05, anneal_epochs=4)
        self.bind()

    def prepare(self, record):
        if "swa" in record.schedulers:
            self.begin_swa()

    def epoch(self, number):
        x = torch.randn(6, 3, generator=torch.Generator().manual_seed(number))
        self.optimizer.zero_grad()
        (self.model(x) - 0.3).pow(2).mean().backward()
        self.optimizer.step()
        if number < 3:
            self.schedulers["steps"].step()
        else:
            if "swa" not in self.schedulers:
                self.begin_swa()
            self.average.update_parameters(self.model)
            self.schedulers["swa"].step()
        return self.optimizer.param_groups[0]["lr"]


@pytest.mark.filterwarnings("ignore:.*is due", "ignore:.*already still stand in")
@pytest.mark.parametrize("cut", range(9))
def test_b61_averages_their_number_the_rates_and_the_active_schedule_go_on(cut, tmp_path):
    run = SwaRun()
    rates = [run.epoch(number) for number in range(cut)]
    run.optimizer.zero_grad()
    record = stored(run.training.capture({"epoch": cut}), tmp_path)
    rates += [run.epoch(number) for number in range(cut, 8)]
    resumed = SwaRun()
    resumed.prepare(record)
    state = resumed.training.restore(record)
    assert [resumed.epoch(number) for number in range(state["epoch"], 8)] == rates[cut:]
    assert everything(resumed.model, resumed.optimizer) == everything(run.model, run.optimizer)
    assert live(resumed.average) == live(run.average)
    assert int(resumed.average.n_averaged) == 5
    assert sorted(resumed.schedulers) == ["steps", "swa"]


def test_b61_an_average_that_is_left_out_on_one_side_is_refused():
    run = SwaRun()
    for number in range(5):
        run.epoch(number)
    record = run.training.capture()
    other = SwaRun()
    assert set(codes_of(other.training, record)) >= {"scheduler.swa"}
    without = SwaRun()
    without.begin_swa()
    without.training = Training(without.model, without.optimizer, without.schedulers)
    assert codes_of(without.training, record) == ["component.swa"]


@pytest.mark.exact
def test_b62_every_mixture_of_modes_comes_back_without_a_call(tmp_path):
    def fresh():
        model = nn.Sequential(
            nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(2))
        )
        return model, Training(model, SGD(model.parameters(), lr=0.1))

    paths = ["", "0", "1", "2", "2.0", "2.1"]
    for number in range(2 ** len(paths)):
        a, training = fresh()
        for at, path in enumerate(paths):
            a.get_submodule(path).training = bool(number >> at & 1)
        b, resumed = fresh()
        resumed.restore(training.capture())
        assert [m.training for m in b.modules()] == [m.training for m in a.modules()]


def test_b62_norms_in_every_mode_go_on(tmp_path):
    def fresh(**options):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, **options))
        return model, Training(model, SGD(model.parameters(), lr=0.1))

    for options in (
        {}, {"momentum": None}, {"track_running_stats": False}, {"affine": False}, {"momentum": 0.0}, {"eps": 1e-2},
    ):  # fmt: skip
        for frozen in (False, True):
            a, training = fresh(**options)
            a(torch.randn(4, 3))
            a[1].train(not frozen)
            a(torch.randn(4, 3))
            b, resumed = fresh(**options)
            resumed.restore(stored(training.capture(), tmp_path))
            x = torch.randn(4, 3)
            assert raw(a(x)) == raw(b(x))
            assert live(a) == live(b)


class Stop:
    """Remembers the best value, and how long ago it was."""

    def __init__(self):
        self.best, self.wait = None, 0

    def __call__(self, value):
        if self.best is None or value < self.best:
            self.best, self.wait = value, 0
            return "save best"
        self.wait += 1
        return "stop" if self.wait >= 3 else "wait"


class StopThatSaves(Stop):
    def state_dict(self):
        return vars(self).copy()

    def load_state_dict(self, state):
        vars(self).update(state)


VALUES = [1.0, 0.5, 0.6, 0.7, 0.8, 0.9]
KEEPERS = {
    "registered by attributes": (Stop, lambda stop: {"stop": segue.StateOf(stop, "best", "wait")}),
    "saves itself": (StopThatSaves, lambda stop: {"stop": stop}),
}


@pytest.mark.parametrize("how", KEEPERS)
@pytest.mark.parametrize("cut", range(7))
def test_b65_the_best_value_and_the_patience_go_on(how, cut, tmp_path):
    make, components = KEEPERS[how]

    def fresh():
        model, stop = nn.Linear(1, 1), make()
        return stop, Training(model, SGD(model.parameters(), lr=0.1), components=components(stop))

    whole, _ = fresh()
    decisions = [whole(value) for value in VALUES]
    assert decisions == ["save best", "save best", "wait", "wait", "stop", "stop"]
    stop, training = fresh()
    for value in VALUES[:cut]:
        stop(value)
    other, resumed = fresh()
    resumed.restore(stored(training.capture(), tmp_path))
    assert [other(value) for value in VALUES[cut:]] == decisions[cut:]


def test_b65_in_the_callers_state(tmp_path):
    stop = Stop()
    model = nn.Linear(1, 1)
    training = Training(model, SGD(model.parameters(), lr=0.1))
    decisions = [stop(value) for value in VALUES]
    stop = Stop()
    for value in VALUES[:4]:
        stop(value)
    state = training.restore(stored(training.capture({"stop": vars(stop)}), tmp_path))
    other = Stop()
    vars(other).update(state["stop"])
    assert [other(value) for value in VALUES[4:]] == decisions[4:]


def test_b65_an_object_that_can_not_be_asked_is_refused_as_a_component():
    model = nn.Linear(1, 1)
    with pytest.raises(UnsupportedState, match="state_dict"):
        Training(model, SGD(model.parameters(), lr=0.1), components={"stop": Stop()})
