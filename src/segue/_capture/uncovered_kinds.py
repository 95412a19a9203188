"""Kinds of objects that may hold state of a training, and marks that tell whether it has moved.

Their own code is not asked: some draw or build something as they are asked for their state (torchdata's loader).
"""

from __future__ import annotations

import enum
import functools
import itertools
import random
import types
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from segue._capture.function_code import is_of_library
from segue._capture.staging import class_name
from segue._capture.uncovered_frames import locals_of
from segue._capture.uncovered_marks import ATOMS, Mark, mark_of

_SAMPLED_TENSORS = 16


class Kind(enum.Enum):
    """What an object is to a training."""

    MODULE = "module"
    OPTIMIZER = "optimizer"
    SCHEDULER = "scheduler"
    SCALER = "gradient scaler"
    STREAM = "random stream"
    LOADER = "loader"
    PASS = "pass over data"
    GENERATOR = "generator"
    ITERATOR = "iterator"
    FUNCTION = "function"
    OBJECT = "object"
    """Of a class of the program's own: its state is in its attributes."""
    WEIGHTS = "weights"
    """An object or a container with copies of the parameters."""
    OTHER = "other"


_ITERATORS: Final = tuple(map(type, (iter([]), iter(()), iter(range(0)), reversed([]), itertools.count())))
_BY_CLASS: Final[tuple[tuple[Any, Kind], ...]] = (
    (nn.Module, Kind.MODULE),
    (Optimizer, Kind.OPTIMIZER),
    ((LRScheduler, ReduceLROnPlateau), Kind.SCHEDULER),
    (torch.amp.GradScaler, Kind.SCALER),
    ((torch.Generator, random.Random, np.random.Generator, np.random.RandomState), Kind.STREAM),
    (DataLoader, Kind.LOADER),
    (_BaseDataLoaderIter, Kind.PASS),
    (types.GeneratorType, Kind.GENERATOR),
    (_ITERATORS, Kind.ITERATOR),
    ((types.FunctionType, types.MethodType, functools.partial), Kind.FUNCTION),
)
_POSITION: Final = "segue._capture.data.position.DataPosition"
_OPEN: Final = frozenset({"types.SimpleNamespace", "argparse.Namespace"})
_NEVER: Final = (type, types.ModuleType, enum.Enum, BaseException, *ATOMS - {type(None), bool, range, torch.dtype, torch.device})  # fmt: skip


@functools.lru_cache(maxsize=8192)
def kind_of_class(cls: type) -> Kind:
    """Tell what the objects of a class are to a training."""
    for bases, kind in _BY_CLASS:
        if issubclass(cls, bases):
            return kind
    if is_position(cls):
        return Kind.LOADER
    return Kind.OBJECT if is_programs(cls) else Kind.OTHER


def kind_of(value: object) -> Kind:
    """Tell what an object is to a training, by its class: proxies answer `isinstance` with code."""
    cls: type = type(value)
    return kind_of_class(cls)


@functools.lru_cache(maxsize=8192)
def is_programs(cls: type) -> bool:
    """Tell whether a class was written for the program, and not for a library."""
    return class_name(cls) in _OPEN or not (issubclass(cls, _NEVER) or is_of_library(cls))


def is_position(cls: type) -> bool:
    """Tell whether a class is a position in data, which a training can register."""
    return any(class_name(base) == _POSITION for base in cls.__mro__)


def is_global_stream(value: object) -> bool:
    """Tell whether a random stream is one of the global ones, which are captured anyway."""
    known = (torch.default_generator, random._inst, np.random.mtrand._rand)
    return any(value is each for each in known)


def mark_of_kind(value: Any, kind: Kind) -> Mark:
    """Return the mark of an object that counts as a whole; of any other kind its class alone."""
    of = _MARKS.get(kind)
    return (kind.value, class_name(type(value))) if of is None else (kind.value, *of(value))


def tensors_of(module: nn.Module) -> Iterator[torch.Tensor]:
    """Yield the parameters and buffers of a module and of those below it, each as often as it stands there."""
    for each in module.modules():
        own = vars(each)
        for holder in (own.get("_parameters"), own.get("_buffers")):
            if isinstance(holder, dict):
                yield from (
                    tensor
                    for tensor in holder.values()
                    if isinstance(tensor, torch.Tensor) and not is_lazy(tensor)
                )


