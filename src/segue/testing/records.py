"""Records that between them hold everything that a store has to bring back."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from segue._record.composite import CapturedSparse, CapturedSubclass, ConvertedTensor
from segue._record.gradients import GradientsRecord
from segue._record.quantized import QuantizedTensor, QuantScale, QuantScheme, QuantStore, QuantValue
from segue._record.tensors import DTYPES, CapturedTensor, MemoryBytes, contiguous_strides
from segue._record.training import TrainingRecord
from segue._session.training import Training

_LARGE_BYTES = 20 * 2**20
"""More than what is read or written at once."""


@functools.cache
def plain(number: int) -> TrainingRecord:
    """A small training in the middle of its work, another for each number."""
    torch_state = torch.get_rng_state()
    torch.manual_seed(number)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    scheduler.step()
    torch.set_rng_state(torch_state)
    training = Training(model, optimizer, scheduler, rng=None)
    return training.capture({"number": number}, step=number, microbatch=2 * number)


def mostly_data() -> TrainingRecord:
    """A record of which most bytes are those of tensors."""
    return dataclasses.replace(plain(1), caller_state=tensor("float32", (2**16,)))


def everything() -> dict[str, TrainingRecord]:
    """Records by what they are about."""
    base = plain(1)
    states = {
        "every dtype": _every_dtype(),
        "every memory layout": _every_layout(),
        "tensors that consist of others": _composites(),
        "kinds of plain values": _values(),
        "trees of any depth and size": _large_trees(),
        "a large tensor": {"large": tensor("uint8", (_LARGE_BYTES + 3,))},
    }
    records = {name: dataclasses.replace(base, caller_state=state) for name, state in states.items()}
    records["a training"] = base
    records["gradients that share memory"] = _sharing(base)
    records["next to nothing"] = dataclasses.replace(
        base, optimizers={}, schedulers={}, caller_state=None, environment={}, step=None, microbatch=None
    )
    return records


def tensor(
    dtype: str, shape: Sequence[int], strides: tuple[int, ...] | None = None, seed: int = 0
) -> CapturedTensor:
    """Make a captured tensor of random bits."""
    generator = torch.Generator().manual_seed(seed)
    num_bytes = math.prod(shape) * DTYPES[dtype].itemsize
    data = torch.randint(
        0, 2 if dtype == "bool" else 256, (num_bytes,), dtype=torch.uint8, generator=generator
    )
    return CapturedTensor(
        DTYPES[dtype], tuple(shape), strides or contiguous_strides(shape), "cpu", MemoryBytes(data)
    )


def _every_dtype() -> dict[str, Any]:
    shapes = ((2, 3), (), (0, 5))
    return {f"{dtype} {shape}": tensor(dtype, shape) for dtype in DTYPES for shape in shapes}


def _every_layout() -> dict[str, Any]:
    strides = ((12, 4, 1), (1, 2, 6), (3, 1, 6), (0, 0, 0), (48, 8, 2))
    return {str(each): tensor("float32", (2, 3, 4), each) for each in strides}


def _composites() -> dict[str, Any]:
    scheme = QuantScheme(QuantValue.Q8S, QuantScale.F32, QuantStore.NATIVE, 0, (4,))
    indices = MemoryBytes.copy_of(np.array([2, 0, 2], dtype="<i8").tobytes())
    parts = {"qdata": tensor("uint8", (2, 4)), "scale": tensor("float8_e8m0fnu", (2, 2))}
    return {
        "sparse": CapturedSparse(
            "sparse_coo", (4, 3), False,
            {"indices": CapturedTensor(torch.int64, (1, 3), (3, 1), "cpu", indices), "values": tensor("float32", (3, 3))},
        ),
        "subclass": CapturedSubclass("a.library.Quantized", torch.bfloat16, (2, 4), (4, 1), {"dict": {"block": 2}}, parts),
        "converted": ConvertedTensor(torch.float64, tensor("float32", (2, 3)), False),
        "quantized": QuantizedTensor(scheme, (8,), tensor("uint8", (16,))),
    }  # fmt: skip


def _values() -> dict[Any, Any]:
    return {
        "none": None, "big": 2**70, "float": 0.1, "infinite": float("-inf"), "not a number": float("nan"), "zero": -0.0,
        "complex": complex(1, -0.0), "text": 'quote " \\ \n ☃', "lone": "\ud800", "bytes": b"\0\xff",
        "bytearray": bytearray(b"ab"), "tuple": (1, (2, [])), "deque": deque([1, 2], 3), "set": {1, 2},
        "ordered": OrderedDict([("b", 1), ("a", 2)]), "counter": Counter("aab"), 1: "a", "1": "b", (2, 3): {},
        "dtype": torch.bfloat16, "device": torch.device("cuda:1"), "size": torch.Size([2, 0]), "range": range(1, 9, 2),
        "scalar": np.float32(1.5), "a/~b": True,
    }  # fmt: skip


def _large_trees() -> dict[str, Any]:
    deep: Any = "bottom"
    for _ in range(50):
        deep = [deep]
    return {"deep": deep, "wide": list(range(50_000)), "long": "ab" * 10**6}


def _sharing(base: TrainingRecord) -> TrainingRecord:
    gradients = {"a": tensor("float32", (2, 3)), "b": tensor("float32", (2, 3)), "c": tensor("float64", (2,))}
    return dataclasses.replace(base, gradients=GradientsRecord(gradients, (("a/", "b/"),)))


class FailingSource:
    """Bytes that give out: what a store meets when the disk under its source dies, or the program is interrupted."""

    def __init__(self, num_bytes: int, error: BaseException) -> None:
        self.num_bytes = num_bytes
        self._error = error

    def read_into(self, target: memoryview) -> None:
        raise self._error

    def verify(self) -> None:
        raise self._error


def failing(number: int, error: BaseException) -> TrainingRecord:
    """A record whose last tensor can't be read."""
    last = CapturedTensor(torch.uint8, (1000,), (1,), "cpu", FailingSource(1000, error))
    return dataclasses.replace(plain(number), caller_state={"a": tensor("uint8", (5000,)), "z": last})
