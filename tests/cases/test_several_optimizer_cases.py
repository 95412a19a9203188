"""B11: several optimizers. Each is known by its name and by what it steps, never by its place in a list or a number."""

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, Muon

from segue import Checkpointer, Training
from segue.errors import MismatchError, OptimizerMismatch, UnsupportedState
from tests.cases.state import live, raw, stored


def adversaries(order=("generator", "discriminator"), crossed=False):
    torch.manual_seed(0)
    model = nn.ModuleDict({"generator": nn.Linear(4, 4), "discriminator": nn.Linear(4, 4)})
    rates = {"generator": 0.02, "discriminator": 0.01}
    steps = (
        {"generator": "discriminator", "discriminator": "generator"}
        if crossed
        else {name: name for name in rates}
    )
    optimizers = {name: AdamW(model[steps[name]].parameters(), lr=rates[steps[name]]) for name in order}
    return model, optimizers


def step(model, optimizers, seed):
    for optimizer in optimizers.values():
        optimizer.zero_grad()
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(seed))
    model["discriminator"](model["generator"](x)).pow(2).mean().backward()
    for optimizer in optimizers.values():
        optimizer.step()


def looked_at(model, optimizers):
    return live(model, *(optimizers[name] for name in sorted(optimizers)))


def trained():
    model, optimizers = adversaries()
    training = Training(model, optimizers)
    for seed in range(3):
        step(model, optimizers, seed)
    return model, optimizers, training


@pytest.mark.parametrize("order", [("generator", "discriminator"), ("discriminator", "generator")])
def test_b11_each_gets_its_own_in_whatever_order_they_are_listed(order, tmp_path):
    a, one, training = trained()
    record = stored(training.capture(), tmp_path)
    tensors = [
        slot
        for optimizer in record.optimizers.values()
        for slots in optimizer.state.values()
        for slot in slots
    ]
    assert len(tensors) == 12
    b, other = adversaries(order)
    Training(b, other).restore(record)
    assert looked_at(b, other) == looked_at(a, one)
    assert other["generator"].param_groups[0]["lr"] == 0.02
    for seed in range(3, 6):
        step(a, one, seed)
        step(b, {name: other[name] for name in one}, seed)
    assert looked_at(b, other) == looked_at(a, one)


def test_b11_two_whose_names_are_exchanged_are_refused_naming_the_parameters(tmp_path):
    _, _, training = trained()
    record = stored(training.capture(), tmp_path)
    b, other = adversaries(crossed=True)
    step(b, other, 9)
    before = looked_at(b, other)
    with pytest.raises(OptimizerMismatch) as caught:
        Training(b, other).restore(record)
    codes = {finding.code for finding in caught.value.findings}
    for name, strange in (("generator", "discriminator"), ("discriminator", "generator")):
        for part in ("weight", "bias"):
            assert f"optimizer.{name}.missing.{name}.{part}" in codes
            assert f"optimizer.{name}.extra.{strange}.{part}" in codes
    assert not any(finding.admissible for finding in caught.value.findings)
    assert looked_at(b, other) == before


def matrix_and_vector(swapped=False):
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    muon, adamw = Muon([model.weight], lr=0.02), AdamW([model.bias], lr=0.01)
    return model, {"muon": adamw, "adamw": muon} if swapped else {"muon": muon, "adamw": adamw}


def test_b11_crossed_classes_are_refused_naming_both(tmp_path):
    model, optimizers = matrix_and_vector()
    training = Training(model, optimizers)
    model(torch.ones(1, 4)).sum().backward()
    for optimizer in optimizers.values():
        optimizer.step()
    record = stored(training.capture(), tmp_path)
    b, other = matrix_and_vector(swapped=True)
    before = looked_at(b, other)
    with pytest.raises(OptimizerMismatch) as caught:
        Training(b, other).restore(record)
    sides = {(item.code, item.expected, item.found) for item in caught.value.findings}
    assert sides == {
        ("optimizer.adamw.class", "torch.optim.adamw.AdamW", "torch.optim.Muon"),
        ("optimizer.muon.class", "torch.optim.Muon", "torch.optim.adamw.AdamW"),
    }
    assert looked_at(b, other) == before
    b, other = matrix_and_vector()
    Training(b, other).restore(record)
    assert looked_at(b, other) == looked_at(model, optimizers)


