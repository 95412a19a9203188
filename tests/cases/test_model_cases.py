"""B54 to B69: ties, modes, objects beside the model, every dtype and layout, views, and structure."""

import math
import os
from collections import Counter, OrderedDict

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW

import segue
from segue import Training
from segue._record.tree import same
from segue.errors import (
    ComponentMismatch,
    ContractMismatch,
    MismatchError,
    OptimizerMismatch,
    UnsupportedState,
)
from tests._capture.zoo import layouts, logical_bytes, of_dtype
from tests._record.test_tensors import DTYPES
from tests.cases.state import live, raw, stored


class Tied(nn.Module):
    def __init__(self, tied=True, head_first=False):
        super().__init__()
        torch.manual_seed(0)
        embedding, head = nn.Embedding(10, 4), nn.Linear(4, 10, bias=False)
        layers = {"embedding": embedding, "head": head}
        for name in reversed(layers) if head_first else layers:
            self.add_module(name, layers[name])
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, index):
        return self.head(self.embedding(index))


def tied_step(model, optimizer):
    optimizer.zero_grad()
    model(torch.tensor([1, 2, 3])).logsumexp(-1).sum().backward()
    optimizer.step()


def bound(model):
    optimizer = AdamW(model.parameters(), lr=0.1)
    return optimizer, Training(model, optimizer)


@pytest.mark.parametrize("head_first", [False, True])
def test_b54_tied_weights_are_stored_once_and_stay_one_object(head_first, tmp_path):
    a = Tied()
    one, training = bound(a)
    tied_step(a, one)
    place = tmp_path / "export"
    segue.save(training.capture(), place)
    record = segue.load(place)
    assert list(record.model.tensors) == ["embedding.weight"]
    b = Tied(head_first=head_first)
    other, resumed = bound(b)
    weight = b.embedding.weight
    resumed.restore(record)
    assert b.head.weight is b.embedding.weight is weight is other.param_groups[0]["params"][0]
    tied_step(a, one)
    tied_step(b, other)
    assert raw(a.head.weight) == raw(b.head.weight)
    assert raw(one.state[a.head.weight]) == raw(other.state[b.head.weight])


def test_b54_the_plain_library_loads_the_export_into_the_plain_model(tmp_path):
    from safetensors.torch import load_file, load_model

    a = Tied()
    one, training = bound(a)
    tied_step(a, one)
    segue.save(training.capture(), tmp_path / "export")
    file = tmp_path / "export" / "model.safetensors"
    assert list(load_file(file)) == ["embedding.weight"]
    for head_first in (False, True):
        b = Tied(head_first=head_first)
        load_model(b, file)
        assert raw(b.head.weight) == raw(a.head.weight)


@pytest.mark.parametrize("tied_then", [True, False])
def test_b54_untied_into_tied_and_back_are_refused(tied_then):
    record = bound(Tied(tied=tied_then))[1].capture()
    model = Tied(tied=not tied_then)
    optimizer, training = bound(model)
    before = live(model, optimizer)
    with pytest.raises(ContractMismatch) as caught:
        training.restore(record)
    assert "model.tied.embedding.weight" in [finding.code for finding in caught.value.findings]
    assert live(model, optimizer) == before


def test_b54_a_tie_that_is_only_a_copy_is_no_tie():
    model = Tied(tied=False)
    with torch.no_grad():
        model.head.weight.copy_(model.embedding.weight)
    record = bound(model)[1].capture()
    assert sorted(record.model.tensors) == ["embedding.weight", "head.weight"]


def mixed():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
    return model, SGD(model.parameters(), lr=0.1)


def test_b62_a_frozen_norm_in_a_training_model_stays_frozen(tmp_path):
    a, one = mixed()
    a.train()
    a[1].eval()
    training = Training(a, one)
    b, other = mixed()
    b.train()
    Training(b, other).restore(stored(training.capture(), tmp_path))
    assert [module.training for module in b.modules()] == [True, True, False, True]
    state = torch.get_rng_state()
    out = a(torch.randn(4, 3))
    torch.set_rng_state(state)
    assert raw(b(torch.randn(4, 3))) == raw(out)
    assert live(b, other) == live(a, one)
    assert int(b[1].num_batches_tracked) == 0


