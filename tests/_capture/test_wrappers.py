"""Wrappers: every form of a model has the names of the plain one, and takes its state; what a wrapper holds itself isn't lost."""

import importlib.util
import itertools
import subprocess
import sys
import warnings

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import _get_fqns
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.optim.swa_utils import AveragedModel

import segue
from segue import Training
from segue._capture.naming import named_tensors, places, walk
from segue._record.diff import diff
from segue.errors import ContractMismatch, UnsupportedState
from tests.cases.state import codes_of, live, raw, stored
from tests.exactness.forms import (
    COMPILED,
    FORMS,
    ONLY_NAMED,
    compiled,
    in_form,
    one_process,
    pipeline,
    replicated,
)

ALL = {**FORMS, **COMPILED, **ONLY_NAMED}


@pytest.fixture(scope="module", autouse=True)
def group():
    with one_process():
        yield


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", segue.errors.EnvironmentWarning)  # of what runs compiled
        warnings.simplefilter("ignore", DeprecationWarning)  # inductor imports what torch has deprecated
        yield


def names(module):
    return list(named_tensors(module, "model"))


def paths(module):
    return [path for path, _ in walk(module, "model")]


@pytest.mark.parametrize("form", ALL)
def test_a_model_has_the_names_of_the_plain_one_in_every_form(form):
    plain = pipeline()
    assert names(in_form(form)) == names(plain)
    assert sorted(names(plain)) == sorted(
        name for name, _ in [*plain.named_parameters(), *plain.named_buffers()]
    )
    assert paths(in_form(form)) == [name for name, _ in plain.named_modules()]


@pytest.mark.parametrize(
    "form", [form for form in ALL if "DataParallel" not in form and "like wrappers" not in form]
)
def test_torchs_own_names_agree(form):
    """Those of its distributed checkpoints, which cut `DataParallel` out of no name."""
    model = in_form(form)
    ours = {id(item.tensor): item.name for item in named_tensors(model, "model").values()}
    for name, parameter in nn.Module.named_parameters(model):
        assert _get_fqns(model, name) == {ours[id(parameter)]}


class Bound:
    """A training that has pending gradients and moments, without a forward: kernels take long to build."""

    def __init__(self, model):
        self.model = model
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=0.1)
        self.training = Training(model, self.optimizer, rng=None)

    def trained(self):
        for _ in range(2):
            for parameter in self.optimizer.param_groups[0]["params"]:
                parameter.grad = torch.randn_like(parameter)
            self.optimizer.step()
        for path, module, wrappers in places(self.model, "model"):
            if path == "first.block":
                (wrappers[0][0] if wrappers else module).eval()
        for parameter in self.optimizer.param_groups[0]["params"]:
            parameter.grad = torch.randn_like(parameter)
        return self


def ring(forms):
    """Each form with the next; every pair of them is in `tests/exactness`."""
    return list(itertools.pairwise([*forms, next(iter(forms))]))


@pytest.mark.parametrize(("before", "after"), ring(ALL))
def test_a_record_of_every_form_fits_the_next(before, after):
    torch.manual_seed(0)
    record, target = Bound(in_form(before)).trained().training.capture(), Bound(in_form(after))
    target.training.restore(record)
    assert diff(record, target.training.capture()).identical
    assert set(target.optimizer.state) == set(target.model.parameters())


@pytest.fixture
def adapted():
    if importlib.util.find_spec("peft") is None or importlib.util.find_spec("transformers") is None:
        pytest.skip("peft or transformers is not installed")
    from tests.exactness.forms import ADAPTED

    return ADAPTED


def test_a_record_of_every_form_with_adapters_fits_the_next(adapted):
    torch.manual_seed(0)
    plain = pipeline()
    records = {form: Bound(build()).trained().training.capture() for form, build in adapted.items()}
    targets = {form: Bound(build()) for form, build in adapted.items()}
    for before, after in ring(adapted):
        target = targets[after]
        target.training.restore(records[before])
        assert diff(records[before], target.training.capture()).identical, f"{before} -> {after}"
    assert "first.module.lora_A.default.weight" in records["DDP of compiled of peft's"].model.tensors
    assert {
        name.replace(".base_layer", "") for name in records["injected"].model.tensors if "lora" not in name
    } == set(names(plain))


