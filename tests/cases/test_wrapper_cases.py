"""B55 and B56: a tie that is only claimed, and a model in wrappers on either side."""

import itertools
import json
import warnings

import pytest
import torch
from torch import nn
from torch.optim import AdamW

import segue
from segue import Training
from segue.errors import ContractMismatch, EnvironmentWarning
from tests.cases.state import codes_of, everything, live, raw, stored


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EnvironmentWarning)  # of what runs compiled
        yield


class ClaimsTie(nn.Module):
    """A model whose configuration says that its weights are tied, while the head was only copied."""

    def __init__(self, tied=False):
        super().__init__()
        torch.manual_seed(0)
        self.tie_word_embeddings = True
        self._tied_weights_keys = ["head.weight"]
        self.embedding, self.head = nn.Embedding(10, 4), nn.Linear(4, 10, bias=False)
        with torch.no_grad():
            self.head.weight.copy_(self.embedding.weight)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, index):
        return self.head(self.embedding(index))


def bound(model):
    optimizer = AdamW(model.parameters(), lr=0.1)
    return optimizer, Training(model, optimizer)


def step(model, optimizer, *inputs):
    optimizer.zero_grad()
    loss = model(*inputs).logsumexp(-1).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item().hex()


INDEX = torch.tensor([1, 2, 3])


def test_b55_a_tie_that_is_only_claimed_is_none_both_are_kept_and_the_loss_is_the_same(tmp_path):
    a = ClaimsTie()
    one, training = bound(a)
    step(a, one, INDEX)
    record = stored(training.capture(), tmp_path)
    assert sorted(record.model.tensors) == ["embedding.weight", "head.weight"]
    assert record.model.contract.sharing == ()
    b = ClaimsTie()
    other, resumed = bound(b)
    resumed.restore(record)
    assert b.head.weight is not b.embedding.weight
    assert [step(a, one, INDEX) for _ in range(3)] == [step(b, other, INDEX) for _ in range(3)]
    assert live(b, other) == live(a, one)


def test_b55_values_that_agree_are_no_tie_either(tmp_path):
    record = stored(bound(ClaimsTie())[1].capture(), tmp_path)
    assert sorted(record.model.tensors) == ["embedding.weight", "head.weight"]


@pytest.mark.parametrize("tied_before", [True, False])
def test_b55_a_claimed_tie_and_a_real_one_are_told_apart(tied_before, tmp_path):
    record = stored(bound(ClaimsTie(tied_before))[1].capture(), tmp_path)
    model = ClaimsTie(not tied_before)
    optimizer, training = bound(model)
    before = everything(model, optimizer)
    assert "model.tied.embedding.weight" in codes_of(training, record, ContractMismatch)
    assert everything(model, optimizer) == before


@pytest.mark.parametrize("tied", [True, False])
def test_b55_a_model_of_transformers_is_taken_by_its_memory_and_not_by_its_configuration(tied, tmp_path):
    pytest.importorskip("transformers")
    from tests.adapters.libraries import LlamaConfig, LlamaForCausalLM

    def built():
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=2, tie_word_embeddings=True,
        )  # fmt: skip
        model = LlamaForCausalLM(config)
        if not tied:  # as some loaders leave it: the flag stays
            model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
        return model

    def moved(model, optimizer):
        optimizer.zero_grad()
        model(input_ids=INDEX[None], labels=INDEX[None]).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    a, b = built(), built()
    (one, training), (other, resumed) = bound(a), bound(b)
    moved(a, one)
    record = stored(training.capture(), tmp_path)
    assert ("model.embed_tokens.weight" in record.model.tensors) == (not tied)
    resumed.restore(record)
    moved(a, one)
    moved(b, other)
    assert live(b, other) == live(a, one)
    assert (b.lm_head.weight is b.model.embed_tokens.weight) == tied


