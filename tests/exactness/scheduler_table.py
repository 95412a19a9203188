"""Every scheduler of torch, with its options, nested, over SGD and Adam; those of transformers; and some of people's own."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.optim import SGD, AdamW, Optimizer, lr_scheduler
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    ConstantLR,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    CyclicLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiplicativeLR,
    MultiStepLR,
    OneCycleLR,
    PolynomialLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)
from torch.optim.swa_utils import SWALR

from tests.exactness.own_schedules import (
    OwnClock,
    ScaleWalk,
    Walk,
    WeightDecayRamp,
    capped,
    inverse,
    shrink,
)

ORDERS = ("together", "optimizer first", "scheduler last")
"""How a program is put together that resumes: both are built, then restored; or the optimizer is restored by hand before
its schedule is built, and both again; or functions restore, of which the last makes the schedule."""
Make = Callable[[Optimizer], Any]

PLATEAU = (1.0, 0.9, 0.95, 0.95, 0.95, 0.2, 0.3, 0.3, 0.3, 0.3)
"""What a plateau is told at each move: it gets better, stalls, and gets better again."""


def sgd(groups: list[dict[str, Any]], lr: Any) -> Optimizer:
    return SGD(groups, lr=lr, momentum=0.85, weight_decay=0.01)


def adamw(groups: list[dict[str, Any]], lr: Any) -> Optimizer:
    return AdamW(groups, lr=lr, betas=(0.85, 0.97))


@dataclass(frozen=True)
class Variant:
    """One way to schedule."""

    class_name: str
    options: str
    make: Make
    optimizer: Callable[..., Optimizer] = sgd
    metric: Callable[[int], float] | None = None
    """What `step` is told at each move, if anything."""
    is_component: bool = False
    """It is no scheduler of torch's kind, and handed in as a component."""
    rates: tuple[str, ...] = ("float", "tensor")
    """The kinds of learning rate that it takes."""
    orders: tuple[str, ...] = ORDERS
    """The orders of building and restoring that it admits."""

    @property
    def name(self) -> str:
        """Its name in tests and folders."""
        return f"{self.class_name} {self.options}".strip()


def _part(cls: type, *arguments: Any, **more: Any) -> Make:
    return lambda optimizer: cls(optimizer, *arguments, **more)


def _row(
    cls: type, options: str, *arguments: Any, over: Callable[..., Optimizer] = sgd, **more: Any
) -> Variant:
    return Variant(cls.__name__, options, _part(cls, *arguments, **more), over)


def _plateau(options: str, *, mode: str = "min", **more: Any) -> Variant:
    sign = -1 if mode == "max" else 1
    make = partial(ReduceLROnPlateau, mode=mode, patience=1, **more)
    return Variant("ReduceLROnPlateau", options, make, metric=lambda move: sign * PLATEAU[move])


def _sequence(options: str, milestones: list[int], *parts: Make) -> Variant:
    return Variant(
        "SequentialLR", options, lambda o: SequentialLR(o, [part(o) for part in parts], milestones)
    )


def _chain(options: str, *parts: Make) -> Variant:
    return Variant("ChainedScheduler", options, lambda o: ChainedScheduler([part(o) for part in parts]))


def _warmup(optimizer: Optimizer) -> Any:
    return LinearLR(optimizer, 0.1, total_iters=3)


def _cosine(optimizer: Optimizer) -> Any:
    return CosineAnnealingLR(optimizer, 5, eta_min=1e-3)


def _decay(optimizer: Optimizer) -> Any:
    return ExponentialLR(optimizer, 0.9)


def _warm_cosine(optimizer: Optimizer) -> Any:
    return SequentialLR(optimizer, [_warmup(optimizer), _cosine(optimizer)], [5])


_CYCLE = {"base_lr": 0.01, "max_lr": 0.1, "step_size_up": 3, "step_size_down": 2}

