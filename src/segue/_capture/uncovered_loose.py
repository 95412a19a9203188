"""Objects that a program holds in variables, and that hold state of a training which nobody registered.

Wish: a loss with centres, an average in `self.ema`, a loader that is half read are told of, where nothing that was handed
in leads to them.

Looked at are the variables of the program's own frames, from the caller of the capture outwards, the globals of their
modules and of those that these import, and what objects of the program, containers and closures in them hold. Only such
objects count as can't be anything but state of a training: modules, optimizers, streams and what else `Kind` names, and
objects with `state_dict` and `load_state_dict`. Numbers and texts in variables do not: what of them matters is the
caller's state. And of these only what has moved since it was first seen: a teacher, the model of an earlier cell stand still.
"""

from __future__ import annotations

import functools
import gc
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import torch
from torch import nn
from torch.utils.data import RandomSampler, SubsetRandomSampler, WeightedRandomSampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from segue._capture.function_code import is_library_function, is_of_library
from segue._capture.layouts import Layouts, base_in
from segue._capture.uncovered import Link, class_of, held_by_function, shown_as, written
from segue._capture.uncovered_frames import locals_of, program_frames
from segue._capture.uncovered_kinds import Kind, kind_of, tensors_of
from segue._capture.uncovered_marks import ATOMS, items_of

_MAX_DEPTH: Final = 4
_MAX_ITEMS: Final = 64
_MAX_SEEN: Final = 20_000
_MAX_SPACES: Final = 32
_CONTAINERS: Final = (list, tuple, dict, set, frozenset)
_WRAPPING: Final = frozenset(
    {"enumerate", "zip", "map", "filter", "islice", "chain", "cycle", "starmap", "takewhile"}
)
_SHUFFLING: Final = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)


class Loose(NamedTuple):
    """An object that a program holds and that nobody registered."""

    path: str
    """What it is called, for people."""
    expression: str
    """How the program reaches it."""
    value: Any
    kind: Kind
    is_anothers: bool
    """Whether another training of this process captures it."""


class Visible:
    """What a program can see as it captures: the objects in its variables, and what they are called.

    Args:
        is_covered: Tells whether an object is captured, or looked at otherwise.
        is_captured: Tells whether a tensor is.
        is_anothers: Tells whether another training captures an object.
        layouts: Where objects of each class keep what they hold.
        are_weights: Tells whether a container holds copies of the parameters.
    """

    def __init__(
        self, is_covered: Callable[[object], bool], is_captured: Callable[[torch.Tensor], bool],
        is_anothers: Callable[[object], bool], layouts: Layouts, are_weights: Callable[[Any], bool],
    ) -> None:  # fmt: skip
        self._is_covered = is_covered
        self._is_anothers = is_anothers
        self._is_captured = is_captured
        self._layouts = layouts
        self._are_weights = are_weights
        self._names: dict[int, Link] = {}
        self._kept: list[Any] = []  # so that no `id` is given away while this is in use
        self._told_with_owner: set[int] = set()
        self._spaces: dict[int, dict[str, Any]] = {}
        self._todo: deque[tuple[Any, Link, int]] = deque()
        self.found: list[Loose] = []

    def look(self, frame: types.FrameType | None) -> None:
        """Look at the frames of the program from this one outwards."""
        frames = list(program_frames(frame))
        for each in frames:
            if each.f_code.co_name != "<module>":
                self._variables(locals_of(each))
        for each in frames:
            self._space(each.f_globals, "")
        for space in list(self._spaces.values()):  # those that these import, after their own
            self._imports(space)
        while self._todo:  # in the order of steps, so that each has its shortest name
            self._visit(*self._todo.popleft())

    def name_of(self, value: object) -> str | None:
        """Return how the program calls an object; `None` if it has no name for it."""
        return written(self._names.get(id(value)))

    def _space(self, space: dict[str, Any], before: str) -> None:
        if id(space) in self._spaces or len(self._spaces) >= _MAX_SPACES:
            return
        self._spaces[id(space)] = space
        self._variables(space, before)

    def _variables(self, variables: Mapping[str, Any], before: str = "") -> None:
        for name, value in list(variables.items()):
            if type(value) not in ATOMS and not (name.startswith("__") and name.endswith("__")):
                self._todo.append((value, _in_space(before, name), 0))

    def _imports(self, space: dict[str, Any]) -> None:
        for name, value in list(space.items()):
            if isinstance(value, types.ModuleType) and not is_of_library(value):
                self._space(vars(value), name)
            elif isinstance(value, types.FunctionType) and not _is_library(value.__code__.co_filename, value):
                self._space(value.__globals__, f"{name}.__globals__")

    def _visit(self, value: Any, link: Link, depth: int) -> None:
        if id(value) in self._names or len(self._names) >= _MAX_SEEN:
            return
        self._names[id(value)] = link
        self._kept.append(value)
        if self._is_covered(value):
            return
        kind = kind_of(value)
        if kind is Kind.MODULE:
            self._module(value, link, depth)
        elif kind is Kind.OBJECT:
            self._object(value, link, depth)
        elif kind is Kind.FUNCTION:
            self._function(value, link, depth)
        elif kind is not Kind.OTHER:
            self._add(value, link, kind)
        elif saves_itself(class_of(value)):
            self._library_object(value, link)
        else:
            self._container(value, link, depth)

    def _add(self, value: Any, link: Link, kind: Kind) -> None:
        path, expression = shown_as(link), written(link)
        assert path is not None, "what a program holds has a name"
        assert expression is not None, "and can be reached by it"
        self.found.append(Loose(path, expression, value, kind, self._is_anothers(value)))

    def _module(self, module: nn.Module, link: Link, depth: int) -> None:
        """Take a module as a whole, or what of it is not captured: some hold the model, and more."""
        tensors = list(tensors_of(module))
        if tensors and not any(map(self._is_captured, tensors)):
            self._add(module, link, Kind.MODULE)
            return
        for name, child in module._modules.items():
            if child is not None:
                self._todo.append((child, (link, module, name), depth))
        if is_of_program(class_of(module)):
            self._attributes(module, link, depth)

    def _object(self, value: Any, link: Link, depth: int) -> None:
        if saves_itself(class_of(value)):
            self._add(value, link, Kind.OBJECT)
        else:
            # What an object holds is told with the object.
            held = [item for _, item in self._layouts.of(type(value)).parts(value) if self._are_weights(item)]
            if held:
                self._add(value, link, Kind.WEIGHTS)
                self._told_with_owner.update(map(id, held))
                self._kept.extend(held)
            self._attributes(value, link, depth)
            self._container(value, link, depth)

    def _library_object(self, value: Any, link: Link) -> None:
        # One around what is registered, as accelerate's schedulers, has nothing that is not in that.
        held = [item for _, item in self._layouts.of(type(value)).parts(value)]
        if not any(self._is_covered(item) for item in held if type(item) not in ATOMS):
            self._add(value, link, Kind.OBJECT)

    def _attributes(self, value: Any, link: Link, depth: int) -> None:
        if depth >= _MAX_DEPTH:
            return
        for name, item in self._layouts.of(type(value)).parts(value):
            if type(item) not in ATOMS:
                self._todo.append((item, (link, None, f".{name}"), depth + 1))

    def _function(self, value: Any, link: Link, depth: int) -> None:
        if depth >= _MAX_DEPTH:
            return
        if isinstance(value, functools.partial):
            for name in ("func", "args", "keywords"):
                self._todo.append((getattr(value, name), (link, None, f".{name}"), depth + 1))
        elif isinstance(value, types.MethodType):
            self._todo.append((value.__self__, (link, None, ".__self__"), depth + 1))
        else:
            for _, held, step in held_by_function(value):
                if type(held) not in ATOMS:
                    self._todo.append((held, (link, None, step), depth + 1))

    def _container(self, value: Any, link: Link, depth: int) -> None:
        if depth >= _MAX_DEPTH:
            return
        base: Any = base_in(type(value), _CONTAINERS)
        if base is None:
            if type(value).__name__ in _WRAPPING and type(value).__module__ in ("builtins", "itertools"):
                for item in gc.get_referents(value):
                    if type(item) not in ATOMS:
                        self._todo.append((item, link, depth + 1))
            return
        if id(value) not in self._told_with_owner and self._are_weights(value):
            self._add(value, link, Kind.WEIGHTS)
        if base.__len__(value) > _MAX_ITEMS:
            return  # of data
        for place, item in items_of(value, base):
            if type(item) not in ATOMS and not isinstance(item, torch.Tensor):
                self._todo.append((item, (link, None, place), depth + 1))


