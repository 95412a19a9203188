"""The optimizers that people add: torchao, bitsandbytes, transformers, schedulefree, and masters over torch's.

Libraries take seconds to import, so an optimizer's is imported as it is made.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

from torch.optim import SGD, Adagrad, AdamW, Muon, NAdam

from segue.optim import FP32Master
from tests.exactness.optimizer_table import Configuration, Options, Tensor


def _of(module: str, class_name: str) -> Callable[..., Any]:
    library, _, inside = module.partition(":")

    def make(params: Any, **options: Any) -> Any:
        found = importlib.import_module(library)
        for name in inside.split(".") if inside else ():
            found = getattr(found, name)
        return getattr(found, class_name)(params, **options)

    return make


def _rows(
    family: str, module: str, table: dict[str, tuple[Options, ...]], *, net: str = "dense", lr: Any = 0.02
) -> list[Configuration]:
    return [
        Configuration(
            f"{family} {class_name}",
            _of(module, class_name),
            options,
            {"lr": lr},
            "flat" if class_name.endswith("Closure") else net,
            has_closure=class_name.endswith("Closure"),
        )
        for class_name, varied in table.items()
        for options in varied
    ]


_ROUNDED = {"bf16_stochastic_round": True}
_TORCHAO = {
    "Adam4bit": ({},),
    "Adam8bit": ({}, _ROUNDED),
    "AdamFp8": ({}, {"betas": (0.8, 0.95)}),
    "AdamW4bit": ({}, {"amsgrad": True}, _ROUNDED),
    "AdamW8bit": ({}, {"block_size": 512}, {"lr": Tensor(0.02)}, _ROUNDED),
    "AdamWFp8": ({}, _ROUNDED),
    "_AdamW": ({}, _ROUNDED),
}
_BITSANDBYTES = {
    "AdEMAMix": ({}, {"t_alpha": 5, "t_beta3": 5}),
    "AdEMAMix8bit": ({},),
    "Adagrad": ({},),
    "Adagrad8bit": ({},),
    "Adam": ({},),
    "Adam8bit": ({},),
    "AdamW": ({}, {"weight_decay": 0.1}, {"optim_bits": 8}),
    "AdamW8bit": ({}, {"min_8bit_size": 16}),
    "LAMB": ({},),
    "LAMB8bit": ({},),
    "LARS": ({"momentum": 0.9},),
    "LARS8bit": ({"momentum": 0.9},),
    "Lion": ({}, {"betas": (0.8, 0.95)}),
    "Lion8bit": ({},),
    "PytorchLARS": ({"momentum": 0.9},),
    "RMSprop": ({},),
    "RMSprop8bit": ({},),
    "SGD": ({"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}),
    "SGD8bit": ({"momentum": 0.9},),
}
_TRANSFORMERS = {
    "Adafactor": (
        {},
        {"beta1": 0.9},
        {"warmup_init": True},
        {"scale_parameter": False, "decay_rate": -0.5, "clip_threshold": 2.0},
        {"lr": 0.02, "relative_step": False},
        {"lr": 0.02, "relative_step": False, "scale_parameter": False, "beta1": 0.9, "weight_decay": 0.1},
    ),
}
_BOTH = ({"foreach": True}, {"foreach": False})
_SCHEDULEFREE = {
    "AdamWScheduleFree": (*_BOTH, {"warmup_steps": 3, "r": 0.5, "weight_lr_power": 1.0, "weight_decay": 0.1}),
    "AdamWScheduleFreeClosure": _BOTH,
    "AdamWScheduleFreePaper": _BOTH,
    "AdamWScheduleFreeReference": ({}, {"decay_at_z": True}),
    "RAdamScheduleFree": (*_BOTH, {"silent_sgd_phase": False}),
    "RAdamScheduleFreeClosure": _BOTH,
    "SGDScheduleFree": (*_BOTH, {"warmup_steps": 3}),
    "SGDScheduleFreeClosure": _BOTH,
    "SGDScheduleFreeReference": ({},),
}


def _masters() -> list[Configuration]:
    table: list[tuple[Any, str, Options]] = [
        (AdamW, "dense", {}),
        (AdamW, "dense", {"fused": True, "amsgrad": True, "max_norm": 0.5}),
        (AdamW, "dense", {"lr": Tensor(0.02), "foreach": False}),
        (Adagrad, "dense", {"initial_accumulator_value": 0.3}),
        (Muon, "matrices", {}),
        (Muon, "matrices", {"max_norm": 0.5, "ns_steps": 3}),
        (NAdam, "dense", {"foreach": True}),
        (SGD, "dense", {}),
        (SGD, "dense", {"momentum": 0.9, "nesterov": True}),
    ]
    return [
        Configuration(
            f"segue FP32Master of {inner.__name__}",
            partial(FP32Master, inner=inner),
            options,
            {"lr": 0.02},
            net,
        )
        for inner, net, options in table
    ]


def _wrapped(class_name: str, base: Any, options: Options, **base_options: Any) -> Configuration:
    def make(params: Any, **more: Any) -> Any:
        wrapper = getattr(importlib.import_module("schedulefree"), class_name)
        return wrapper(base(params, **base_options), **more)

    # It exchanges parameters and averages by their bytes, which only those laid out by rows have.
    return Configuration(f"schedulefree {class_name} of {base.__name__}", make, options, net="rows")


# torchao and bitsandbytes print and warn as they are imported.
_QUIET = "tests.quantized_state.libraries"
FAMILIES: dict[str, list[Configuration]] = {
    "torchao": _rows("torchao", f"{_QUIET}:torchao.optim", _TORCHAO, net="wide"),
    "bitsandbytes": _rows("bitsandbytes", f"{_QUIET}:bitsandbytes.optim", _BITSANDBYTES, net="wide"),
    "transformers": _rows("transformers", "transformers.optimization", _TRANSFORMERS, lr=None),
    "schedulefree": [
        *_rows("schedulefree", "schedulefree", _SCHEDULEFREE),
        # With those that look whether state is empty, it doesn't work at all (schedulefree 1.4).
        _wrapped("ScheduleFreeWrapper", SGD, {"momentum": 0.8}, lr=0.05),
        _wrapped("ScheduleFreeWrapper", SGD, {"weight_decay_at_y": 0.1, "r": 0.5}, lr=0.05, momentum=0.9),
    ],
    "segue": _masters(),
}
CONFIGURATIONS: dict[str, Configuration] = {
    made.name: made for family in FAMILIES.values() for made in family
}
