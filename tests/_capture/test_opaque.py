"""Optimizers that are not torch's: what they save goes back whole, to who steps the same parameters, or not at all."""

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, lr_scheduler

import segue
from segue import Training
from segue._record.diff import diff
from segue._record.structure import needed_version
from segue.errors import InvalidRecord, OptimizerMismatch, UnsupportedState
from tests.exactness.strangers import Lookahead, OwnMomentum


def pair(make=OwnMomentum, dtype=torch.float32, names=("a", "b")):
    torch.manual_seed(0)
    model = nn.ModuleDict({name: nn.Linear(2, 2, dtype=dtype) for name in ("a", "b")})
    optimizers = {
        name: make(list(model[layer].parameters()), lr=0.1)
        for name, layer in zip(("a", "b"), names, strict=True)
    }
    return model, optimizers, Training(model, optimizers, rng=None)


def step(model, optimizers):
    x = torch.ones(1, 2, dtype=model["a"].weight.dtype)
    model["b"](model["a"](x)).float().pow(2).sum().backward()
    for optimizer in optimizers.values():
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("make", [OwnMomentum, Lookahead])
def test_it_goes_on_with_the_same_bits(make, tmp_path):
    model, optimizers, training = pair(make)
    for _ in range(3):
        step(model, optimizers)
    segue.save(training.capture(), tmp_path / "record")
    model_2, optimizers_2, training_2 = pair(make)
    record = segue.load(tmp_path / "record")
    training_2.restore(record)
    assert diff(record, training_2.capture()).identical
    step(model, optimizers)
    step(model_2, optimizers_2)
    assert diff(training.capture(), training_2.capture()).identical


def test_the_record_tells_who_steps_what_and_needs_the_fourth_version():
    model, optimizers, training = pair()
    record = training.capture()
    assert record.optimizers == {}
    assert list(record.opaque_optimizers) == ["a", "b"]
    assert record.opaque_optimizers["b"].groups == (("b.weight", "b.bias"),)
    assert record.opaque_optimizers["b"].state.kind == "state_dict"
    assert needed_version(record.opaque_optimizers) == 4
    step(model, optimizers)
    assert any(item.section == "opaque_optimizers" for item in diff(record, training.capture()).differences)


def test_two_that_are_swapped_are_refused_and_nothing_has_changed():
    record = pair()[2].capture()
    model, optimizers, training = pair(names=("b", "a"))
    step(model, optimizers)
    before = training.capture()
    with pytest.raises(OptimizerMismatch) as caught:
        training.restore(record)
    assert [finding.code for finding in caught.value.findings] == [
        *(f"optimizer.a.{what}.{part}" for what in ("missing.a", "extra.b") for part in ("bias", "weight")),
        *(f"optimizer.b.{what}.{part}" for what in ("extra.a", "missing.b") for part in ("bias", "weight")),
    ]
    assert diff(before, training.capture()).identical


def test_another_class_kind_or_order_is_refused():
    model = nn.Linear(2, 2)
    record = Training(model, OwnMomentum(model.parameters(), lr=0.1), rng=None).capture()

    def codes(optimizer):
        with pytest.raises(OptimizerMismatch) as caught:
            Training(model, optimizer, rng=None).check(record)
        return [finding.code for finding in caught.value.findings]

    assert codes(Lookahead(model.parameters(), lr=0.1)) == ["optimizer.optimizer.class"]
    assert codes(SGD(model.parameters(), lr=0.1)) == ["optimizer.optimizer.class"]
    assert codes(OwnMomentum([model.bias, model.weight], lr=0.1)) == ["optimizer.optimizer.order"]
    assert codes({"other": OwnMomentum(model.parameters(), lr=0.1)}) == [
        "optimizer.optimizer",
        "optimizer.other",
    ]


class Answering:
    """A component that steps, and says itself what fits."""

    def __init__(self):
        self.count = 0

    def capture(self):
        return {"count": self.count}

    def check(self, state):
        return [] if type(state["count"]) is int else ["its count is no number"]

    def restore(self, state):
        self.count = state["count"]


def test_a_component_says_what_fits():
    model = nn.Linear(1, 1)
    one, two = Answering(), Answering()
    one.count = 3
    record = Training(model, one, rng=None).capture()
    Training(model, two, rng=None).restore(record)
    assert two.count == 3
    one.count = "three"
    record = Training(model, one, rng=None).capture()
    with pytest.raises(OptimizerMismatch, match="its count is no number") as caught:
        Training(model, two, rng=None).restore(record)
    assert caught.value.code == "optimizer.optimizer.check"
    assert two.count == 3


class Casting(OwnMomentum):
    """Loads as torch does, to the parameter's dtype, but in a form of its own."""

    def load_state_dict(self, state):
        super().load_state_dict(state)
        for parameter, slots in self.state.items():
            slots["momentum"] = slots["momentum"].to(parameter.dtype)


def half(make, steps):
    """A training in bf16 whose moments are in fp32, as torch's loading casts them to bf16 (torch 2.13)."""
    model, optimizers, training = pair(make, torch.bfloat16)
    for _ in range(steps):
        step(model, optimizers)
    for optimizer in optimizers.values():
        for slots in optimizer.state.values():
            for slot in slots.keys() & {"exp_avg", "momentum"}:
                slots[slot] = slots[slot].float() + 1e-3
    return optimizers, training