_TORCH = [
    _row(LambdaLR, "a function", inverse),
    _row(LambdaLR, "a lambda over closed-over values", capped(0.9, (3, 6))),
    _row(LambdaLR, "a partial of a function", partial(inverse, slope=0.7)),
    _row(LambdaLR, "a built-in function", math.cos),
    Variant("LambdaLR", "an object with state", lambda o: LambdaLR(o, Walk())),
    Variant(
        "LambdaLR", "one of each kind per group", lambda o: LambdaLR(o, [Walk(0.8), partial(Walk(), lift=0.1)]), adamw
    ),
    _row(MultiplicativeLR, "a function", shrink),
    Variant("MultiplicativeLR", "an object with state", lambda o: MultiplicativeLR(o, Walk())),
    _row(StepLR, "", 2, 0.5),
    _row(MultiStepLR, "milestones twice", [2, 5, 5, 6], 0.5),
    _row(ConstantLR, "", 0.3, 5),
    _row(LinearLR, "", 0.1, 0.9, 5),
    _row(ExponentialLR, "", 0.85),
    _row(PolynomialLR, "power 1.5", 7, 1.5),
    _row(CosineAnnealingLR, "", 5, 1e-3),
    _row(CosineAnnealingLR, "over a restart", 3, over=adamw),
    _row(CosineAnnealingWarmRestarts, "T_mult 2", 2, 2, 1e-3),
    _row(CyclicLR, "triangular", **_CYCLE),
    _row(CyclicLR, "triangular2", mode="triangular2", **_CYCLE),
    _row(CyclicLR, "triangular2, betas", mode="triangular2", over=adamw, **_CYCLE),
    _row(CyclicLR, "exp_range", mode="exp_range", gamma=0.8, **_CYCLE),
    _row(CyclicLR, "exp_range, no momentum", mode="exp_range", gamma=0.8, cycle_momentum=False, **_CYCLE),
    _row(CyclicLR, "a scale function", scale_fn=inverse, scale_mode="iterations", **_CYCLE),
    Variant("CyclicLR", "a scale object with state", lambda o: CyclicLR(o, scale_fn=ScaleWalk(), **_CYCLE)),
    _row(CyclicLR, "lists per group", [0.01, 0.02], [0.1, 0.3], 2, base_momentum=[0.7, 0.8], max_momentum=[0.9, 0.95]),
    _row(OneCycleLR, "two phases", 0.1, 9),
    _row(OneCycleLR, "two phases, betas", 0.1, 9, over=adamw),
    _row(OneCycleLR, "three phases, linear", 0.1, 9, three_phase=True, anneal_strategy="linear"),
    _row(OneCycleLR, "three phases, betas", 0.1, 9, three_phase=True, over=adamw),
    _row(OneCycleLR, "no momentum", 0.1, 9, cycle_momentum=False),
    _row(OneCycleLR, "no betas", 0.1, 9, cycle_momentum=False, over=adamw),
    _row(OneCycleLR, "lists per group", [0.1, 0.2], epochs=3, steps_per_epoch=3, base_momentum=[0.7, 0.8]),
    _plateau("min, rel", threshold=0.2),
    _plateau("min, abs, cooldown", threshold=0.01, threshold_mode="abs", cooldown=2, factor=0.5),
    _plateau("max, rel", mode="max", threshold=0.2),
    _plateau("max, abs, min_lr per group, eps", mode="max", threshold_mode="abs", min_lr=[0.02, 0.001], eps=0.005),
    _sequence("warmup and cosine", [3], _warmup, _cosine),
    _sequence("three, a milestone at the cut", [2, 5], _warmup, _decay, _cosine),
    # The second writes another initial rate than the first has begun from; from a restored optimizer both begin from that.
    replace(_sequence("with a one-cycle", [3], _warmup, _part(OneCycleLR, 0.1, 9)), orders=("together",)),
    _sequence("with an object with state", [4], lambda o: LambdaLR(o, Walk()), _decay),
    _sequence("a chain first", [4], lambda o: ChainedScheduler([_warmup(o), _decay(o)]), _cosine),
    _sequence("a sequence first", [7], _warm_cosine, _decay),
    _chain("constant and exponential", _part(ConstantLR, 0.1, 4), _decay),
    _chain("a sequence inside", _warm_cosine, _decay),
    _chain("a chain inside", lambda o: ChainedScheduler([_warmup(o), _decay(o)]), _part(StepLR, 3, 0.5)),
    _row(SWALR, "cos", 0.02, 5),
    _row(SWALR, "linear, a rate per group", [0.02, 0.03], 4, "linear", over=adamw),
    _row(SWALR, "at once", 0.02, 0),
]  # fmt: skip

