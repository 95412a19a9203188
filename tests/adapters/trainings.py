"""Small trainings of adapters: peft's kinds over a net with statistics and dropout, and over a transformers model.

The base is the same in each process, as if it were loaded from its file; everything else is drawn anew, so that what a
restore forgets shows.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
import torch._dynamo
from torch import nn
from torch.optim import SGD, AdamW, Muon, lr_scheduler

import segue
from segue.optim import FP32Master
from tests.adapters.libraries import (
    Int8WeightOnlyConfig,
    LlamaConfig,
    LlamaForCausalLM,
    bitsandbytes,
    peft,
    quantize_,
)

torch.set_num_threads(1)

WINDOW = 3
WIDTH = 16
VOCABULARY = 32
SWITCH_AT = 4
"""The microbatch before which a program with two adapters activates the second."""


class Net(nn.Module):
    """What frozen bases of adapters have: an embedding, a normalisation with statistics, dropout, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.dropout = nn.Dropout(0.1)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.first(self.embed(tokens).flatten(0, 1))
        return self.head(self.second(self.dropout(torch.tanh(self.norm(hidden)))))


def net() -> nn.Module:
    return Net()


def llama() -> nn.Module:
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32, attention_dropout=0.1,
    )  # fmt: skip
    return LlamaForCausalLM(config).bfloat16()


def int8_llama() -> nn.Module:
    model = llama()
    quantize_(model, Int8WeightOnlyConfig())
    return model


def nf4_llama(quant_type: str = "nf4") -> nn.Module:
    """The base of QLoRA: what `load_in_4bit` makes of the layers, on a CPU."""
    model = llama()
    for parent in [*model.modules()]:
        for name, layer in [*parent.named_children()]:
            if type(layer) is nn.Linear and name != "lm_head":
                packed = bitsandbytes.nn.Linear4bit(
                    layer.in_features,
                    layer.out_features,
                    bias=False,
                    compute_dtype=torch.bfloat16,
                    quant_type=quant_type,
                )
                packed.load_state_dict(layer.state_dict())
                setattr(parent, name, packed.to("cpu"))
    model.is_loaded_in_4bit = True  # which peft asks
    return model


Optimizers = Callable[[nn.Module], dict[str, torch.optim.Optimizer]]


def adamw(model: nn.Module) -> dict[str, torch.optim.Optimizer]:
    adapters = [
        parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad or "lora_" in name
    ]
    return {"adamw": AdamW(adapters, lr=0.01)}


def muon_with_masters_and_sgd(model: nn.Module) -> dict[str, torch.optim.Optimizer]:
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    down = [parameter for name, parameter in trained if "lora_A" in name]
    rest = [parameter for name, parameter in trained if "lora_A" not in name]
    return {
        "muon": FP32Master(down, Muon, lr=0.02, max_norm=1.0),
        "sgd": SGD(rest, lr=0.05, momentum=0.9),
    }


@dataclass(frozen=True)
class Case:
    """One way to train an adapter."""

    config: dict[str, Any] = field(default_factory=dict)
    base: Callable[[], nn.Module] = net
    targets: tuple[str, ...] = ("first", "second", "embed")
    dtype: torch.dtype | None = None
    """What the adapter is cast to; by default peft makes it fp32."""
    optimizers: Optimizers = adamw
    second_adapter: bool = False
    weighted: bool = False
    """Token-weighted windows in an accumulator, instead of gradients standing in `.grad`."""


_llama = partial(Case, targets=("q_proj", "v_proj"))
CASES: dict[str, Case] = {
    "lora": Case(),
    "lora-and-a-trained-head": Case({"modules_to_save": ["head"]}),
    "rslora": Case({"use_rslora": True}),
    "dora": Case({"use_dora": True}),
    "pissa": Case({"init_lora_weights": "pissa"}, targets=("first", "second")),
    "two-adapters": Case(second_adapter=True),
    "llama": _llama(base=llama, dtype=torch.bfloat16),
    "llama-weighted": _llama(base=llama, weighted=True),
    "int8-llama": _llama(base=int8_llama, dtype=torch.bfloat16),
    "nf4-llama": _llama(base=nf4_llama),
    # Everything at once: a quantized base, a bf16 adapter, masters, two optimizers with schedules, token windows.
    "whole": _llama(
        {"use_dora": False, "bias": "none"}, base=int8_llama, dtype=torch.bfloat16, optimizers=muon_with_masters_and_sgd,
        weighted=True,
    ),
}  # fmt: skip


def adapted(case: Case, base_seed: int = 0) -> nn.Module:
    """Build the model: a base that is the same in every process, and an adapter that is not."""
    with torch.random.fork_rng():
        torch.manual_seed(base_seed)
        model = case.base()
    config = {
        "r": 4,
        "lora_alpha": 6,
        "lora_dropout": 0.1,
        "target_modules": list(case.targets),
        **case.config,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = peft.get_peft_model(model, peft.LoraConfig(**config))
        if case.second_adapter:
            model.add_adapter("second", peft.LoraConfig(**{**config, "r": 2}))
    if case.dtype is not None:
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.to(case.dtype)
    return model


class Run:
    """The live objects of one process, and the loop."""

    def __init__(self, case: Case, base_seed: int = 0) -> None:
        self.case = case
        self.model = adapted(case, base_seed)
        self.optimizers = case.optimizers(self.model)
        self.schedulers = {
            name: lr_scheduler.CosineAnnealingLR(optimizer, 9) for name, optimizer in self.optimizers.items()
        }
        self.window = segue.WeightedAccumulator(self.model, microbatches=WINDOW) if case.weighted else None
        state = segue.TrainableOnly(base=segue.base_identity(self.model))
        self.training = segue.Training(
            self.model, self.optimizers, self.schedulers, accumulator=self.window, model_state=state
        )

    def prepare(self, boundary: int) -> None:
        """Activate the adapter that was active at this boundary."""
        if self.case.second_adapter and boundary > SWITCH_AT:
            self.model.set_adapter("second")

    def microbatch(self, number: int) -> float:
        if self.case.second_adapter and number == SWITCH_AT:
            self._switch()
        loss, tokens = self._loss(torch.randint(VOCABULARY, (3, 4 + number % 3)))
        loss.backward()
        if self.window is not None:
            self.window.add_sum(weight=tokens)
        if (number + 1) % WINDOW == 0:
            self._update()
        return loss.item()

    def _switch(self) -> None:
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()
        self.model.set_adapter("second")

    def _loss(self, tokens: torch.Tensor) -> tuple[torch.Tensor, int]:
        if isinstance(self.model.get_base_model(), Net):
            logits, targets = self.model(tokens), tokens.roll(1, 1).flatten()
        else:
            logits, targets = (
                self.model(input_ids=tokens).logits[:, :-1].flatten(0, 1),
                tokens[:, 1:].flatten(),
            )
        return nn.functional.cross_entropy(logits.float(), targets, reduction="sum"), targets.numel()

    def _update(self) -> None:
        if self.window is not None:
            self.window.finish_mean()
        for name, optimizer in self.optimizers.items():
            optimizer.step()
            optimizer.zero_grad()
            self.schedulers[name].step()


def seed(number: int) -> None:
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)