class Shell(nn.Module):
    """A wrapper of a program's own."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(x)


def compiled(module):
    return torch.compile(module, backend="eager")


def two(first=lambda layer: layer, second=lambda layer: layer):
    return nn.Sequential(first(nn.Linear(2, 2)), second(nn.Linear(2, 2)))


FORMS = {
    "plain": two,
    "compiled": lambda: compiled(two()),
    "compiled in place": lambda: (lambda model: (model.compile(backend="eager"), model)[1])(two()),
    "with a module": lambda: nn.DataParallel(two()),
    "partly compiled": lambda: two(compiled),
    "partly with a module": lambda: two(second=nn.DataParallel),
    "both, nested": lambda: nn.DataParallel(compiled(two(compiled, nn.DataParallel))),
}
X = torch.ones(1, 2)


@pytest.mark.parametrize(("before", "after"), list(itertools.product(FORMS, repeat=2)))
def test_b56_saved_in_any_form_and_loaded_in_any_other_it_has_the_same_names_and_goes_on(
    before, after, tmp_path
):
    torch.manual_seed(0)
    a = FORMS[before]()
    one, training = bound(a)
    step(a, one, X)
    record = stored(training.capture(), tmp_path)
    assert list(record.model.tensors) == ["0.bias", "0.weight", "1.bias", "1.weight"]
    assert list(record.optimizers["optimizer"].state) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    b = FORMS[after]()
    other, resumed = bound(b)
    resumed.restore(record)
    assert step(a, one, X) == step(b, other, X)
    for left, right in zip(a.parameters(), b.parameters(), strict=True):
        assert raw(left) == raw(right)
        assert raw(one.state[left]) == raw(other.state[right])


def test_b56_the_file_loads_into_the_plain_model_without_segue(tmp_path):
    from safetensors.torch import load_file

    torch.manual_seed(0)
    model = FORMS["both, nested"]()
    segue.save(bound(model)[1].capture(), tmp_path / "export")
    plain = two()
    plain.load_state_dict(load_file(tmp_path / "export" / "model.safetensors"), strict=True)
    assert [raw(p) for p in plain.parameters()] == [raw(p) for p in model.parameters()]


@pytest.mark.parametrize("wrapped", ["before", "after"])
def test_b56_no_name_in_common_is_refused_and_the_line_to_paste_brings_all_of_it(wrapped, tmp_path):
    torch.manual_seed(0)
    kinds = (lambda: Shell(two()), two)
    make, make_other = kinds if wrapped == "before" else reversed(kinds)
    a = make()
    one, training = bound(a)
    step(a, one, X)
    record = stored(training.capture(), tmp_path)
    b = make_other()
    other, resumed = bound(b)
    before = everything(b, other)
    with pytest.raises(ContractMismatch) as caught:
        resumed.restore(record)
    assert everything(b, other) == before
    rename = {"module": ""} if wrapped == "before" else {"": "module"}
    assert f"resume(rename={json.dumps(rename)})" in str(caught.value)
    resumed.restore(record, rename=rename)
    assert step(a, one, X) == step(b, other, X)
    # The program keeps its line, and its own records have the new names already.
    again = make_other()
    third, last = bound(again)
    last.restore(stored(resumed.capture(), tmp_path), rename=rename)
    assert live(again, third) == live(b, other)


def test_b56_a_module_of_ones_own_with_a_wrappers_name_stays_where_it_is(tmp_path):
    class Holder(nn.Module):
        def __init__(self):
            super().__init__()
            self.module, self._orig_mod = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x):
            return self._orig_mod(self.module(x))

    torch.manual_seed(0)
    a, b = compiled(Holder()), nn.DataParallel(Holder())
    (one, training), (other, resumed) = bound(a), bound(b)
    step(a, one, X)
    record = stored(training.capture(), tmp_path)
    assert list(record.model.tensors) == [
        "_orig_mod.bias",
        "_orig_mod.weight",
        "module.bias",
        "module.weight",
    ]
    resumed.restore(record)
    assert step(a, one, X) == step(b, other, X)
