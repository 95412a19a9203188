"""Histories that a parameter can't have: every real one passes, others are named before anything is written."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.optim import LBFGS, SGD, Adafactor, AdamW

from segue import Training
from segue._capture.history import Layout, check_history
from segue._capture.optimizer import capture_optimizer
from segue._capture.staging import capture_tensor
from segue.errors import ContractMismatch
from segue.optim import FP32Master
from tests._capture.test_optimizer import CLASSES


def model(dtype=torch.float32):
    torch.manual_seed(0)
    made = nn.Module()
    for name, shape in {"scalar": (), "vector": (3,), "matrix": (3, 2), "kernel": (2, 3, 2, 2)}.items():
        made.register_parameter(name, nn.Parameter(torch.randn(shape, dtype=dtype)))
    return made


def stepped(module, optimizer):
    for parameter in module.parameters():
        parameter.grad = torch.randn_like(parameter, dtype=parameter.grad_dtype)
    for _ in range(2):
        optimizer.step(lambda: torch.ones(()))
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    return capture_optimizer(optimizer, names, "optimizer.o")


def findings(record, module):
    layouts = {name: Layout(tuple(p.shape), p.dtype) for name, p in module.named_parameters()}
    return [(item.code, item.expected, item.found) for item in check_history(record, layouts, "optimizer.o")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "cls", [cls for cls in CLASSES if cls.__name__ not in ("SparseAdam", "Muon", "LBFGS")]
)
def test_what_torch_keeps_passes(cls, dtype):
    module = model(dtype)
    options = {"momentum": 0.9} if cls is SGD else {}
    record = stepped(module, cls(module.parameters(), lr=0.1, **options))
    assert record.state.keys() == {"scalar", "vector", "matrix", "kernel"}
    assert findings(record, module) == []


def test_what_lbfgs_and_masters_keep_passes():
    module = model()
    assert findings(stepped(module, LBFGS(module.parameters())), module) == []
    module = model(torch.bfloat16)
    assert findings(stepped(module, FP32Master(module.parameters(), Adafactor)), module) == []


def test_complex_parameters_have_complex_histories():
    module = model(torch.complex64)
    assert findings(stepped(module, AdamW(module.parameters())), module) == []
    assert findings(stepped(module, LBFGS(module.parameters())), module) == []


def with_slot(record, name, slot, value):
    return replace(record, state={**record.state, name: {**record.state[name], slot: value}})


WRONG = {
    "of another rank": ("exp_avg", torch.zeros(6), (3, 2), (6,)),
    "transposed": ("exp_avg_sq", torch.zeros(2, 3), (3, 2), (2, 3)),
    "that would broadcast": ("exp_avg", torch.zeros(1, 2), (3, 2), (1, 2)),
    "of integers": ("exp_avg", torch.zeros(3, 2, dtype=torch.int32), torch.float32, torch.int32),
    "complex": ("exp_avg", torch.zeros(3, 2, dtype=torch.complex64), torch.float32, torch.complex64),
    "with many counters": ("step", torch.zeros(3), (), (3,)),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_history_that_its_parameter_can_not_have_is_named(kind):
    slot, value, expected, found = WRONG[kind]
    module = model()
    record = stepped(module, AdamW(module.parameters()))
    odd = with_slot(record, "matrix", slot, capture_tensor(value, "x"))
    assert findings(odd, module) == [(f"optimizer.o.state.matrix.{slot}", expected, found)]


def test_factors_have_the_shapes_that_follow():
    module = model()
    record = stepped(module, Adafactor(module.parameters()))
    odd = with_slot(record, "kernel", "row_var", record.state["kernel"]["col_var"])
    assert findings(odd, module) == [("optimizer.o.state.kernel.row_var", (2, 3, 2, 1), (2, 3, 1, 2))]


def test_a_master_has_the_shape_of_its_parameter():
    module = model(torch.bfloat16)
    record = stepped(module, FP32Master(module.parameters(), SGD, lr=0.1, momentum=0.9))
    odd = with_slot(record, "matrix", "master", record.state["vector"]["master"])
    odd = with_slot(odd, "vector", "momentum_buffer", record.state["matrix"]["momentum_buffer"])
    assert [code for code, *_ in findings(odd, module)] == [
        "optimizer.o.state.vector.momentum_buffer", "optimizer.o.state.matrix.master",
    ]  # fmt: skip


def test_vectors_over_all_parameters_have_their_length_and_their_place():
    module = model()
    record = stepped(module, LBFGS(module.parameters()))
    short = with_slot(record, "scalar", "d", capture_tensor(torch.zeros(4), "x"))
    assert findings(short, module) == [("optimizer.o.state.scalar.d", (34,), (4,))]
    elsewhere = replace(record, state={"vector": record.state["scalar"]})
    assert findings(elsewhere, module) == [("optimizer.o.state.vector", "scalar", "vector")]


class Own(SGD):
    pass


def test_of_another_class_nothing_is_known():
    module = model()
    record = stepped(module, Own(module.parameters(), lr=0.1, momentum=0.9))
    odd = with_slot(record, "matrix", "momentum_buffer", capture_tensor(torch.zeros(9), "x"))
    assert findings(odd, module) == []


def test_a_reshaped_parameter_is_told_once():
    def bound(width):
        module = nn.Linear(2, width, bias=False)
        optimizer = AdamW(module.parameters())
        module.weight.grad = torch.ones_like(module.weight)
        optimizer.step()
        return Training(module, optimizer, rng=None)

    with pytest.raises(ContractMismatch) as caught:
        bound(4).check(bound(3).capture())
    assert all(not finding.code.startswith("optimizer.") for finding in caught.value.findings)
