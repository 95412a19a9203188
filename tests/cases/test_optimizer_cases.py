"""B01 to B13, B35 and B36: optimizer state and options follow names, looking changes nothing, and group objects stay."""

import dataclasses

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW

from segue import Checkpointer, Training
from segue.errors import ContractMismatch, CounterWarning, OptimizerMismatch
from tests.cases import children
from tests.cases.state import live, raw, stored

pytestmark = pytest.mark.filterwarnings("ignore:state that segue can see")  # of a run that stands beside


def two_layers(order):
    torch.manual_seed(0)
    layers = {name: nn.Linear(4, 4, bias=False) for name in ("p1", "p2")}
    model = nn.Module()
    for name in order:
        model.add_module(name, layers[name])
    return model


def unequal_step(model, optimizer, seed):
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(seed))
    out = model.p2(model.p1(x)) * torch.tensor([1.0, 5.0, 9.0, 20.0])
    out.pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()


ORDERS = {
    "single tensors": lambda model: AdamW(model.parameters(), lr=1e-2),
    "named": lambda model: AdamW(model.named_parameters(), lr=1e-2),
    "with momentum": lambda model: SGD(model.parameters(), lr=1e-3, momentum=0.9),
}


@pytest.mark.parametrize("kind", ORDERS)
def test_b01_layers_declared_in_another_order_are_refused_naming_what_moved(kind, tmp_path):
    a = two_layers(("p1", "p2"))
    one = ORDERS[kind](a)
    training = Training(a, one)
    for seed in range(3):
        unequal_step(a, one, seed)
    record = stored(training.capture(), tmp_path)
    b = two_layers(("p2", "p1"))
    other = ORDERS[kind](b)
    resumed = Training(b, other)
    before = live(b, other)
    with pytest.raises(ContractMismatch) as caught:
        resumed.restore(record)
    codes = [finding.code for finding in caught.value.findings]
    assert codes == ["model.order", "optimizer.optimizer.order"]
    assert all("p2.weight, p1.weight" in finding.where for finding in caught.value.findings)
    for code in codes:
        assert f'accept=["{code}"]' in str(caught.value)
    assert live(b, other) == before

    resumed.restore(record, accept=codes)
    assert live(b, other) == live(a, one)
    unequal_step(a, one, 9)
    unequal_step(b, other, 9)
    assert live(b, other) == live(a, one)


def test_b01_accepting_one_of_two_differences_still_refuses_the_other(tmp_path):
    a = two_layers(("p1", "p2"))
    record = Training(a, AdamW(a.parameters())).capture()
    b = two_layers(("p2", "p1"))
    with pytest.raises(OptimizerMismatch) as caught:
        Training(b, AdamW(b.parameters())).restore(record, accept=["model.order"])
    assert [finding.code for finding in caught.value.findings] == ["optimizer.optimizer.order"]


def test_b01_what_was_accepted_is_in_the_next_record():
    a, b = two_layers(("p1", "p2")), two_layers(("p2", "p1"))
    resumed = Training(b, AdamW(b.parameters()))
    accept = ["model.order", "optimizer.optimizer.order"]
    resumed.restore(Training(a, AdamW(a.parameters())).capture(step=5), accept=accept)
    [entry] = resumed.capture().lineage
    assert entry["accepted"] == accept
    assert entry["step"] == 5


def test_b02_a_group_built_from_a_set_is_right_for_every_hash_seed_or_refused(tmp_path):
    place = tmp_path / "record"
    saved = children.run("groups_from_a_set", place, "save", hash_seed="1")
    same_seed = children.run("groups_from_a_set", place, "resume", hash_seed="1")
    assert same_seed == {"equal": True, "order": saved["order"]}
    refused = children.run("groups_from_a_set", place, "resume", hash_seed="2")
    assert refused["refused"] == "optimizer.optimizer.order"
    assert ".weight" in refused["where"]
    assert refused["stateless"]
    accepted = children.run("groups_from_a_set", place, "resume", "optimizer.optimizer.order", hash_seed="2")
    assert accepted["equal"]
    assert accepted["order"] != saved["order"]


def frozen_backbone():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    model[0].requires_grad_(False)
    optimizer = SGD([{"params": model[1].parameters()}, {"params": model[0].parameters()}], lr=0.1)
    return model, optimizer


def plain_step(model, optimizer):
    optimizer.zero_grad()
    model(torch.ones(2, 3)).pow(2).sum().backward()
    optimizer.step()


