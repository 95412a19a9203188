"""Where the objects of a class keep what they hold, found out once for each class of a walk.

Classes are asked as `type` itself would answer, so that no code of theirs has a part in it.
"""

from __future__ import annotations

import enum
import functools
import types
import weakref
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from segue.errors import ABSENT

_mro: Any = type.__dict__["__mro__"].__get__
_vars: Any = type.__dict__["__dict__"].__get__
_qualname: Any = type.__dict__["__qualname__"].__get__

CALLED: Final = "_called_in_paths"
"""A class of segue may have this dictionary: what its attributes are called in paths, an empty string for one that
stands for the whole object, and `None` for one that is left out. Of others the underscores are: paths stand in
checkpoints."""


class Kind(enum.Enum):
    """How a walk treats an object."""

    SKIPPED = enum.auto()
    """It holds nothing of a run, as a number or a class."""
    LEAF = enum.auto()
    """It is told of, and not looked into."""
    OBJECT = enum.auto()
    MODULE = enum.auto()
    DICT = enum.auto()
    SEQUENCE = enum.auto()
    SET = enum.auto()
    FUNCTION = enum.auto()
    METHOD = enum.auto()
    BUILTIN = enum.auto()
    PARTIAL = enum.auto()


_KINDS: Final[dict[type, Kind]] = {
    nn.Module: Kind.MODULE,
    dict: Kind.DICT,
    list: Kind.SEQUENCE,
    tuple: Kind.SEQUENCE,
    deque: Kind.SEQUENCE,
    set: Kind.SET,
    frozenset: Kind.SET,
    types.FunctionType: Kind.FUNCTION,
    types.MethodType: Kind.METHOD,
    types.BuiltinFunctionType: Kind.BUILTIN,
    functools.partial: Kind.PARTIAL,
    Optimizer: Kind.OBJECT,
    **dict.fromkeys(
        # A loader's iterator is a position, which is restored by making it anew.
        (torch.Tensor, np.ndarray, torch.Generator, types.GeneratorType, types.CoroutineType, _BaseDataLoaderIter),
        Kind.LEAF,
    ),
    **dict.fromkeys(
        (
            type, types.ModuleType, int, float, complex, str, bytes, type(None), range, torch.dtype, torch.device,
            torch.Size, np.generic, np.dtype, enum.Enum, weakref.ReferenceType, weakref.ProxyType,
            weakref.CallableProxyType, types.CodeType, types.FrameType, types.TracebackType, property,
        ),
        Kind.SKIPPED,
    ),
}  # fmt: skip
# What belongs to the process and not to a run, by the beginnings of the names of modules.
_OF_THE_PROCESS: Final = (
    "_thread.", "asyncio.", "concurrent.", "importlib.", "inspect.", "io.", "_io.", "logging.", "multiprocessing.",
    "pathlib.", "queue.", "re.", "socket.", "subprocess.", "threading.", "typing.",
    "torch._C.", "torch._dynamo.", "torch._inductor.", "torch._ops.", "torch.autograd.", "torch.cuda.",
    "torch.distributed.", "torch.fx.", "torch.jit.", "torch.multiprocessing.", "torch.profiler.",
    "segue._record.", "segue._session.", "segue._store.", "segue._window.",
)  # fmt: skip
# What is made anew for each pass over the data, and saved by what made it.
_OF_A_POSITION: Final = ("torchdata.nodes.samplers.multi_node_weighted_sampler._WeightedSampler",)
_LEFT_OUT: Final[dict[type, frozenset[str]]] = {
    nn.Module: frozenset(vars(nn.Module())),  # which are looked into as what they are
    Optimizer: frozenset({"state", "param_groups", "defaults"}),
    DataLoader: frozenset({"_iterator"}),
}

_SLOT: Final = (types.GetSetDescriptorType, types.MemberDescriptorType)
_NONE: Final[Mapping[type, Kind]] = {}


