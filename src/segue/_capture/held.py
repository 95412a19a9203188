"""What functions hold and read, described so that another value is described otherwise.

Plain values stand for themselves. Modules and classes are named; functions of the program are described in turn, those of
libraries named. Of an object that is read by its attributes only these are described, of any other all that it has. What
is registered with a training is state that is kept elsewhere, and only named. Everything else is refused: it may hold
state that can't be seen.
"""

from __future__ import annotations

import builtins
import datetime
import decimal
import enum
import functools
import logging
import math
import os
import pathlib
import re
import sys
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from segue._capture.function_code import (
    BUILTINS,
    applied,
    builtin_name,
    code_digest,
    exceptions_digest,
    first_argument,
    is_library_function,
    is_named,
    is_of_library,
    python_version,
)
from segue._capture.loads import WHOLE, Read, Step, reads_of
from segue._capture.plain import entry, freeze
from segue._capture.staging import type_name
from segue._capture.visible import (
    COMPUTED,
    all_attributes,
    falls_back,
    fields_of,
    is_a,
    is_dict_of_python,
    method_of,
    own_access,
    shows_all,
    stored,
)
from segue._record.tree import SCALARS
from segue.errors import ABSENT, UnsupportedState

if TYPE_CHECKING:
    from segue._capture.description import References

REGISTERED = "registered"
"""Key of the description of what is kept elsewhere: its value is the name there, or True for a part of an object."""

_Above = tuple[int, ...]
_Described = dict[str, Any]
_EMPTY = {"empty": True}
_MAX_DEPTH = 16
_MAX_PARTS = 10_000
_MAX_BYTES = 64 << 20
_HINT = (
    "close over plain values (`steps = len(loader)`), or use an object with `__call__`: its attributes are captured; "
    "what is state may be registered, as one of `components=`"
)
# What tells how a program was started, and nothing of what it does.
_OF_THE_START = frozenset({
    "__name__", "__file__", "__spec__", "__loader__", "__package__", "__builtins__", "__cached__", "__doc__",
})  # fmt: skip
_FROZEN = (OrderedDict, Counter, deque, set, frozenset, bytearray)
# They never change, and no code of the program writes them out.
_CONSTANTS = frozenset({
    types.EllipsisType, types.NotImplementedType, datetime.date, datetime.timedelta, decimal.Decimal,
    torch.memory_format, torch.layout, torch.finfo, torch.iinfo,
})  # fmt: skip
# As decorators they leave a bound method, which makes another of the kind at each call.
_GRADIENT_MODES = (torch.no_grad, torch.enable_grad, torch.inference_mode, torch.set_grad_enabled)
_MEASURED = (*_FROZEN, list, tuple, dict, defaultdict, np.ndarray, torch.Tensor)


