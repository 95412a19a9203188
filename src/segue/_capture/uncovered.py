"""What the registered objects of a training hold beside what is captured, looked at to see what moves.

Wish: a counter in an attribute of a layer, a cache that a forward writes, what a hook closes over are told of at the first
save, and not found missing after the resume.

No rule can tell what an attribute means, but one can tell whether it moves (decision 16, which does this for optimizers).
So what everything is is remembered when a training is made, and compared when it is captured. What has moved and is
captured nowhere is told. Objects of the program are looked into, whatever holds them; those of libraries are not, but for
modules: what a library keeps in objects of its own it manages itself.

What it still loses: what moves for the first time after the last save; what stands in globals, in attributes of classes,
in memory of a library's own; and, in large containers and tensors, a change that leaves size, ends and sampled elements.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import torch
from torch import nn

from segue._capture.adapters import OF_EVERY_MODULE
from segue._capture.function_code import is_library_function, is_of_library
from segue._capture.layouts import Layouts
from segue._capture.registered import Registered
from segue._capture.uncovered_kinds import Kind, kind_of, mark_of_kind
from segue._capture.uncovered_marks import ATOMS, PASSING, Mark, mark_of
from segue._capture.wrappers import wrappers_of
from segue.errors import ABSENT

_MAX_DEPTH: Final = 12
_MAX_OBJECTS: Final = 20_000
_HOOKS: Final = tuple(sorted(name for name in OF_EVERY_MODULE if name.endswith("_hooks")))
_OF_OPTIMIZERS: Final = tuple(
    f"_optimizer_{name}_hooks"
    for name in ("step_pre", "step_post", "state_dict_pre", "state_dict_post", "load_state_dict_pre", "load_state_dict_post")
)  # fmt: skip


class Part(NamedTuple):
    """A place that holds a value."""

    value: Any
    mark: Mark


class ClosedOver(str):
    """The step from a function to what it closes over, as a program takes it.

    Args:
        name: What it is called there.
        index: The place of its cell.
    """

    name: str

    def __new__(cls, name: str, index: int) -> ClosedOver:
        """Make the step."""
        made = super().__new__(cls, f".__closure__[{index}].cell_contents")
        made.name = name
        return made


Link = tuple[Any, Any, str] | str | None
"""How a program reaches an object: by its name, or from another, by one step; see `written`. Most are never written."""


class Held(NamedTuple):
    """An object of a training, and what it holds beside what is captured."""

    owner: Any
    link: Link
    """How it is reached; `None` where only the object itself is known."""
    parts: dict[str, Part]
    """By attribute; of a function by the name of what it closes over."""


class Seen(NamedTuple):
    """What is remembered of one: no reference that would keep anything alive."""

    owner: weakref.ref[Any] | int
    marks: dict[str, Mark]


class Moved(NamedTuple):
    """A place whose value is another than it was."""

    path: str
    held: Held
    name: str
    before: Mark
    """`ABSENT` for what was not there."""
    part: Part | None
    """`None` for what is gone."""


class Walk:
    """One look at everything that registered objects hold.

    Args:
        registered: What is captured, and by what name.
        layouts: Where objects of each class keep what they hold.
    """

    def __init__(self, registered: Registered, layouts: Layouts) -> None:
        self._registered = registered
        self._layouts = layouts
        self._opened: dict[int, Any] = {}
        self.held: dict[str, Held] = {}

    def leave_out(self, value: object) -> None:
        """Take an object for captured, and don't look into it."""
        self._opened[id(value)] = value

    def has_reached(self, value: object) -> bool:
        """Tell whether an object was met."""
        return id(value) in self._opened

    def module(self, module: nn.Module, path: str, link: Link) -> None:
        """Look at a module and those below it, under their canonical names."""
        for wrapper, attribute in wrappers_of(module):
            self._opened[id(wrapper)] = wrapper
            link = (link, None, f".{attribute}")
            module = wrapper._modules[attribute]  # type: ignore[assignment]
        if id(module) in self._opened:
            return
        self._opened[id(module)] = module
        own = module.__dict__
        if not _is_torchs(class_of(module)):
            names = own.keys() - OF_EVERY_MODULE
            if names:
                self._attributes(module, path, link, own, sorted(names))
        if any(map(own.get, _HOOKS)):
            for name in _HOOKS:
                self._hooks(own.get(name), f"{path}.{name}")
        for name, parameter in own["_parameters"].items():
            if parameter is not None:
                self._tensor_hooks(parameter, path, name)
        for name, child in own["_modules"].items():
            if child is not None:
                self.module(child, f"{path}.{name}", (link, module, name))

    def program_object(self, value: Any, path: str, link: Link, depth: int = 0) -> None:
        """Look at an object of the program, and at what is below it."""
        if self._is_enough(value, depth):
            return
        self._opened[id(value)] = value
        own = dict(self._layouts.of(type(value)).parts(value))
        self._attributes(value, path, link, own, list(own), depth)

    def optimizer(self, optimizer: Any, path: str) -> None:
        """Look at the hooks of an optimizer; its attributes have a rule of their own."""
        self._opened[id(optimizer)] = optimizer
        for name in _OF_OPTIMIZERS:
            self._hooks(getattr(optimizer, "__dict__", {}).get(name), f"{path}.{name}")

    def position(self, value: Any, path: str, link: Link, depth: int = 0) -> None:
        """Look at the objects of the program below a position in data: datasets, samplers, transforms."""
        if self._is_enough(value, depth):
            return
        kind = kind_of(value)
        if kind is Kind.OBJECT and not _saves_itself(class_of(value)):
            self.program_object(value, path, link, depth)
            return
        if kind is Kind.FUNCTION:
            self._mark(value, path, link, depth)
            return
        if type(value) not in ATOMS:
            self._opened[id(value)] = value
        if depth == 0 or _is_of_data(class_of(value)):
            parts = self._layouts.of(type(value)).parts(value)
            for name, item in sorted(parts, key=lambda part: part[0] != "dataset"):  # which samplers hold too
                items = enumerate(item[:64]) if type(item) in (list, tuple) else ((None, item),)
                for index, each in items:
                    step = name if index is None else f"{name}[{index}]"
                    self.position(each, f"{path}.{step.lstrip('_')}", (link, None, f".{step}"), depth + 1)

    def _is_enough(self, value: object, depth: int) -> bool:
        return id(value) in self._opened or depth > _MAX_DEPTH or len(self._opened) > _MAX_OBJECTS

    def _attributes(
        self, owner: Any, path: str, link: Link, own: Mapping[str, Any], names: list[str], depth: int = 0
    ) -> None:
        parts: dict[str, Part] = {}
        self.held[path] = Held(owner, link, parts)
        for name in names:
            value = own[name]
            if type(value) in ATOMS:  # most are
                parts[name] = Part(value, (type(value), value) if value == value else (type(value), "nan"))
            else:
                mark = self._mark(value, f"{path}.{name}", (link, None, f".{name}"), depth + 1)
                parts[name] = Part(value, mark)

    def _mark(self, value: Any, path: str, link: Link, depth: int) -> Mark:
        def other(item: Any, place: str) -> Mark:
            return self._other(item, f"{path}{place}", (link, None, place), depth)

        return mark_of(value, other)

    def _other(self, value: Any, path: str, link: Link, depth: int) -> Mark:
        name = self._registered.name(value)
        if name is not None:
            return "is", name
        if isinstance(value, torch.Tensor):
            return None
        kind = kind_of(value)
        if kind is Kind.FUNCTION:
            return self._function(value, path, link, depth)
        if kind is Kind.OBJECT:
            self.program_object(value, path, link, depth)
        elif kind is not Kind.OTHER:
            self._opened[id(value)] = value
        # Streams are captured where they are.
        return (kind.value,) if kind is Kind.STREAM else mark_of_kind(value, kind)

    def _function(self, value: Any, path: str, link: Link, depth: int) -> Mark:
        names: tuple[str, ...]
        if isinstance(value, functools.partial):
            names = ("func", "args", "keywords")
        elif isinstance(value, types.MethodType):
            names = ("__self__",)
        else:
            self._open_function(value, path, link, depth)
            return "function", value.__qualname__, hash(value.__code__)
        parts = {
            name: Part(held, self._mark(held, f"{path}.{name}", (link, None, f".{name}"), depth + 1))
            for name in names
            if (held := getattr(value, name)) or name == "func"
        }
        if len(names) > 1:
            self.held[path] = Held(value, link, parts)
        return "method" if len(names) == 1 else "partial", type(value)

    def _open_function(self, function: types.FunctionType, path: str, link: Link, depth: int) -> None:
        if self._is_enough(function, depth):
            return
        self._opened[id(function)] = function
        is_library = is_library_function(function)
        parts: dict[str, Part] = {}
        for name, value, step in held_by_function(function):
            # What a library's function holds is its own; but a decorator closes over a function of the program.
            if is_library and not (isinstance(step, ClosedOver) and kind_of(value) is Kind.FUNCTION):
                continue
            mark = self._mark(value, f"{path}.{name}", (link, None, step), depth + 1)
            if not is_library:
                parts[name] = Part(value, mark)
        if parts:
            self.held[path] = Held(function, link, parts)

    def _hooks(self, hooks: Any, path: str) -> None:
        if isinstance(hooks, dict):
            for index, hook in enumerate(dict.values(hooks)):
                self._mark(hook, f"{path}[{index}]", None, 1)

    def _tensor_hooks(self, tensor: torch.Tensor, path: str, name: str) -> None:
        if type(tensor) not in (nn.Parameter, torch.Tensor):
            return
        for kind in ("_backward_hooks", "_post_accumulate_grad_hooks"):
            hooks = getattr(tensor, kind)
            if hooks:
                self._hooks(hooks, f"{path}.{name}.{kind}")