def test_b11_two_over_one_parameter_are_refused_at_save_naming_both(tmp_path):
    model = nn.Linear(4, 4)
    optimizers = {"sgd": SGD(model.parameters(), lr=0.1), "adamw": AdamW([model.weight])}
    before = looked_at(model, optimizers)
    with (
        Checkpointer(Training(model, optimizers), tmp_path / "run") as checkpointer,
        pytest.raises(UnsupportedState, match="a parameter has two owners") as caught,
    ):
        checkpointer.save()
    assert (caught.value.where, caught.value.found) == (
        "weight", "optimizer.sgd group 0 and optimizer.adamw group 0",
    )  # fmt: skip
    assert looked_at(model, optimizers) == before
    assert not list((tmp_path / "run").glob("ckpt-*"))


def test_b11_one_of_them_left_out_is_refused_at_save_and_at_resume(tmp_path):
    model, optimizers, training = trained()
    record = stored(training.capture(), tmp_path)
    alone = Training(model, {"generator": optimizers["generator"]})
    with pytest.raises(UnsupportedState, match="no optimizer owns them") as caught:
        alone.capture()
    assert caught.value.found == "discriminator.weight, discriminator.bias"
    with pytest.raises(OptimizerMismatch, match="an optimizer of the record is missing in the program"):
        alone.check(record)


def thawing(num_groups):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    model[0].requires_grad_(num_groups == 2)
    optimizer = AdamW(model[1].parameters(), lr=0.1)
    if num_groups == 2:
        optimizer.add_param_group({"params": list(model[0].parameters()), "lr": 0.01, "tag": "late"})
    return model, optimizer


def thaw(model, optimizer):
    model[0].requires_grad_(True)
    optimizer.add_param_group({"params": list(model[0].parameters()), "lr": 0.01, "tag": "late"})


def plain_step(model, optimizer):
    optimizer.zero_grad()
    model(torch.ones(2, 3)).pow(2).sum().backward()
    optimizer.step()


def test_b11_a_group_added_in_mid_run_is_rebuilt_from_what_the_newest_checkpoint_says(tmp_path):
    a, one = thawing(1)
    with Checkpointer(Training(a, one), tmp_path / "run") as checkpointer:
        plain_step(a, one)
        thaw(a, one)
        plain_step(a, one)
        checkpointer.save()
    b, other = thawing(1)
    before = live(b, other)
    with Checkpointer(Training(b, other), tmp_path / "run") as checkpointer:
        with pytest.raises(MismatchError) as caught:
            checkpointer.resume()
        [finding] = [item for item in caught.value.findings if item.code == "optimizer.optimizer.groups"]
        assert (finding.expected, finding.found) == (2, 1)
        assert (
            "group 1 (0.weight, 0.bias) with lr=0.01, tag=late must be there before the restore"
            in finding.hint
        )
        assert 'checkpointer.newest().optimizers["optimizer"].groups' in finding.hint
        codes = {item.code for item in caught.value.findings}
        assert {"optimizer.optimizer.missing.0.weight", "optimizer.optimizer.missing.0.bias"} <= codes
        assert live(b, other) == before
        # As the hint says.
        late = checkpointer.newest().optimizers["optimizer"].groups[1]
        named = dict(b.named_parameters())
        for name in late.parameters:
            named[name].requires_grad_(True)
        other.add_param_group(
            {"params": [named[name] for name in late.parameters], "lr": 0.01, "tag": "late"}
        )
        checkpointer.resume()
    assert live(b, other) == live(a, one)
    plain_step(a, one)
    plain_step(b, other)
    assert live(b, other) == live(a, one)


def test_b11_a_group_that_the_record_is_older_than_is_added_after_the_resume(tmp_path):
    a, one = thawing(1)
    training = Training(a, one)
    plain_step(a, one)
    record = stored(training.capture(), tmp_path)
    b, other = thawing(2)
    before = live(b, other)
    with pytest.raises(MismatchError) as caught:
        Training(b, other).restore(record)
    [finding] = [item for item in caught.value.findings if item.code == "optimizer.optimizer.groups"]
    assert (
        finding.hint
        == "group 1 (0.weight, 0.bias) came later than the record: resume first, then `add_param_group`"
    )
    assert live(b, other) == before
    b, other = thawing(1)
    Training(b, other).restore(record)
    for model, optimizer in ((a, one), (b, other)):
        thaw(model, optimizer)
        plain_step(model, optimizer)
    assert raw(live(b, other)) == raw(live(a, one))
