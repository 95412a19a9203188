"""What modules say by `get_extra_state`: kept, told again, and undone if one refuses."""

import copy

import pytest
import torch
from torch import nn

import segue
from segue.errors import ContractMismatch, CorruptCheckpoint, InvalidRecord, UnsupportedState
from tests.cases.state import codes_of, everything, stored


class Counts(nn.Linear):
    """Counts its forwards, in an attribute that only extra state keeps."""

    refuses = None

    def __init__(self, size=2):
        super().__init__(size, size)
        self.count = 0
        self._told = []

    def forward(self, x):
        self.count += 1
        return super().forward(x) + self.count

    def get_extra_state(self):
        return {"count": self.count, "seen": torch.full((2,), float(self.count)), 3: (None, [])}

    def set_extra_state(self, state):
        if state["count"] == self.refuses:
            raise ValueError("not this one")
        self.count = state["count"]
        self._told.append(self.weight.detach().clone())


class Program:
    def __init__(self, cls=Counts, model_state=None, seed=0):
        torch.manual_seed(seed)
        self.model = nn.Sequential(cls(), nn.Dropout(0.5), cls())
        self.ema = nn.Sequential(cls())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        options = {} if model_state is None else {"model_state": model_state(self.model)}
        self.training = segue.Training(
            self.model, self.optimizer, components={"ema": self.ema}, not_state=["*._told"], **options
        )

    def step(self):
        self.optimizer.zero_grad()
        (self.model(torch.ones(1, 2)) + self.ema(torch.ones(1, 2)).detach()).sum().backward()
        self.optimizer.step()

    @property
    def counts(self):
        return [self.model[0].count, self.model[2].count, self.ema[0].count]

    def live(self):
        return everything(self.model, self.optimizer), everything(self.ema), self.counts


def test_it_comes_back_in_model_and_components(tmp_path):
    one, other = Program(), Program(seed=1)
    for _ in range(3):
        one.step()
    record = stored(one.training.capture(), tmp_path)
    assert sorted(record.model.extra) == ["0", "2"]
    assert sorted(record.components["ema"].module.extra) == ["0"]
    other.training.restore(record)
    assert other.counts == [3, 3, 3]
    one.step()
    other.step()
    assert other.live() == one.live()
    assert segue.diff(one.training.capture(), other.training.capture()).identical


def test_capture_reads_only():
    program = Program()
    program.step()
    before = program.live()
    record = program.training.capture()
    program.step()
    assert record.model.extra["0"]["count"] == 1
    assert record.model.extra["0"]["seen"].to_host().tolist() == [1, 1]
    program.training.restore(record)
    assert program.live() == before


def test_it_is_told_again_when_the_tensors_are_there():
    one, other = Program(), Program(seed=1)
    one.step()
    other.training.restore(one.training.capture())
    assert torch.equal(other.model[0]._told[-1], one.model[0].weight)
    assert not torch.equal(other.model[0]._told[0], one.model[0].weight)


class Resets(Counts):
    """Writes to its tensors when it is told, as one that derives them would."""

    def set_extra_state(self, state):
        super().set_extra_state(state)
        with torch.no_grad():
            self.weight.zero_()


def test_what_it_writes_to_tensors_is_written_over():
    one, other = Program(Resets), Program(Resets, seed=1)
    one.step()
    other.training.restore(one.training.capture())
    assert torch.equal(other.model[0].weight, one.model[0].weight)
    assert other.model[0].weight.abs().sum() > 0


class RefusesTwo(Counts):
    refuses = 2


def test_one_that_refuses_leaves_everything_unchanged(tmp_path):
    one = Program()
    one.step()
    one.model[2].count = 1  # so that the last one of the model refuses, when others were told
    one.model[0].count = 1
    one.ema[0].count = 2
    record = stored(one.training.capture(), tmp_path)
    other = Program(RefusesTwo, seed=1)
    other.model[0].count = 7
    before = other.live()
    with pytest.raises(ContractMismatch, match="not this one") as caught:
        other.training.restore(record)
    assert caught.value.code == "component.ema.extra_state.0.refused"
    assert other.live() == before


class Forgets(Counts):
    def set_extra_state(self, state):
        self.count = min(state["count"], 1)


def test_one_that_says_something_else_afterwards_is_refused_and_put_back():
    one, other = Program(), Program(Forgets, seed=1)
    one.step()
    one.step()
    before = other.live()
    with pytest.raises(ContractMismatch, match="does not give back") as caught:
        other.training.restore(one.training.capture())
    assert caught.value.code == "model.extra_state.0.altered"
    assert other.live() == before


class Plain(nn.Linear):
    count = 0

    def __init__(self):
        super().__init__(2, 2)


def test_extra_state_on_one_side_only_is_told_and_can_be_accepted():
    codes = ["model.extra_state.0", "model.extra_state.2", "component.ema.extra_state.0"]
    one, other = Program(), Program(Plain)
    one.step()
    assert codes_of(other.training, one.training.capture()) == codes
    other.training.restore(one.training.capture(), accept=codes)
    assert torch.equal(other.model[0].weight, one.model[0].weight)
    assert codes_of(one.training, other.training.capture()) == codes
    one.training.restore(other.training.capture(), accept=codes)
    assert one.counts == [1, 1, 1]