class Centres(nn.Module):
    def __init__(self):
        super().__init__()
        self.centre = nn.Parameter(torch.zeros(3, 4))
        self.register_buffer("seen", torch.zeros(3, dtype=torch.long))

    def forward(self, hidden, label):
        self.seen += torch.bincount(label, minlength=3)
        return (hidden - self.centre[label]).pow(2).mean()


def with_centres():
    torch.manual_seed(0)
    model, loss = nn.Linear(4, 4), Centres()
    return model, loss, AdamW([*model.parameters(), *loss.parameters()], lr=0.1)


def centre_step(model, loss, optimizer, seed):
    optimizer.zero_grad()
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(seed))
    loss(model(x), torch.tensor([0, 1, 2, 0, 1])).backward()
    optimizer.step()


def test_b64_a_parameter_of_no_registered_module_is_refused_at_the_save():
    model, loss, optimizer = with_centres()
    training = Training(model, optimizer)
    before = live(model, optimizer), live(loss)
    with pytest.raises(UnsupportedState) as caught:
        training.capture()
    assert caught.value.code == "capture.unregistered_parameter"
    assert caught.value.where == "optimizer.optimizer group 0 parameter 2"
    assert "(3, 4)" in caught.value.found
    assert "components=" in caught.value.hint
    assert (live(model, optimizer), live(loss)) == before


def test_b64_a_registered_loss_goes_on_with_its_counts(tmp_path):
    a = with_centres()
    training = Training(a[0], a[2], components={"loss": a[1]})
    for seed in range(4):
        centre_step(*a, seed)
    b = with_centres()
    Training(b[0], b[2], components={"loss": b[1]}).restore(stored(training.capture(), tmp_path))
    centre_step(*a, 9)
    centre_step(*b, 9)
    assert live(b[0], b[2]) == live(a[0], a[2])
    assert live(b[1]) == live(a[1])
    assert b[1].seen.tolist() == a[1].seen.tolist() == [10, 10, 5]


def test_b64_a_copy_of_trained_weights_in_fp32_is_an_unregistered_parameter():
    model = nn.Linear(2, 2, dtype=torch.bfloat16)
    masters = [nn.Parameter(parameter.detach().float()) for parameter in model.parameters()]
    with pytest.raises(UnsupportedState, match="no registered module"):
        Training(model, AdamW(masters)).capture()


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("name", DTYPES)
def test_b66_every_dtype_as_buffer_as_optimizer_entry_and_as_caller_state(name, tmp_path):
    def fresh(value):
        model = nn.Linear(1, 1)
        model.register_buffer("x", value)
        optimizer = SGD(model.parameters(), lr=0.1)
        return model, optimizer

    value = of_dtype(name)
    a, one = fresh(value)
    one.state[a.weight] = {"flat": value.clone(), "list": [value.view(3, 4).t()]}
    record = stored(Training(a, one).capture({"x": value, "zero-dim": value[0]}), tmp_path)
    b, other = fresh(torch.zeros(12 * value.element_size(), dtype=torch.uint8).view(value.dtype))
    state = Training(b, other).restore(record)
    assert logical_bytes(b.x) == logical_bytes(state["x"]) == logical_bytes(value)
    slots = other.state[b.weight]
    assert slots["flat"].dtype is slots["list"][0].dtype is value.dtype
    assert logical_bytes(slots["flat"]) == logical_bytes(value)
    assert slots["list"][0].stride() == (1, 4)
    assert logical_bytes(slots["list"][0]) == logical_bytes(value.view(3, 4).t())
    assert logical_bytes(state["zero-dim"]) == logical_bytes(value[0])


GRADIENT_DTYPES = [
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "complex128",
    "float8_e4m3fn",
    "float8_e5m2",
]


@pytest.mark.parametrize("name", GRADIENT_DTYPES)
def test_b66_gradients_of_unusual_dtypes(name, tmp_path):
    def fresh():
        model = nn.Module()
        model.w = nn.Parameter(
            torch.zeros(12, dtype=DTYPES[name] if name.startswith("complex") else torch.float32)
        )
        model.w.grad_dtype = DTYPES[name]
        return model, SGD(model.parameters(), lr=0.1)

    a, one = fresh()
    a.w.grad = of_dtype(name)
    b, other = fresh()
    Training(b, other).restore(stored(Training(a, one).capture(), tmp_path))
    assert b.w.grad.dtype is DTYPES[name]
    assert logical_bytes(b.w.grad) == logical_bytes(a.w.grad)