class Describing:
    """Describes one callable, and what it holds.

    Args:
        references: What is registered.
    """

    def __init__(self, references: References) -> None:
        self._references = references
        self._deciding = 0
        self._parts = 0
        self._bytes = 0
        self._numbers: dict[int, int] = {}

    def callable(self, function: Any, where: str, above: _Above = ()) -> _Described:
        """Describe a callable; of an object its class and methods, since its attributes are state.

        Raises:
            UnsupportedState: If it may hold state that can't be seen.
        """
        if not above:
            self._deciding = id(applied(function))
        found = self._function(function, where, above)
        if found is not None:
            return found
        if is_a(function, types.MethodType | types.BuiltinFunctionType):
            raise UnsupportedState(
                "a bound method hides the state of its object", where=where, found=str(function.__qualname__),
                hint="use an object with `__call__`: its attributes are captured; or register the object, as one of "
                "`components=`",
            )  # fmt: skip
        if is_a(function, type):
            return {"type": function.__qualname__}
        return {"class": type(function).__qualname__, **self._methods(type(function), where, above)}

    def _function(self, function: Any, where: str, above: _Above) -> _Described | None:
        """Describe a function in one of its forms, or what is registered; `None` for anything else."""
        name = self._references.name(function)
        if name is not None:
            return {REGISTERED: name}
        if id(function) in above:
            return {"recursion": len(above) - above.index(id(function))}
        inside = (*above, id(function))
        if is_a(function, functools.partial):
            return self._partial(function, where, inside, is_held=bool(above))
        if is_a(function, functools._lru_cache_wrapper):
            return {"cached": self.callable(function.__wrapped__, where, inside)}
        if is_a(function, types.FunctionType):
            return self._python_function(function, where, inside)
        if is_a(function, BUILTINS):
            if isinstance(getattr(function, "__self__", None), types.ModuleType | type | None):
                return {"builtin": builtin_name(function)}
            if type(function.__self__) in SCALARS:
                return {"builtin": builtin_name(function), "of": function.__self__}
            owner = self._references.name(function.__self__)
            return None if owner is None else {"builtin": builtin_name(function), "of": {REGISTERED: owner}}
        return self._bound(function, where, inside) if is_a(function, types.MethodType) else None

    def _partial(
        self, function: functools.partial[Any], where: str, above: _Above, *, is_held: bool
    ) -> _Described:
        # The attributes of an object that it applies are captured as state, unless the partial itself is only held.
        describe = self._told_whole if is_held else self.callable
        return {
            "partial": describe(function.func, where, above),
            "arguments": self._told_whole(list(function.args), f"{where} arguments", above),
            "keywords": self._told_whole(dict(function.keywords), f"{where} keywords", above),
        }

    def _bound(self, method: types.MethodType, where: str, above: _Above) -> _Described | None:
        """Describe a method of a registered object, or of a class; `None` for any other."""
        owner: Any = method.__self__
        function: Any = method.__func__
        name = self._references.name(owner)
        is_mode = type(owner) in _GRADIENT_MODES
        if not is_a(function, types.FunctionType) or (name is None and not is_mode and not is_a(owner, type)):
            return None
        if id(function) in above:
            return {"recursion": len(above) - above.index(id(function))}
        inside = (*above, id(function))
        described = self._python_function(function, where, inside)
        if name is not None:
            return {"method": described, "of": {REGISTERED: name}}
        if is_mode:
            return {"method": described, "of": self._told_whole(owner, where, inside)}
        read = reads_of(function.__code__).variables.get(first_argument(function), Read())
        return {"method": described, "of": self._named(owner, read, where, inside)}

    def _python_function(self, function: types.FunctionType, where: str, above: _Above) -> _Described:
        code, is_library = function.__code__, is_library_function(function)
        found = {"function": function.__qualname__, "code": code_digest(code), "python": python_version()}
        if is_named(function):
            # What it holds is the library's own; unless it is the one that decides, or a library's decorator around it.
            if (
                is_library
                and id(function) != self._deciding
                and is_of_library(sys.modules[function.__module__])
            ):
                return found
            if id(function) in self._numbers:
                return {"again": self._numbers[id(function)]}
            self._numbers[id(function)] = len(self._numbers)
        self._count(function, where, above)
        more = {
            "exceptions": exceptions_digest(code),
            "globals": {} if is_library else dict(self._globals(function, where, above)),
            "attributes": dict(self._attributes_of_function(function, where, above)),
        }
        return {
            **found,
            **self._defaults(function, where, above),
            "closure": dict(self._closure(function, where, above)),
            **{key: value for key, value in more.items() if value},
        }

    def _attributes_of_function(
        self, function: types.FunctionType, where: str, above: _Above
    ) -> Iterator[tuple[str, Any]]:
        # Some count their calls in an attribute of their own; `functools.wraps` leaves one that is closed over already.
        for name, value in vars(function).items():
            if name != "__wrapped__":
                yield name, self._part(function, name, value, WHOLE, f"{where} attribute {name}", above)

    def _defaults(self, function: types.FunctionType, where: str, above: _Above) -> _Described:
        code, defaults = function.__code__, function.__defaults__ or ()
        names = code.co_varnames[: code.co_argcount][code.co_argcount - len(defaults) :]
        reads = reads_of(code).variables

        def told(name: str, value: Any) -> Any:
            return self._told(value, reads.get(name, WHOLE), f"{where} default of {name}", above)

        return {
            "defaults": [told(name, value) for name, value in zip(names, defaults, strict=True)],
            "keyword_defaults": {
                name: told(name, value) for name, value in (function.__kwdefaults__ or {}).items()
            },
        }

    def _closure(self, function: types.FunctionType, where: str, above: _Above) -> Iterator[tuple[str, Any]]:
        code = function.__code__
        reads = reads_of(code).variables
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:
                yield name, dict(_EMPTY)
                continue
            yield name, self._told(value, reads.get(name, WHOLE), f"{where} closed-over {name}", above)

    def _globals(self, function: types.FunctionType, where: str, above: _Above) -> Iterator[tuple[str, Any]]:
        space = function.__globals__
        for name, read in sorted(reads_of(function.__code__).names.items()):
            if name in _OF_THE_START or (name not in space and hasattr(builtins, name)):
                continue
            value, place = space.get(name, ABSENT), f"{where} global {name}"
            yield name, self._part(self._holder_of(space, name), name, value, read, place, above)

    def _holder_of(self, space: dict[str, Any], name: str) -> object:
        """Return whose part a global is: of its module, if it is registered as such."""
        module = sys.modules.get(str(space.get("__name__")))
        is_its = module is not None and vars(module) is space
        return module if is_its and self._references.keeps(module, name) else space

    def _told_whole(self, value: Any, where: str, above: _Above) -> Any:
        return self._told(value, WHOLE, where, above)

    def _told(self, value: Any, read: Read, where: str, above: _Above) -> Any:
        """Describe what a function holds or reads; a refusal says what to do instead."""
        try:
            return self.value(value, read, where, above)
        except UnsupportedState as error:
            error.hint = _HINT
            raise

    def _part(self, owner: object, name: Any, value: Any, read: Read, where: str, above: _Above) -> Any:
        """Describe a part of an object, unless it is registered by itself."""
        if self._references.keeps(owner, name):
            return {REGISTERED: True}
        return dict(_EMPTY) if value is ABSENT else self._told(value, read, where, above)

    def value(self, value: Any, read: Read, where: str, above: _Above) -> Any:
        """Describe a value, as far as it is read.

        Raises:
            UnsupportedState: If it may hold state that can't be seen.
        """
        kind = type(value)
        if kind in SCALARS:
            return value
        function = self._function(value, where, above)
        if function is not None:
            return function
        if _reads_length_alone(read):
            if kind not in _MEASURED:
                raise UnsupportedState(
                    "code of a class says how long its object is", where=where, found=type_name(value)
                )
            return {"length": len(value)}
        inside = (*above, id(value))
        if is_a(value, dict) and _reads_entries_alone(value, read):
            return {"entries": dict(self._entries(value, read, where, inside))}
        if kind is dict:
            return self._items(value, value, where, inside)
        if kind in (list, tuple):
            return kind(
                self.value(item, WHOLE, f"{where}[{index}]", inside) for index, item in enumerate(value)
            )
        if is_a(value, torch.Tensor | np.ndarray):
            item_bytes = value.element_size() if is_a(value, torch.Tensor) else value.itemsize
            self._count(value, where, above, item_bytes * math.prod(value.shape))
        if kind in _FROZEN or is_a(value, torch.Tensor | np.ndarray | np.generic):
            return freeze(value, where)
        if is_a(value, types.ModuleType | type):
            return self._named(value, read, where, inside)
        return self._object(value, read, where, inside)

    def _entries(
        self, value: dict[Any, Any], read: Read, where: str, above: _Above
    ) -> Iterator[tuple[Any, Any]]:
        for step, inner in read.steps.items():
            key, item = step.key, dict.get(value, step.key, ABSENT)
            yield key, self._part(value, key, item, inner, entry(where, key), above)

    def _items(
        self, owner: dict[Any, Any], items: dict[Any, Any], where: str, above: _Above
    ) -> dict[Any, Any]:
        keys = freeze(dict.fromkeys(items), where)
        return {
            key: self._part(owner, key, item, WHOLE, entry(where, key), above)
            for key, item in zip(keys, items.values(), strict=True)
        }

    def _named(self, value: types.ModuleType | type, read: Read, where: str, above: _Above) -> _Described:
        """Name a module or class; of those of the program tell also what is read of them."""
        is_module = is_a(value, types.ModuleType)
        found: _Described = {"module": value.__name__} if is_module else {"type": value.__qualname__}
        steps = [step for step in read.steps if step.kind == "attribute"]
        if not steps or is_of_library(value):
            return found
        self._count(value, where, above)
        return {**found, "attributes": self._attributes(value, read, steps, where, above)}

    def _attributes(
        self, value: Any, read: Read, steps: list[Step], where: str, above: _Above
    ) -> dict[str, Any]:
        found = {}
        for step in sorted(steps, key=lambda step: str(step.key)):
            name, place, held = step.key, f"{where}.{step.key}", stored(value, step.key)
            if held is COMPUTED:
                raise UnsupportedState(
                    "a method or property hides the state of its object", where=place, found=type_name(value)
                )
            owner = value
            if is_a(value, types.ModuleType):
                owner = self._holder_of(vars(value), name)
            found[name] = self._part(owner, name, held, read.steps[step], place, above)
        return found

    def _object(self, value: Any, read: Read, where: str, above: _Above) -> Any:
        if is_a(value, types.MethodType | types.BuiltinFunctionType):
            return self.callable(value, where)  # refused there
        if is_a(value, nn.Module | Optimizer | LRScheduler):
            raise UnsupportedState("it has state, and is not registered", where=where, found=type_name(value))
        simple = _simple(value)
        if simple is not None:
            return simple
        if is_a(value, types.UnionType):
            return {"union": [self._told_whole(each, where, above) for each in value.__args__]}
        self._count(value, where, above)
        steps = list(read.steps)
        if not read.is_whole and steps and _can_be_narrowed(value, steps):
            return _of_class(value, attributes=self._attributes(value, read, steps, where, above))
        return self._whole(value, where, above)

    def _whole(self, value: Any, where: str, above: _Above) -> Any:
        fields = fields_of(value)
        if fields:
            return _of_class(value, attributes=self._items(fields, fields, where, above))
        is_dict = is_a(value, dict) and is_dict_of_python(type(value))
        if not is_dict and not shows_all(value):
            return freeze(value, where)  # or refused, with its path and type
        found: _Described = {
            "attributes": {
                name: self._part(value, name, item, WHOLE, f"{where}.{name}", above)
                for name, item in sorted(all_attributes(value).items())
            }
        }
        if is_dict:
            found["items"] = self._items(value, dict(dict.items(value)), where, above)
        if is_a(value, defaultdict):
            found["default"] = self._told_whole(value.default_factory, f"{where} default", above)
        return _of_class(value, **found, **self._methods(type(value), where, above))

    def _methods(self, cls: type, where: str, above: _Above) -> _Described:
        """Describe `__call__` of a class, and what of the class it uses by its object: methods, properties, values."""
        methods: _Described = {}
        reads: dict[str, Read] = {}
        to_do = [] if is_of_library(cls) else ["__call__"]
        while to_do:
            name = to_do.pop()
            function = method_of(cls, name)
            if function is not None and name not in methods:
                methods[name] = self._python_function(function, f"{where} {name}", (*above, id(function)))
                own = reads_of(function.__code__).variables.get(first_argument(function), Read())
                for step, inner in own.steps.items():
                    reads.setdefault(step.key, Read()).update(inner)
                    to_do.append(step.key)
        values = {}
        for name in sorted(reads.keys() - methods.keys(), key=str):
            held, place = stored(cls, name), f"{where} {cls.__qualname__}.{name}"
            if held is not COMPUTED and held is not ABSENT:
                values[name] = self._part(cls, name, held, reads[name], place, above)
        found = {"methods": dict(sorted(methods.items())), "class_attributes": values}
        return {key: value for key, value in found.items() if value}

    def _count(self, value: object, where: str, above: _Above, num_bytes: int = 0) -> None:
        self._parts += 1
        self._bytes += num_bytes
        if len(above) > _MAX_DEPTH or self._parts > _MAX_PARTS or self._bytes > _MAX_BYTES:
            raise UnsupportedState(
                "there is too much in it to look into", where=where[:200], found=type_name(value)
            )