def test_b04_a_layer_that_was_unfrozen_as_it_trained_is_so_again_in_the_unchanged_program(tmp_path):
    a, one = frozen_backbone()
    training = Training(a, one)
    plain_step(a, one)
    a[0].requires_grad_(True)
    plain_step(a, one)
    with Checkpointer(training, tmp_path / "run") as checkpointer:
        checkpointer.save()
    b, other = frozen_backbone()
    with Checkpointer(Training(b, other), tmp_path / "run") as checkpointer:
        checkpointer.resume()
    assert all(parameter.requires_grad for parameter in b.parameters())
    assert live(b, other) == live(a, one)
    plain_step(a, one)
    plain_step(b, other)
    assert live(b, other) == live(a, one)


def test_b04_a_program_that_freezes_another_layer_than_it_did_is_refused(tmp_path):
    a, one = frozen_backbone()
    training = Training(a, one)
    a[0].requires_grad_(True)
    plain_step(a, one)
    record = stored(training.capture(), tmp_path)
    b, other = frozen_backbone()
    b[0].requires_grad_(True)
    b[1].requires_grad_(False)
    before = live(b, other)
    with pytest.raises(ContractMismatch, match="newly frozen") as caught:
        Training(b, other).restore(record)
    assert live(b, other) == before
    assert {"model.requires_grad.1.bias", "model.requires_grad.1.weight"} <= {
        f.code for f in caught.value.findings
    }
    # As the hint says: the record tells how it was.
    for name, parameter in b.named_parameters():
        parameter.requires_grad_(record.model.contract.tensors[name].requires_grad)
    Training(b, other).restore(record)
    assert live(b, other) == live(a, one)


def test_b04_a_layer_that_was_frozen_is_refused_where_it_is_trainable():
    a, one = frozen_backbone()
    record = Training(a, one).capture()
    b, other = frozen_backbone()
    b[0].requires_grad_(True)
    with pytest.raises(ContractMismatch, match="newly trainable"):
        Training(b, other).restore(record)


def partly_used():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 2, bias=False))
    return model, AdamW(model.parameters(), lr=1e-2)


def test_b06_a_parameter_that_never_had_a_gradient_has_no_state_before_and_after(tmp_path):
    a, one = partly_used()
    training = Training(a, one)
    a[0](torch.ones(2, 3)).sum().backward()
    one.step()
    one.zero_grad()
    record = stored(training.capture(), tmp_path)
    assert list(record.optimizers["optimizer"].state) == ["0.weight"]
    b, other = partly_used()
    Training(b, other).restore(record)
    assert b[1].weight not in other.state
    assert b[1].weight.grad is None
    for model, optimizer in ((a, one), (b, other)):
        plain_step(model, optimizer)
    assert other.state[b[1].weight]["step"].item() == 1
    assert live(b, other) == live(a, one)


def test_b06_a_record_from_before_the_first_step_has_no_state_at_all(tmp_path):
    a, one = partly_used()
    b, other = partly_used()
    plain_step(b, other)
    Training(b, other).restore(stored(Training(a, one).capture(), tmp_path))
    assert dict(other.state) == {}
    plain_step(a, one)
    plain_step(b, other)
    assert live(b, other) == live(a, one)


LOOKS = {
    "AdamW": lambda p: AdamW(p, lr=0.1),
    "Adam with decay": lambda p: Adam(p, lr=0.1, weight_decay=0.1),
    "SGD with momentum": lambda p: SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "LBFGS": lambda p: torch.optim.LBFGS(p, lr=0.1),
}


@pytest.mark.parametrize("kind", LOOKS)
def test_b07_looking_at_any_moment_changes_nothing(kind, tmp_path):
    def run(peek):
        torch.manual_seed(0)
        model = nn.Linear(4, 4)
        optimizer = LOOKS[kind](model.parameters())
        training = Training(model, optimizer)

        def look():
            if peek:
                before = live(model, optimizer)
                record = training.capture({"x": 1})
                training.check(stored(record, tmp_path))
                assert live(model, optimizer) == before

        def closure():
            optimizer.zero_grad()
            loss = model(torch.randn(2, 4)).pow(2).sum()
            loss.backward()
            return loss

        for _ in range(2):
            look()
            optimizer.step(closure)
            look()
        return live(model, optimizer), torch.get_rng_state().tolist()

    assert run(peek=True) == run(peek=False)


