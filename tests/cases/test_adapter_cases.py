"""B57: which adapter is trainable after loading, which is active, and what a second wrapping starts afresh."""

import importlib.util
import warnings

import pytest
import torch
from torch import nn

import segue
from segue.errors import ContractMismatch, UnsupportedState
from tests.cases.state import stored


@pytest.fixture(scope="module")
def peft():
    if importlib.util.find_spec("peft") is None:
        pytest.skip("peft is not installed")
    import tests.adapters.libraries as libraries

    return libraries.peft


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(2, 2, bias=False)

    def forward(self, x):
        return self.linear(x)


def config(peft):
    return peft.LoraConfig(target_modules=["linear"], r=1)


def bound(model):
    """A training over every adapter's parameters, as a program that may activate another later builds it."""
    adapters = [parameter for name, parameter in model.named_parameters() if "lora_" in name]
    optimizer = torch.optim.AdamW(adapters, lr=0.1)
    state = segue.TrainableOnly(base=segue.base_identity(model))
    return optimizer, segue.Training(model, optimizer, model_state=state)


def trained(peft, tmp_path):
    torch.manual_seed(1)
    model = peft.get_peft_model(Base(), config(peft))
    optimizer, training = bound(model)
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(tmp_path / "adapter")
    return model, stored(training.capture(), tmp_path)


def flags(model):
    return {name: parameter.requires_grad for name, parameter in model.named_parameters()}


def lora(model):
    return [tensor.clone() for name, tensor in model.state_dict().items() if "lora_" in name]


def test_b57_an_adapter_that_peft_loads_frozen_is_refused_and_loaded_trainable_it_goes_on(peft, tmp_path):
    model, record = trained(peft, tmp_path)
    frozen = peft.PeftModel.from_pretrained(Base(), tmp_path / "adapter")  # as peft does by default
    assert not any(flags(frozen).values())
    _, training = bound(frozen)
    with pytest.raises(ContractMismatch, match="newly frozen"):
        training.restore(record)
    again = peft.PeftModel.from_pretrained(Base(), tmp_path / "adapter", is_trainable=True)
    _, training = bound(again)
    training.restore(record)
    assert flags(again) == flags(model)
    assert again.active_adapters == model.active_adapters
    assert all(map(torch.equal, lora(again), lora(model)))


def test_b57_a_second_adapter_made_active_is_refused_and_the_flags_of_each_are_kept(peft, tmp_path):
    torch.manual_seed(1)
    model = peft.get_peft_model(Base(), config(peft))
    model.add_adapter("other", config(peft))
    _, training = bound(model)
    first = stored(training.capture(), tmp_path)
    model.set_adapter("other")
    with pytest.raises(ContractMismatch) as caught:
        training.restore(first)
    assert "model.configuration._active_adapter" in [finding.code for finding in caught.value.findings]
    again = peft.get_peft_model(Base(), config(peft))
    again.add_adapter("other", config(peft))
    _, training = bound(again)
    training.restore(first)
    assert again.active_adapters == ["default"]
    assert {name for name, trains in flags(again).items() if trains} == {
        "base_model.model.linear.lora_A.default.weight", "base_model.model.linear.lora_B.default.weight",
    }  # fmt: skip


def test_b57_an_adapter_the_record_does_not_have_is_refused(peft, tmp_path):
    _, record = trained(peft, tmp_path)
    model = peft.get_peft_model(Base(), config(peft))
    model.load_adapter(tmp_path / "adapter", adapter_name="other", is_trainable=True)
    _, training = bound(model)
    with pytest.raises(ContractMismatch, match="not in the record"):
        training.restore(record)


def test_b57_wrapped_once_more_before_the_restore_it_is_refused(peft, tmp_path):
    _, record = trained(peft, tmp_path)
    model = peft.get_peft_model(peft.get_peft_model(Base(), config(peft)), config(peft))
    _, training = bound(model)
    with pytest.raises(ContractMismatch, match="missing in the program"):
        training.restore(record)


def test_b57_wrapped_once_more_after_the_restore_nothing_is_saved_of_what_no_optimizer_steps(peft, tmp_path):
    _, record = trained(peft, tmp_path)
    model = peft.get_peft_model(Base(), config(peft))
    _, training = bound(model)
    training.restore(record)
    peft.get_peft_model(model, config(peft))  # starts the same adapter afresh, in new parameters
    with pytest.raises(UnsupportedState) as caught:
        training.capture()
    assert caught.value.code in ("capture.unregistered_parameter", "capture.unowned_parameter")
