"""How the attributes of an optimizer are looked at: what is restored where it is, is only named.

Within this process by its identity, which tells whether an attribute points elsewhere than it did; in a record by what it
is called.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from segue._capture.attributes import known_attributes, own_attributes
from segue._capture.description import Description, References, describe
from segue._capture.registered import NOTHING, Registered
from segue._capture.scheduler import is_scheduler
from segue._capture.staging import type_name
from segue.errors import UnsupportedState


@dataclass(frozen=True)
class Views:
    """How the attributes of one optimizer are looked at: within this process, and for a record."""

    identities: References
    told: References
    registered: Registered


def views_of(optimizers: Mapping[str, Any], names: Mapping[int, str], registered: Registered) -> Views:
    """Make the views of the attributes of optimizers.

    Args:
        optimizers: Torch optimizers, or objects that have `param_groups` and `state` as they have, by where they are: that
            which was handed in is at the empty place.
        names: Of the parameters of all registered modules, by `id`.
        registered: What else a training restores.
    """
    places = {key: f"parameter {name}" for key, name in names.items()}
    if len(optimizers) == 1:  # others inside it are among them, and have places of their own
        places |= _passing_on(next(iter(optimizers.values())))
    # What is one object is called by its first place.
    for place, optimizer in reversed(list(optimizers.items())):
        prefix = f"{place} " if place else ""
        places |= {key: prefix + name for key, name in _places(optimizer, names)}
    kinds = (nn.Module, Optimizer, nn.Parameter)
    groups = frozenset(id(group) for optimizer in optimizers.values() for group in _groups(optimizer))
    return Views(
        _Identities(kinds, places, groups, registered), _Told(places, groups, registered), registered
    )


class _Identities:
    """Tells objects apart by what they are, within one process: those whose content is captured elsewhere.

    Args:
        kinds: Their classes.
        objects: Others, by `id`.
        groups: Dictionaries whose `params` are left out, by `id`.
        registered: Knows random streams, which are no state of who holds them.
    """

    def __init__(
        self,
        kinds: tuple[type, ...],
        objects: Container[int],
        groups: Container[int],
        registered: Registered,
    ) -> None:
        self._kinds = kinds
        self._objects = objects
        self._groups = groups
        self._registered = registered

    def name(self, value: object) -> str | None:
        """Return the identity of an object that counts as a whole."""
        if id(value) in self._objects or isinstance(value, self._kinds):
            return f"id {id(value)}"
        return self._registered.stream(value)

    def at(self, address: int) -> str | None:
        """Return the identity of what has this `id`, if it counts as a whole."""
        return f"id {address}" if address in self._objects else None

    def keeps(self, owner: object, name: str) -> bool:
        """Tell whether a part is left out: nothing that is registered now, since others may be later."""
        return name == "params" and id(owner) in self._groups


class _Told:
    def __init__(self, places: Mapping[int, str], groups: Container[int], registered: Registered) -> None:
        self._places = places
        self._groups = groups
        self._registered = registered

    def name(self, value: object) -> str | None:
        return self._places.get(id(value)) or self._registered.name(value)

    def at(self, address: int) -> str | None:
        return self._places.get(address) or self._registered.at(address)

    def keeps(self, owner: object, name: str) -> bool:
        is_members = name == "params" and id(owner) in self._groups  # which are compared by name
        return is_members or self._registered.keeps(owner, name)


def _groups(optimizer: Any) -> list[Any]:
    """Return the groups of an optimizer, or of an object that has such."""
    groups = getattr(optimizer, "param_groups", ())
    return list(groups) if isinstance(groups, list | tuple) else []


def _places(optimizer: Any, names: Mapping[int, str]) -> Iterator[tuple[int, str]]:
    """Yield everything in an optimizer that stays where it is, by `id`."""
    yield id(optimizer), "itself"
    if not isinstance(optimizer, Optimizer):  # the groups and state of another object are attributes like any
        return
    for attribute in ("param_groups", "defaults", "state"):
        held = getattr(optimizer, attribute, None)
        if isinstance(held, dict | list):
            yield id(held), attribute
    state = getattr(optimizer, "state", {})
    for index, group in enumerate(_groups(optimizer)):
        if isinstance(group, dict):
            yield id(group), f"group {index}"
            yield id(group.get("params")), f"members of group {index}"
            yield from _tensors(group, f"group {index}")
    for parameter, slots in state.items() if isinstance(state, dict) else ():
        if isinstance(slots, dict):
            name = names.get(id(parameter), "a parameter")
            yield id(slots), f"state of {name}"
            yield from _tensors(slots, f"state of {name}")


def _passing_on(optimizer: Any) -> dict[int, str]:
    """Return the optimizers that one holds which step its own groups, and keep nothing to themselves."""
    return {
        id(held): f"{type_name(held)} over its groups"
        for held in getattr(optimizer, "__dict__", {}).values()
        if isinstance(held, Optimizer)
        and held.param_groups is getattr(optimizer, "param_groups", None)
        and (not held.state or held.state is getattr(optimizer, "state", None))
        and not own_attributes(held)
        and not known_attributes(held)
    }


def _tensors(holder: dict[Any, Any], where: str) -> Iterator[tuple[int, str]]:
    for key, value in holder.items():
        if isinstance(value, torch.Tensor):
            yield id(value), f"{where} {key}"


def described(
    name: str, value: Any, references: References, *, tells_owners: bool = False
) -> Description | UnsupportedState:
    """Describe an attribute; return the error if it can't be looked into."""
    if is_scheduler(value) and references.name(value) is None:
        return UnsupportedState("it has state, and is not registered", where=name, found=type_name(value))
    try:
        return describe(value, name, references, tells_owners=tells_owners)
    except UnsupportedState as error:
        return error
    except Exception as error:  # code of others runs here: `__getattr__`, properties of slots
        return UnsupportedState(
            f"it can't be looked into: {type(error).__name__}", where=name, found=type_name(value)
        )


NO_VIEWS = Views(NOTHING, NOTHING, NOTHING)
"""Of an optimizer without attributes of its own."""
