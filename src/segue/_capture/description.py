"""What a value is, told so that another one is told otherwise: for what is compared, and never restored.

An attribute of an optimizer may hold plain values, and also functions, classes, helpers with attributes of their own, or
one of the parameters. All but the last are described by what is in them. What is restored elsewhere, as a parameter is,
is only called by its name there: that it is the same one is what counts. Tensors are told by a checksum of their bits.
"""

from __future__ import annotations

import enum
import functools
import logging
import random
import types
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from segue._capture.callables import fingerprint
from segue._capture.deferred import deferring
from segue._capture.plain import entry, freeze
from segue._capture.staging import type_name
from segue._capture.state_of import all_names
from segue._capture.visible import shows_all
from segue._record.digest import tree_digest
from segue._record.tree import SCALARS
from segue.errors import UnsupportedState


class References(Protocol):
    """What is captured and restored elsewhere."""

    def name(self, value: object) -> str | None:
        """Return what such an object is called; `None` for any other."""
        ...

    def keeps(self, owner: object, name: str) -> bool:
        """Tell whether an attribute of an object, or an entry of a dictionary, is such."""
        ...

    def at(self, address: int) -> str | None:
        """Return what is called what has this `id`; `None` for any other number."""
        ...


_MAX_DEPTH = 32
_MAX_PARTS = 10_000
_OWNER = "owner"
_NO_ADDRESS = 1 << 20  # counters are below, objects above
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)


@dataclass(frozen=True)
class Description:
    """What a value is, and what is in it."""

    tree: Any
    """Plain values that tell it from any other."""
    leaves: tuple[Any, ...]
    """The scalars in it, and of each tensor and array the digest that a captured one has."""


def describe(value: Any, where: str, references: References, *, tells_owners: bool = False) -> Description:
    """Describe a value.

    Args:
        value: The value. Not kept, not changed.
        where: What it is called in messages.
        references: What is restored elsewhere, which is only named.
        tells_owners: Whether the `id` of each dictionary and object is told, for `without_owners`.

    Raises:
        UnsupportedState: If it holds what can't be looked into.

    Cost:
        A copy and a checksum of each tensor in it, one after the other.
    """
    describing = _Describing(references, tells_owners)
    with deferring(None):  # bytes are read at once
        tree = describing.describe(value, where, ())
    return Description(tree, tuple(describing.leaves))


class _Describing:
    def __init__(self, references: References, tells_owners: bool) -> None:
        self._references = references
        self._tells_owners = tells_owners
        self._parts = 0
        self.leaves: list[Any] = []

    def describe(self, value: Any, where: str, above: tuple[int, ...]) -> Any:
        if type(value) in SCALARS:
            return self._scalar(value)
        name = self._references.name(value)
        if name is not None:
            return {"reference": name}
        if id(value) in above:
            return {"recursion": len(above) - above.index(id(value))}
        self._parts += 1
        if len(above) > _MAX_DEPTH or self._parts > _MAX_PARTS:
            raise _unsupported("there is too much in it to look into", where, value)
        return self._opened(value, where, (*above, id(value)))

    def _opened(self, value: Any, where: str, above: tuple[int, ...]) -> Any:
        if isinstance(value, torch.Tensor | np.ndarray):
            return self._numbers(value, where)
        if isinstance(value, dict):
            return self._dictionary(value, where, above)
        if isinstance(value, list | tuple | deque):
            items = [self.describe(item, f"{where}[{index}]", above) for index, item in enumerate(value)]
            bound = {"maxlen": value.maxlen} if isinstance(value, deque) else {}
            return _of_class(value, items=items, **bound)
        if isinstance(value, type):
            return {"class": value.__qualname__}
        if isinstance(value, functools.partial):
            inside = (value.func, value.args, value.keywords)
            return {"partial": [self.describe(part, f"{where} partial", above) for part in inside]}
        if _runs_under_context(value):
            held = dict(zip(value.__code__.co_freevars, value.__closure__, strict=True))
            context, function = (held[name].cell_contents for name in ("ctx_factory", "func"))
            parts = (getattr(context, "__self__", context), function)
            return {"under": [self.describe(part, f"{where} decorated", above) for part in parts]}
        if isinstance(value, types.MethodType):
            return {"method": value.__func__.__qualname__, "of": self.describe(value.__self__, where, above)}
        if isinstance(value, set | frozenset):
            items = [self.describe(item, f"{where}{{}}", above) for item in value]
            return _of_class(value, items=sorted(items, key=tree_digest))
        if isinstance(value, np.generic | bytearray):
            self.leaves.append(freeze(value, where))
            return self.leaves[-1]
        simple = _simple(value, where, self._references)
        return simple if simple is not None else self._object(value, where, above)

    def _numbers(self, value: Any, where: str) -> Any:
        plain = value.detach() if isinstance(value, torch.Tensor) else value
        digest = tree_digest(freeze(plain, where))
        self.leaves.append(digest)
        if isinstance(value, np.ndarray):
            return {"array": [value.dtype.str, list(value.shape), digest]}
        described = {"tensor": [str(value.dtype), list(value.shape), str(value.device), digest]}
        return {**described, "requires_grad": True} if value.requires_grad else described

    def _dictionary(self, value: dict[Any, Any], where: str, above: tuple[int, ...]) -> Any:
        items = [
            [self._key(key, f"{where} key", above), self.describe(item, entry(where, key), above)]
            for key, item in value.items()
            if not self._references.keeps(value, key)
        ]
        made_by = (
            {"default": self.describe(value.default_factory, f"{where} default", above)}
            if isinstance(value, defaultdict)
            else {}
        )
        return self._owned(value, items=items, **made_by)

    def _owned(self, value: Any, **parts: Any) -> Any:
        return _of_class(value, **parts, **({_OWNER: id(value)} if self._tells_owners else {}))

    def _scalar(self, value: Any) -> Any:
        address = self._address(value)
        if address is not None:
            return address
        self.leaves.append(value)
        return value

    def _address(self, value: Any) -> Any | None:
        """Describe a number that is the `id` of something, which differs in each process; `None` for any other."""
        name = self._references.at(value) if type(value) is int and value > _NO_ADDRESS else None
        return None if name is None else {"reference": name}

    def _key(self, key: Any, where: str, above: tuple[int, ...]) -> Any:
        if type(key) not in SCALARS:
            return self.describe(key, where, above)
        return self._address(key) or key

    def _object(self, value: Any, where: str, above: tuple[int, ...]) -> Any:
        if isinstance(value, nn.Module | Optimizer):
            raise _unsupported("it has state, and is not registered", where, value)
        if not shows_all(value):
            raise _unsupported("it can't be looked into", where, value)
        attributes = {
            name: self.describe(getattr(value, name), f"{where}.{name}", above)
            for name in sorted(all_names(value))
            if hasattr(value, name) and not self._references.keeps(value, name)
        }
        return self._owned(value, attributes=attributes)