def test_the_base_is_the_same_in_every_form(adapted):
    identities = {segue.base_identity(build()).digest for build in adapted.values()}
    assert len(identities) == 1


# What a wrapper holds itself.


def test_the_flag_of_a_wrapper_goes_with_what_it_wraps():
    model, other = replicated(compiled(nn.Linear(1, 1))), nn.DataParallel(nn.Linear(1, 1))
    model.eval()
    Training(other, torch.optim.SGD(other.parameters()), rng=None).restore(
        Training(model, torch.optim.SGD(model.parameters()), rng=None).capture()
    )
    assert (other.training, other.module.training) == (False, False)


@pytest.mark.parametrize("inner", [True, False])
def test_a_wrapper_that_differs_from_what_it_wraps_is_kept_as_it_was(inner, tmp_path):
    def bound():
        model = nn.Sequential(nn.DataParallel(replicated(nn.Linear(1, 1))))
        return model, Training(model, torch.optim.SGD(model.parameters()), rng=None)

    def flags(model):
        return [module.training for module in model.modules()]

    model, training = bound()
    for module in model.modules():
        module.training = not inner
    model[0].module.module.training = inner
    record = stored(training.capture(), tmp_path)
    assert record.model.training == {
        "": not inner, "0": inner, "0.(DataParallel)": not inner, "0.(DistributedDataParallel)": not inner,
    }  # fmt: skip
    again, other = bound()
    other.restore(record)
    assert flags(again) == flags(model)
    assert diff(record, other.capture()).identical
    model.train()
    other.restore(training.capture())
    assert all(flags(again))


def test_the_flag_of_a_wrapper_that_the_program_lacks_is_told_and_can_be_dropped():
    model, plain = nn.DataParallel(nn.Linear(1, 1)), nn.Linear(1, 1)
    model.module.eval()
    record = Training(model, torch.optim.SGD(model.parameters()), rng=None).capture()
    training = Training(plain, torch.optim.SGD(plain.parameters()), rng=None)
    assert codes_of(training, record) == ["model.module.(DataParallel)"]
    assert plain.training
    training.restore(record, accept=["model.module.(DataParallel)"])
    assert not plain.training


def test_two_wrappers_of_one_kind_are_told_apart():
    model = nn.DataParallel(nn.DataParallel(nn.Linear(1, 1)))
    model.training = False
    record = Training(model, torch.optim.SGD(model.parameters()), rng=None).capture()
    assert record.model.training == {"": True, "(DataParallel)": False}
    model.training, model.module.training = True, False
    record = Training(model, torch.optim.SGD(model.parameters()), rng=None).capture()
    assert record.model.training == {"": True, "(DataParallel 2)": False}


def test_an_average_is_no_wrapper_and_looks_through_those_inside():
    average = AveragedModel(compiled(nn.Sequential(nn.Linear(1, 1, bias=False))))
    assert names(average) == ["n_averaged", "module.0.weight"]
    assert names(compiled(average)) == names(average)


def test_an_average_of_a_wrapped_model_fits_that_of_the_plain_one(tmp_path):
    def bound(wrap):
        torch.manual_seed(0)
        model = nn.Linear(2, 2)
        average = AveragedModel(wrap(model))
        training = Training(
            model, torch.optim.SGD(model.parameters()), components={"average": average}, rng=None
        )
        return average, model, training

    average, model, training = bound(compiled)
    with torch.no_grad():
        model.weight.add_(1)
    average.update_parameters(model)
    again, _, other = bound(lambda module: module)
    other.restore(stored(training.capture(), tmp_path))
    assert raw(again.module.weight) == raw(average.module._orig_mod.weight)
    assert int(again.n_averaged) == 1


# What can't be taken yet.


def test_flat_parameters_are_refused_where_they_are():
    with pytest.warns(UserWarning, match="NO_SHARD"):
        model = nn.Sequential(FullyShardedDataParallel(nn.Linear(2, 2), device_id=torch.device("cpu")))
    with pytest.raises(UnsupportedState, match="keeps parameters flat") as caught:
        Training(model, torch.optim.SGD(model.parameters()))
    assert (caught.value.code, caught.value.where) == ("capture.fsdp1", "model 0")


