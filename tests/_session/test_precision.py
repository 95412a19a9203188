"""Precision from one live training to another: exact ones come back, lossy ones are refused unless told otherwise."""

import dataclasses
import json

import pytest
import torch
from safetensors import safe_open
from torch import nn
from typer.testing import CliRunner

import segue
from segue._record.composite import ConvertedTensor
from segue._record.digest import digests
from segue._record.precision import converted_tensors
from segue.cli.app import app
from segue.errors import ContractMismatch, InvalidRecord, LossyRecord, MismatchError


def make(dtype=torch.float32, seed=0, channels_last=False, accumulator=False):
    """A convolution with batch statistics, AdamW and an exponential rate."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)).to(dtype)
    model.register_buffer("positions", torch.arange(4))
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    window = segue.GradientAccumulator(model, torch.float32) if accumulator else None
    return (
        model,
        optimizer,
        scheduler,
        segue.Training(model, optimizer, scheduler, accumulator=window),
        window,
    )


def step(model, optimizer, scheduler):
    dtype = next(model.parameters()).dtype
    model(torch.randn(2, 2, 5, 5).to(dtype)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    scheduler.step()


def trained(dtype=torch.float32, **options):
    model, optimizer, scheduler, training, window = make(dtype, **options)
    for _ in range(3):
        step(model, optimizer, scheduler)
    model(torch.randn(2, 2, 5, 5).to(dtype)).pow(2).mean().backward()
    if window is not None:
        window.add()
    return training


def pointers(training):
    live = training._live
    return [tensor.data_ptr() for tensor in [*live.model.parameters(), *live.model.buffers()]]


@pytest.mark.parametrize(
    ("dtype", "precision"),
    [(torch.bfloat16, "full"), (torch.bfloat16, "double"), (torch.float32, "double"), (torch.float64, "double"), (torch.float32, torch.float64)],
)  # fmt: skip
@pytest.mark.parametrize("channels_last", [False, True])
def test_what_is_exact_comes_back_in_place(tmp_path, dtype, precision, channels_last):
    record = trained(dtype, channels_last=channels_last).capture({"n": 1})
    segue.save(record, tmp_path / "c", precision=precision)
    loaded = segue.load(tmp_path / "c")
    assert loaded.lossy == ()
    assert bool(converted_tensors(loaded)) == (dtype is not torch.float64)
    *_, training, _ = make(dtype, seed=1, channels_last=channels_last)
    before = pointers(training)
    assert training.restore(loaded) == {"n": 1}
    assert digests(training.capture({"n": 1})) == digests(record) == digests(loaded)
    assert pointers(training) == before
    assert training.capture().precision == "native"
    training.restore(loaded)  # again, into state that is there already
    assert segue.diff(training.capture({"n": 1}), tmp_path / "c").identical


def test_counters_statistics_rates_and_window_are_as_they_were(tmp_path):
    training = trained(accumulator=True)
    record = training.capture()
    half = record.converted("half")
    assert half.window.sums is record.window.sums
    assert half.schedulers is record.schedulers
    assert half.streams is record.streams
    assert half.model.tensors["1.num_batches_tracked"] is record.model.tensors["1.num_batches_tracked"]
    for name, slots in half.optimizers["optimizer"].state.items():
        assert slots["step"] is record.optimizers["optimizer"].state[name]["step"]
    assert half.model.tensors["positions"].stored.dtype is torch.int16
    assert half.model.tensors["positions"].exact


def test_behaviour_84_an_exponential_rate_is_exact_under_half(tmp_path):
    training = trained()
    rate = training._live.schedulers["scheduler"].get_last_lr()
    segue.save(training.capture(), tmp_path / "c", precision="half")
    *_, other, _ = make(seed=1)
    other.restore(segue.load(tmp_path / "c"), accept=["record.lossy"])
    scheduler = other._live.schedulers["scheduler"]
    assert (
        scheduler.get_last_lr()
        == rate
        == [group["lr"] for group in other._live.optimizers["optimizer"].param_groups]
    )
    assert (scheduler.gamma, scheduler.last_epoch) == (0.9, 3)
    assert torch.tensor(rate, dtype=torch.float64).half().double().tolist() != rate  # half would not hold it


def test_behaviour_99_a_lossy_record_is_refused_by_name_and_every_bit_stays(tmp_path):
    segue.save(trained().capture({"n": 1}), tmp_path / "c", precision="half")
    loaded = segue.load(tmp_path / "c")
    *_, training, _ = make(seed=1)
    before, places = digests(training.capture()), pointers(training)
    for act in (training.check, training.restore):
        with pytest.raises(LossyRecord) as caught:
            act(loaded)
        assert [finding.code for finding in caught.value.findings] == ["record.lossy"]
        text = str(caught.value)
        assert f"{len(loaded.lossy)} tensors: model/0.bias, model/0.weight" in text
        assert 'resume(accept=["record.lossy"]) restores what is left of them' in text
        assert "precision 'half'" in text
    assert (digests(training.capture()), pointers(training)) == (before, places)


def test_accepted_it_is_restored_in_its_own_dtypes_and_the_lineage_tells(tmp_path):
    record = trained().capture()
    half = record.converted("half")
    *_, training, _ = make(seed=1)
    training.restore(half, accept=["record.lossy"])
    after = training.capture()
    assert segue.diff(after, half).identical
    assert not segue.diff(after, record).identical
    assert (after.precision, after.lossy, converted_tensors(after)) == ("native", (), [])
    assert [entry["accepted"] for entry in after.lineage] == [["record.lossy"]]
    assert {parameter.dtype for parameter in training._live.model.parameters()} == {torch.float32}
    assert len(half.lossy) > 1


def test_accepting_what_is_not_lossy_changes_nothing():
    record = trained(torch.bfloat16).capture()
    *_, training, _ = make(torch.bfloat16, seed=1)
    training.restore(record.converted("full"), accept=["record.lossy"])
    assert training.capture().lineage == ()


def test_other_differences_are_told_beside_it():
    *_, training, _ = make(torch.float64, seed=1)
    with pytest.raises(MismatchError) as caught:
        training.restore(trained().capture().converted("half"))
    assert isinstance(caught.value, LossyRecord)
    assert {finding.error for finding in caught.value.findings} >= {LossyRecord, ContractMismatch}


def test_lossy_window_sums_are_refused_too():
    record = trained(accumulator=True).capture()
    sums = record.window.sums.converted("half")
    record = dataclasses.replace(record, window=dataclasses.replace(record.window, sums=sums))
    *_, training, window = make(seed=1, accumulator=True)
    with pytest.raises(LossyRecord, match=r"window/sums/0\.bias"):
        training.restore(record)
    with pytest.raises(LossyRecord, match=r"window\.lossy\.0\.bias"):
        window.load_record(record.window)
    training.restore(record, accept=["record.lossy"])
    assert segue.diff(training.capture(), record).identical


def test_what_claims_to_be_exact_and_is_not_is_refused_and_every_bit_stays():
    record = trained().capture()
    wide = record.model.tensors["0.bias"]
    contract = record.model.contract
    spec = dataclasses.replace(contract.tensors["0.bias"], dtype="float16")
    tensors = {**record.model.tensors, "0.bias": ConvertedTensor(torch.float16, wide, True)}
    model = dataclasses.replace(
        record.model,
        tensors=tensors,
        contract=dataclasses.replace(contract, tensors={**contract.tensors, "0.bias": spec}),
    )
    live, *_, training, _ = make(seed=1)
    live[0].bias = nn.Parameter(live[0].bias.detach().half())
    optimizer = torch.optim.AdamW(live.parameters(), lr=0.1)
    training = segue.Training(live, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9))
    empty = dataclasses.replace(record, model=model, gradients=segue.GradientsRecord({}), precision="full")
    before = digests(training.capture())
    with pytest.raises(InvalidRecord, match="does not come back exactly"):
        training.restore(empty)
    assert digests(training.capture()) == before


def test_a_checkpointer_stores_in_its_precision_and_resumes_what_is_exact(tmp_path):
    first = trained(torch.bfloat16)
    with segue.Checkpointer(first, tmp_path / "run", precision="full", background=True) as checkpointer:
        checkpointer.save({"n": 1}).wait()
        assert checkpointer.newest().precision == "full"
    *_, training, _ = make(torch.bfloat16, seed=1)
    with segue.Checkpointer(training, tmp_path / "run", precision="full") as checkpointer:
        assert checkpointer.resume({"n": 0}) == {"n": 1}
    assert segue.diff(training.capture({"n": 1}), first.capture({"n": 1})).identical


def test_a_checkpointer_refuses_a_lossy_newest_and_takes_it_when_told(tmp_path):
    with segue.Checkpointer(trained(), tmp_path / "run", precision="half") as checkpointer:
        checkpointer.save({"n": 1})
    *_, training, _ = make(seed=1)
    with segue.Checkpointer(training, tmp_path / "run", precision="half") as checkpointer:
        with pytest.raises(LossyRecord):
            checkpointer.resume({"n": 0})
        assert checkpointer.resume({"n": 0}, accept=["record.lossy"]) == {"n": 1}


def test_an_unknown_precision_is_refused_before_anything_is_written(tmp_path):
    training = trained()
    for unknown in ("quarter", "", torch.int8, None, ["half"]):
        with pytest.raises(InvalidRecord, match="no such precision"):
            segue.save(training.capture(), tmp_path / "c", precision=unknown)
    with pytest.raises(InvalidRecord, match="no such precision"):
        segue.Checkpointer(training, tmp_path / "run", precision=torch.int8)
    assert list(tmp_path.iterdir()) == []


def test_the_model_file_holds_the_narrow_tensors_under_the_models_own_names(tmp_path):
    training = trained()
    segue.save(training.capture(), tmp_path / "c", precision="half")
    with safe_open(tmp_path / "c" / "model.safetensors", "pt") as file:
        held = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dictionary)
    expected = training._live.model.state_dict()
    assert held.keys() == expected.keys()
    for name, value in expected.items():
        narrow = value.half() if value.is_floating_point() else value
        assert torch.equal(held[name].to(narrow.dtype), narrow)
    assert held["0.weight"].dtype is torch.float16
    assert held["positions"].dtype is torch.int16
    assert held["1.num_batches_tracked"].dtype is torch.int64


def test_inspect_and_verify_know_precisions(tmp_path):
    record = trained().capture()
    segue.save(record, tmp_path / "half", precision="half")
    segue.save(record, tmp_path / "double", precision="double")
    segue.save(record, tmp_path / "native")
    half, runner = record.converted("half"), CliRunner()

    def printed(*arguments):
        result = runner.invoke(app, [*map(str, arguments)])
        assert result.exit_code == 0, result.output
        return " ".join(result.output.split())

    count = len(converted_tensors(half))
    assert f"precision half: {count} tensors converted, {len(half.lossy)} of them lossy" in printed(
        "inspect", tmp_path / "half"
    )
    assert (
        f"precision double: {len(converted_tensors(record.converted('double')))} tensors converted, none lossy"
        in printed("inspect", tmp_path / "double")
    )
    assert "precision" not in printed("inspect", tmp_path / "native")
    told = json.loads(printed("inspect", "--json", tmp_path / "half"))["precision"]
    assert told == {"name": "half", "num_converted_tensors": count, "num_lossy_tensors": len(half.lossy)}
    for name in ("half", "double"):
        printed("verify", tmp_path / name)