@pytest.mark.parametrize("kind", LOOKS)
def test_b07_loading_at_step_zero_takes_no_step(kind):
    model = nn.Linear(4, 4)
    optimizer = LOOKS[kind](model.parameters())
    training = Training(model, optimizer)
    before = live(model, optimizer)
    training.restore(training.capture())
    assert live(model, optimizer) == before


def grouped(variant):
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    frozen = nn.Linear(1, 1)
    frozen.requires_grad_(False)
    whole = nn.ModuleDict({"model": model, "frozen": frozen})
    small = {
        "params": [] if variant == "empty" else list(frozen.parameters()),
        "lr": 1e-5, "weight_decay": 0.0, "min_lr": 1e-6, "tag": ("small", 1),
    }  # fmt: skip
    full = {"params": list(model.parameters()), "lr": 1e-2, "min_lr": 1e-4, "tag": ("full", 2)}
    groups = [full, small] if variant == "swapped" else [small, full]
    return whole, AdamW(groups, betas=(0.8, 0.95))


def grouped_step(whole, optimizer):
    optimizer.zero_grad()
    whole["model"](torch.ones(2, 3)).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("variant", ["empty", "frozen"])
def test_b08_an_empty_or_frozen_group_keeps_its_own_options(variant, tmp_path):
    a, one = grouped(variant)
    training = Training(a, one)
    grouped_step(a, one)
    one.param_groups[0]["lr"] = 2e-5
    b, other = grouped(variant)
    Training(b, other).restore(stored(training.capture(), tmp_path))
    small = other.param_groups[0]
    assert (small["lr"], small["weight_decay"], small["min_lr"], small["tag"]) == (
        2e-5,
        0.0,
        1e-6,
        ("small", 1),
    )
    assert type(small["betas"]) is tuple
    grouped_step(a, one)
    grouped_step(b, other)
    assert live(b, other) == live(a, one)


def test_b08_groups_in_another_order_are_refused_and_follow_their_members_when_accepted(tmp_path):
    a, one = grouped("frozen")
    training = Training(a, one)
    grouped_step(a, one)
    record = stored(training.capture(), tmp_path)
    b, other = grouped("swapped")
    resumed = Training(b, other)
    with pytest.raises(OptimizerMismatch) as caught:
        resumed.restore(record)
    assert [f.code for f in caught.value.findings] == ["optimizer.optimizer.group_order"]
    resumed.restore(record, accept=[caught.value.code])
    assert [group["tag"] for group in other.param_groups] == [("full", 2), ("small", 1)]
    grouped_step(a, one)
    grouped_step(b, other)
    assert live(b, other) == live(a, one)


def test_b09_whoever_holds_the_groups_still_holds_them(tmp_path):
    model = nn.Linear(2, 2)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)

    class Wrapper:
        def __init__(self, inner):
            self.param_groups, self.state = inner.param_groups, inner.state

    wrapper, group = Wrapper(optimizer), optimizer.param_groups[0]
    parameters = group["params"]
    training = Training(model, optimizer)
    plain = stored(training.capture(), tmp_path)
    group["lr"] = 0.5
    training.restore(plain)
    assert wrapper.param_groups is optimizer.param_groups
    assert wrapper.param_groups[0] is optimizer.param_groups[0] is group
    assert wrapper.state is optimizer.state
    assert group["params"] is parameters
    assert group["lr"] == 0.1
    wrapper.param_groups[0]["lr"] = 9.0
    weight = model.weight.detach().clone()
    model.weight.grad = torch.ones(2, 2)
    optimizer.step()
    assert torch.equal(model.weight, weight - 9.0)


def test_b13_a_record_that_lacks_an_option_or_has_an_unknown_one_is_refused_naming_both(tmp_path):
    def fresh():
        torch.manual_seed(0)
        model = nn.Linear(2, 2)
        return model, SGD(model.parameters(), lr=0.1, momentum=0.9, maximize=True)

    a, one = fresh()
    record = Training(a, one).capture()
    optimizer = record.optimizers["optimizer"]

    def older(options):
        return {**{k: v for k, v in options.items() if k != "maximize"}, "unknown_knob": 3}

    [group] = optimizer.groups
    groups = (dataclasses.replace(group, options=older(group.options), configured=older(group.configured)),)
    old = dataclasses.replace(record, optimizers={"optimizer": dataclasses.replace(optimizer, groups=groups)})
    b, other = fresh()
    before = live(b, other)
    codes = ["optimizer.optimizer.unknown_knob", "optimizer.optimizer.maximize"]
    for accept in ([], codes[:1], codes[1:]):
        with pytest.raises(OptimizerMismatch) as caught:
            Training(b, other).restore(stored(old, tmp_path), accept=accept)
        assert [finding.code for finding in caught.value.findings] == [c for c in codes if c not in accept]
        assert live(b, other) == before
    Training(b, other).restore(stored(old, tmp_path), accept=codes)
    assert other.param_groups[0]["maximize"] is True
    assert "unknown_knob" not in other.param_groups[0]