def test_it_goes_with_a_module_that_was_renamed():
    class Renamed(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = Counts()
            self.drop = nn.Dropout(0.1)

    one = nn.Sequential(Counts(), nn.Dropout(0.5))
    training = segue.Training(one, torch.optim.SGD(one.parameters(), lr=0.1))
    one(torch.ones(1, 2))
    one[1].p = 0.3
    record = training.capture()
    other = Renamed()
    other.drop.p = 0.5
    resumed = segue.Training(other, torch.optim.SGD(other.parameters(), lr=0.1))
    resumed.restore(record, rename={"0": "body", "1": "drop"})
    assert (other.body.count, other.drop.p) == (1, 0.3)


def test_a_shared_module_is_asked_once():
    shared = Counts()
    model = nn.Sequential(shared, nn.ReLU(), shared)
    training = segue.Training(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert list(training.capture().model.extra) == ["0"]


class NoWayBack(nn.Linear):
    def get_extra_state(self):
        return 1


class Opaque(NoWayBack):
    def get_extra_state(self):
        return {"lock": object()}

    def set_extra_state(self, state):
        pass


@pytest.mark.parametrize(("cls", "what"), [(NoWayBack, "set_extra_state"), (Opaque, "no exact encoding")])
def test_what_can_not_be_told_again_is_refused_by_its_place(cls, what):
    model = nn.Sequential(nn.ReLU(), cls(2, 2))
    with pytest.raises(UnsupportedState, match=what) as caught:
        segue.Training(model, torch.optim.SGD(model.parameters(), lr=0.1)).capture()
    assert caught.value.where.startswith("model 1")


def test_beside_a_named_base_it_is_kept_of_frozen_modules_too(tmp_path):
    def only_last(model):
        model[0].requires_grad_(False)
        return segue.TrainableOnly(base=segue.base_identity(model))

    one, other = Program(model_state=only_last), Program(model_state=only_last)
    one.step()
    record = stored(one.training.capture(), tmp_path)
    assert "0.weight" not in record.model.tensors
    other.training.restore(record)
    assert other.counts == [1, 1, 1]


def test_a_module_alone_and_back():
    one, other = Program(), Program(seed=1)
    one.step()
    record = segue.capture_module(one.model)
    segue.restore_module(record, other.model)
    assert other.counts == [1, 1, 0]
    refusing = Program(RefusesTwo, seed=2)
    one.step()
    before = refusing.live()
    with pytest.raises(ContractMismatch, match="not this one"):
        segue.restore_module(segue.capture_module(one.model), refusing.model)
    assert refusing.live() == before


def test_in_the_seeds_form(tmp_path):
    one, other = Program(), Program(seed=1)
    one.step()
    record = segue.TrainingRecord.capture(one.model, model_state=segue.capture_module(one.model))
    loaded = stored(record, tmp_path)
    loaded.restore(other.model, restore_model=segue.restore_module)
    assert other.counts == [1, 1, 0]
    assert torch.equal(other.model[0].weight, one.model[0].weight)


def test_its_bytes_are_verified_before_anything_is_written(tmp_path):
    one, other = Program(), Program(seed=1)
    one.model[0].count = 12345
    segue.save(one.training.capture(), tmp_path / "one")
    record = segue.load(tmp_path / "one")
    path = tmp_path / "one" / "training.safetensors"
    data = bytearray(path.read_bytes())
    at = data.index(torch.full((2,), 12345.0).numpy().tobytes())
    data[at] ^= 1
    path.write_bytes(data)
    before = other.live()
    with pytest.raises(CorruptCheckpoint):
        segue.restore_module(record.model, other.model)
    with pytest.raises(CorruptCheckpoint):
        other.training.restore(record)
    assert other.live() == before


HOSTILE = [
    ("extra", []), ("extra", {}), ("extra", {0: 1}), ("settings", {}), ("settings", {"0": 1}), ("settings", {"0": {}}),
    ("settings", {"0": {"class": 1}}), ("settings", {"0": {"class": "Linear", "other": {}}}),
    ("settings", {"0": {"class": "Dropout", "values": {}}}), ("settings", {"0": {"class": "Dropout", "values": {"_p": 1}}}),
    ("settings", {"0": {"class": "Dropout", "values": {"a.b": 1}}}), ("settings", {"0": {"class": "Dropout", "values": {1: 1}}}),
    ("settings", {"0": {"class": "Dropout", "values": {"p": 1}, "asked": {"q": 1}}}),
    ("settings", {"0": {"class": "Dropout", "asked": {"p": 1}}}),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value"), HOSTILE, ids=repr)
def test_a_record_that_tells_it_otherwise_than_capture_is_refused(field, value):
    record = segue.capture_module(nn.Sequential(Counts(), nn.Dropout(0.1)))
    fields = {**vars(record), field: value}
    with pytest.raises(InvalidRecord):
        type(record)(**fields)


def test_a_record_is_not_shared_with_what_was_restored_from_it():
    class Keeps(Counts):
        def set_extra_state(self, state):
            self.state = state
            self.count = state["count"]

        def get_extra_state(self):
            return {"count": self.count, "list": getattr(self, "state", {"list": []})["list"]}

    one, other = Program(Keeps), Program(Keeps, seed=1)
    one.step()
    record = one.training.capture()
    before = copy.deepcopy(record.model.extra)
    other.training.restore(record)
    other.model[0].state["list"].append(1)
    assert record.model.extra == before
