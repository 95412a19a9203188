"""Counters that can't count on: a float at which adding one changes nothing any more, an integer that is about to wrap.

Savers that cast "everything floating" to bf16 leave counters that stand at 256 for ever; with Adam the bias
correction stands with them. Such a counter is state and is kept bit for bit; but it is told.

What counts is known by its name alone, wherever a record keeps it: in the state and the options of an optimizer of any
class, among a module's buffers, in the state of a component. Counters that are plain Python integers have no end.
"""

from __future__ import annotations

import functools
import math
import struct
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from segue._record.composite import ConvertedTensor
from segue._record.sections import ComponentRecord, ModuleRecord, OptimizerRecord, SchedulerRecord
from segue._record.tensors import CapturedArray, CapturedTensor, read_bytes
from segue._record.training import TrainingRecord

COUNTERS = frozenset({
    "step", "steps", "num_steps", "n_steps", "global_step", "iteration", "iterations", "n_iter", "num_iter", "iter", "t",
    "count", "counter", "num_updates", "n_updates", "updates", "func_evals", "n_averaged", "num_batches_tracked",
    "_step_count", "last_epoch", "_growth_tracker",
})  # fmt: skip
"""What torch's optimizers, averages, norms, schedulers and scalers call what they count in, and what those that people add do."""
_FLOAT = struct.Struct("=f")
_SEQUENCES = (list, tuple, deque)
_CONTAINERS = (Mapping, *_SEQUENCES)
# Nobody counts to their end.
_ENDLESS = (torch.int64, torch.uint64, np.dtype("int64"), np.dtype("uint64"))


@dataclass(frozen=True)
class StuckCounter:
    """A counter that can't count on, or not for long."""

    where: str
    """What it belongs to, such as `optimizer.adamw`."""
    name: str
    """What it is called, and of what it is, such as `step counter of layer.weight`."""
    dtype: str
    value: float
    end: int | None
    """Where an integer wraps; `None` for floats, which stay where they are."""

    @property
    def wider(self) -> str:
        """A dtype that can count on."""
        if self.end is not None:
            return "int64"
        return "float64" if self.dtype.endswith("float32") else "float32"

    def __str__(self) -> str:
        if self.end is None:
            return f"{self.dtype} and stands at {self.value:.0f}, from where that dtype can't count on"
        return f"{self.dtype} and stands at {self.value:.0f}; at {self.end} that dtype ends"


def stuck_counters(record: TrainingRecord) -> Iterator[StuckCounter]:
    """Yield every counter that can't count on; of integers, those that are past half of what they can count.

    Cost:
        A read of each counter that isn't 64 bits wide, a few bytes.
    """
    yield from _of_module(record.model, "model")
    for name, optimizer in record.optimizers.items():
        yield from _of_optimizer(optimizer, f"optimizer.{name}")
    for name, opaque in (record.opaque_optimizers or {}).items():
        yield from _of_tree(opaque.state.tree, f"optimizer.{name}", "its state")
    for name, scheduler in record.schedulers.items():
        yield from _of_scheduler(scheduler, f"scheduler.{name}")
    for name, component in record.components.items():
        yield from _of_component(component, f"component.{name}")


@functools.cache
def counts_to(dtype: torch.dtype) -> int:
    """Return the first whole number to which this floating dtype can't add one: 256 for bf16, 2048 for fp16."""
    limit = 1  # tried out: what `finfo` says of float8_e5m2fnuz is not so (torch 2.13)
    while torch.tensor(float(limit + 1), dtype=torch.float64).to(dtype).double().item() == limit + 1:
        limit *= 2
    return limit


def _of_module(module: ModuleRecord, where: str) -> Iterator[StuckCounter]:
    for name, tensor in module.tensors.items():
        owner, _, own = name.rpartition(".")
        spec = module.contract.tensors[name]
        # A parameter that is called so is learnt, and no counter.
        if own in COUNTERS and spec is not None and spec.kind != "parameter":
            yield from _if_stuck(tensor, where, own, owner or "it")


def _of_optimizer(optimizer: OptimizerRecord, where: str) -> Iterator[StuckCounter]:
    for name, slots in optimizer.state.items():
        yield from _of_tree(slots, where, name)
    for index, group in enumerate(optimizer.groups):
        yield from _of_tree(group.options, where, f"group {index}")
    yield from _of_tree(optimizer.attributes, where, "its attributes")


def _of_scheduler(scheduler: SchedulerRecord, where: str) -> Iterator[StuckCounter]:
    yield from _of_tree(scheduler.position, where, "it")
    for child in scheduler.children:
        yield from _of_scheduler(child, where)


def _of_component(component: ComponentRecord, where: str) -> Iterator[StuckCounter]:
    if component.module is not None:
        yield from _of_module(component.module, where)
    else:
        yield from _of_tree(component.tree, where, "it")


def _of_tree(tree: Any, where: str, owner: str) -> Iterator[StuckCounter]:
    """Yield those in a tree, however deep, whose key is a counter's name."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            if isinstance(key, str) and key in COUNTERS:
                yield from _if_stuck(value, where, key, owner)
            yield from _of_tree(value, where, owner)
    elif isinstance(tree, _SEQUENCES):
        for value in tree:
            if isinstance(value, _CONTAINERS):  # a list may have a million numbers
                yield from _of_tree(value, where, owner)


def _if_stuck(value: Any, where: str, name: str, owner: str) -> Iterator[StuckCounter]:
    found = _torch_counter(value) or _numpy_counter(value)
    if found is None:
        return
    dtype, number, limit, end = found
    # An integer that has wrapped is negative. NaN is beyond nothing.
    if number >= limit or (end is not None and number < 0):
        yield StuckCounter(where, f"{name} counter of {owner}", dtype, number, end)


_Found = tuple[str, float, float, int | None]
"""Dtype, value, from where on it is told, and where an integer ends."""


def _torch_counter(value: Any) -> _Found | None:
    if isinstance(value, ConvertedTensor):
        value = value.restored()
    # An element of float4_e2m1fn_x2 is two numbers, and none that torch 2.13 could read.
    odd = (torch.bool, torch.float4_e2m1fn_x2, *_ENDLESS)
    if not isinstance(value, CapturedTensor) or value.num_elements != 1 or value.dtype in odd:
        return None
    dtype = value.dtype
    if dtype.is_floating_point:
        return str(dtype), _value(value), counts_to(dtype), None
    if dtype.is_complex:
        return None
    end = torch.iinfo(dtype).max
    return str(dtype), _value(value), end / 2, end


def _numpy_counter(value: Any) -> _Found | None:
    if isinstance(value, CapturedArray):
        value = value.to_host() if math.prod(value.shape) == 1 else None
    if not isinstance(value, np.ndarray | np.generic) or value.dtype in _ENDLESS:
        return None
    dtype = value.dtype
    if dtype.kind == "f":
        return str(dtype), float(value.reshape(())), 2 / float(np.finfo(dtype).eps), None
    if dtype.kind in "iu":
        end = int(np.iinfo(dtype).max)
        return str(dtype), float(value.reshape(())), end / 2, end
    return None


def _value(counter: CapturedTensor) -> float:
    data = read_bytes(counter.source)
    if counter.dtype is torch.float32:  # nearly all of them; there may be many thousands
        return float(_FLOAT.unpack(data)[0])
    return float(torch.frombuffer(bytearray(data), dtype=torch.uint8).view(counter.dtype).item())
