"""Step counters that can't count on: a float at which adding one changes nothing any more.

Savers that cast "everything floating" to bf16 leave counters that stand at 256 for ever; with Adam the bias
correction stands with them. Such a counter is state and is kept bit for bit; but it is told.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator

import torch

from segue._record.sections import OptimizerRecord
from segue._record.tensors import CapturedTensor, read_bytes

_FLOAT = struct.Struct("=f")
COUNTERS = ("step",)
"""The slots in which torch's optimizers, and those that people add, count."""


def stuck_counters(record: OptimizerRecord) -> Iterator[tuple[str, torch.dtype, float]]:
    """Yield the parameter, dtype and value of every counter that can't count on.

    Cost:
        A read of each counter, a few bytes.
    """
    for name, slots in record.state.items():
        for slot in COUNTERS:
            counter = slots.get(slot)
            if isinstance(counter, CapturedTensor) and _is_float(counter):
                value = _value(counter)
                if value >= counts_to(counter.dtype):
                    yield name, counter.dtype, value


@functools.cache
def counts_to(dtype: torch.dtype) -> float:
    """Return the first whole number to which this dtype can't add one: 256 for bf16, 2048 for fp16."""
    return 2 / torch.finfo(dtype).eps


def _is_float(counter: CapturedTensor) -> bool:
    # An element of float4_e2m1fn_x2 is two numbers, and none that torch 2.13 could read.
    return (
        counter.num_elements == 1
        and counter.dtype.is_floating_point
        and counter.dtype is not torch.float4_e2m1fn_x2
    )


def _value(counter: CapturedTensor) -> float:
    data = read_bytes(counter.source)
    if counter.dtype is torch.float32:  # nearly all of them; there may be many thousands
        return float(_FLOAT.unpack(data)[0])
    return float(torch.frombuffer(bytearray(data), dtype=torch.uint8).view(counter.dtype).item())
