"""Small training records made by hand: no live object is needed to test a store."""

import dataclasses
from collections import Counter, OrderedDict, deque

import numpy as np
import torch

from segue._record.base import BaseRecord
from segue._record.composite import CapturedSparse, CapturedSubclass, ConvertedTensor
from segue._record.contract import Sharing, TensorSpec, TrainableContract
from segue._record.gradients import GradientsRecord
from segue._record.parts import parts_of
from segue._record.quantized import QuantizedTensor, QuantScale, QuantScheme, QuantStore, QuantValue
from segue._record.rank_local import RankLocal
from segue._record.sections import (
    ComponentRecord,
    GroupRecord,
    ModuleRecord,
    OpaqueOptimizerRecord,
    OptimizerRecord,
    SchedulerRecord,
)
from segue._record.tensors import (
    DTYPE_NAMES,
    DTYPES,
    CapturedArray,
    CapturedTensor,
    MemoryBytes,
    contiguous_strides,
)
from segue._record.training import TrainingRecord
from segue._record.window import WindowRecord, WindowState


def raw(num_bytes: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (num_bytes,), dtype=torch.uint8, generator=generator)


def tensor(dtype="float32", shape=(2, 3), strides=None, seed=0, device="cpu") -> CapturedTensor:
    count = 1
    for size in shape:
        count *= size
    data = raw(count * DTYPES[dtype].itemsize, seed)
    if dtype == "bool":
        data &= 1
    return CapturedTensor(
        DTYPES[dtype], tuple(shape), strides or contiguous_strides(shape), device, MemoryBytes(data)
    )


def captured(live: torch.Tensor) -> CapturedTensor:
    data = live.detach().contiguous().reshape(-1).view(torch.uint8).clone()
    return CapturedTensor(live.dtype, tuple(live.shape), live.stride(), "cpu", MemoryBytes(data))


def array(values: np.ndarray) -> CapturedArray:
    fortran = values.flags.f_contiguous and not values.flags.c_contiguous
    data = torch.from_numpy(np.frombuffer(values.tobytes(order="A"), dtype=np.uint8).copy())
    return CapturedArray(values.dtype.str, values.shape, fortran, MemoryBytes(data))


def module(tensors, kinds=None, sharing=()) -> ModuleRecord:
    specs = {
        name: item
        and TensorSpec(
            (kinds or {}).get(name, "parameter"),
            DTYPE_NAMES[item.dtype],
            item.shape,
            item.strides,
            item.device,
            True,
            None,
            parts_of(item),
        )
        for name, item in tensors.items()
    }
    return ModuleRecord(dict(tensors), {"": True}, TrainableContract(specs, tuple(sharing), tuple(tensors)))


def record(seed: int = 0, **changes) -> TrainingRecord:
    """A record with something in every section, different for each seed, of about 1 KiB."""
    weight, bias = tensor(shape=(4, 3), seed=seed), tensor("bfloat16", (3,), seed=seed + 1)
    made = TrainingRecord(
        model=module(
            {"bias": bias, "cache": tensor(shape=(2,), seed=seed + 2), "gone": None, "weight": weight},
            {"cache": "transient"},
            [Sharing({"weight": 0, "tied": 0}, True)],
        ),
        optimizers={
            "optimizer": OptimizerRecord(
                "torch.optim.adamw.AdamW",
                (GroupRecord(("weight", "bias"), {"lr": 0.1, "betas": (0.9, 0.95)}, {"lr": 0.1}),),
                {
                    "weight": {
                        "step": tensor(shape=(), seed=seed),
                        "exp_avg": tensor(shape=(4, 3), seed=seed + 3),
                    }
                },
                {"lr": 0.1},
                (("0/lr", "defaults/lr"),),
            )
        },
        schedulers={
            "scheduler": SchedulerRecord(
                "StepLR", "optimizer", {"step_size": 3}, {"last_epoch": seed}, (), 0, None
            )
        },
        gradients=GradientsRecord({"weight": tensor(shape=(4, 3), strides=(1, 4), seed=seed + 4)}),
        window=WindowRecord(
            WindowState("weighted", "float64", 1.0, 8, 3, 12.5),
            GradientsRecord({"weight": tensor("float64", (4, 3), seed=seed + 5)}),
        ),
        components={
            "ema": ComponentRecord("module", "torch.nn.Linear", module({"w": tensor(seed=seed + 6)}), None),
            "data": ComponentRecord(
                "component", "Data", None, {"position": seed, "order": array(np.arange(6))}
            ),
        },
        streams={"torch": tensor("uint8", (16,), seed=seed + 7), "python": (3, (1, 2), None)},
        caller_state={"microbatch": seed, "note": "ä/~"},
        environment={"torch": "2.13.0"},
        step=seed,
        microbatch=8 * seed,
        lineage=("accepted",),
    )
    return dataclasses.replace(made, **changes)


