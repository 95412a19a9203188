"""What the objects of a training hold, found by walking from those that were handed in.

Wish: a generator that an augmentation keeps, three objects below a loader that was registered, is found by itself.

No method, property or `__getattr__` of the program runs: only places are looked into that hold a value as it is. An
object is yielded once, under the path by which it is reached in the fewest steps; of two of one length, the first in
the order of names. So a new process finds the same paths, whatever the order in which it set its attributes.

What it still loses: what only code could tell, globals beyond those that hold a random stream themselves, and what is in
memory of a library's own. Large containers are read in part; `cut` tells which.
"""

from __future__ import annotations

import contextlib
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

from segue._capture.function_code import is_library_function
from segue._capture.layouts import Kind, Layouts, base_in
from segue._capture.naming import ModulePlace, places
from segue._capture.state_of import StateOf
from segue._capture.visible import COMPUTED, stored
from segue.errors import ABSENT, UnsupportedState

_MAX_ITEMS: Final = 10_000  # of one container
_MAX_ENTERED: Final = 200_000  # items and objects, altogether
_MAX_DEPTH: Final = 64
_LARGE: Final = 256  # items; what has more is looked into when everything else has been


class Reached(NamedTuple):
    """One object, and the place where it was found."""

    path: str
    """Such as `model.head.noise` or `component.aug.rngs['left']`, with the canonical names of modules."""
    value: object
    owner: object
    """What holds it; `None` for what was handed in."""
    name: str
    """What it is called there: an attribute, or the end of the path."""


class _Todo(NamedTuple):
    path: str
    value: Any
    owner: object
    name: str
    depth: int


def reached(roots: Mapping[str, object], *, cut: list[str] | None = None) -> Iterator[Reached]:
    """Yield every object that can be reached from some, each once. Reads only, and calls nothing of the program.

    Scalars, classes and Python modules are not yielded; tensors, arrays, random generators, iterators and objects
    without attributes are, and not looked into. Parameters and buffers of modules are not yielded, their hooks are.

    Args:
        roots: The objects by the beginning of their paths.
        cut: Is filled with the paths of what was not read to its end, since it is too large.
    """
    seen: set[int] = set()
    held: list[object] = []  # so that no `id` is given to another object while the walk is under way
    for item in occurrences(roots, cut=cut):
        if id(item.value) not in seen:
            seen.add(id(item.value))
            held.append(item.value)
            yield item


def occurrences(roots: Mapping[str, object], *, cut: list[str] | None = None) -> Iterator[Reached]:
    """Yield every place at which an object stands, so an object as often as it has places in what is looked into.

    Args are those of `reached`, and so is the order.
    """
    return _Walk(cut).run(roots)


