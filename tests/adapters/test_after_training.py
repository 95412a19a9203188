"""What becomes of a checkpoint when the training is over, each way as docs/explanation/after-training.md shows it."""

import copy
import inspect
import warnings
from pathlib import Path

import pytest
import safetensors.torch
import torch
from safetensors.torch import load_file, save_file

import segue
from segue._record.tree import same
from segue.errors import BaseMismatch, ContractMismatch

KINDS = ("lora", "dora", "lora-and-a-trained-head", "llama")


def trained(trainings, kind, folder):
    """Train, save a checkpoint into a folder, and return the run."""
    trainings.seed(3)
    run = trainings.Run(trainings.CASES[kind])
    for number in range(5):
        run.microbatch(number)
    segue.save(run.training.capture(), folder)
    return run


def fresh(trainings, kind, base_seed=0):
    trainings.seed(4)
    return trainings.adapted(trainings.CASES[kind], base_seed)


def base_of(trainings, kind):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return trainings.CASES[kind].base()


def different(left, right):
    """Name the tensors of two models that have other bytes."""
    left, right = left.state_dict(), right.state_dict()
    assert left.keys() == right.keys()
    return [
        name
        for name in left
        if not torch.equal(
            left[name].reshape(-1).view(torch.uint8), right[name].reshape(-1).view(torch.uint8)
        )
    ]