def written(link: Link, roots: Mapping[str, str] = MappingProxyType({})) -> str | None:
    """Write down how a program reaches an object; `None` where nobody knows.

    Args:
        link: How it was reached.
        roots: What the program calls what was handed in, by the beginning of its paths.
    """
    if link is None or isinstance(link, str):
        return None if link is None else roots.get(link, link)
    above, parent, name = link
    before = written(above, roots)
    if before is None or parent is None:
        return None if before is None else f"{before}{name}"
    if isinstance(parent, nn.Sequential | nn.ModuleList) and name.isdecimal():
        return f"{before}[{name}]"
    if isinstance(parent, nn.ModuleDict):
        return f"{before}[{name!r}]"
    return f"{before}.{name}" if name.isidentifier() else f"{before}.get_submodule({name!r})"


def shown_as(link: Link) -> str | None:
    """Write down the same for people: what a function closes over under its own name."""
    if link is None or isinstance(link, str):
        return link
    above, parent, name = link
    before = shown_as(above)
    if before is None:
        return None
    if parent is None:
        return f"{before}.{name.name}" if isinstance(name, ClosedOver) else f"{before}{name}"
    return f"{before}.{name}"


def held_by_function(function: types.FunctionType) -> Iterator[tuple[str, Any, str]]:
    """Yield what a function closes over, its defaults and its attributes: name, value, and how it is reached."""
    names = function.__code__.co_freevars
    for index, (name, cell) in enumerate(zip(names, function.__closure__ or (), strict=True)):
        try:
            yield name, cell.cell_contents, ClosedOver(name, index)
        except ValueError:  # an empty one
            continue
    for index, value in enumerate(function.__defaults__ or ()):
        yield f"__defaults__[{index}]", value, f".__defaults__[{index}]"
    for name, value in (function.__kwdefaults__ or {}).items():
        yield f"__kwdefaults__[{name!r}]", value, f".__kwdefaults__[{name!r}]"
    for name, value in function.__dict__.items():
        if name != "__wrapped__":
            yield name, value, f".{name}"


