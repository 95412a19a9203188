"""Small trainings whose state is quantized: optimizers of torchao and bitsandbytes, frozen bases, a trained int8 weight.

A matrix that is large enough to have quantized state (4096 elements), others that are not, dropout, and windows of
two microbatches, so that a cut may have a gradient pending.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch._dynamo
from torch import nn
from torch.optim import lr_scheduler

import segue
from tests.quantized_state.libraries import (
    Float8WeightOnlyConfig,
    Int8DynamicActivationInt8WeightConfig,
    Int8QuantizedTrainingLinearWeight,
    Int8WeightOnlyConfig,
    IntxWeightOnlyConfig,
    MXTensor,
    NVFP4Tensor,
    QuantizeTensorToMXKwargs,
    bitsandbytes,
    quantize_,
    to_nf4,
    torchao,
)

torch.set_num_threads(1)

WINDOW = 2
WIDTH = 64
CLASSES = 10

Quantize = Callable[[nn.Linear], None]


@dataclass(frozen=True)
class Case:
    """One way to have quantized state."""

    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW
    dtype: torch.dtype = torch.float32
    base: Quantize | None = None
    """Quantizes the weight of the frozen layer under the head; without it, all layers are trained."""
    trained: Quantize | None = None
    """Quantizes the weight of a layer that is trained."""
    scheduled: bool = False


def _by_hand(make: Callable[[torch.Tensor], torch.Tensor], requires_grad: bool = False) -> Quantize:
    def quantize(layer: nn.Linear) -> None:
        layer.weight = nn.Parameter(make(layer.weight.detach()), requires_grad=requires_grad)

    return quantize


def _by_config(config: Any) -> Quantize:
    return lambda layer: quantize_(layer, config)


def mx(elements: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    # Only with a quantized activation: weight-only is not supported (torchao 0.18).
    kwargs = QuantizeTensorToMXKwargs(elem_dtype=elements)
    return lambda weight: MXTensor.to_mx(weight, elements, 32, act_quant_kwargs=kwargs)


def scaled_nvfp4(weight: torch.Tensor) -> torch.Tensor:
    return NVFP4Tensor.to_nvfp4(weight, per_tensor_scale=torch.tensor(0.5))


BASES: dict[str, Quantize] = {
    "int8": _by_config(Int8WeightOnlyConfig()),
    "int8-dynamic": _by_config(Int8DynamicActivationInt8WeightConfig()),
    "float8": _by_config(Float8WeightOnlyConfig()),
    "int4": _by_config(IntxWeightOnlyConfig(weight_dtype=torch.int4)),
    "mxfp8": _by_hand(mx(torch.float8_e4m3fn)),
    "mxfp4": _by_hand(mx(torch.float4_e2m1fn_x2)),
    "nvfp4": _by_hand(NVFP4Tensor.to_nvfp4),
    "nvfp4-scaled": _by_hand(scaled_nvfp4),
    "nf4": _by_hand(lambda weight: to_nf4(weight, 32, 64)),
}
# Every step rounds stochastically, and draws for it from the torch stream.
TRAINED_INT8 = _by_hand(Int8QuantizedTrainingLinearWeight.from_float, requires_grad=True)
_BF16 = torch.bfloat16
TORCHAO: dict[str, Case] = {
    "ao-8bit": Case(torchao.optim.AdamW8bit),
    "ao-8bit-bf16": Case(torchao.optim.AdamW8bit, _BF16),
    "ao-8bit-bf16-stochastic": Case(partial(torchao.optim.AdamW8bit, bf16_stochastic_round=True), _BF16),
    "ao-4bit": Case(torchao.optim.AdamW4bit),
    "ao-4bit-bf16-stochastic": Case(partial(torchao.optim.AdamW4bit, bf16_stochastic_round=True), _BF16),
    "ao-fp8": Case(torchao.optim.AdamWFp8),
    "ao-fp8-bf16": Case(torchao.optim.AdamWFp8, _BF16),
    "ao-adam-8bit": Case(torchao.optim.Adam8bit),
    "ao-adam-4bit": Case(torchao.optim.Adam4bit),
    "ao-adam-fp8": Case(torchao.optim.AdamFp8),
    "ao-8bit-scheduled": Case(torchao.optim.AdamW8bit, scheduled=True),
    "ao-8bit-other-blocks": Case(partial(torchao.optim.AdamW8bit, block_size=512)),
}
_bnb = bitsandbytes.optim
BITSANDBYTES: dict[str, Case] = {
    "bnb-adamw-8bit": Case(_bnb.AdamW8bit),
    "bnb-adamw-8bit-bf16": Case(_bnb.AdamW8bit, _BF16),
    "bnb-adamw-32bit": Case(_bnb.AdamW),
    "bnb-adam-8bit": Case(_bnb.Adam8bit),
    "bnb-lion-32bit": Case(_bnb.Lion),
    "bnb-adamw-8bit-scheduled": Case(_bnb.AdamW8bit, scheduled=True),
    "bnb-lion-8bit": Case(_bnb.Lion8bit),
    "bnb-lion-8bit-bf16": Case(_bnb.Lion8bit, _BF16),
    "bnb-lamb-8bit": Case(_bnb.LAMB8bit),
    "bnb-lars-8bit": Case(partial(_bnb.LARS8bit, momentum=0.9)),
    "bnb-sgd-8bit": Case(partial(_bnb.SGD8bit, momentum=0.9)),
    "bnb-rmsprop-8bit": Case(_bnb.RMSprop8bit),
    "bnb-adagrad-8bit": Case(_bnb.Adagrad8bit),
    "bnb-ademamix-8bit": Case(_bnb.AdEMAMix8bit),
}
MODELS: dict[str, Case] = {
    **{f"base-{name}": Case(base=base, dtype=_BF16) for name, base in BASES.items()},
    "base-int8-fp32": Case(base=BASES["int8"]),
    "trained-int8": Case(torchao.optim._AdamW, trained=TRAINED_INT8),
    "trained-int8-and-ao-8bit": Case(torchao.optim.AdamW8bit, trained=TRAINED_INT8, dtype=_BF16),
    "base-int8-and-ao-8bit": Case(torchao.optim.AdamW8bit, base=BASES["int8"], dtype=_BF16),
}  # fmt: skip
CASES = {**TORCHAO, **BITSANDBYTES, **MODELS}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH)
        self.wide = nn.Linear(WIDTH, 2 * WIDTH)
        self.norm = nn.LayerNorm(2 * WIDTH)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(2 * WIDTH, CLASSES)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.base(features))
        return self.head(self.dropout(torch.tanh(self.norm(self.wide(hidden)))))


class Run:
    """The live objects of one process, and the loop."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.net = Net().to(case.dtype)
        if case.base is not None:
            self.net.base.requires_grad_(False)
            case.base(self.net.base)
        if case.trained is not None:
            case.trained(self.net.wide)
        self.optimizer = case.optimizer(self.trainable(), lr=0.01)
        self.scheduler = lr_scheduler.StepLR(self.optimizer, 2, 0.5) if case.scheduled else None
        self.training = segue.Training(self.net, self.optimizer, self.scheduler)

    def trainable(self) -> Iterable[nn.Parameter]:
        return [parameter for parameter in self.net.parameters() if parameter.requires_grad]

    def prepare(self, boundary: int) -> None:
        """Build what a program builds otherwise where it goes on from this boundary: nothing here."""

    def microbatch(self, number: int) -> float:
        features = torch.randn(8, WIDTH, dtype=self.case.dtype)
        loss = nn.functional.cross_entropy(self.net(features).float(), torch.randint(CLASSES, (8,)))
        loss.backward()
        if (number + 1) % WINDOW == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()
            if self.scheduler is not None:
                self.scheduler.step()
        return loss.item()


def seed(number: int) -> None:
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)
