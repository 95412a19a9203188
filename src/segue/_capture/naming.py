"""Canonical names: the name a tensor has without the wrappers around its modules.

Wrappers are recognised by class while walking, never by cutting strings: a user's own submodule called `module` or
`_orig_mod` keeps its name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

from segue._capture.wrappers import refuse_sharded, register_wrapper, unwrapped, wrappers_of
from segue.errors import UnsupportedState

__all__ = [
    "ModulePlace", "NamedTensor", "buffer_places", "joined", "named_parameters", "named_tensors", "places",
    "register_wrapper", "unwrapped", "walk",
]  # fmt: skip


class ModulePlace(NamedTuple):
    """A module where it stands."""

    path: str
    """Its canonical path; empty for the outermost."""
    module: nn.Module
    """The module under all wrappers."""
    wrappers: tuple[tuple[nn.Module, str], ...]
    """Those around it here, from the outside in, each with the attribute that holds what it wraps."""


def places(module: nn.Module, scope: str) -> Iterator[ModulePlace]:
    """Yield every module with its canonical path and its wrappers, a shared one once for each of its places.

    Raises:
        UnsupportedState: If a module contains itself, or its parameters are shards.
    """
    yield from _places(module, "", (), scope)


def _places(module: nn.Module, path: str, above: tuple[int, ...], scope: str) -> Iterator[ModulePlace]:
    wrappers = tuple(wrappers_of(module))
    if wrappers:  # few modules have any, and this is asked of each
        module = unwrapped(module)
    if id(module) in above:
        raise UnsupportedState(
            "a module contains itself", code="capture.module_cycle", where=f"{scope} {path}"
        )
    refuse_sharded(module, f"{scope} {path}".rstrip())
    yield ModulePlace(path, module, wrappers)
    for name, child in module._modules.items():
        if child is not None:
            yield from _places(child, joined(path, name), (*above, id(module)), scope)


def walk(module: nn.Module, scope: str) -> Iterator[tuple[str, nn.Module]]:
    """Yield every module with its canonical path, a shared one once for each of its places.

    Raises:
        UnsupportedState: If a module contains itself, or its parameters are shards.
    """
    for place in places(module, scope):
        yield place.path, place.module


def joined(path: str, name: str) -> str:
    """Append a name to a dotted path, which may be empty."""
    return f"{path}.{name}" if path else name


@dataclass(frozen=True)
class NamedTensor:
    """One registered tensor under its canonical name."""

    name: str
    kind: str
    """`parameter`, `buffer`, or `transient` for a non-persistent buffer."""
    tensor: torch.Tensor | None
    """`None` for a buffer registered as `None`."""
    aliases: tuple[str, ...]
    """All names of this very object, sorted; `name` is the first."""


def named_tensors(module: nn.Module, scope: str) -> dict[str, NamedTensor]:
    """Find all parameters and buffers by canonical name, in the order the module declares them.

    The canonical name of a tied tensor is the first of its names in sorted order, so that it does not depend on
    the order of declaration.
    """
    occurrences = list(_occurrences(module, scope))
    names: dict[int, list[str]] = {}
    for name, _, tensor in occurrences:
        if tensor is not None:
            names.setdefault(id(tensor), []).append(name)
    found: dict[str, NamedTensor] = {}
    for name, kind, tensor in occurrences:
        aliases = tuple(sorted(set(names[id(tensor)]))) if tensor is not None else (name,)
        # A tied tensor takes the place of its first occurrence, where `parameters()` yields it.
        known = found.setdefault(aliases[0], NamedTensor(aliases[0], kind, tensor, aliases))
        if known.tensor is not tensor:
            raise UnsupportedState("two tensors have one name", code="capture.name", where=f"{scope} {name}")
    return found


def _occurrences(module: nn.Module, scope: str) -> Iterator[tuple[str, str, torch.Tensor | None]]:
    for path, child in walk(module, scope):
        for name, parameter in child._parameters.items():
            if parameter is not None:
                yield joined(path, name), "parameter", parameter
        for name, buffer in child._buffers.items():
            kind = "transient" if name in child._non_persistent_buffers_set else "buffer"
            yield joined(path, name), kind, buffer


def named_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Find the distinct parameters of a module by canonical name."""
    tensors = {name: item.tensor for name, item in named_tensors(module, "model").items()}
    return {name: tensor for name, tensor in tensors.items() if isinstance(tensor, nn.Parameter)}


def buffer_places(module: nn.Module, scope: str) -> dict[str, tuple[nn.Module, str]]:
    """Return the owner and attribute of every buffer by each of its canonical names."""
    return {
        joined(path, name): (child, name)
        for path, child in walk(module, scope)
        for name in tuple(child._buffers.keys())  # a scripted module's can't be iterated over directly
    }