MANY_KINDS = {
    "none": None, "big": 2**70, "negative": -(2**60), "float": 0.1, "inf": float("-inf"), "zero": -0.0,
    "complex": complex(1, -0.0), "text": 'quote " \\ \n ☃', "lone": "\ud800", "bytes": b"\0\xff",
    "bytearray": bytearray(b"ab"), "tuple": (1, (2, [])), "deque": deque([1, 2], 3), "set": {1, 2}, "frozen": frozenset("ab"),
    "ordered": OrderedDict([("b", 1), ("a", 2)]), "counter": Counter("aab"), "int keys": {1: "a", "1": "b", (2, 3): {}},
    "dtype": torch.bfloat16, "device": torch.device("cuda:1"), "size": torch.Size([2, 0]), "range": range(1, 9, 2),
    "scalar": np.float32(1.5), "empty": {}, "array": array(np.asfortranarray(np.arange(6.0).reshape(2, 3))),
    "tensor": tensor("int64", (2,)),
}  # fmt: skip


MX = "torchao.prototype.mx_formats.mx_tensor.MXTensor"


def subclass(seed=0, name=MX, **changes) -> CapturedSubclass:
    """A quantized tensor of 2 x 4 values in blocks of two; no library is needed to store one."""
    parts = {
        "qdata": tensor("uint8", (2, 4), seed=seed),
        "scale": tensor("float8_e8m0fnu", (2, 2), seed=seed + 1),
    }
    kernel = ("torchao.quantization.quantize_.common.kernel_preference.KernelPreference", "AUTO")
    context = {
        "dict": {"block_size": 2, "orig_dtype": torch.bfloat16, "kernel_preference": {"member": kernel}}
    }
    fields = {"context": context, "tensors": {**parts, **changes.pop("parts", {})}, **changes}
    return CapturedSubclass(name, torch.bfloat16, (2, 4), (4, 1), **fields)


def sparse(seed=0) -> CapturedSparse:
    """A sparse gradient of 4 x 3 values with two rows, one of them twice."""
    indices = captured(torch.tensor([[2, 0, 2]]))
    return CapturedSparse(
        "sparse_coo", (4, 3), False, {"indices": indices, "values": tensor(shape=(3, 3), seed=seed)}
    )


def second_version(seed: int = 0, **changes) -> TrainingRecord:
    """A record with everything that version 2 of the format has and version 1 has not."""
    weight, nested = subclass(seed), subclass(seed + 10, parts={"scale": subclass(seed + 20)})
    plain = record(seed)
    optimizer = dataclasses.replace(
        plain.optimizers["optimizer"],
        state={"head": {"step": 3, "exp_avg": subclass(seed + 30), "qmap1": tensor(shape=(4,), seed=seed)}},
        attributes={"block_size": 256, "name2qmap": {"dynamic": tensor(shape=(4,), seed=seed)}},
    )
    gradients = {
        "head": ConvertedTensor(torch.float64, tensor("float32", (2, 3), seed=seed + 40), False),
        "rows": sparse(seed + 41),
        "more rows": sparse(seed + 41),
        "packed": QuantizedTensor(
            QuantScheme(QuantValue.Q8S, QuantScale.F32, QuantStore.NATIVE, 0, (4,)), (8,), tensor("uint8", (16,), seed=seed)
        ),
    }  # fmt: skip
    made = dataclasses.replace(
        plain,
        model=module(
            {
                "base.weight": weight,
                "head": tensor(seed=seed + 50),
                "nested": nested,
                "table": subclass(seed + 60),
            },
            {"table": "transient"},
            [Sharing({"base.weight.scale": 0, "nested.qdata": 4}, False)],
        ),
        optimizers={"optimizer": optimizer},
        gradients=GradientsRecord(gradients, (("more rows/values", "rows/values"),)),
        window=None,
        caller_state={"held": [subclass(seed + 70)], 1: sparse(seed + 71)},
    )
    return dataclasses.replace(made, **changes)