def _reads_length_alone(read: Read) -> bool:
    return not read.is_whole and bool(read.steps) and all(step.kind == "length" for step in read.steps)


def _reads_entries_alone(value: dict[Any, Any], read: Read) -> bool:
    """Tell whether only certain entries of a dictionary are read, by no code of its class."""
    kind = type(value)
    is_plain = kind.__getitem__ in (dict.__getitem__, OrderedDict.__getitem__) and not hasattr(
        kind, "__missing__"
    )
    only = not read.is_whole and bool(read.steps) and all(step.kind == "entry" for step in read.steps)
    return is_plain and only


def _can_be_narrowed(value: object, steps: list[Step]) -> bool:
    """Tell whether no code but that of methods and properties has a part in what is read of an object."""
    if any(step.kind != "attribute" for step in steps):
        return False
    access = own_access(type(value))
    if access is not None and is_of_library(access):
        return False  # as a configuration of transformers, which has other names for some of its attributes
    held = [stored(value, step.key) for step in steps]
    if is_a(value, dict):
        return COMPUTED not in held and ABSENT not in held
    return not falls_back(type(value)) or all(each is not ABSENT for each in held)


def _of_class(value: Any, **parts: Any) -> _Described:
    return {"object": type(value).__qualname__, **parts}


def _simple(value: Any) -> Any | None:
    """Describe what needs no looking into; `None` for anything else."""
    if is_a(value, enum.Enum):
        held = {"value": value._value_} if type(value._value_) in SCALARS else {}
        return {"member": [type(value).__qualname__, value.name], **held}
    if is_a(value, pathlib.PurePath):
        return {"path": os.fspath(value)}
    if is_a(value, logging.Logger):
        return {"logger": value.name}
    if value is os.environ or value is os.environb:
        return {"environment": True}  # another one is not another program, and it may hold secrets
    return _constant(value)


def _constant(value: Any) -> Any | None:
    kind = type(value)
    if kind is re.Pattern:
        return {"constant": f"re.compile({value.pattern!r}, {value.flags})"}
    if kind is slice:
        is_plain = all(type(each) in SCALARS for each in (value.start, value.stop, value.step))
        return {"constant": repr(value)} if is_plain else None
    if kind in (datetime.datetime, datetime.time):
        return {"constant": repr(value)} if type(value.tzinfo) in (type(None), datetime.timezone) else None
    if is_a(value, np.dtype):
        return {"constant": repr(value)} if value.kind in "biufcSUMm" and not value.metadata else None
    return {"constant": repr(value)} if kind in _CONSTANTS else None