def test_shards_are_refused_where_they_are():
    from torch.distributed.device_mesh import init_device_mesh

    model = nn.Sequential(nn.Linear(2, 2))
    fully_shard(model[0], mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(UnsupportedState, match="not supported yet") as caught:
        Training(model, torch.optim.SGD(model.parameters()))
    assert (caught.value.code, caught.value.where) == ("capture.fsdp2", "model 0")


def test_no_wrapper_is_imported_to_be_known():
    program = "import sys, segue; print([n for n in ('torch._dynamo', 'peft', 'torch.distributed.fsdp', " \
        "'torch.distributed.algorithms._checkpoint.checkpoint_wrapper') if n in sys.modules])"  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == "[]"


# peft, one by one.


@pytest.fixture
def peft(adapted):
    from tests.adapters.libraries import peft

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield peft


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4, bias=False)

    def forward(self, x):
        return self.linear(x)


def lora(peft, **options):
    return peft.LoraConfig(target_modules=["linear"], r=2, **options)


@pytest.mark.parametrize(
    "kind",
    [
        "LoraConfig",
        "IA3Config",
        "LoHaConfig",
        "LoKrConfig",
        "OFTConfig",
        "HRAConfig",
        "FourierFTConfig",
        "AdaLoraConfig",
    ],
)
def test_adapters_of_a_kind_are_called_alike_with_and_without_wrappers(kind, peft):
    def config():
        options = {
            "IA3Config": {"feedforward_modules": []}, "FourierFTConfig": {"n_frequency": 3}, "AdaLoraConfig": {"total_step": 9},
            "OFTConfig": {"oft_block_size": 2},
        }  # fmt: skip
        return getattr(peft, kind)(target_modules=["linear"], **options.get(kind, {}))

    wrapped = peft.get_peft_model(Base(), config())
    injected = peft.inject_adapter_in_model(config(), Base())
    assert names(wrapped) == names(injected)
    assert any("default" in name for name in names(wrapped))


def test_mixed_adapters_are_called_alike_too(peft):
    model = peft.get_peft_model(Base(), lora(peft), mixed=True)
    assert names(model) == names(peft.get_peft_model(Base(), lora(peft)))


def test_a_model_of_peft_that_was_wrapped_twice_is_another_one(peft):
    once = Bound(peft.get_peft_model(Base(), lora(peft))).trained().training.capture()
    twice = Bound(peft.get_peft_model(compiled(peft.get_peft_model(Base(), lora(peft))), lora(peft)))
    before = live(twice.model)
    with pytest.raises(ContractMismatch, match="missing in the program"):
        twice.training.restore(once)
    assert live(twice.model) == before


def test_what_a_wrapper_of_peft_learns_itself_keeps_its_place(peft):
    """Prompts are parameters of the wrapper, so it is a module like others."""
    from tests.adapters.libraries import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2
    )  # fmt: skip
    prompts = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)

    def bound():
        return Bound(peft.get_peft_model(LlamaForCausalLM(config), prompts))

    first, again = bound().trained(), bound()
    record = first.training.capture()
    assert "prompt_encoder.default.embedding.weight" in record.model.tensors
    assert "base_model.model.norm.weight" in record.model.tensors
    again.training.restore(record)
    assert diff(record, again.training.capture()).identical


# accelerate wraps nothing on one process; what it patches stays out of names.


def test_what_accelerate_prepares_is_called_as_before():
    if importlib.util.find_spec("accelerate") is None:
        pytest.skip("accelerate is not installed")
    importlib.import_module("accelerate.state").AcceleratorState._reset_state(True)  # of other tests
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import accelerate

        model = pipeline()
        accelerator = accelerate.Accelerator(cpu=True, mixed_precision="bf16")
        prepared = accelerator.prepare(model)
    assert names(prepared) == names(pipeline())
    assert names(accelerator.prepare_model(compiled(pipeline()))) == names(pipeline())