def third_version(seed: int = 0, **changes) -> TrainingRecord:
    """A record with everything that version 3 of the format has and version 2 has not."""
    plain = record(seed)
    kept = tensor("bfloat16", (3,), seed=seed)
    whole = module({"adapter": kept, "base": tensor(shape=(4, 3)), "moved": tensor(seed=seed + 1)})
    state = ComponentRecord("state_dict", "Foreign", None, {"velocity": tensor(seed=seed + 2)})
    made = dataclasses.replace(
        plain,
        kind="model_state",
        model=ModuleRecord(
            {"adapter": ConvertedTensor(torch.bfloat16, tensor(shape=(3,), seed=seed), True), "moved": whole.tensors["moved"]},
            whole.training,
            whole.contract,
            BaseRecord("digest", "c" * 32, {"base": "0123456789abcdef" * 2}),
            {"": {"scale": 0.1, "_active": ["one", None], "r": {"one": 4}}},
        ),
        optimizers={},
        schedulers={},
        gradients=GradientsRecord({}),
        window=None,
        opaque_optimizers={"foreign": OpaqueOptimizerRecord(state, (("adapter",), ()))},
        model_state={"archive": tensor("float16", (2,), seed=seed + 3), "module": module({"own": tensor(seed=seed + 4)})},
        groups=(RankLocal([tensor("float64", (2,), seed=seed + 5), 7]), plain.optimizers["optimizer"]),
        precision="full",
    )  # fmt: skip
    return dataclasses.replace(made, **changes)


def fourth_version(seed: int = 0, **changes) -> TrainingRecord:
    """A record with everything that version 4 of the format has and version 3 has not."""
    plain = record(seed)
    foreign = ComponentRecord("state_dict", "Foreign", None, {"velocity": tensor(seed=seed + 2)})
    scaler = ComponentRecord("state_dict", "Scaler", None, {"scale": 8.0}, {"growth_factor": 2.0})
    attributes = {
        "configured": {"alpha": 0.5},
        "moved": {"k": 3},
        "kept": {"mode": "train", "mean": tensor(seed=seed)},
    }
    made = dataclasses.replace(
        plain,
        opaque_optimizers={"foreign": OpaqueOptimizerRecord(foreign, (("adapter",), ()), attributes)},
        components={**plain.components, "scaler": scaler},
    )
    return dataclasses.replace(made, **changes)


def fifth_version(seed: int = 0, **changes) -> TrainingRecord:
    """A record with everything that version 5 of the format has and version 4 has not."""
    plain = record(seed)
    settings = {
        "": {"class": "torch.nn.modules.container.Sequential"},
        "drop": {
            "class": "torch.nn.modules.dropout.Dropout",
            "values": {"p": 0.25, "inplace": False},
            "asked": {"p": 0.1},
        },
    }
    extra = {"scale": {"amax": tensor(seed=seed + 3), "count": 2**70, "pair": (1, None)}}
    streams = {
        "model.noise": {
            "kind": "torch.Generator",
            "state": tensor("uint8", (16,), seed=seed + 4),
            "aliases": ["component.aug.rngs['left']", "model.head.noise"],
        },
        "component.aug.rng": {"kind": "numpy.BitGenerator", "state": {"state": 2**127 + 1}, "aliases": []},
    }
    made = dataclasses.replace(
        plain,
        model=dataclasses.replace(plain.model, settings=settings, extra=extra),
        private_streams=streams,
    )
    return dataclasses.replace(made, **changes)
