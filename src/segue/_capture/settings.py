"""What modules of torch compute with besides tensors: a dropout's probability, an epsilon, a stride, and their class.

None of it is in a state dict, so a program in which one was edited trains on with the other value, and nobody is told
(torch 2.13). It is taken down for torch's own classes, whose arguments mean what their documentation says, and compared
as options of optimizers are (ADR 0003): what the program asks for now with what it asked for then. A value that the run
itself has moved, as an annealed probability, is state: it is set again.

What belongs to a class is what its constructor takes, and what it declares. Sizes that a tensor's shape tells are left
out; and so is everything that a program hangs on a module itself.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin

from segue._capture.callables import fingerprint
from segue._capture.configuration import same_setting
from segue._capture.function_changes import changes
from segue._capture.naming import joined, unwrapped, walk
from segue._capture.staging import class_name, type_name
from segue._capture.writes import ObjectWrite, Write
from segue.errors import ABSENT, ContractMismatch, Finding, UnsupportedState

_PLAIN = (type(None), bool, int, float, complex, str)
_OF_TORCH = ("torch.nn.modules.", "torch.nn.utils.parametrizations")
_AVERAGED = "AveragedModel"
_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
# Told by the shapes of parameters and buffers; of a lazily built module they are not known before its first forward.
_SIZES = frozenset({
    "in_features", "out_features", "in_channels", "out_channels", "num_features", "num_embeddings", "embedding_dim",
    "input_size", "hidden_size", "embed_dim", "num_parameters", "device", "dtype",
})  # fmt: skip
_SCRIPTED = "scripted"
"""The class of what TorchScript made of a module: what it was is not told, and not compared."""


_CODE = frozenset({"code", "exceptions", "python"})


class _Own(NamedTuple):
    """What one module computes with."""

    class_name: str
    values: dict[str, Any]


_first_bound: weakref.WeakKeyDictionary[nn.Module, dict[str, _Own]] = weakref.WeakKeyDictionary()


def bind_settings(module: nn.Module, scope: str) -> None:
    """Remember what a module's submodules compute with, the first time that it is seen in this process."""
    root = unwrapped(module)
    if root not in _first_bound:
        _first_bound[root] = _all_own(walk(module, scope))


def is_setting(module: nn.Module, name: str) -> bool:
    """Tell whether an attribute of a module is taken down here, and set again where the run has moved it."""
    found = _of_class_of(module)
    return found is not None and name in found[1] and _is_plain(vars(module).get(name, ABSENT))


def settings_of(module: nn.Module, scope: str) -> dict[str, Any] | None:
    """Take down what a module's submodules compute with, by path.

    Returns:
        For each submodule of a class of torch `class`, and where there are any `values`, and `asked`: what the program
        asked for where the run has another value by now. `None` where there is no such submodule.
    """
    asked = _first_bound.get(unwrapped(module), {})
    found: dict[str, Any] = {}
    for path, own in _all_own(walk(module, scope)).items():
        entry: dict[str, Any] = {"class": own.class_name}
        if own.values:
            entry["values"] = own.values
            moved = _moved(asked.get(path), own)
            if moved:
                entry["asked"] = moved
        found[path] = entry
    return found or None


def _moved(asked: _Own | None, now: _Own) -> dict[str, Any]:
    if asked is None or asked.class_name != now.class_name:
        return {}
    return {
        name: asked.values[name]
        for name, value in now.values.items()
        if name in asked.values and asked.values[name] is not value and not _same(asked.values[name], value)
    }


def _all_own(places: Iterable[tuple[str, nn.Module]]) -> dict[str, _Own]:
    return {path: own for path, child in places if (own := _own(child)) is not None}


def _own(module: nn.Module) -> _Own | None:
    found = _of_class_of(module)
    if found is None:
        return _Own(_SCRIPTED, {}) if isinstance(module, torch.jit.ScriptModule) else None
    name, names = found
    attributes = vars(module)
    values = {
        key: _told(attributes[key]) for key in names if key in attributes and _is_plain(attributes[key])
    }
    if name == _AVERAGED:
        values |= _averaging(module)
    return _Own(name, values)


def _averaging(module: nn.Module) -> dict[str, Any]:
    """Describe the functions that an `AveragedModel` averages with; one that can't be looked into is left out."""
    found = {}
    for name in ("avg_fn", "multi_avg_fn"):
        function = getattr(module, name, None)
        if function is not None:
            try:
                described = fingerprint(function, name)
            except UnsupportedState:
                continue
            # Those of torch change with its version, of which the environment tells; what they close over is theirs.
            found[name] = _without_code(described) if _is_of_torch(function) else described
    return found


def _without_code(described: Any) -> Any:
    if type(described) is dict:
        return {key: _without_code(item) for key, item in described.items() if key not in _CODE}
    return [_without_code(item) for item in described] if type(described) is list else described


def _of_class_of(module: nn.Module) -> tuple[str, tuple[str, ...]] | None:
    cls: type = type(module)  # mypy takes no class of classes for hashable
    return _of_class(cls)


@functools.cache
def _of_class(cls: type) -> tuple[str, tuple[str, ...]] | None:
    """Return the class of torch that a class is or is derived from, and the attributes that are settings of it."""
    own = _torch_class(cls)
    if own is None:
        return None
    names: set[str] = set()
    for base in own.__mro__[: own.__mro__.index(nn.Module)]:
        names |= {*vars(base).get("__constants__", ()), *vars(base).get("__annotations__", ())}
        init = vars(base).get("__init__")
        if isinstance(init, types.FunctionType):
            code = init.__code__
            names |= {*code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]}
    kept = tuple(sorted(name for name in names - _SIZES if not name.startswith("_")))
    return own.__qualname__, kept  # torch has moved classes between its modules


