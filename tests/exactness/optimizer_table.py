"""Every optimizer of torch, in every implementation, with every option that its constructor has.

Configurations are derived from the constructors: each option of a signature is varied by itself, then a few together,
and all that in each implementation. An option without values here is none of `CONFIGURATIONS`, which a test notices.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim import Optimizer

Options = Mapping[str, Any]


@dataclass(frozen=True)
class Tensor:
    """An option that is a tensor: a new one for each optimizer, since optimizers may change it."""

    value: float

    def __repr__(self) -> str:
        return f"tensor({self.value})"


@dataclass(frozen=True)
class Configuration:
    """One way to make an optimizer."""

    class_name: str
    make: Callable[..., Any]
    """Takes parameters or groups, and options."""
    options: Options
    """Those that are varied."""
    always: Options = field(default_factory=dict)
    """Those that all of its class have."""
    net: str = "dense"
    """What it trains; see `optimizer_nets`."""
    has_closure: bool = False
    """Whether its step evaluates the loss itself."""
    has_groups: bool = True

    @property
    def label(self) -> str:
        """The options as text."""
        return ", ".join(f"{key}={value}" for key, value in self.options.items()) or "default"

    @property
    def library(self) -> str:
        """What has the class: the first word of its name here, where that has more."""
        library, space, _ = self.class_name.partition(" ")
        return library if space else "torch"

    @property
    def name(self) -> str:
        """What no other configuration is called."""
        return f"{self.class_name} {self.label}"

    def optimizer(self, params: Any) -> Any:
        """Make the optimizer."""
        made = {**self.always, **self.options}
        return self.make(params, **{key: _live(value) for key, value in made.items()})


def _live(value: Any) -> Any:
    if isinstance(value, Tensor):
        return torch.tensor(value.value)
    return tuple(map(_live, value)) if isinstance(value, tuple) else value


CLASSES: dict[str, type[Optimizer]] = {
    name: value
    for name in sorted(torch.optim.__all__, key=str.lower)
    if isinstance(value := getattr(torch.optim, name), type) and issubclass(value, Optimizer)
    if value is not Optimizer
}
"""The classes of torch.optim."""

IMPLEMENTATIONS = ("foreach", "fused")

# How an option is varied by itself: with what it needs to have an effect.
_VALUES: dict[str, tuple[Options, ...]] = {
    "alpha": ({"alpha": 0.9},),
    "amsgrad": ({"amsgrad": True},),
    "beta2_decay": ({"beta2_decay": -0.5},),
    "betas": ({"betas": (0.8, 0.95)},),
    "capturable": ({"capturable": True},),
    "centered": ({"centered": True},),
    "d": ({"d": 1.5},),
    "dampening": ({"momentum": 0.9, "dampening": 0.3},),
    "decoupled_weight_decay": ({"decoupled_weight_decay": True},),
    "differentiable": ({"differentiable": True},),
    "eps": ({"eps": 1e-3},),
    "etas": ({"etas": (0.6, 1.1)},),
    "history_size": ({"history_size": 2},),
    "initial_accumulator_value": ({"initial_accumulator_value": 0.3},),
    "lambd": ({"lambd": 0.1},),
    "line_search_fn": ({"line_search_fn": "strong_wolfe"},),
    "lr": ({"lr": Tensor(0.05)},),
    "lr_decay": ({"lr_decay": 0.2},),
    "max_eval": ({"max_eval": 3},),
    "max_iter": ({"max_iter": 12},),
    "maximize": ({"maximize": True},),
    "momentum": ({"momentum": 0.9},),
    "momentum_decay": ({"momentum_decay": 0.3},),
    "nesterov": ({"momentum": 0.9, "nesterov": True},),
    "rho": ({"rho": 0.7},),
    "step_sizes": ({"step_sizes": (1e-4, 0.1)},),
    "t0": ({"t0": 2.0},),
    "tolerance_change": ({"tolerance_change": 0.05},),
    "tolerance_grad": ({"tolerance_grad": 0.05},),
    "weight_decay": ({"weight_decay": 0.1},),
}  # fmt: skip
_VALUES_OF: dict[tuple[str, str], tuple[Options, ...]] = {
    ("Adafactor", "eps"): ({"eps": (None, 0.1)}, {"eps": (1e-4, 1e-3)}),
    ("Adam", "betas"): ({"betas": (0.8, 0.95)}, {"betas": (Tensor(0.8), Tensor(0.95))}),
    ("AdamW", "betas"): ({"betas": (0.8, 0.95)}, {"betas": (Tensor(0.8), Tensor(0.95))}),
    ("Muon", "adjust_lr_fn"): ({"adjust_lr_fn": "original"}, {"adjust_lr_fn": "match_rms_adamw"}),
    ("Muon", "eps"): ({"eps": 1e-4},),
    ("Muon", "momentum"): ({"momentum": 0.7},),
    ("Muon", "nesterov"): ({"nesterov": False},),
    ("Muon", "ns_coefficients"): ({"ns_coefficients": (3.0, -3.2, 1.2)},),
    ("Muon", "ns_steps"): ({"ns_steps": 2},),
    ("Muon", "weight_decay"): ({"weight_decay": 0.3},),
    ("SGD", "weight_decay"): ({"weight_decay": 0.1}, {"weight_decay": Tensor(0.1)}),
}  # fmt: skip
_TENSORS: Options = {"lr": Tensor(0.05), "betas": (Tensor(0.8), Tensor(0.95))}
_TOGETHER: dict[str, tuple[Options, ...]] = {
    "Adafactor": ({"lr": Tensor(0.05), "weight_decay": 0.1, "maximize": True},),
    "Adadelta": ({"rho": 0.7, "weight_decay": 0.1, "maximize": True},),
    "Adagrad": ({"initial_accumulator_value": 0.3, "lr_decay": 0.2, "weight_decay": 0.1, "maximize": True},),
    "Adam": (
        {"amsgrad": True, "weight_decay": 0.1, "maximize": True},
        {"amsgrad": True, "weight_decay": 0.1, "decoupled_weight_decay": True},
        {"amsgrad": True, **_TENSORS},
    ),
    "Adamax": ({"lr": Tensor(0.05), "weight_decay": 0.1, "maximize": True},),
    "AdamW": ({"amsgrad": True, "maximize": True}, {"amsgrad": True, **_TENSORS}),
    "ASGD": ({"t0": 2.0, "lambd": 0.1, "weight_decay": 0.1, "maximize": True},),
    "LBFGS": (
        {"line_search_fn": "strong_wolfe", "history_size": 2},
        {"line_search_fn": "strong_wolfe", "lr": Tensor(0.05)},
        {"line_search_fn": "strong_wolfe", "max_iter": 3, "max_eval": 5},
        {"history_size": 1, "max_iter": 9},
    ),
    "Muon": ({"nesterov": False, "ns_steps": 2, "adjust_lr_fn": "match_rms_adamw"},),
    "NAdam": (
        {"weight_decay": 0.1, "decoupled_weight_decay": True, "momentum_decay": 0.3},
        {"lr": Tensor(0.05), "maximize": True},
    ),
    "RAdam": (
        {"weight_decay": 0.1, "decoupled_weight_decay": True},
        # With a small second beta, rectified steps begin within this training.
        {"betas": (0.9, 0.5), "maximize": True},
    ),
    "RMSprop": (
        {"momentum": 0.9, "centered": True},
        {"momentum": 0.9, "centered": True, "weight_decay": 0.1, "maximize": True},
    ),
    "Rprop": ({"lr": Tensor(0.05), "maximize": True},),
    "SGD": (
        {"momentum": 0.9, "weight_decay": 0.1, "maximize": True},
        {"momentum": 0.9, "nesterov": True, "lr": Tensor(0.05), "weight_decay": 0.1},
    ),
    "SparseAdam": ({"lr": Tensor(0.05), "betas": (0.8, 0.95), "maximize": True},),
}  # fmt: skip

_ALWAYS: dict[str, Options] = {"LBFGS": {"lr": 0.5, "max_iter": 6}, "SGD": {"lr": 0.1}}


def options_in(class_name: str) -> frozenset[str]:
    """Return the options that a class's constructor takes."""
    return frozenset(inspect.signature(CLASSES[class_name]).parameters) - {"params"}


