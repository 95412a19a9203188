"""Quantized state that does not fit is refused by name, in both directions, and nothing live has changed."""

from functools import partial

import pytest
import torch
from torch import nn

import segue
from segue.errors import ContractMismatch, MismatchError, OptimizerMismatch, UnsupportedState
from tests.quantized_state.looking import everything

WEIGHT = "base.weight"
MODELS = {
    "a plain weight": ("int8", None, ["model.class"]),
    "another class": ("int8", "float8", ["model.class"]),
    "a quantized activation": ("int8", "int8-dynamic", ["model.context"]),
    "other elements": ("mxfp8", "mxfp4", ["model.context"]),
    "a scale that is missing": ("nvfp4-scaled", "nvfp4", ["model.part"]),
    "other blocks": ("int4", "int4-blocks", ["model.context"]),
}
OPTIMIZERS = {
    "other blocks": ("ao-8bit", "ao-8bit-other-blocks", ["attribute.block_size"]),
    "stochastic rounding": ("ao-8bit-bf16", "ao-8bit-bf16-stochastic", ["attribute.bf16_stochastic_round"]),
    "fewer bits": ("ao-8bit", "ao-4bit", ["class"]),
    "the same name of another library": ("ao-8bit", "bnb-adamw-8bit", ["class"]),
    "other bits": ("bnb-adamw-8bit", "bnb-adamw-32bit", ["class"]),
    "fewer small tensors": ("bnb-adamw-8bit", "bnb-adamw-8bit-small", ["attribute.min_8bit_size"]),
    "bits by argument": ("bnb-adam-8bit-by-argument", "bnb-adam-by-argument", ["attribute.optim_bits", "attribute.name2qmap"]),
}  # fmt: skip


def extra_cases(trainings):
    Case, optim = trainings.Case, trainings.bitsandbytes.optim
    config = trainings.IntxWeightOnlyConfig(
        weight_dtype=torch.int4, granularity=trainings.torchao.quantization.PerGroup(32)
    )
    return {
        "base-int4-blocks": Case(base=trainings._by_config(config), dtype=torch.bfloat16),
        "bnb-adamw-8bit-small": Case(partial(optim.AdamW8bit, min_8bit_size=100)),
        "bnb-adam-8bit-by-argument": Case(partial(optim.Adam, optim_bits=8)),
        "bnb-adam-by-argument": Case(partial(optim.Adam, optim_bits=32)),
        "base-None": Case(dtype=torch.bfloat16),
    }


def run_of(trainings, name, **changes):
    case = {**trainings.CASES, **extra_cases(trainings)}[name]
    trainings.seed(1)
    run = trainings.Run(case)
    if name == "base-None":
        run.net.base.requires_grad_(False)
        run.optimizer = case.optimizer(run.trainable(), lr=0.01)
        run.training = segue.Training(run.net, run.optimizer)
    for number in range(3):
        run.microbatch(number)
    return run


def refused(record, run):
    before = everything(run)
    with pytest.raises(MismatchError) as caught:
        run.training.restore(record)
    assert everything(run) == before
    return caught.value


def codes(error):
    return {error.code, *(finding.code for finding in error.also)}


@pytest.mark.parametrize("what", MODELS)
def test_a_quantized_weight_that_does_not_fit_is_refused(what, eager):
    *names, expected = MODELS[what]
    runs = [run_of(eager, f"base-{name}") for name in names]
    records = [run.training.capture() for run in runs]
    for record, run in ((records[0], runs[1]), (records[1], runs[0])):
        error = refused(record, run)
        assert isinstance(error, ContractMismatch)
        found = codes(error)
        assert all(any(code.startswith(f"{start}.{WEIGHT}") for code in found) for start in expected), found
        assert all(WEIGHT in code for code in found), found


@pytest.mark.parametrize("what", OPTIMIZERS)
def test_an_optimizer_that_is_configured_otherwise_is_refused(what, eager):
    *names, expected = OPTIMIZERS[what]
    runs = [run_of(eager, name) for name in names]
    records = [run.training.capture() for run in runs]
    for record, run in ((records[0], runs[1]), (records[1], runs[0])):
        error = refused(record, run)
        assert isinstance(error, OptimizerMismatch)
        found = codes(error)
        assert {f"optimizer.optimizer.{code}" for code in expected} <= found


@pytest.mark.parametrize(
    "name", ["ao-8bit", "ao-4bit", "bnb-adamw-8bit", "base-nvfp4-scaled", "trained-int8"]
)
def test_capture_is_read_only(name, eager):
    run = run_of(eager, name)
    before = everything(run)
    run.training.capture()
    assert everything(run) == before