class _Walk:
    def __init__(self, cut: list[str] | None) -> None:
        self._cut = cut
        self._layouts = Layouts()
        self._is_library: dict[str, bool] = {}
        self._entered: dict[int, object] = {}  # kept, so that no other object gets the `id` of one
        self._budget = _MAX_ENTERED
        self._todo: deque[_Todo] = deque()
        self._large: deque[_Todo] = deque()

    def run(self, roots: Mapping[str, object]) -> Iterator[Reached]:
        for name, value in roots.items():
            self._add(name, value, None, name, 0)
        while self._todo or self._large:
            item = (self._todo or self._large).popleft()
            kind = self._layouts.kind(item.value)
            if kind is Kind.MODULE:
                yield from self._modules(item)
                continue
            yield Reached(*item[:4])
            if kind is Kind.LEAF or id(item.value) in self._entered:
                continue
            if item.depth >= _MAX_DEPTH or self._budget <= 0:
                self._note_cut(item.path)
                continue
            self._budget -= 1
            self._entered[id(item.value)] = item.value
            self._open(item, kind)

    def _add(self, path: str, value: Any, owner: object, name: str, depth: int) -> None:
        kind = self._layouts.kind(value)
        if kind is Kind.SKIPPED or (kind is Kind.BUILTIN and _is_of_module(value)):
            return
        todo = self._todo
        if kind in _CONTAINERS:
            if type(value) is tuple and all(map(self._layouts.is_skipped, value)):
                return  # nothing of it can change
            todo = self._large if _size(value) > _LARGE else todo
        todo.append(_Todo(path, value, owner, name, depth))

    def _note_cut(self, path: str) -> None:
        if self._cut is not None:
            self._cut.append(path)

    def _open(self, item: _Todo, kind: Kind) -> None:
        if kind is Kind.OBJECT:
            self._attributes(item)
        elif kind is Kind.DICT:
            self._dictionary(item)
        elif kind is Kind.SEQUENCE:
            self._sequence(item)
        elif kind is Kind.SET:
            self._set(item)
        elif kind is Kind.FUNCTION:
            self._function(item)
        else:
            names = {Kind.METHOD: ("__self__", "__func__"), Kind.BUILTIN: ("__self__",)}
            for name in names.get(kind, ("func", "args", "keywords")):
                held = getattr(item.value, name)  # of types of Python's own
                self._add(f"{item.path}.{name}", held, item.value, name, item.depth + 1)

    # Modules, all of a tree at once, under their canonical names.

    def _modules(self, item: _Todo) -> Iterator[Reached]:
        if id(item.value) in self._entered:
            yield Reached(*item[:4])
            return
        by_path: dict[str, nn.Module] = {}
        for path, module, wrappers in _tree(item.value, item.path):
            by_path[path] = module
            above, _, name = path.rpartition(".")
            full = f"{item.path}.{path}" if path else item.path
            yield Reached(full, module, *((by_path.get(above), name) if path else (item.owner, item.name)))
            for each in (module, *(wrapper for wrapper, _ in wrappers)):
                if id(each) not in self._entered:
                    self._entered[id(each)] = each
                    self._module(each, full, item.depth + 1, is_wrapper=each is not module)

    def _module(self, module: nn.Module, path: str, depth: int, *, is_wrapper: bool) -> None:
        layout = self._layouts.of(type(module))
        for name, value in () if is_wrapper else layout.parts(module, self._layouts.kinds):
            self._add(f"{path}.{name}", value, module, name, depth)
        own = layout.dictionary(module)
        for name in _MODULE_HOOKS:
            if hooks := own.get(name):
                self._hooks(hooks, f"{path}.{name}", module, depth)
        for name, parameter in (own.get("_parameters") or {}).items():
            for kind, hooks in _tensor_hooks(parameter) if parameter is not None else ():
                self._hooks(hooks, f"{path}.{name}.{kind}", parameter, depth)

    def _hooks(self, hooks: dict[Any, Any], path: str, owner: object, depth: int) -> None:
        # By their position: the keys count all hooks of the process. Those of libraries come and go.
        own = [hook for hook in dict.values(hooks) if not self._is_of_library(hook)]
        for index, hook in enumerate(own):
            self._add(f"{path}[{index}]", hook, owner, f"{path.rpartition('.')[2]}[{index}]", depth)

    # Objects and containers.

    def _attributes(self, item: _Todo) -> None:
        if type(item.value) is StateOf and isinstance(item.value.owner, types.ModuleType | type):
            for name in item.value.names:  # of a whole Python module or class only what was named
                held = stored(item.value.owner, name)
                if held is not COMPUTED and held is not ABSENT:
                    self._add(f"{item.path}.{name}", held, item.value.owner, name, item.depth + 1)
        layout = self._layouts.of(type(item.value))
        is_optimizer = base_in(type(item.value), (Optimizer,)) is not None
        for name, value in layout.parts(item.value, self._layouts.kinds):
            path = layout.path(item.path, name)
            if is_optimizer and name.endswith("_hooks") and type(value) in (dict, OrderedDict):
                self._hooks(value, path, item.value, item.depth + 1)
            else:
                self._add(path, value, item.value, name, item.depth + 1)

    def _items(self, item: _Todo, items: Iterator[tuple[str, Any]]) -> None:
        for index, (name, value) in enumerate(items):
            if index >= _MAX_ITEMS or self._budget <= 0:
                self._note_cut(item.path)
                return
            self._budget -= 1
            self._add(f"{item.path}{name}", value, item.value, name, item.depth + 1)

    def _dictionary(self, item: _Todo) -> None:
        self._attributes(item)
        if base_in(type(item.value), (defaultdict,)):
            made_by: Any = defaultdict.__dict__["default_factory"].__get__(item.value)
            self._add(f"{item.path}.default_factory", made_by, item.value, "default_factory", item.depth + 1)
        self._items(item, _entries(item.value))

    def _sequence(self, item: _Todo) -> None:
        self._attributes(item)
        fields = _field_names(item.value)
        names = (
            f".{fields[index]}" if index < len(fields) else f"[{index}]" for index in range(_size(item.value))
        )
        self._items(item, zip(names, _iterated(item.value), strict=False))

    def _set(self, item: _Todo) -> None:
        self._attributes(item)
        self._items(
            item, (("{}", value) for value in _iterated(item.value))
        )  # its order is another in each process

    # Functions.

    def _function(self, item: _Todo) -> None:
        function: types.FunctionType = item.value
        held = [*_closed_over(function), *_defaults(function), *sorted(function.__dict__.items())]
        if self._is_of_library(function):
            # Its own values are the library's, but decorators of libraries close over functions of the program.
            held = [(name, value) for name, value in held if self._layouts.kind(value) in _CALLABLES]
        for name, value in held:
            self._add(f"{item.path}.{name}", value, function, name, item.depth + 1)

    def _is_of_library(self, value: Any) -> bool:
        if type(value) is types.MethodType:
            value = value.__func__
        if type(value) is not types.FunctionType:
            return False
        path = value.__code__.co_filename
        if path not in self._is_library:
            self._is_library[path] = is_library_function(value)
        return self._is_library[path]