def test_what_torchs_loading_casts_inside_an_object_is_put_back_as_it_was():
    _, training = half(Lookahead, 2)
    optimizers, other = half(Lookahead, 0)
    record = training.capture()
    other.restore(record)
    assert diff(record, other.capture()).identical
    for optimizer in optimizers.values():
        assert {slots["exp_avg"].dtype for slots in optimizer.state.values()} == {torch.float32}


def test_an_object_that_casts_what_it_loads_is_refused_and_put_back():
    _, training = half(Casting, 1)
    optimizers, other = half(Casting, 0)
    before = other.capture()
    with pytest.raises(OptimizerMismatch, match="does not give back the state") as caught:
        other.restore(training.capture())
    assert caught.value.code == "optimizer.a.altered"
    assert not optimizers["a"].state
    assert diff(before, other.capture()).identical


def test_of_two_the_second_refuses_and_the_first_is_put_back():
    model, optimizers, training = pair()
    step(model, optimizers)
    record = training.capture()
    step(model, optimizers)
    before = training.capture()
    load = optimizers["b"].load_state_dict
    calls = []

    def refusing(state):
        calls.append(state)
        if len(calls) == 1:
            raise ValueError("not this")
        load(state)

    optimizers["b"].load_state_dict = refusing
    with pytest.raises(OptimizerMismatch, match="an optimizer refused its state: not this") as caught:
        training.restore(record)
    assert caught.value.code == "optimizer.b.refused"
    assert diff(before, training.capture()).identical


class Forgetful(Lookahead):
    def state_dict(self):
        return {"slow": self.slow, "steps": self.num_steps}


def test_an_object_that_does_not_save_the_optimizer_in_it_is_refused():
    model, optimizers, training = pair(Forgetful)
    training.capture()  # there is nothing to lose yet
    step(model, optimizers)
    with pytest.raises(UnsupportedState) as caught:
        training.capture()
    assert caught.value.code == "capture.lost_state"
    assert caught.value.where == "optimizer.a optimizer a.weight"


def test_a_schedule_of_the_optimizer_in_an_object_is_kept():
    def made():
        torch.manual_seed(0)
        model = nn.Linear(2, 2)
        optimizer = Lookahead(model.parameters(), lr=0.1)
        schedule = lr_scheduler.StepLR(optimizer.optimizer, 1, 0.5)
        return model, optimizer, schedule, Training(model, optimizer, schedule, rng=None)

    def go(model, optimizer, schedule):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()

    *one, training = made()
    go(*one)
    record = training.capture()
    assert record.schedulers["scheduler"].optimizer == "optimizer.optimizer"
    *two, other = made()
    other.restore(record)
    assert two[2].get_last_lr() == [0.05]
    go(*one)
    go(*two)
    assert diff(training.capture(), other.capture()).identical


def test_a_schedule_that_nobody_handed_in_is_told():
    model = nn.Linear(2, 2)
    optimizer = Lookahead(model.parameters(), lr=0.1)
    schedule = lr_scheduler.StepLR(optimizer.optimizer, 1)
    with pytest.raises(UnsupportedState, match="a scheduler is attached") as caught:
        Training(model, optimizer, rng=None).capture()
    assert caught.value.where == "optimizer.optimizer.optimizer"
    del schedule


def test_a_schedule_of_what_is_no_torch_optimizer_is_refused():
    model = nn.Linear(2, 2)
    optimizer = OwnMomentum(model.parameters(), lr=0.1)
    schedule = lr_scheduler.StepLR(SGD(model.parameters(), lr=0.1), 1)
    schedule.optimizer = optimizer
    with pytest.raises(UnsupportedState, match="its steps can't be counted") as caught:
        Training(model, optimizer, schedule)
    assert caught.value.found == "tests.exactness.strangers.OwnMomentum"


NO_OPTIMIZERS = {
    "a class": (lambda model: AdamW, None),
    "a function": (lambda model: print, None),
    "a list": (lambda model: [SGD(model.parameters(), lr=0.1)], "give several by name"),
    "the model": (lambda model: model, "components"),
    "a scaler": (lambda model: torch.amp.GradScaler("cpu"), "components"),
    "a scheduler": (lambda model: lr_scheduler.StepLR(SGD(model.parameters(), lr=0.1), 1), "schedulers"),
}


@pytest.mark.parametrize("kind", NO_OPTIMIZERS)
def test_what_can_not_be_an_optimizer_is_refused(kind):
    make, hint = NO_OPTIMIZERS[kind]
    model = nn.Linear(1, 1)
    with pytest.raises(UnsupportedState, match=r"must be a torch\.optim\.Optimizer, or have") as caught:
        Training(model, make(model))
    assert caught.value.where == "optimizer.optimizer"
    assert (caught.value.hint is None) if hint is None else (hint in caught.value.hint)


def test_one_name_is_of_one_optimizer():
    model = nn.Linear(1, 1)
    record = Training(model, SGD(model.parameters(), lr=0.1), rng=None).capture()
    sections = record.sections()
    other = Training(model, OwnMomentum(model.parameters(), lr=0.1), rng=None).capture().sections()
    sections["opaque_optimizers"] = other["opaque_optimizers"]
    with pytest.raises(InvalidRecord, match="two optimizers have one name"):
        type(record).from_sections(sections)