LAYOUTS = layouts()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_b66_every_layout_through_the_disk(layout, tmp_path):
    model = nn.Linear(1, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    training = Training(model, optimizer)
    state = training.restore(stored(training.capture({"x": LAYOUTS[layout]}), tmp_path))
    assert state["x"].stride() == LAYOUTS[layout].stride()
    assert logical_bytes(state["x"]) == logical_bytes(LAYOUTS[layout])


def sparse():
    return torch.sparse_coo_tensor([[0, 1]], [1.0, 2.0], (3,), check_invariants=True)


def nested():
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(1)], layout=torch.jagged)


PLACES = {
    "buffer": (lambda m, o, x: m.register_buffer("x", x), "model x"),
    "optimizer entry": (
        lambda m, o, x: o.state[m.weight].update(x=[0, x]),
        "optimizer.optimizer state weight['x'][1]",
    ),
    "caller state": (lambda m, o, x: None, "state['x']"),
}


REFUSED = [(place, kind) for place in PLACES for kind in ("nested", "quantized", "meta")]


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize(("place", "kind"), [("buffer", "sparse"), *REFUSED])
def test_b66_what_has_no_bits_to_keep_is_refused_at_the_save_naming_the_entry(kind, place):
    make = {
        "sparse": sparse, "nested": nested, "meta": lambda: torch.empty(2, device="meta"),
        "quantized": lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
    }  # fmt: skip
    model = nn.Linear(1, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    value = make[kind]()
    put, where = PLACES[place]
    put(model, optimizer, value)
    with pytest.raises(UnsupportedState) as caught:
        Training(model, optimizer).capture({"x": value} if place == "caller state" else None)
    assert caught.value.where == where


def test_b66_sparse_state_of_an_optimizer_or_the_caller_comes_back(tmp_path):
    models = [nn.Linear(1, 1) for _ in range(2)]
    optimizers = [SGD(model.parameters(), lr=0.1) for model in models]
    optimizers[0].state[models[0].weight].update(x=[0, sparse()])
    record = stored(Training(models[0], optimizers[0]).capture({"x": sparse()}), tmp_path)
    state = Training(models[1], optimizers[1]).restore(record)
    for value in (state["x"], optimizers[1].state[models[1].weight]["x"][1]):
        assert value.layout is torch.sparse_coo
        assert [raw(value._indices()), raw(value._values())] == [
            raw(sparse()._indices()),
            raw(sparse()._values()),
        ]


def test_b68_a_small_view_is_stored_by_content(tmp_path):
    model = nn.Linear(1, 1)
    model.register_buffer("view", torch.zeros(1_000_000)[500:510])
    optimizer = SGD(model.parameters(), lr=0.1)
    record = Training(model, optimizer).capture({"x": torch.arange(1_000_000.0)[7:17]})
    place = tmp_path / "record"
    segue.save(record, place)
    tensors = [p for p in place.iterdir() if p.suffix == ".safetensors"]
    assert sum(os.path.getsize(p) for p in tensors) < 20_000
    assert segue.load(place).state["x"].tolist() == list(range(7, 17))


def slices(kind):
    """Two parameters, as slices of one flat buffer, overlapping, or apart."""
    flat = torch.arange(6.0)
    model = nn.Module()
    model.a = nn.Parameter(flat[:4] if kind == "overlapping" else flat[:3])
    model.b = nn.Parameter(flat.clone()[3:] if kind == "apart" else flat[3:] if kind == "flat" else flat[2:])
    return model, SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize("kind", ["flat", "overlapping"])
def test_b68_registered_tensors_that_share_memory_still_share_it(kind, tmp_path):
    a, one = slices(kind)
    training = Training(a, one)
    with torch.no_grad():
        a.a.mul_(3)
        a.b.add_(1)
    b, other = slices(kind)
    Training(b, other).restore(stored(training.capture(), tmp_path))
    assert live(b, other) == live(a, one)
    for model in (a, b):
        with torch.no_grad():
            model.a.view(-1)[2] = 77.0
    assert live(b, other) == live(a, one)


@pytest.mark.parametrize(("then", "now"), [("overlapping", "apart"), ("apart", "overlapping")])
def test_b68_memory_shared_on_one_side_only_is_refused(then, now):
    record = Training(*slices(then)).capture()
    with pytest.raises(ContractMismatch) as caught:
        Training(*slices(now)).restore(record)
    codes = [finding.code for finding in caught.value.findings]
    assert codes[-1] == "model.tied.a"


@pytest.mark.parametrize(("then", "now"), [("flat", "apart"), ("apart", "flat")])
def test_b68_neighbours_in_one_storage_have_nothing_to_do_with_each_other(then, now):
    a, one = slices(then)
    b, other = slices(now)
    Training(b, other).restore(Training(a, one).capture())
    assert live(b, other) == live(a, one)


STRUCTURE = {
    "log": [], "a.b": torch.ones(1), "a": {"b": torch.zeros(1), "b/c": 1}, "a/b": torch.full((1,), 2.0),
    "empty": {"dict": {}, "list": [], "tuple": (), "set": set()}, "none": None, "tuple": (0.9, (0.99,)),
    "int keys": {0: torch.ones(1), "0": 1, -5: {}}, "inf": [math.inf, -math.inf, math.nan, -0.0], "big": [2**60 + 1, 10**400],
    "bytes": b"\x00\xff", "counter": Counter({3: 2}), "ordered": OrderedDict([("z", 1), ("a", 2)]), "": "empty name",
    "ünï/cödé~": "\ud800",
}  # fmt: skip


def test_b69_any_structure_comes_back_with_its_types_and_no_template(tmp_path):
    model = nn.Linear(1, 1)
    training = Training(model, SGD(model.parameters(), lr=0.1))
    for state in (STRUCTURE, {**STRUCTURE, "log": [{"a": 1}, {"b": (2,)}]}, [], None, 3.5, (1, [2])):
        record = training.capture(state)
        again = stored(record, tmp_path)
        assert same(again.caller_state, record.caller_state)
        assert same(training.capture(training.restore(again)).caller_state, record.caller_state)


def test_b69_names_that_collide_when_flattened_stay_apart(tmp_path):
    model = nn.Linear(1, 1)
    training = Training(model, SGD(model.parameters(), lr=0.1))
    state = stored(training.capture(STRUCTURE), tmp_path).state
    assert [state["a.b"].item(), state["a"]["b"].item(), state["a/b"].item()] == [1, 0, 2]
    assert list(state["int keys"]) == [0, "0", -5]
    assert list(state["ordered"]) == ["z", "a"]


def test_b69_an_optimizer_entry_that_grew_from_an_empty_list_comes_back(tmp_path):
    def fresh():
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        return model, torch.optim.LBFGS(model.parameters(), lr=0.5, history_size=3)

    def step(model, optimizer):
        def closure():
            optimizer.zero_grad()
            loss = (model(torch.eye(3)) - 1).pow(4).sum()
            loss.backward()
            return loss

        optimizer.step(closure)

    a, one = fresh()
    training = Training(a, one)
    step(a, one)
    b, other = fresh()
    Training(b, other).restore(stored(training.capture(), tmp_path))
    step(a, one)
    step(b, other)
    assert live(b, other) == live(a, one)


def test_every_kind_of_mismatch_is_told_at_once(tmp_path):
    def fresh(change):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 3 if change else 2), nn.Linear(3 if change else 2, 2))
        optimizer = AdamW(model.parameters(), lr=0.2 if change else 0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3 if change else 2)
        components = {"other" if change else "ema": nn.Linear(1, 1)}
        return model, optimizer, Training(model, optimizer, scheduler, components=components)

    _, _, training = fresh(change=False)
    record = stored(training.capture(), tmp_path)
    model, optimizer, resumed = fresh(change=True)
    before = live(model, optimizer)
    with pytest.raises(ContractMismatch) as caught:
        resumed.restore(record)
    findings = caught.value.findings
    assert [finding.code for finding in findings] == [
        "model.shape.0.bias", "model.shape.0.weight", "model.shape.1.weight",
        "optimizer.optimizer.lr", "scheduler.scheduler.step_size", "component.ema", "component.other",
    ]  # fmt: skip
    assert caught.value.also == findings[1:]
    assert {finding.error for finding in findings} >= {ContractMismatch, OptimizerMismatch, ComponentMismatch}
    assert all(finding.code in str(caught.value) for finding in findings)
    assert isinstance(caught.value, MismatchError)
    assert live(model, optimizer) == before
