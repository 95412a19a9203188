"""Checkpoints of when names had peft's wrappers in them go on: in the same program, and in one without wrappers."""

import importlib.util
import warnings
from dataclasses import replace

import pytest
import torch
from torch import nn

import segue
from segue._record.rename import renamed
from segue._record.tree import same
from segue.errors import ContractMismatch
from tests.cases.state import codes_of, live


@pytest.fixture
def former():
    if importlib.util.find_spec("peft") is None or importlib.util.find_spec("transformers") is None:
        pytest.skip("peft or transformers is not installed")
    import tests.adapters.former as former

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", segue.errors.EnvironmentWarning)  # it was made on another machine
        yield former


@pytest.fixture
def old(former):
    return segue.load(former.GOLDEN)


PREFIX = "base_model.model."


def assert_took_over(model, average, optimizer, training, old):
    """Assert that all tensors of the record are in a model and its average, whatever they are called."""
    found = training.capture()
    assert found.model.tensors
    assert not any(name.startswith(PREFIX) for name in found.model.tensors)
    assert {PREFIX + name for name in found.model.tensors} == set(old.model.tensors)
    for name, tensor in found.model.tensors.items():
        assert same(tensor, old.model.tensors[PREFIX + name]), name
    average = old.components["average"].module
    assert {PREFIX + name for name in found.components["average"].module.tensors} == set(average.tensors)
    for name, tensor in found.components["average"].module.tensors.items():
        assert same(tensor, average.tensors[PREFIX + name]), name
    state = {PREFIX + name: slots for name, slots in found.optimizers["optimizer"].state.items()}
    assert same(state, old.optimizers["optimizer"].state)
    assert len(state) == 4
    assert {PREFIX + name for name in found.gradients.tensors} == set(old.gradients.tensors)
    for name, gradient in found.gradients.tensors.items():
        assert same(gradient, old.gradients.tensors[PREFIX + name]), name


@pytest.mark.parametrize("wrapped", [True, False])
@pytest.mark.parametrize(
    "wrap", [lambda model: model, lambda model: torch.compile(model, backend="eager"), nn.DataParallel]
)
def test_an_old_checkpoint_goes_on_in_every_form(wrapped, wrap, former, old):
    if not wrapped:
        # Nothing there tells that names had wrappers in them; the program says so.
        torch.manual_seed(9)
        model, average, optimizer, training = former.built(wrapped, wrap)
        with pytest.raises(ContractMismatch) as caught:
            training.restore(old)
        assert 'rename={"base_model.model": ""}' in str(caught.value)
        training.restore(old, rename={"base_model.model": "", "average/base_model.model": "average/"})
    else:
        torch.manual_seed(9)
        model, average, optimizer, training = former.built(wrapped, wrap)
        training.check(old)
        assert training.restore(old) == {"step": 2}
    assert_took_over(model, average, optimizer, training, old)


def test_it_goes_on_bit_for_bit_as_with_names_of_today(former, old):
    def step(model, optimizer):
        torch.manual_seed(5)
        model(torch.randn(4, 3)).pow(2).sum().backward()
        optimizer.step()
        return live(model, optimizer)

    model, _, optimizer, training = former.built()
    training.restore(old)
    today = training.capture()
    expected = step(model, optimizer)
    model, _, optimizer, training = former.built()
    training.restore(today)
    assert step(model, optimizer) == expected


def test_what_a_program_renames_may_be_told_in_the_old_names(former, old):
    _, _, _, training = former.built()
    moved = renamed(old, {"base_model.model.first": "base_model.model.other"})
    training.restore(moved, rename={"base_model.model.other": "base_model.model.first"})
    assert same(training.capture().model.tensors.keys(), training.capture().model.tensors.keys())
    assert "model.missing.other.lora_A.default.weight" in codes_of(former.built()[3], moved)


def test_a_model_alone_is_filled_from_an_old_checkpoint(former, old):
    model, *_ = former.built()
    segue.restore_module(old.model, model)
    found = dict(model.named_parameters())
    for name, tensor in old.model.tensors.items():
        if name in found:
            assert same(segue.capture_module(model).tensors[name.removeprefix(PREFIX)], tensor)


def test_gradients_and_an_optimizer_alone_are_read_from_an_old_checkpoint(former, old):
    model, _, optimizer, _ = former.built()
    segue.restore_module(old.model, model)
    segue.restore_gradients(old.gradients, model)
    segue.restore_optimizer(old.optimizers["optimizer"], optimizer, model)
    whole, _, other, training = former.built()
    training.restore(old)
    assert live(model, optimizer) == live(whole, other)
    assert sum(parameter.grad is not None for parameter in model.parameters()) == 4
    window = segue.GradientAccumulator(model)
    window.add()
    sums = window.to_record()
    formerly = replace(sums, sums=sums.sums.renamed({name: PREFIX + name for name in sums.sums.tensors}))
    window.load_record(formerly)
    assert same(window.to_record(), sums)


def test_a_callers_functions_restore_an_old_checkpoint(former):
    model, *_ = former.trained()
    record = segue.TrainingRecord.capture(model, model_state={}, groups={}, state=3)
    record = renamed(record, {"": "base_model.model"})
    again, *_ = former.built()
    restored = record.restore(
        again, None, restore_model=lambda state, model: model, restore_groups=lambda model, groups: (model, None)
    )  # fmt: skip
    assert restored.state == 3
    assert {name: p.grad is None for name, p in again.named_parameters()} == {
        name: p.grad is None for name, p in model.named_parameters()
    }


def test_a_module_of_the_programs_own_that_is_called_so_is_never_taken_for_a_wrapper(former):
    from tests.adapters.libraries import peft

    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.base_model = nn.ModuleDict({"model": nn.Linear(2, 2)})

        def forward(self, x):
            return self.base_model["model"](x)

    def built():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = peft.get_peft_model(Inner(), peft.LoraConfig(target_modules=["model"], r=1))
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        return model, segue.Training(model, torch.optim.SGD(trained, lr=0.1), rng=None)

    model, training = built()
    record = training.capture()
    assert "base_model.model.lora_A.default.weight" in record.model.tensors
    again, other = built()
    other.restore(record)
    assert live(again)["parameters"] == live(model)["parameters"]
    # And one of when it was `base_model.model.base_model.model` finds its place too.
    again, other = built()
    other.restore(renamed(record, {"": "base_model.model"}))
    assert live(again)["parameters"] == live(model)["parameters"]
