"""Counters that can't count on are found, whatever their dtype, and no other number is taken for one."""

import pytest
import torch

from segue._record.counters import counts_to, stuck_counters
from segue._record.sections import OptimizerRecord
from tests._store.records import captured, tensor


def stuck(slots):
    return list(stuck_counters(OptimizerRecord("SGD", (), {"w": slots}, {}, ())))


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.float8_e5m2]
)
def test_a_counter_is_stuck_where_adding_one_changes_nothing(dtype):
    limit = torch.tensor(counts_to(dtype), dtype=dtype)
    below = torch.tensor(counts_to(dtype) / 2, dtype=dtype)
    if dtype is not torch.float8_e5m2:  # which has no addition (torch 2.13)
        assert limit + 1 == limit
        assert below + 1 > below
    assert stuck({"step": captured(limit)}) == [("w", dtype, counts_to(dtype))]
    assert stuck({"step": captured(limit.reshape(1))}) == [("w", dtype, counts_to(dtype))]
    assert stuck({"step": captured(below)}) == []


@pytest.mark.parametrize("slots", [
    {}, {"step": 300}, {"step": captured(torch.tensor(300))}, {"step": captured(torch.full((2,), 300.0).bfloat16())},
    {"other": captured(torch.tensor(300.0).bfloat16())}, {"step": captured(torch.tensor(float("nan")))}, {"step": tensor("float4_e2m1fn_x2", ())},
])  # fmt: skip
def test_what_is_no_such_counter_is_left_alone(slots):
    assert stuck(slots) == []