def class_of(value: object) -> type:
    """Return the class of an object."""
    return type(value)  # mypy takes no class of modules for hashable


@functools.lru_cache(maxsize=4096)
def _saves_itself(cls: type) -> bool:
    return callable(getattr(cls, "state_dict", None)) and callable(getattr(cls, "load_state_dict", None))


@functools.lru_cache(maxsize=4096)
def _is_torchs(cls: type) -> bool:
    """Tell whether a class of modules is torch's own: its settings are captured with the module."""
    return cls.__module__.partition(".")[0] == "torch"


@functools.lru_cache(maxsize=4096)
def _is_of_data(cls: type) -> bool:
    return cls.__module__.startswith(
        ("torch.utils.data", "torchdata.", "segue._capture.data", "segue._capture.sampler")
    )


# What is remembered.


def remembered(held: Mapping[str, Held]) -> dict[str, Seen]:
    """Return what there is to compare with later."""
    return {path: seen_of(each) for path, each in held.items()}


def seen_of(held: Held) -> Seen:
    """Return what is remembered of one object."""
    try:
        owner: weakref.ref[Any] | int = weakref.ref(held.owner)
    except TypeError:
        owner = id(held.owner)
    return Seen(owner, {name: part.mark for name, part in held.parts.items()})


def moved(before: Mapping[str, Seen], now: Mapping[str, Held]) -> Iterator[Moved]:
    """Yield what is another than it was, of the objects that are where they were."""
    for path, held in now.items():
        seen = before.get(path)
        if seen is None or is_new(seen, held):
            continue
        parts = held.parts
        if len(parts) == len(seen.marks) and all(
            seen.marks.get(name, ABSENT) == part.mark for name, part in parts.items()
        ):
            continue
        for name, part in parts.items():
            first = seen.marks.get(name, ABSENT)
            if first != part.mark and PASSING not in (first, part.mark):
                yield Moved(path, held, name, first, part)
        for name, first in seen.marks.items():
            if name not in parts and first is not PASSING:
                yield Moved(path, held, name, first, None)


def is_flag_of_library(moved: Moved) -> bool:
    """Tell whether this is a mark that a library leaves on a module of its own, such as that hooks are installed.

    What such a module computes with is set from its configuration (transformers 5).
    """
    value = None if moved.part is None else moved.part.value
    owner = class_of(moved.held.owner)
    is_its = isinstance(moved.held.owner, nn.Module) and is_of_library(owner)
    return is_its and moved.name.startswith("_") and isinstance(value, bool)


def is_new(seen: Seen | None, held: Held) -> bool:
    """Tell whether an object was not seen yet: a module that stands where another stood wasn't."""
    if seen is None or not isinstance(held.owner, nn.Module):
        return seen is None
    return (seen.owner() if isinstance(seen.owner, weakref.ref) else seen.owner) is not held.owner