_CONTAINERS = frozenset({Kind.DICT, Kind.SEQUENCE, Kind.SET})
_CALLABLES = frozenset({Kind.FUNCTION, Kind.METHOD, Kind.PARTIAL})
_BASES = (dict, list, tuple, deque, set, frozenset)
_WRITTEN = (str, int, float, bool, bytes, type(None))
_MODULE_HOOKS = tuple(name for name in vars(nn.Module()) if name.endswith("_hooks"))


def _is_of_module(builtin: Any) -> bool:
    return isinstance(builtin.__self__, types.ModuleType | type | None)


def _size(value: Any) -> int:
    base: Any = base_in(type(value), _BASES)
    return int(base.__len__(value))


def _iterated(value: Any) -> Iterator[Any]:
    base: Any = base_in(type(value), _BASES)
    return iter(list(base.__iter__(value)))


def _tree(module: nn.Module, scope: str) -> list[ModulePlace]:
    """Return the modules of a tree by canonical path; of one that has no such names only itself."""
    try:
        return list(places(module, scope))
    except UnsupportedState:  # whoever registers it is told so elsewhere
        return [ModulePlace("", module, ())]


def _entries(value: dict[Any, Any]) -> Iterator[tuple[str, Any]]:
    """Yield what is in a dictionary, by the key as it is written; by its position where that would run code."""
    items = list(dict.items(value))
    if all(type(key) is str for key, _ in items):
        items.sort(key=lambda entry: entry[0])
    for index, (key, item) in enumerate(items):
        yield (f"[{key!r}]" if type(key) in _WRITTEN else f"[#{index}]"), item


def _field_names(value: Any) -> tuple[str, ...]:
    if base_in(type(value), (tuple,)) is None:
        return ()
    found = getattr(type(value), "_fields", ())
    return found if type(found) is tuple else ()


def _closed_over(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # an empty one
            yield f"__closure__.{name}", cell.cell_contents


def _defaults(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    code, defaults = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount][code.co_argcount - len(defaults) :]
    for name, value in [*zip(names, defaults, strict=True), *(function.__kwdefaults__ or {}).items()]:
        yield f"__defaults__.{name}", value


def _tensor_hooks(tensor: torch.Tensor) -> list[tuple[str, dict[Any, Any]]]:
    if type(tensor) in (torch.Tensor, nn.Parameter):
        before, after = tensor._backward_hooks, tensor._post_accumulate_grad_hooks
    else:
        with torch._C.DisableTorchFunctionSubclass():
            before, after = tensor._backward_hooks, tensor._post_accumulate_grad_hooks
    if not before and not after:
        return []
    return [("_backward_hooks", before or {}), ("_post_accumulate_grad_hooks", after or {})]
