"""Counters that can't count on are found, whatever their dtype and wherever they stand, and no other number is taken for one."""

import dataclasses

import numpy as np
import pytest
import torch

from segue._record.composite import ConvertedTensor
from segue._record.counters import StuckCounter, counts_to, stuck_counters
from segue._record.sections import (
    ComponentRecord,
    GroupRecord,
    OpaqueOptimizerRecord,
    OptimizerRecord,
    SchedulerRecord,
)
from segue._record.tensors import DTYPES
from tests._store.records import array, captured, module, record, tensor

PLAIN = record(1)


def found_in(**sections):
    return list(
        stuck_counters(dataclasses.replace(PLAIN, **{"optimizers": {}, "components": {}, **sections}))
    )


def of_slots(slots, **more):
    return found_in(**more, optimizers={"a": OptimizerRecord("SGD", (), {"w": slots}, {}, ())})


FLOATS = [torch.bfloat16, torch.float16, torch.float32, torch.float64]
FLOATS_OF_8_BITS = [
    torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
]  # fmt: skip
INTEGERS = [torch.int8, torch.int16, torch.int32, torch.uint8, torch.uint16, torch.uint32]


@pytest.mark.parametrize("dtype", FLOATS + FLOATS_OF_8_BITS)
def test_a_float_is_stuck_where_adding_one_changes_nothing(dtype):
    limit = torch.tensor(counts_to(dtype)).to(dtype)
    below = torch.tensor(counts_to(dtype) / 2).to(dtype)
    # Those of 8 bits have no addition of their own (torch 2.13): as a step in fp32 that is stored again.
    add = (lambda value: value + 1) if dtype in FLOATS else (lambda value: (value.float() + 1).to(dtype))
    if dtype is not torch.float8_e8m0fnu:  # which has powers of two alone: 2 + 1 goes to 2 or to 4
        assert add(limit).double() == limit.double()
    assert add(below).double() > below.double()
    expected = StuckCounter("optimizer.a", "step counter of w", str(dtype), counts_to(dtype), None)
    assert of_slots({"step": captured(limit)}) == [expected]
    assert of_slots({"step": captured(limit.reshape(1))}) == [expected]
    assert of_slots({"step": captured(below)}) == []