@pytest.mark.parametrize("name", ["ao-8bit", "ao-fp8", "bnb-adamw-8bit"])
def test_a_restore_into_the_same_training_fills_state_in_place(name, eager):
    run = run_of(eager, name)
    record = run.training.capture()
    held = [{slot: id(value) for slot, value in slots.items() if isinstance(value, torch.Tensor)}
            for slots in run.optimizer.state.values()]  # fmt: skip
    for number in range(3, 6):
        run.microbatch(number)
    run.training.restore(record)
    assert segue.diff(record, run.training.capture()).identical
    again = [{slot: id(value) for slot, value in slots.items() if isinstance(value, torch.Tensor)}
             for slots in run.optimizer.state.values()]  # fmt: skip
    assert again == held


def test_lookup_tables_are_the_optimizers_own_again(eager):
    source, target = (run_of(eager, "bnb-adamw-8bit") for _ in range(2))
    fresh = eager.Run(eager.CASES["bnb-adamw-8bit"])
    for run in (target, fresh):
        run.training.restore(source.training.capture())
        tables = {id(table) for table in run.optimizer.name2qmap.values()}
        held = {
            id(slots[slot])
            for slots in run.optimizer.state.values()
            for slot in ("qmap1", "qmap2")
            if slot in slots
        }
        assert held == tables


def test_tables_of_another_release_are_refused(eager):
    record = run_of(eager, "bnb-adamw-8bit").training.capture()
    run = run_of(eager, "bnb-adamw-8bit")
    run.optimizer.name2qmap["dynamic"] = run.optimizer.name2qmap["dynamic"].nextafter(torch.tensor(1.0))
    assert codes(refused(record, run)) == {"optimizer.optimizer.attribute.name2qmap"}


def test_tables_that_were_copied_by_the_librarys_own_loading_are_kept(eager):
    run = run_of(eager, "bnb-adamw-8bit")
    run.optimizer.load_state_dict(run.optimizer.state_dict())
    record = run.training.capture()
    fresh = eager.Run(eager.CASES["bnb-adamw-8bit"])
    fresh.training.restore(record)
    assert segue.diff(record, fresh.training.capture()).identical


def net_and(optimizer_class, **options):
    net = nn.Linear(64, 80)
    return net, optimizer_class(net.parameters(), **options)


def capture_refused(net, optimizer, found):
    with pytest.raises(UnsupportedState) as caught:
        segue.Training(net, optimizer).capture()
    assert caught.value.where == "optimizer.optimizer"
    assert found in caught.value.found


def test_a_paged_optimizer_is_refused(eager):
    capture_refused(*net_and(eager.bitsandbytes.optim.PagedAdamW8bit), "PagedAdamW8bit")


def test_overrides_of_single_parameters_are_refused(eager):
    manager = eager.bitsandbytes.optim.GlobalOptimManager.get_instance()
    net, optimizer = net_and(eager.bitsandbytes.optim.AdamW8bit)
    manager.override_config(net.weight, "optim_bits", 32)
    try:
        capture_refused(net, optimizer, "GlobalOptimManager with overrides")
    finally:
        manager.initialize()


def test_an_attribute_of_a_class_of_the_program_is_refused(eager):
    class Mine(eager.torchao.optim.AdamW8bit):
        def __init__(self, params):
            super().__init__(params)
            self.history = []

    net, optimizer = net_and(Mine)
    training = segue.Training(net, optimizer)
    training.capture()  # it has not moved
    optimizer.history.append(1)
    with pytest.raises(UnsupportedState, match=r"history \(\[\] -> \[1\]\)") as caught:
        training.capture()
    assert caught.value.code == "capture.hidden_state"


def test_a_state_dict_of_the_program_that_leaves_state_out_is_refused(eager):
    class Mine(eager.bitsandbytes.optim.AdamW8bit):
        def state_dict(self):
            return {}

    net, optimizer = net_and(Mine)
    net(torch.ones(1, 64)).sum().backward()
    optimizer.step()
    with pytest.raises(UnsupportedState) as caught:
        segue.Training(net, optimizer).capture()
    assert caught.value.code == "capture.lost_state"


def test_an_optimizer_without_its_librarys_attributes_is_refused(eager):
    net, optimizer = net_and(eager.torchao.optim.AdamW8bit)
    del optimizer.block_size
    capture_refused(net, optimizer, "block_size")