def _torch_class(cls: type) -> type | None:
    becomes = getattr(cls, "cls_to_become", None) if issubclass(cls, LazyModuleMixin) else None
    for base in (becomes or cls).__mro__:
        if not issubclass(base, nn.Module):
            continue
        if base.__module__.startswith(_OF_TORCH) or class_name(base) == f"torch.optim.swa_utils.{_AVERAGED}":
            return None if base is nn.Module or base in _CONTAINERS else base
    return None


def _is_plain(value: Any) -> bool:
    if isinstance(value, types.FunctionType | types.BuiltinFunctionType):
        return _is_of_torch(value)
    if type(value) in (list, tuple):
        return all(type(item) in _PLAIN for item in value)
    return type(value) in _PLAIN or (
        isinstance(value, np.generic) and isinstance(value, np.number | np.bool_)
    )


def _is_of_torch(function: Any) -> bool:
    return str(getattr(function, "__module__", "")).partition(".")[0] == "torch"


def _told(value: Any) -> Any:
    if isinstance(value, types.FunctionType | types.BuiltinFunctionType):
        return {"named": f"{value.__module__}.{value.__name__}"}
    return list(value) if type(value) is list else value


def _same(left: Any, right: Any) -> bool:
    """Tell whether two settings compute the same: a list and a tuple do, 8 and 8.0, and what NumPy makes of them."""
    if _is_function(left) and _is_function(right):
        return not changes(left, right)
    return same_setting(_comparable(left), _comparable(right))


def _is_function(value: Any) -> bool:
    """Tell whether a setting describes a function, which can be compared and not be set."""
    return type(value) is dict


def _comparable(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    return tuple(value) if type(value) is list else value


class Settings:
    """The settings of a record beside those of a live module.

    Args:
        record: From `settings_of`, or `None`.
        module: The live module.
        places: Its submodules by path, from `walk`.
        scope: What it is, for codes.
    """

    def __init__(
        self,
        record: Mapping[str, Any] | None,
        module: nn.Module,
        places: Iterable[tuple[str, nn.Module]],
        scope: str,
    ) -> None:
        self._scope = scope
        self._record = record or {}
        self._children = dict(places) if record else {}
        asked = _first_bound.get(unwrapped(module), {}) if record else {}
        self._now = {path: _own(child) for path, child in self._children.items()}
        self._asked = {path: _as_asked(asked.get(path), own) for path, own in self._now.items()}

    def agrees(self, path: str, name: str) -> bool:
        """Tell whether the program asks for what it asked for then, or for what the run has arrived at since."""
        sides = self._sides(path, name)
        return sides is not None and self._fits(*sides)

    def findings(self, paths: Collection[str], told: Collection[tuple[str, str]] = ()) -> Iterator[Finding]:
        """Yield what would be computed otherwise.

        Args:
            paths: The submodules that both sides have; others show elsewhere.
            told: Submodules and settings of which another finding tells.
        """
        for path in sorted(self._children.keys() & set(paths)) if self._record else ():
            entry, now = self._record.get(path), self._now[path]
            before = None if entry is None else entry["class"]
            of_torch = None if now is None else now.class_name
            if before != of_torch:
                if _SCRIPTED not in (before, of_torch):
                    found = of_torch or type_name(self._children[path])
                    yield self._finding(path, "class", before or "no class of torch", found)
                continue
            for name in sorted((entry or {}).get("values", {})):
                sides = self._sides(path, name)
                if sides is not None and (path, name) not in told and not self._fits(*sides):
                    yield self._finding(path, name, _shown(sides[0]), _shown(sides[2]))

    def plan(self) -> Iterator[Write]:
        """Plan to set what the run had moved, or has moved since; what was accepted as changed stays."""
        for path, entry in self._record.items():
            for name, value in entry.get("values", {}).items():
                sides = self._sides(path, name)
                if sides is None or not self._fits(*sides) or _is_function(value):
                    continue
                module = self._children[path]
                if not _same(vars(module).get(name), value):
                    yield ObjectWrite(f"{self._scope} {joined(path, name)}", _set(module, name, value))

    def _sides(self, path: str, name: str) -> tuple[Any, Any, Any] | None:
        """Return what was asked for, what the run had, and what the program asks for; `None` if one side has none."""
        entry, now = self._record.get(path), self._asked.get(path)
        if entry is None or now is None or entry["class"] != now.class_name:
            return None
        values: Mapping[str, Any] = entry.get("values", {})
        if name not in values or name not in now.values:
            return None
        if _is_function(values[name]):
            own = self._now[path]
            return values[name], values[name], own.values[name] if own is not None else ABSENT
        return entry.get("asked", {}).get(name, values[name]), values[name], now.values[name]

    def _fits(self, asked: Any, run: Any, program: Any) -> bool:
        return _same(asked, program) or _same(run, program)

    def _finding(self, path: str, name: str, before: Any, now: Any) -> Finding:
        at = joined(path, name)
        return Finding(
            ContractMismatch, f"{self._scope}.setting.{at}", "a module would compute with another setting",
            f"{self._scope} {at}", before, now, "build it as it was when it was captured", admissible=True,
        )  # fmt: skip


def _as_asked(asked: _Own | None, now: _Own | None) -> _Own | None:
    """Return what the program asked for, of what a module has now."""
    if asked is None or now is None or asked.class_name != now.class_name:
        return now
    return _Own(now.class_name, {name: asked.values.get(name, value) for name, value in now.values.items()})


def _shown(value: Any) -> Any:
    if type(value) is dict:
        return value.get("named", "a function that averages otherwise")
    return value


def _set(module: nn.Module, name: str, value: Any) -> Any:
    def assign() -> None:
        # As it is read: a class may have a property of this name around it.
        vars(module)[name] = value

    return assign
