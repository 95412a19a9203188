"""Averages and best weights that a program keeps by hand: containers of tensors of the shapes of the parameters.

Such a container is told if its tensors are written in place, or if it is filled with, or stands with, others that point
where the parameters do. Copies that are made anew for each step, as of gradients, are no state. What it still loses: weights
that are bound anew at every capture, and of containers above 128 items a change that leaves both ends. And it
tells of weights copied anew at each step, where Python happens to give the new container the address of the last.
"""

from __future__ import annotations

import math
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from segue._capture.layouts import base_in
from segue._capture.memory import storage_of
from segue._capture.sampling import positions
from segue._capture.staging import is_plain
from segue._capture.uncovered_marks import ATOMS, Mark, mark_of

_SAMPLED = 256
_MIN_COSINE = 0.5
_MAX_DEPTH = 4


class Copies(NamedTuple):
    """One look at a container of weights."""

    mark: Mark
    address: int
    tensors: list[weakref.ref[torch.Tensor]]


class Weights:
    """Knows what containers of copies of the parameters look like.

    Args:
        parameters: The trainable parameters of the model.
        captured: Yields the tensors that are captured, and what is reachable from what is.
    """

    def __init__(
        self, parameters: Sequence[torch.Tensor], captured: Callable[[], Iterable[torch.Tensor]]
    ) -> None:
        self._parameters = parameters
        self._shapes = Counter(each.shape for each in parameters)
        self._captured = captured
        self._storages: set[tuple[str, int]] | None = None

    def are_in(self, value: Any) -> bool:
        """Tell whether a container holds a tensor of the shape of each parameter, none of them in captured memory."""
        tensors = held_tensors(value)
        if not self._shapes or len(tensors) < len(self._parameters):
            return False
        if len(tensors) > 2 * len(self._parameters) + 64 or not all(map(is_plain, tensors)):
            return False
        if not Counter(each.shape for each in tensors) >= self._shapes or any(
            each.grad_fn for each in tensors
        ):
            return False
        return not any(_memory(each) in self._known() for each in tensors)

    def _known(self) -> set[tuple[str, int]]:
        if self._storages is None:
            self._storages = {_memory(each) for each in self._captured() if is_plain(each)}
        return self._storages

    def seen(self, value: Any) -> Copies:
        """Return what is remembered of a container."""
        return Copies(
            mark_of(value, _nothing), id(value), [weakref.ref(each) for each in held_tensors(value)]
        )

    def have_moved(self, value: Any, first: Copies, last: Copies, now: Copies) -> bool:
        """Tell whether a container has others than at first, and is kept and not made anew for each step."""
        if now.mark == first.mark:
            return False
        if any(then() is each for then, each in zip(last.tensors, held_tensors(value), strict=False)):
            return now.mark != last.mark or self._point_alike(value)
        return now.address == last.address and self._point_alike(value)

    def _point_alike(self, value: Any) -> bool:
        """Tell whether the tensors point where the parameters do, by some of their elements."""
        left: dict[torch.Size, list[torch.Tensor]] = {}
        for each in held_tensors(value):
            left.setdefault(each.shape, []).append(each)
        inner = ours = its = 0.0
        for parameter in self._parameters:
            a, b = _some(parameter), _some(left[parameter.shape].pop(0))
            inner, ours, its = inner + float(a @ b), ours + float(a @ a), its + float(b @ b)
        return inner > _MIN_COSINE * math.sqrt(ours * its)


def held_tensors(value: Any) -> list[torch.Tensor]:
    """Return the tensors of a list or dictionary; nothing of anything else."""
    base: Any = base_in(type(value), (list, tuple, dict))
    if base is None:
        return []
    items = dict.values(value) if base is dict else base.__iter__(value)
    return [each for each in items if isinstance(each, torch.Tensor)]


def tensors_below(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """Yield the tensors in containers, however they are nested."""
    if isinstance(value, torch.Tensor):
        yield value
        return
    base: Any = None if type(value) in ATOMS else base_in(type(value), (list, tuple, dict))
    if base is not None and depth < _MAX_DEPTH:
        for each in dict.values(value) if base is dict else base.__iter__(value):
            yield from tensors_below(each, depth + 1)


def numbers_of(parts: Mapping[str, Any]) -> dict[str, Mark]:
    """Return the marks of the attributes that are numbers and texts."""
    return {name: mark_of(each, _nothing) for name, each in parts.items() if type(each) in ATOMS}


def _some(tensor: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        flat = tensor.detach().reshape(-1)
        return flat[positions(flat.numel(), _SAMPLED).to(flat.device)].to("cpu", torch.float64)


def _memory(tensor: torch.Tensor) -> tuple[str, int]:
    if tensor.layout is not torch.strided or tensor.device.type == "meta" or tensor.numel() == 0:
        return "none", id(tensor)
    return storage_of(tensor)


def _nothing(_value: Any, _place: str) -> None:
    return None