def test_the_limits_of_the_usual_dtypes():
    assert [counts_to(dtype) for dtype in FLOATS] == [2**8, 2**11, 2**24, 2**53]
    assert [counts_to(dtype) for dtype in FLOATS_OF_8_BITS] == [16, 16, 8, 8, 2]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_an_integer_is_told_when_it_is_past_half_of_what_it_counts_and_when_it_has_wrapped(dtype):
    end = torch.iinfo(dtype).max
    for value, is_told in ((0, False), (1, False), (end // 2, False), (end // 2 + 1, True), (end, True)):
        found = of_slots({"step": captured(torch.tensor(value, dtype=torch.int64).to(dtype))})
        told = [StuckCounter("optimizer.a", "step counter of w", str(dtype), value, end)]
        assert found == (told if is_told else []), value
    if dtype in (torch.int8, torch.int16, torch.int32):
        [wrapped] = of_slots({"step": captured(torch.tensor(end, dtype=dtype) + 1)})
        assert wrapped.value == -end - 1


def test_every_dtype_is_one_or_the_other_or_none():
    for name, dtype in DTYPES.items():
        of_slots({"step": tensor(name, ())})
        assert dtype.is_complex or dtype is torch.bool or of_slots({"step": tensor(name, (2,))}) == []


@pytest.mark.parametrize("slots", [
    {}, {"step": 300}, {"step": 2.0**60}, {"step": captured(torch.tensor(300))}, {"step": None},
    {"step": captured(torch.full((2,), 300.0).bfloat16())}, {"step": captured(torch.empty(0).bfloat16())},
    {"other": captured(torch.tensor(300.0).bfloat16())}, {"step": captured(torch.tensor(float("nan")))},
    {"step": tensor("float4_e2m1fn_x2", ())}, {"step": captured(torch.tensor(True))}, {"step": captured(torch.tensor(300 + 1j))},
    {"step": captured(torch.tensor(-1.0))}, {"step": "x"}, {"step": array(np.array([1, 2], "int8"))},
    {"step": np.int64(2**62)}, {"step": np.complex64(300)}, {"step": np.float64(3)}, {3: captured(torch.tensor(300.0).bfloat16())},
])  # fmt: skip
def test_what_is_no_such_counter_is_left_alone(slots):
    assert of_slots(slots) == []


STUCK = captured(torch.tensor(256.0).bfloat16())
TOLD = ("torch.bfloat16", 256.0, None)


@pytest.mark.parametrize(
    "name", ["step", "steps", "n_averaged", "func_evals", "n_iter", "t", "num_updates", "_growth_tracker"]
)
def test_a_counter_is_known_by_its_name_in_the_state_of_any_optimizer(name):
    assert of_slots({name: STUCK}) == [StuckCounter("optimizer.a", f"{name} counter of w", *TOLD)]


def test_it_is_found_however_deep_in_the_state():
    deep = {"history": [1, ({"inner": {"step": STUCK}},)]}
    assert of_slots(deep) == [StuckCounter("optimizer.a", "step counter of w", *TOLD)]


def test_options_and_attributes_of_an_optimizer_count_too():
    group = GroupRecord(("w",), {"lr": 0.1, "step": STUCK}, {})
    optimizer = OptimizerRecord("Own", (GroupRecord((), {}, {}), group), {}, {}, (), {"t": STUCK})
    assert found_in(optimizers={"a": optimizer}) == [
        StuckCounter("optimizer.a", "step counter of group 1", *TOLD),
        StuckCounter("optimizer.a", "t counter of its attributes", *TOLD),
    ]


def test_an_optimizer_that_is_asked_whole_counts_too():
    state = ComponentRecord("state_dict", "Foreign", None, {"state": {0: {"step": STUCK}}})
    found = found_in(opaque_optimizers={"own": OpaqueOptimizerRecord(state, None)})
    assert found == [StuckCounter("optimizer.own", "step counter of its state", *TOLD)]


def test_a_module_s_buffers_count_and_its_parameters_do_not():
    counting = module(
        {"n_averaged": STUCK, "bn.num_batches_tracked": STUCK, "step": STUCK, "gone.count": None, "weight": STUCK},
        {"n_averaged": "buffer", "bn.num_batches_tracked": "transient", "weight": "buffer"},
    )  # fmt: skip
    expected = [("n_averaged counter of it", *TOLD), ("num_batches_tracked counter of bn", *TOLD)]
    assert found_in(model=counting) == [StuckCounter("model", *each) for each in expected]
    component = ComponentRecord("module", "AveragedModel", counting, None)
    found = found_in(components={"ema": component})
    assert found == [StuckCounter("component.ema", *each) for each in expected]


def test_components_and_schedules_that_count_in_tensors_are_found():
    scaler = ComponentRecord("state_dict", "Scaler", None, {"scale": STUCK, "_growth_tracker": STUCK})
    child = SchedulerRecord("Inner", "a", {}, {"last_epoch": STUCK}, (), 0, None)
    schedule = SchedulerRecord("Outer", "a", {}, {"_step_count": STUCK}, (child,), 0, None)
    assert found_in(components={"scaler": scaler}, schedulers={"s": schedule}) == [
        StuckCounter("scheduler.s", "_step_count counter of it", *TOLD),
        StuckCounter("scheduler.s", "last_epoch counter of it", *TOLD),
        StuckCounter("component.scaler", "_growth_tracker counter of it", *TOLD),
    ]


def test_one_that_is_stored_in_another_precision_is_judged_by_its_own():
    stored = captured(torch.tensor([256.0]))
    assert of_slots({"step": ConvertedTensor(torch.bfloat16, stored, True)}, precision="full") == [
        StuckCounter("optimizer.a", "step counter of w", *TOLD)
    ]
    assert of_slots({"step": ConvertedTensor(torch.float64, stored, True)}, precision="full") == []


@pytest.mark.parametrize(
    ("value", "dtype", "end"),
    [
        (np.float16(2048), "float16", None),
        (array(np.array(2.0**24, "float32")), "float32", None),
        (array(np.array([100], "int8")), "int8", 127),
        (np.int16(-3), "int16", 32767),
    ],
)
def test_numpy_counts_too(value, dtype, end):
    [found] = of_slots({"step": value})
    assert (found.dtype, found.end) == (dtype, end)


def test_it_says_what_would_count_on():
    def told(dtype, end=None):
        return StuckCounter("optimizer.a", "step counter of w", dtype, 100.0, end)

    assert [told(each).wider for each in ("torch.bfloat16", "torch.float32", "float32")] == [
        "float32",
        "float64",
        "float64",
    ]
    assert told("torch.int8", 127).wider == "int64"
    assert str(told("torch.int8", 127)) == "torch.int8 and stands at 100; at 127 that dtype ends"
    assert (
        str(told("torch.bfloat16"))
        == "torch.bfloat16 and stands at 100, from where that dtype can't count on"
    )
