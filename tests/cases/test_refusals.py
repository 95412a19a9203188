"""What is refused at capture, and which differences are refused at restore, with the code of each."""

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, lr_scheduler
from torch.utils.data import DataLoader

from segue import Training
from segue._record.diff import diff
from segue._record.rename import renamed
from segue.errors import (
    CaptureError,
    ComponentMismatch,
    ContractMismatch,
    DeviceMismatch,
    OptimizerMismatch,
    SchedulerMismatch,
    UnsupportedState,
)
from tests.cases.state import live


class Marked(torch.Tensor):
    pass


def subclass_as_parameter():
    model = nn.Linear(2, 2)
    model.weight = nn.Parameter(torch.ones(2, 2).as_subclass(Marked))
    return Training(model, SGD(model.parameters(), lr=0.1))


def subclass_as_state():
    model = nn.Linear(2, 2)
    optimizer = SGD(model.parameters(), lr=0.1)
    optimizer.state[model.weight]["codes"] = torch.ones(1).as_subclass(Marked)
    return Training(model, optimizer)


def stray_parameter():
    model = nn.Linear(2, 2)
    return Training(model, {"main": SGD([*model.parameters(), nn.Parameter(torch.ones(7))], lr=0.1)})


def component(value):
    model = nn.Linear(2, 2)
    return Training(model, SGD(model.parameters(), lr=0.1), components={"it": value})


def generator_in_a_component():
    class Augment:
        def __init__(self):
            self.generator = torch.Generator()

        def state_dict(self):
            return {"generator": self.generator}

        def load_state_dict(self, state):
            pass

    return component(Augment())


CAPTURES = {
    "a subclass as parameter": (subclass_as_parameter, "model weight", "Marked"),
    "a subclass as optimizer state": (subclass_as_state, "optimizer.optimizer state weight['codes']", "Marked"),
    "a stray parameter": (stray_parameter, "optimizer.main group 0 parameter 2", "(7,)"),
    "a generator in a component": (generator_in_a_component, "component.it['generator']", "torch._C.Generator"),
    "an optimizer as component": (
        lambda: component(SGD([nn.Parameter(torch.ones(1))], lr=0.1)), "component.it", "torch.optim.sgd.SGD",
    ),
    "a scheduler as component": (
        lambda: component(lr_scheduler.StepLR(SGD([nn.Parameter(torch.ones(1))], lr=0.1), 1)), "component.it", "StepLR",
    ),
    "a shuffling loader as component": (
        lambda: component(DataLoader([1, 2], shuffle=True)), "component.it", "DataLoader",
    ),
    "a function as component": (lambda: component(print), "component.it", "builtin_function"),
}  # fmt: skip


@pytest.mark.parametrize("kind", CAPTURES)
def test_refused_at_binding_or_capture_with_path_and_type(kind):
    make, where, found = CAPTURES[kind]
    with pytest.raises(UnsupportedState) as caught:
        make().capture({"x": 1})
    assert isinstance(caught.value, CaptureError)
    assert caught.value.where == where
    assert found in caught.value.found