def quietly(call, *arguments, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call(*arguments, **options)


def pretrained(trainings, base, folder):
    """Load what peft has written, in the dtypes in which it was written: by default all becomes fp32 (peft 0.21)."""
    return quietly(trainings.peft.PeftModel.from_pretrained, base, folder, autocast_adapter_dtype=False)


# Into a model, checked.


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_is_filled_without_optimizers(kind, trainings, tmp_path):
    run = trained(trainings, kind, tmp_path / "c")
    model = fresh(trainings, kind)
    segue.restore_module(segue.load(tmp_path / "c").model, model)
    assert different(model, run.model) == []


def test_another_base_or_dtype_is_refused(trainings, tmp_path):
    trained(trainings, "lora", tmp_path / "c")
    record = segue.load(tmp_path / "c")
    with pytest.raises(BaseMismatch):
        segue.restore_module(record.model, fresh(trainings, "lora", base_seed=1))
    with pytest.raises(ContractMismatch, match="dtype"):
        segue.restore_module(record.model, fresh(trainings, "lora").bfloat16())


def test_a_base_of_the_callers_naming_is_told(trainings, tmp_path):
    model = fresh(trainings, "llama")
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    state = segue.TrainableOnly(base="llama@1")
    segue.save(
        segue.Training(model, torch.optim.SGD(parameters), model_state=state).capture(), tmp_path / "c"
    )
    record = segue.load(tmp_path / "c")
    other = fresh(trainings, "llama")
    with pytest.raises(BaseMismatch):
        segue.restore_module(record.model, other)
    segue.restore_module(record.model, other, base="llama@1")
    assert different(other, model) == []


def test_quantized_weights_come_back(trainings, tmp_path):
    model, other = (trainings.int8_llama().requires_grad_(False) for _ in range(2))
    for each in (model, other):
        each.model.norm.weight.requires_grad_(True)
    optimizer = torch.optim.SGD([model.model.norm.weight], lr=0.1)
    segue.save(segue.Training(model, optimizer).capture(), tmp_path / "c")
    expected = segue.capture_module(model)
    assert not same(segue.capture_module(other), expected)
    segue.restore_module(segue.load(tmp_path / "c").model, other)
    assert same(segue.capture_module(other), expected)


# As an adapter of peft.


@pytest.mark.parametrize("kind", KINDS)
def test_what_save_pretrained_writes_is_the_adapter(kind, trainings, tmp_path):
    run = trained(trainings, kind, tmp_path / "c")
    model = fresh(trainings, kind)
    segue.restore_module(segue.load(tmp_path / "c").model, model)
    quietly(model.save_pretrained, tmp_path / "adapter")
    loaded = pretrained(trainings, base_of(trainings, kind), tmp_path / "adapter")
    # The statistics of the base's BatchNorm are in our checkpoint; peft does not write them.
    statistics = [] if kind == "llama" else ["num_batches_tracked", "running_mean", "running_var"]
    found = different(loaded, run.model)
    assert sorted(name.rpartition(".")[2] for name in found) == statistics


def test_the_statistics_that_peft_does_not_write_can_be_added(trainings, tmp_path):
    run = trained(trainings, "lora", tmp_path / "c")
    base = base_of(trainings, "lora")
    tensors = load_file(tmp_path / "c" / "model.safetensors")
    statistics = {name: tensor for name, tensor in tensors.items() if name.startswith("norm.")}
    assert base.load_state_dict(statistics, strict=False).unexpected_keys == []
    quietly(run.model.save_pretrained, tmp_path / "adapter")
    assert different(pretrained(trainings, base, tmp_path / "adapter"), run.model) == []


def test_what_peft_loads_is_fp32_unless_it_is_told(trainings, tmp_path):
    run = trained(trainings, "llama", tmp_path / "c")
    quietly(run.model.save_pretrained, tmp_path / "adapter")
    base = base_of(trainings, "llama")
    loaded = quietly(trainings.peft.PeftModel.from_pretrained, base, tmp_path / "adapter")
    own = {name: p.dtype for name, p in run.model.named_parameters() if "lora" in name}
    found = {name: p.dtype for name, p in loaded.named_parameters() if "lora" in name}
    assert (set(own.values()), set(found.values())) == ({torch.bfloat16}, {torch.float32})


# From model.safetensors, without segue.


@pytest.mark.parametrize("kind", [*KINDS, "two-adapters"])
def test_the_file_has_the_names_of_the_base_model_with_its_adapters(kind, trainings, tmp_path):
    run = trained(trainings, kind, tmp_path / "c")
    model = fresh(trainings, kind)
    if kind == "two-adapters":
        model.set_adapter("second")
    tensors = load_file(tmp_path / "c" / "model.safetensors")
    assert model.get_base_model().load_state_dict(tensors, strict=False).unexpected_keys == []
    assert different(model, run.model) == []


def test_what_goes_nowhere_is_seen_in_the_unexpected_keys_alone(trainings, tmp_path):
    trained(trainings, "llama", tmp_path / "c")
    model = base_of(trainings, "llama")
    before = copy.deepcopy(model)
    tensors = load_file(tmp_path / "c" / "model.safetensors")
    assert model.load_state_dict(tensors, strict=False).unexpected_keys == list(tensors)
    assert different(model, before) == []


def to_peft(tensors):
    """Convert as the document does."""
    return {
        "base_model.model." + name.replace(".modules_to_save.default.", ".").replace(".default.", "."): tensor
        for name, tensor in tensors.items()
    }


@pytest.mark.parametrize("kind", KINDS)
def test_peft_takes_the_names_without_the_adapters(kind, trainings, tmp_path):
    run = trained(trainings, kind, tmp_path / "c")
    model = fresh(trainings, kind)
    tensors = load_file(tmp_path / "c" / "model.safetensors")
    result = trainings.peft.set_peft_model_state_dict(model, to_peft(tensors))
    assert result.unexpected_keys == []
    assert different(model, run.model) == []


def test_the_document_shows_this_conversion():
    document = Path(__file__).resolve().parents[2] / "docs/explanation/after-training.md"
    conversion = (
        '"base_model.model." + name.replace(".modules_to_save.default.", ".").replace(".default.", ".")'
    )
    assert conversion in inspect.getsource(to_peft)
    assert conversion in document.read_text()


def test_with_the_adapters_in_them_peft_fails_for_a_trained_head(trainings, tmp_path):
    trained(trainings, "lora-and-a-trained-head", tmp_path / "c")
    file = load_file(tmp_path / "c" / "model.safetensors")
    tensors = {f"base_model.model.{name}": tensor for name, tensor in file.items()}
    with pytest.raises(KeyError, match=r"base_model\.model\.head\.weight"):
        trainings.peft.set_peft_model_state_dict(fresh(trainings, "lora-and-a-trained-head"), tensors)


# Merged.


def test_the_finished_model_is_merged_where_it_was_filled(trainings, tmp_path):
    run = trained(trainings, "llama", tmp_path / "c")
    model = fresh(trainings, "llama")
    segue.restore_module(segue.load(tmp_path / "c", device="cpu").model, model)
    assert different(model.merge_and_unload(), copy.deepcopy(run.model).merge_and_unload()) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_is_merged_and_the_training_goes_on(kind, trainings, tmp_path):
    trainings.seed(3)
    run, alone = trainings.Run(trainings.CASES[kind]), trainings.Run(trainings.CASES[kind])
    alone.training.restore(run.training.capture())
    run.microbatch(0)
    before = run.training.capture()
    merged = copy.deepcopy(run.model).merge_and_unload()
    assert segue.diff(before, run.training.capture()).identical
    assert not any("lora" in name or "base_layer" in name for name in merged.state_dict())
    run.microbatch(1)
    assert run.training.capture().model.base == before.model.base
    alone.training.restore(before)
    alone.microbatch(1)
    assert segue.diff(alone.training.capture(), run.training.capture()).identical


def test_what_is_merged_computes_nearly_the_same_and_loads_into_the_plain_model(trainings, tmp_path):
    run = trained(trainings, "lora-and-a-trained-head", tmp_path / "c")
    merged = copy.deepcopy(run.model).merge_and_unload().eval()
    save_file(merged.state_dict(), tmp_path / "merged.safetensors")
    plain = base_of(trainings, "lora").eval()
    plain.load_state_dict(load_file(tmp_path / "merged.safetensors"))
    tokens = torch.arange(12).view(3, 4)
    with torch.no_grad():
        adapted, folded = run.model.eval()(tokens), plain(tokens)
        assert torch.equal(folded, merged(tokens))
    difference = (adapted - folded).abs().max().item()
    assert 0 < difference < 1e-5, "rounded, and the same function"


def test_merging_in_place_makes_the_base_state_from_then_on(trainings, tmp_path):
    run = trained(trainings, "lora", tmp_path / "c")
    small = run.training.capture().num_bytes
    run.model.merge_adapter()
    run.model.unmerge_adapter()
    with pytest.warns(segue.errors.BaseWarning, match="rounds the base, so merge a copy"):
        record = run.training.capture()
    stored = [name for name in record.model.tensors if "base_layer" in name]
    assert stored
    assert record.num_bytes > small
    run.microbatch(5)
    assert set(stored) <= run.training.capture().model.tensors.keys()


# A full model.


def tied_llama(trainings):
    config = trainings.LlamaConfig(
        vocab_size=32, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32, tie_word_embeddings=True,
    )  # fmt: skip
    return trainings.LlamaForCausalLM(config)


def saved_full(model, folder, **options):
    training = segue.Training(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    segue.save(training.capture(), folder, **options)
    return model


def test_a_full_model_loads_with_safetensors(trainings, tmp_path):
    model = saved_full(base_of(trainings, "lora"), tmp_path / "c")
    other = trainings.net()
    other.load_state_dict(load_file(tmp_path / "c" / "model.safetensors"))
    assert different(other, model) == []


def test_tied_weights_have_one_name_and_load_model_knows_that(trainings, tmp_path):
    model = saved_full(tied_llama(trainings), tmp_path / "c")
    file = tmp_path / "c" / "model.safetensors"
    other = tied_llama(trainings)
    with pytest.raises(RuntimeError, match=r"Missing key.*embed_tokens\.weight"):
        other.load_state_dict(load_file(file))
    safetensors.torch.load_model(other, file)
    assert different(other, model) == []


def test_beside_its_configuration_it_is_a_model_of_transformers(trainings, tmp_path):
    model = saved_full(tied_llama(trainings), tmp_path / "c")
    folder = tmp_path / "model"
    model.config.save_pretrained(folder)
    (folder / "model.safetensors").write_bytes((tmp_path / "c" / "model.safetensors").read_bytes())
    assert different(trainings.LlamaForCausalLM.from_pretrained(folder), model) == []


def test_an_export_in_another_precision_is_what_the_other_program_reads(trainings, tmp_path):
    model = saved_full(tied_llama(trainings), tmp_path / "c")
    segue.save(segue.load(tmp_path / "c"), tmp_path / "export", precision=torch.bfloat16)
    tensors = load_file(tmp_path / "export" / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    weights = dict(model.named_parameters(remove_duplicate=False))
    assert all(torch.equal(tensor, weights[name].bfloat16()) for name, tensor in tensors.items())
    with pytest.raises(segue.errors.LossyRecord):
        segue.restore_module(segue.load(tmp_path / "export").model, tied_llama(trainings))