def stateful(dtype, slots):
    """One parameter whose Adam state is given: each entry of the dtype it has."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1, bias=False, dtype=dtype)
    optimizer = Adam(model.parameters(), foreach=False)
    if slots is not None:
        optimizer.state[model.weight] = {
            "step": torch.tensor(3.0), "exp_avg_sq": torch.ones(1, 4, dtype=dtype), **slots,
        }  # fmt: skip
    return model, optimizer


STATES = {
    "fp32 state of a bf16 parameter": (torch.bfloat16, {"exp_avg": torch.tensor([[1.0001, 2.0003, 3.0007, 4.0011]])}),
    "bf16 state of an fp32 parameter, and entries that are no floats": (
        torch.float32,
        {
            "exp_avg": torch.tensor([[1.0, 2, 3, 4]], dtype=torch.bfloat16),
            "mask": torch.tensor([True, False, True, True]), "index": torch.arange(4),
            "codes": torch.arange(4, dtype=torch.uint8), "count": 2**60, "name": "abc",
        },
    ),
    "fp64 and fp8 state": (
        torch.bfloat16,
        {"exp_avg": torch.full((1, 4), 0.1, dtype=torch.float64), "scale": torch.ones(2).to(torch.float8_e4m3fn)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", STATES)
def test_b35_state_has_the_dtype_it_had(case, tmp_path):
    dtype, slots = STATES[case]
    model, optimizer = stateful(dtype, slots)
    record = stored(Training(model, optimizer).capture(), tmp_path)
    again, fresh = stateful(dtype, None)
    Training(again, fresh).restore(record)
    assert raw(dict(fresh.state[again.weight])) == raw(dict(optimizer.state[model.weight]))


def counted(until, dtype=torch.float32, counter=torch.float32):
    torch.manual_seed(0)
    model = nn.Linear(3, 1, bias=False, dtype=dtype)
    optimizer = AdamW(model.parameters(), lr=1e-3, weight_decay=0.0, foreach=False)
    count(model, optimizer, until)
    for slots in optimizer.state.values():
        slots["step"] = slots["step"].to(counter)
    return model, optimizer


def count(model, optimizer, steps):
    for _ in range(steps):
        model.weight.grad = torch.full_like(model.weight, 0.1)
        optimizer.step()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_b36_a_counter_keeps_its_dtype_and_counts_on(dtype, tmp_path):
    model, optimizer = counted(250, dtype)
    torch.set_default_dtype(torch.bfloat16)
    try:
        record = stored(Training(model, optimizer).capture(), tmp_path)
        again, fresh = counted(0, dtype)
        Training(again, fresh).restore(record)
    finally:
        torch.set_default_dtype(torch.float32)
    for each in ((model, optimizer), (again, fresh)):
        count(*each, 50)
    assert fresh.state[again.weight]["step"].dtype is torch.float32
    assert fresh.state[again.weight]["step"].item() == 300
    assert live(again, fresh) == live(model, optimizer)


@pytest.mark.parametrize(("counter", "steps"), [(torch.bfloat16, 256), (torch.float16, 2048)])
def test_b36_a_counter_that_cannot_count_on_is_told_at_capture_and_restore(counter, steps, tmp_path):
    model, optimizer = counted(0, counter=counter)
    optimizer.state[model.weight] = {
        "step": torch.tensor(float(steps), dtype=counter), "exp_avg": torch.ones(1, 3), "exp_avg_sq": torch.ones(1, 3),
    }  # fmt: skip
    told = f"step counter of weight is {counter} and stands at {steps}"
    with pytest.warns(CounterWarning, match=told):
        record = Training(model, optimizer).capture()
    again, fresh = counted(0)
    with pytest.warns(CounterWarning, match=told):
        Training(again, fresh).restore(stored(record, tmp_path))
    assert raw(dict(fresh.state[again.weight])) == raw(dict(optimizer.state[model.weight]))