WRONG_KINDS = {
    "a model that is none": (lambda m, o, s: (print, o, None), "model"),
    "an optimizer that is none": (lambda m, o, s: (m, {"main": s}, None), "optimizer.main"),
    "a scheduler that is none": (lambda m, o, s: (m, o, {"main": o}), "scheduler.main"),
    "a scheduler of another optimizer": (
        lambda m, o, s: (m, SGD(m.parameters(), lr=0.1), {"main": s}), "scheduler.main",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG_KINDS)
def test_objects_in_the_wrong_place_are_refused_at_binding(kind):
    arrange, where = WRONG_KINDS[kind]
    model = nn.Linear(2, 2)
    optimizer = SGD(model.parameters(), lr=0.1)
    scheduler = lr_scheduler.StepLR(optimizer, 2)
    with pytest.raises(UnsupportedState) as caught:
        Training(*arrange(model, optimizer, scheduler))
    assert caught.value.where == where


def test_an_accumulator_or_streams_of_another_kind_are_refused_at_binding():
    model = nn.Linear(2, 2)
    optimizer = SGD(model.parameters(), lr=0.1)
    for options, where in (({"accumulator": optimizer}, "accumulator"), ({"rng": 3}, "rng")):
        with pytest.raises(UnsupportedState) as caught:
            Training(model, optimizer, **options)
        assert caught.value.where == where


@pytest.mark.parametrize("name", ["", 3, "a\nb"])
def test_names_that_cannot_be_written_are_refused(name):
    model = nn.Linear(2, 2)
    with pytest.raises(TypeError, match="printable"):
        Training(model, {name: SGD(model.parameters(), lr=0.1)})


def build(optimizer=lambda m: AdamW(m.parameters(), lr=0.1), scheduler=lambda o: lr_scheduler.StepLR(o, 2),
          change=lambda m: None, components=None, name="optimizer"):  # fmt: skip
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    change(model)
    made = optimizer(model)
    schedule = scheduler(made)
    schedules = {} if schedule is None else {"scheduler": schedule}
    return model, made, Training(model, {name: made}, schedules, components=components)


def two_groups(model):
    return AdamW(
        [{"params": model[0].parameters()}, {"params": [*model[1].parameters(), *model[2].parameters()]}],
        lr=0.1,
    )


def reordered(model):
    return AdamW(reversed(list(model.parameters())), lr=0.1)


def rename(model):
    model[2].kernel = model[2].weight
    del model[2].weight


DIFFERENCES = {
    "missing": ({"change": lambda m: m[2].register_parameter("bias", None)}, ContractMismatch, "model.missing.2.bias"),
    "extra": (
        {"change": lambda m: m.register_buffer("scale", torch.ones(1))}, ContractMismatch, "model.extra.scale",
    ),
    "renamed": ({"change": rename}, ContractMismatch, "model.missing.2.weight"),
    "reshaped": (
        {"change": lambda m: setattr(m[2], "bias", nn.Parameter(torch.ones(1, 4)))}, ContractMismatch, "model.shape.2.bias",
    ),
    "re-dtyped": ({"change": lambda m: m[2].to(torch.float64)}, ContractMismatch, "model.dtype.2.bias"),
    "re-strided": (
        {"change": lambda m: setattr(m[2], "weight", nn.Parameter(torch.ones(4, 4).t()))},
        ContractMismatch, "model.strides.2.weight",
    ),
    "newly frozen": ({"change": lambda m: m[2].bias.requires_grad_(False)}, ContractMismatch, "model.requires_grad.2.bias"),
    "newly tied": ({"change": lambda m: setattr(m[2], "bias", m[0].bias)}, ContractMismatch, "model.missing.2.bias"),
    "another layer": ({"change": lambda m: m.append(nn.ReLU())}, ContractMismatch, "model.module.3"),
    "another optimizer": ({"optimizer": lambda m: Adam(m.parameters(), lr=0.1)}, OptimizerMismatch, "optimizer.optimizer.class"),
    "another option": (
        {"optimizer": lambda m: AdamW(m.parameters(), lr=0.1, betas=(0.8, 0.999))}, OptimizerMismatch,
        "optimizer.optimizer.betas",
    ),
    "another rate": ({"optimizer": lambda m: AdamW(m.parameters(), lr=0.2)}, OptimizerMismatch, "optimizer.optimizer.lr"),
    "other groups": ({"optimizer": two_groups}, OptimizerMismatch, "optimizer.optimizer.groups"),
    "another order": ({"optimizer": reordered}, OptimizerMismatch, "optimizer.optimizer.order"),
    "another name": ({"name": "main"}, OptimizerMismatch, "optimizer.main"),
    "another scheduler": (
        {"scheduler": lambda o: lr_scheduler.ExponentialLR(o, 0.9)}, SchedulerMismatch, "scheduler.scheduler.class",
    ),
    "another configuration": (
        {"scheduler": lambda o: lr_scheduler.StepLR(o, 3)}, SchedulerMismatch, "scheduler.scheduler.step_size",
    ),
    "a component more": ({"components": {"ema": nn.Linear(1, 1)}}, ComponentMismatch, "component.ema"),
}  # fmt: skip


@pytest.mark.parametrize("kind", DIFFERENCES)
def test_each_difference_is_refused_with_its_class_and_code_and_nothing_is_touched(kind):
    options, error, code = DIFFERENCES[kind]
    record = build()[2].capture()
    model, optimizer, training = build(**options)
    before = live(model, optimizer)
    with pytest.raises(error) as caught:
        training.restore(record)
    assert caught.value.code == code
    with pytest.raises(error):
        training.check(record)
    assert live(model, optimizer) == before


@pytest.mark.parametrize("kind", DIFFERENCES)
def test_each_difference_is_refused_in_the_other_direction_too(kind):
    options, error, _ = DIFFERENCES[kind]
    record = build(**options)[2].capture()
    model, optimizer, training = build()
    before = live(model, optimizer)
    with pytest.raises(error):
        training.restore(record)
    assert live(model, optimizer) == before


ADMISSIBLE = {
    "missing", "extra", "renamed", "another layer", "another option", "another rate", "another order",
    "another configuration", "a component more",
}  # fmt: skip


@pytest.mark.parametrize("kind", DIFFERENCES)
def test_the_printed_entry_admits_what_can_be_admitted_and_nothing_else(kind):
    options, error, _ = DIFFERENCES[kind]
    record = build()[2].capture()
    training = build(**options)[2]
    with pytest.raises(error) as caught:
        training.check(record)
    codes = [finding.code for finding in caught.value.findings]
    printed = [f'accept=["{code}"]' in str(caught.value) for code in codes]
    assert all(printed) == (kind in ADMISSIBLE)
    assert printed == [finding.admissible for finding in caught.value.findings]
    if kind in ADMISSIBLE:
        training.restore(record, accept=codes)
    else:
        with pytest.raises(error):
            training.restore(record, accept=codes)


def test_a_renamed_layer_is_admitted_by_its_new_name():
    one = build(change=lambda m: m.add_module("head", nn.Linear(2, 2)))
    other = build(change=lambda m: m.add_module("top", nn.Linear(2, 2)))
    record = one[2].capture()
    with pytest.raises(ContractMismatch, match="renamed"):
        other[2].restore(record)
    other[2].restore(record, rename={"head": "top"})
    assert diff(renamed(record, {"head": "top"}), other[2].capture()).identical
    assert [p.tolist() for p in other[0].parameters()] == [p.tolist() for p in one[0].parameters()]


def test_a_record_placed_on_another_device_is_refused_and_nothing_is_moved():
    model, optimizer, training = build()
    record = training.capture().with_device("cuda:0")
    before = live(model, optimizer)
    with pytest.raises(DeviceMismatch) as caught:
        training.restore(record)
    assert (caught.value.expected, caught.value.found) == ("cuda:0", "cpu")
    assert 'segue.load(url, device="cpu")' in str(caught.value)
    assert live(model, optimizer) == before
    training.restore(record.with_device("cpu"))


def test_a_model_without_values_is_refused_by_its_first_parameter():
    record = build()[2].capture()
    training = build(change=lambda m: m.to("meta"), optimizer=lambda m: AdamW(m.parameters(), lr=0.1))[2]
    with pytest.raises(UnsupportedState, match="meta"):
        training.restore(record)


def test_accepting_takes_a_collection_not_a_text():
    _, _, training = build()
    with pytest.raises(TypeError, match="did you mean"):
        training.restore(training.capture(), accept="model.order")
