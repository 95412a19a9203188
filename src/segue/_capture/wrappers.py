"""Modules around modules that hold no state of their own: compiled, data parallel, checkpointing, and peft's.

Known by class, subclasses too, and by the class's name: importing some of them takes seconds, and one that the program
hasn't imported wraps nothing. A wrapper with tensors or submodules of its own is a module like any other (peft's, of
prompts; a subclass of one's own): it keeps its place in names.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

from torch import nn

from segue._capture.staging import class_name, type_name
from segue.errors import UnsupportedState

_OF_TORCH = {
    "torch._dynamo.eval_frame.OptimizedModule": "_orig_mod",
    "torch.nn.parallel.data_parallel.DataParallel": "module",
    "torch.nn.parallel.distributed.DistributedDataParallel": "module",
    "torch.distributed.algorithms._checkpoint.checkpoint_wrapper.ActivationWrapper": "_checkpoint_wrapped_module",
}
_OF_PEFT = {
    "peft.peft_model.PeftModel": "base_model",
    "peft.mixed_model.PeftMixedModel": "base_model",
    "peft.tuners.tuners_utils.BaseTuner": "model",
    "peft.tuners.tuners_utils.BaseTunerLayer": "base_layer",
    "peft.utils.other.AuxiliaryTrainingWrapper": "original_module",
}
_OF_PEFTS_LAYERS = ("base_layer", "original_module")
# Modules whose parameters are shards; torch moves these classes between modules of that package (torch 2.13).
_SHARDED = {
    "FullyShardedDataParallel": (
        "FullyShardedDataParallel keeps parameters flat, in shards of no parameter's shape",
        "capture.fsdp1", "`torch.distributed.fsdp.fully_shard` keeps each parameter; it is not supported yet either",
    ),
    "FSDPModule": (
        "shards of `fully_shard` are not supported yet", "capture.fsdp2", "train without shards, as with DistributedDataParallel",
    ),
}  # fmt: skip

_registered: dict[type[nn.Module], str] = {}


def register_wrapper(wrapper: type[nn.Module], attribute: str) -> None:
    """Make names skip `attribute` of modules of this class and its subclasses."""
    _registered[wrapper] = attribute
    _torchs.cache_clear()


def original_of_peft(module: nn.Module) -> str | None:
    """Return the attribute under which a class of peft's holds what it wraps, or `None` for any other class."""
    cls: type = type(module)  # mypy takes no class of classes for hashable
    return _pefts(cls)


def is_adapter_layer(module: nn.Module) -> bool:
    """Tell whether a module is a layer that holds adapters beside an original one."""
    return original_of_peft(module) in _OF_PEFTS_LAYERS


@functools.cache
def _pefts(cls: type) -> str | None:
    names = (class_name(base) for base in cls.__mro__ if base.__module__.startswith("peft."))
    return next((_OF_PEFT[name] for name in names if name in _OF_PEFT), None)


def _known(module: nn.Module) -> tuple[str, type] | None:
    cls: type = type(module)
    return _torchs(cls)


@functools.cache
def _torchs(cls: type) -> tuple[str, type] | None:
    """Return the attribute of a wrapper that isn't peft's, and the class that it is known by."""
    for base in cls.__mro__:
        attribute = _registered.get(base) or _OF_TORCH.get(class_name(base))
        if attribute is not None:
            return attribute, base
    return None


@functools.cache
def _sharded(cls: type) -> tuple[str, str, str] | None:
    names = (
        base.__qualname__ for base in cls.__mro__ if base.__module__.startswith("torch.distributed.fsdp")
    )
    return next((_SHARDED[name] for name in names if name in _SHARDED), None)


def wrapped_attribute(module: nn.Module) -> str | None:
    """Return where a module that only wraps another one holds it; `None` for any other module.

    Raises:
        UnsupportedState: If something is registered on a wrapper of torch's itself.
    """
    known = _known(module)
    if known is not None:
        attribute, base = known
        own = _own(module, attribute)
        if own and type(module) is base:
            raise UnsupportedState(
                "a wrapper has parameters, buffers or modules of its own", code="capture.wrapper",
                where=type(module).__name__, found=", ".join(own), hint="register them on the module inside",
            )  # fmt: skip
        return None if own else attribute
    attribute_of_peft = original_of_peft(module)
    if attribute_of_peft is None or attribute_of_peft in _OF_PEFTS_LAYERS:
        return None
    is_alone = not _own(module, attribute_of_peft) and not _is_wrapped_again(module, attribute_of_peft)
    return attribute_of_peft if is_alone else None


def _own(wrapper: nn.Module, attribute: str) -> list[str]:
    """Return what is registered on a wrapper beside what it wraps."""
    return [
        *wrapper._parameters,
        *wrapper._buffers,
        *(name for name in wrapper._modules if name != attribute),
    ]


def _is_wrapped_again(module: nn.Module, attribute: str) -> bool:
    """Tell whether one of peft's models wraps another: its adapters were started afresh, so it isn't the same model."""
    if attribute != "base_model":
        return False
    inner = module._modules.get(attribute)
    while inner is not None:
        if original_of_peft(inner) == "base_model":
            return True
        known = _known(inner)
        name = known[0] if known is not None else original_of_peft(inner)
        inner = None if name is None or name in _OF_PEFTS_LAYERS else inner._modules.get(name)
    return False


def was_always_skipped(module: nn.Module) -> bool:
    """Tell whether names have never had this wrapper in them; those of peft, and subclasses, once did."""
    known = _known(module)
    return known is not None and known[1] is type(module)


def wrappers_of(module: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Yield the wrappers around a module, from the outside in, each with the attribute that holds what it wraps.

    Raises:
        UnsupportedState: If something is registered on a wrapper of torch's itself.
    """
    while (attribute := wrapped_attribute(module)) is not None:
        yield module, attribute
        inner = module._modules[attribute]
        assert inner is not None, "a wrapper wraps a module"
        module = inner


def unwrapped(module: nn.Module) -> nn.Module:
    """Return the module under all wrappers."""
    for wrapper, attribute in wrappers_of(module):
        inner = wrapper._modules[attribute]
        assert inner is not None, "a wrapper wraps a module"
        module = inner
    return module


def refuse_sharded(module: nn.Module, where: str) -> None:
    """Raise `UnsupportedState` for a module whose parameters are shards."""
    cls: type = type(module)
    told = _sharded(cls)
    if told is not None:
        what, code, hint = told
        raise UnsupportedState(what, code=code, where=where, found=type_name(module), hint=hint)