_OWN = [
    _row(WeightDecayRamp, "weight decay", 0.4, 6),
    _row(WeightDecayRamp, "weight decay, AdamW", 0.4, 6, over=adamw),
    _row(OwnClock, "a position of its own", (0.0, 0.1, 0.1, 0.3, 0.2)),
    Variant("ChainedScheduler", "rate and weight decay", lambda o: ChainedScheduler([_decay(o), WeightDecayRamp(o, 0.4, 6)])),
]  # fmt: skip


def _transformers(function: str, options: str = "", **more: Any) -> Variant:
    def make(optimizer: Optimizer) -> Any:
        return getattr(importlib.import_module("transformers.optimization"), function)(optimizer, **more)

    return Variant("LambdaLR", f"transformers.{function} {options}".strip(), make, adamw)


def _of_adafactor(groups: list[dict[str, Any]], lr: Any) -> Optimizer:
    del lr  # it makes its own
    kept = [{key: value for key, value in group.items() if key != "lr"} for group in groups]
    made: Optimizer = importlib.import_module("transformers.optimization").Adafactor(kept)
    return made


def _adafactor_schedule(optimizer: Optimizer) -> Any:
    return importlib.import_module("transformers.optimization").AdafactorSchedule(optimizer, 0.3)


def _greedy(optimizer: Optimizer) -> Any:
    made = importlib.import_module("transformers.optimization").GreedyLR
    return made(
        optimizer, patience=1, factor=0.7, warmup=1, cooldown=1, smooth=True, window_size=3, min_lr=1e-3
    )


_TRAINING = {"num_warmup_steps": 2, "num_training_steps": 8}
_TRANSFORMERS = [
    _transformers("get_constant_schedule"),
    _transformers("get_constant_schedule_with_warmup", num_warmup_steps=6),
    _transformers("get_linear_schedule_with_warmup", **_TRAINING),
    _transformers("get_cosine_schedule_with_warmup", num_cycles=0.7, **_TRAINING),
    _transformers("get_cosine_with_hard_restarts_schedule_with_warmup", num_cycles=2, **_TRAINING),
    _transformers("get_inverse_sqrt_schedule", num_warmup_steps=2, timescale=3),
    _transformers("get_cosine_with_min_lr_schedule_with_warmup", min_lr_rate=0.1, **_TRAINING),
    _transformers("get_cosine_with_min_lr_schedule_with_warmup_lr_rate", min_lr_rate=0.1, **_TRAINING),
    _transformers(
        "get_wsd_schedule", num_warmup_steps=2, num_decay_steps=3, num_stable_steps=2, decay_type="1-sqrt"
    ),
    # It keeps the rate that it finds: if that is a tensor, its own schedule fills it, and capture refuses.
    replace(_transformers("get_polynomial_decay_schedule_with_warmup", power=2.0, **_TRAINING), rates=("float",)),
    # Its optimizer puts a tensor where the rate was a float, so one that is restored asks for another kind of rate.
    Variant(
        "AdafactorSchedule", "transformers, over its Adafactor", _adafactor_schedule, _of_adafactor,
        rates=("none",), orders=("together", "scheduler last"),
    ),
    Variant(
        "GreedyLR", "transformers, a component", _greedy, metric=lambda move: PLATEAU[move], is_component=True,
        rates=("float",), orders=("together", "optimizer first"),
    ),
]  # fmt: skip

VARIANTS = {variant.name: variant for variant in (*_TORCH, *_OWN, *_TRANSFORMERS)}
OF_TRANSFORMERS = tuple(variant.name for variant in _TRANSFORMERS)
assert len(VARIANTS) == len(_TORCH) + len(_OWN) + len(_TRANSFORMERS), "two variants have one name"


def classes_of_torch() -> set[str]:
    """Return the public classes of torch's module, and SWALR, which lives elsewhere."""
    public = {name for name in lr_scheduler.__all__ if isinstance(getattr(lr_scheduler, name), type)}
    return (public - {"LRScheduler"}) | {SWALR.__name__}


RATES = {
    "float": lambda value: value,
    "tensor": lambda value: torch.tensor(value),
    "none": lambda value: None,
}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