def module_mark(tensors: list[torch.Tensor]) -> Mark:
    """Return the mark of a module by its tensors."""
    # The counters tell of all writes but those by `.data`, which averages often use: these move every tensor.
    versions = hash(tuple((id(each), version_of(each)) for each in tensors))
    step = max(1, len(tensors) // _SAMPLED_TENSORS)
    return versions, *(mark_of(each.detach(), _nothing) for each in tensors[::step])


def version_of(tensor: torch.Tensor) -> int:
    """Return how often a tensor was written to in place; -1 where nobody counts."""
    return -1 if tensor.is_inference() else tensor._version


def _optimizer_mark(optimizer: Any) -> Mark:
    """Tell of what steps leave behind in an optimizer; what it steps may be moved by others."""
    own = vars(optimizer)
    state, groups = own.get("state", {}), own.get("param_groups", [])
    slots = next(iter(state.values()), None)
    held = list(slots.values()) if isinstance(slots, dict) else []
    return (
        len(state),
        [version_of(each) for each in held if isinstance(each, torch.Tensor)],
        [each for each in held if type(each) in ATOMS],
        [{key: each for key, each in group.items() if type(each) in ATOMS} for group in groups],
    )


def _scheduler_mark(scheduler: Any) -> Mark:
    own = vars(scheduler)
    return tuple(own.get(name) for name in ("last_epoch", "_step_count", "num_bad_epochs", "best"))


def _scaler_mark(scaler: Any) -> Mark:
    own = vars(scaler)
    return tuple(mark_of(own.get(name), _nothing) for name in ("_scale", "_growth_tracker"))


def _stream_mark(stream: Any) -> Mark:
    if isinstance(stream, torch.Generator):
        return mark_of(stream.get_state(), _nothing)
    if isinstance(stream, np.random.Generator):
        return mark_of(stream.bit_generator.state, _nothing)
    if isinstance(stream, np.random.RandomState):
        return mark_of(stream.get_state(legacy=False), _nothing)
    return (hash(stream.getstate()),)


def _pass_mark(batches: Any) -> Mark:
    return vars(batches).get("_num_yielded"), is_over(batches)


def is_over(batches: Any) -> bool:
    """Tell whether the iterator of a loader has nothing left; one in the body of its last batch has."""
    own = vars(batches)
    if "_finished" in own:  # torchdata's
        return bool(own["_finished"])
    drawn = own.get("_sampler_iter")
    is_drawn = isinstance(drawn, types.GeneratorType) and drawn.gi_frame is None
    return is_drawn and own.get("_tasks_outstanding", 0) == 0


def _generator_mark(generator: types.GeneratorType[Any, Any, Any]) -> Mark:
    frame = generator.gi_frame
    if frame is None:
        return ("over",)
    if not is_under_way(generator):
        return ("not begun",)
    held = locals_of(frame)
    return "under way", frame.f_lasti, {name: (type(v), v) for name, v in held.items() if type(v) in ATOMS}


def is_under_way(generator: Any) -> bool:
    """Tell whether a generator of Python's has begun, and is not over."""
    frame = generator.gi_frame
    return frame is not None and not generator.gi_running and generator.gi_suspended


def _iterator_mark(iterator: Any) -> Mark:
    if isinstance(iterator, itertools.count):
        return (repr(iterator),)
    return (iterator.__length_hint__(),)


def _nothing(_value: Any, _place: str) -> None:
    return None


_MARKS: Final[dict[Kind, Any]] = {
    Kind.MODULE: lambda module: module_mark(list(tensors_of(module))),
    Kind.OPTIMIZER: _optimizer_mark,
    Kind.SCHEDULER: _scheduler_mark,
    Kind.SCALER: _scaler_mark,
    Kind.STREAM: _stream_mark,
    Kind.PASS: _pass_mark,
    Kind.GENERATOR: _generator_mark,
    Kind.ITERATOR: _iterator_mark,
}