class Layout:
    """The attributes of the objects of one class.

    Args:
        cls: The class.
    """

    def __init__(self, cls: type) -> None:
        mro = _mro(cls)
        found = next((_vars(base)["__dict__"] for base in mro if "__dict__" in _vars(base)), None)
        self._dictionary = found if isinstance(found, _SLOT) else None
        self._slots = sorted(
            {
                name: held
                for base in reversed(mro)
                for name, held in _vars(base).items()
                if isinstance(held, types.MemberDescriptorType) and not _is_pythons(name)
            }.items()
        )
        self._is_ours = str(_vars(cls).get("__module__")).startswith("segue.")
        called = [_vars(base)[CALLED] for base in mro if CALLED in _vars(base)] if self._is_ours else []
        self._called: Mapping[str, str | None] = called[0] if called else {}
        self._left_out = frozenset(name for base in mro for name in _LEFT_OUT.get(base, ())) | {
            name for name, shown in self._called.items() if shown is None
        }

    def dictionary(self, value: object) -> dict[str, Any]:
        """Return the dictionary of an object, or an empty one."""
        found = None if self._dictionary is None else self._dictionary.__get__(value)
        return found if type(found) is dict else {}

    def parts(self, value: object, kinds: Mapping[type, Kind] = _NONE) -> list[tuple[str, Any]]:
        """Return what is in the dictionary of an object and in its slots, sorted by name within each.

        Args:
            value: The object.
            kinds: Of the classes that are known so far; what is known to be skipped is left out.
        """
        own = self.dictionary(value)
        found = [
            item
            for item in ([] if own is value else list(own.items()))
            if item[0] not in self._left_out
            and kinds.get(type(item[1])) is not Kind.SKIPPED
            and type(item[0]) is str
            and not _is_pythons(item[0])
        ]
        if len(found) > 1:
            found.sort(key=_by_name)
        for name, slot in self._slots:
            held = ABSENT if name in self._left_out else _in_slot(slot, value)
            if held is not ABSENT:
                found.append((name, held))
        return found

    def path(self, above: str, name: str) -> str:
        """Return the path of an attribute."""
        shown = self._called.get(name, name.lstrip("_")) if self._is_ours else name
        return f"{above}.{shown}" if shown else above


def _by_name(item: tuple[str, Any]) -> str:
    return item[0]


def _is_pythons(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _in_slot(slot: types.MemberDescriptorType, value: object) -> Any:
    try:
        return slot.__get__(value)
    except AttributeError:
        return ABSENT


class Layouts:
    """The layouts and kinds of all classes that one walk meets."""

    def __init__(self) -> None:
        self.kinds: dict[type, Kind] = {}
        """Those of the classes that were met so far."""
        self._layouts: dict[type, Layout] = {}

    def kind(self, value: object) -> Kind:
        """Tell how a walk treats an object."""
        cls = type(value)
        found = self.kinds.get(cls)
        if found is None:
            found = self.kinds[cls] = _kind_of(cls)
        return found

    def is_skipped(self, value: object) -> bool:
        """Tell whether a value holds nothing of a run."""
        return (self.kinds.get(type(value)) or self.kind(value)) is Kind.SKIPPED

    def of(self, cls: type) -> Layout:
        """Return the layout of a class."""
        found = self._layouts.get(cls)
        if found is None:
            found = self._layouts[cls] = Layout(cls)
        return found


def base_in(cls: type, bases: tuple[type, ...]) -> type | None:
    """Return the first of some classes that a class is derived from."""
    mro = _mro(cls)
    return next((base for base in bases if base in mro), None)


def _kind_of(cls: type) -> Kind:
    mro = _mro(cls)
    known = next((_KINDS[base] for base in mro if base in _KINDS), None)
    if known is not None:
        return known
    module = _vars(cls).get("__module__")
    if type(module) is str and f"{module}.{_qualname(cls)}" in _OF_A_POSITION:
        return Kind.LEAF
    if type(module) is str and f"{module}.".startswith(_OF_THE_PROCESS):
        return Kind.SKIPPED
    held = [part for base in mro if base is not object for part in _vars(base).items()]
    has_parts = any(
        isinstance(part, types.MemberDescriptorType) or (name == "__dict__" and isinstance(part, _SLOT))
        for name, part in held
    )
    return Kind.OBJECT if has_parts else Kind.LEAF