def without_owners(
    tree: Any, name_at: Callable[[int], str | None], keeps_at: Callable[[int, Any], bool]
) -> Any:
    """Return a description without the `id` of each dictionary and object, and without what is restored elsewhere.

    Args:
        tree: A description that tells them.
        name_at: Names what is restored elsewhere, by its `id`.
        keeps_at: Tells whether a part of what has this `id` is.
    """

    def opened(tree: Any) -> Any:
        if type(tree) is list:
            return [opened(item) for item in tree]
        if type(tree) is not dict:
            return tree
        owner = tree.get(_OWNER)
        if type(owner) is not int:
            return {key: opened(item) for key, item in tree.items()}
        name = name_at(owner)
        if name is not None:
            return {"reference": name}
        parts = {key: item for key, item in tree.items() if key != _OWNER}
        if "attributes" in parts:
            held = parts["attributes"].items()
            parts["attributes"] = {key: item for key, item in held if not keeps_at(owner, key)}
        else:
            parts["items"] = [pair for pair in parts["items"] if not _is_kept(pair[0], owner, keeps_at)]
        return {key: opened(item) for key, item in parts.items()}

    return opened(tree)


def _is_kept(key: Any, owner: int, keeps_at: Callable[[int, Any], bool]) -> bool:
    return type(key) is str and keeps_at(owner, key)


def _runs_under_context(value: object) -> bool:
    """Tell whether a function is what `@torch.no_grad()` and its like make of one."""
    return (
        isinstance(value, types.FunctionType)
        and value.__globals__.get("__name__") == "torch.utils._contextlib"
        and set(value.__code__.co_freevars) == {"ctx_factory", "func"}
    )


def _of_class(value: Any, **parts: Any) -> Any:
    # As the names of functions: a program's module is `__main__` or not, depending on how it is started.
    return {"of": type(value).__qualname__, **parts}


def _simple(value: Any, where: str, references: References) -> Any | None:
    """Describe what needs no looking into by ourselves; `None` for anything else."""
    if isinstance(value, _FUNCTIONS):
        return fingerprint(value, where, references)
    if isinstance(value, types.ModuleType):
        return {"module": value.__name__}
    if isinstance(value, logging.Logger):
        return {"logger": value.name}
    if isinstance(value, enum.Enum):
        return {"member": [type(value).__qualname__, value.name]}
    return _stream(value, where)


def _stream(value: Any, where: str) -> Any | None:
    if isinstance(value, torch.Generator):
        state: Any = value.get_state()
    elif isinstance(value, np.random.Generator):
        state = value.bit_generator.state
    elif isinstance(value, np.random.RandomState):
        state = value.get_state(legacy=False)
    elif isinstance(value, random.Random):
        state = value.getstate()
    else:
        return None
    return {"stream": type_name(value), "state": tree_digest(freeze(state, where))}


def _unsupported(what: str, where: str, value: object) -> UnsupportedState:
    return UnsupportedState(what, where=where, found=type_name(value))
