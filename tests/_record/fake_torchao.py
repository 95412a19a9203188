"""Classes that have the names and the shape of torchao's, for tests that take milliseconds; put into `sys.modules`."""

from __future__ import annotations

import dataclasses
import enum
import sys
import types
from typing import Any, NamedTuple

import pytest
import torch

MX = "torchao.prototype.mx_formats.mx_tensor"
STATE = "torchao.optim.subclass_8bit"
KERNEL = "torchao.quantization.quantize_.common.kernel_preference"
NF4 = "torchao.quantization.quantize_.workflows.nf4.nf4_tensor"
INFERENCE = "torchao.float8.inference"


class KernelPreference(str, enum.Enum):  # noqa: UP042  (as torchao has it)
    AUTO = "auto"
    TORCH = "torch"


@dataclasses.dataclass
class QuantizeTensorToMXKwargs:
    elem_dtype: torch.dtype = torch.float8_e4m3fn
    block_size: int = 32


class Float8MMConfig(NamedTuple):
    emulate: bool = False
    use_fast_accum: bool = False


@dataclasses.dataclass(frozen=True)
class SubclassTensorArgs:
    original_shape: torch.Size
    device: torch.device
    requires_grad: bool


class MXTensor(torch.Tensor):
    """Parts `qdata` and `scale`, either of which may be of a subclass itself, and an optional `global_scale`."""

    @staticmethod
    def __new__(cls, qdata: torch.Tensor, scale: torch.Tensor, context: Any, global_scale: Any = None) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, qdata.shape, dtype=torch.float32, device=qdata.device)

    def __init__(
        self, qdata: torch.Tensor, scale: torch.Tensor, context: Any, global_scale: Any = None
    ) -> None:
        self.qdata, self.scale, self.context, self.global_scale = qdata, scale, context, global_scale

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        names = ["qdata", "scale"] + (["global_scale"] if self.global_scale is not None else [])
        return names, self.context

    @classmethod
    def __tensor_unflatten__(cls, parts: Any, context: Any, size: Any, stride: Any) -> Any:
        assert parts["scale"].ndim == 1, "a scale has one dimension"
        return cls(parts["qdata"], parts["scale"], context, parts.get("global_scale"))

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any, kwargs: Any = None) -> Any:
        if function is torch.ops.aten.detach.default:
            [tensor] = args
            return MXTensor(tensor.qdata, tensor.scale, tensor.context, tensor.global_scale)
        raise NotImplementedError(f"{function} would dequantize")


class Derived(MXTensor):
    """What derives from an admitted class isn't admitted."""


class OptimState8bit(torch.Tensor):
    @staticmethod
    def __new__(cls, codes: Any, scale: Any, qmap: Any, signed: bool, dtype: torch.dtype) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=dtype, device=codes.device)

    def __init__(self, codes: Any, scale: Any, qmap: Any, signed: bool, dtype: torch.dtype) -> None:
        self.codes, self.scale, self.qmap, self.signed = codes, scale, qmap, signed

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["codes", "scale", "qmap"], [self.signed, self.dtype]

    @classmethod
    def __tensor_unflatten__(cls, parts: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(parts["codes"], parts["scale"], parts["qmap"], *context)

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any, kwargs: Any = None) -> Any:
        raise NotImplementedError(f"{function} would dequantize")


_PLACES: dict[str, tuple[type, ...]] = {
    MX: (MXTensor, QuantizeTensorToMXKwargs),
    STATE: (OptimState8bit,),
    KERNEL: (KernelPreference,),
    NF4: (SubclassTensorArgs,),
    INFERENCE: (Float8MMConfig,),
}


@pytest.fixture
def fake_torchao(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the program have imported a library of these classes."""
    for name, classes in _PLACES.items():
        module = types.ModuleType(name)
        for cls in classes:
            cls.__module__, cls.__qualname__ = name, cls.__name__
            setattr(module, cls.__name__, cls)
        monkeypatch.setitem(sys.modules, name, module)


def mx(seed: int = 0, block_size: int = 2, **changes: Any) -> MXTensor:
    """A small tensor of 2 x 4 elements, different for each seed."""
    parts = {
        "qdata": (torch.arange(8, dtype=torch.uint8) + seed).view(2, 4).clone(),
        "scale": torch.arange(8 // block_size, dtype=torch.float32) + seed,
        **changes,
    }
    kwargs = QuantizeTensorToMXKwargs(block_size=block_size)
    context = {"block_size": [1, block_size], "kernel": KernelPreference.AUTO, "kwargs": kwargs, "none": None}
    return MXTensor(context=parts.pop("context", context), **parts)


def state(seed: int = 0) -> OptimState8bit:
    """A quantized state of 4 x 4 elements in two blocks."""
    codes = (torch.arange(16, dtype=torch.uint8) + seed).view(4, 4).clone()
    return OptimState8bit(codes, torch.ones(2) + seed, torch.linspace(-1, 1, 256), True, torch.bfloat16)


def contents(tensor: Any) -> Any:
    """Every part by name, as bytes, with the context."""
    names, context = tensor.__tensor_flatten__()
    parts = {name: getattr(tensor, name) for name in names}
    return context, {
        name: contents(part)
        if hasattr(part, "__tensor_flatten__")
        else bytes(part.reshape(-1).view(torch.uint8).tolist())
        for name, part in parts.items()
    }