def _in_space(before: str, name: str) -> str:
    """Write down a variable; one of another module as the program reaches it."""
    if before.endswith(".__globals__"):
        return f"{before}[{name!r}]"
    return f"{before}.{name}" if before else name


def passes_under_way(loaders: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield each loader that is being read, with the iterator: that of a `for` stands in no variable.

    Cost:
        A look at all objects of the process: tens of milliseconds.
    """
    alive = gc.get_objects()
    classes = {cls for cls in set(map(type, alive)) if issubclass(cls, _BaseDataLoaderIter)}
    for value in alive if classes else ():
        if type(value) in classes:
            loader = loader_of(value, loaders)
            if loader is not None:
                yield loader, value


def loader_of(batches: Any, loaders: list[Any]) -> Any | None:
    """Return the loader that made an iterator; `None` if it is none of these."""
    own = vars(batches)
    for loader in loaders:
        held = vars(loader)
        samplers = (held.get("batch_sampler"), held.get("sampler"))
        if held.get("dataset") is own.get("_dataset") and any(
            own.get("_index_sampler") is each for each in samplers
        ):
            return loader
    return None


def shuffles(loader: Any) -> bool:
    """Tell whether the order of a loader is drawn anew at each start, from a stream that has moved on since."""
    held = vars(loader)
    sampler = held.get("sampler")
    inner = getattr(held.get("batch_sampler"), "sampler", None)
    return isinstance(sampler, _SHUFFLING) or isinstance(inner, _SHUFFLING)


@functools.lru_cache(maxsize=4096)
def saves_itself(cls: type) -> bool:
    """Tell whether objects of a class can be asked for their state, and take it back; none of segue's."""
    return (
        callable(getattr(cls, "state_dict", None))
        and callable(getattr(cls, "load_state_dict", None))
        and not cls.__module__.startswith("segue.")
    )


@functools.lru_cache(maxsize=4096)
def is_of_program(cls: type) -> bool:
    """Tell whether a class of modules was written for the program."""
    return not is_of_library(cls)


_libraries: dict[str, bool] = {}


def _is_library(path: str, function: types.FunctionType) -> bool:
    found = _libraries.get(path)
    if found is None:
        found = _libraries[path] = is_library_function(function)
    return found