def implementations(class_name: str) -> list[Options]:
    """Return the implementations of a class: what it takes by itself, and each one that can be asked for."""
    has = [name for name in IMPLEMENTATIONS if name in options_in(class_name)]
    asked = [{"foreach": True}, {"foreach": False}] if "foreach" in has else []
    return [{}, *asked, *([{"fused": True}] if "fused" in has else [])]


def _varied(class_name: str) -> Iterator[Options]:
    yield {}
    for option in inspect.signature(CLASSES[class_name]).parameters:
        yield from _VALUES_OF.get((class_name, option), _VALUES.get(option, ()))
    yield from _TOGETHER.get(class_name, ())


def _configuration(class_name: str, options: Options) -> Configuration:
    nets = {"SparseAdam": "sparse", "Muon": "matrices", "LBFGS": "flat"}
    if class_name == "SGD" and options.get("fused") and options.get("momentum"):
        # The first gradient of a parameter must come with that of all others (torch 2.13).
        nets = {"SGD": "steady"}
    return Configuration(
        class_name,
        CLASSES[class_name],
        options,
        _ALWAYS.get(class_name, {"lr": 0.05}),
        nets.get(class_name, "dense"),
        has_closure=class_name == "LBFGS",
        has_groups=class_name != "LBFGS",
    )


CONFIGURATIONS: dict[str, Configuration] = {
    made.name: made
    for class_name in CLASSES
    for options in _varied(class_name)
    for implementation in implementations(class_name)
    for made in [_configuration(class_name, {**implementation, **options})]
}

# One of each class, with foreach where it has that, and what torch's own restore breaks most easily.
SAMPLE: tuple[str, ...] = (
    *(f"{name} {'foreach=True' if 'foreach' in options_in(name) else 'default'}" for name in CLASSES),
    "AdamW fused=True",
    "ASGD foreach=True, t0=2.0",
    "LBFGS line_search_fn=strong_wolfe, history_size=2",
    "SGD momentum=0.9",
)


def refusal(made: Configuration) -> str | None:
    """Return how torch's message begins where torch refuses a configuration on a CPU; `None` where it must run."""
    options = made.options
    if options.get("foreach") and made.class_name in ("Adam", "AdamW"):
        if isinstance(options.get("lr"), Tensor):
            return "lr as a Tensor is not supported for capturable=False and foreach=True"
        if isinstance(options.get("betas", (None,))[0], Tensor):
            return "betas[0] as a Tensor is not supported for capturable=False and foreach=True"
    if options.get("capturable") and not options.get("fused"):
        return "If capturable=True, params"
    if options.get("differentiable"):
        if options.get("fused"):
            return "`fused` does not support `differentiable`"
        if options.get("foreach") and made.class_name != "SGD":
            return "_foreach ops don't support autograd"
        return "a leaf Variable that requires grad is being used in an in-place operation"
    return None
