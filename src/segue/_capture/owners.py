"""Who steps which parameter: each trainable one of the model is stepped by one registered optimizer, and no other.

Wish: a resumed run updates what the run updated, with the state that it had.

Nothing in torch says so. A parameter that nobody steps trains on if somebody does outside of what was handed in, with
state that no record has; one that two step has two histories, of which a program that swaps them loses one without
a word. Both show only here, where all optimizers are known.

Masters that a program keeps by hand are stepped for half-precision parameters of the model, which nobody owns then:
where a module among the components has one of the same shape, that is admitted.

What it still loses: an object that is not a torch optimizer and has no `param_groups` does not say what it steps.
Beside one, nothing can be told to be stepped by nobody (ADR 0011).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from segue._capture.attributes import base_attributes
from segue._capture.memory import byte_range, storage_of
from segue._capture.scheduler import is_scheduler
from segue._capture.staging import is_plain, plain_parts, type_name
from segue.errors import UnsupportedState, some

_HALF = (torch.float16, torch.bfloat16)
_WIDE = (torch.float32, torch.float64)

Groups = list[list[torch.Tensor]]


def inner_optimizers(value: object, path: str = "") -> dict[str, Optimizer]:
    """Return the torch optimizers that an object holds, by where: in its attributes, or in lists or dictionaries there.

    It may be a torch optimizer itself, which is none of them.

    Of attributes that hold neither, those are searched in turn that are called like an optimizer, or can `step` as one
    can: an object around an object around an optimizer.
    """
    return {place: held for place, held in _inner(value, path).items() if isinstance(held, Optimizer)}


def inner_schedulers(value: object) -> dict[str, LRScheduler]:
    """Return the schedulers that an object holds, by where: likewise."""
    return {place: held for place, held in _inner(value, "").items() if is_scheduler(held)}


def _inner(value: object, path: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    _search(value, path, found, {id(value)})
    return found


def _search(value: object, path: str, found: dict[str, Any], seen: set[int]) -> None:
    for name, item in _attributes(value):
        for part, held in _held(item):
            if id(held) in seen:
                continue
            place = ".".join(filter(None, (path, name, part)))
            if isinstance(held, Optimizer) or is_scheduler(held):
                seen.add(id(held))
                found[place] = held
            elif _may_hold(name, held):
                seen.add(id(held))
                _search(held, place, found, seen)


def _attributes(value: object) -> Iterator[tuple[str, object]]:
    # Groups, state and hooks of a torch optimizer hold none, and can be long.
    torchs = base_attributes() if isinstance(value, Optimizer) else ()
    yield from ((name, item) for name, item in getattr(value, "__dict__", {}).items() if name not in torchs)
    for cls in type(value).__mro__:
        slots = vars(cls).get("__slots__", ())
        for name in [slots] if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                yield name, getattr(value, name)


def _may_hold(name: str, held: object) -> bool:
    if isinstance(held, torch.Tensor | nn.Module | type):
        return False
    return "optim" in name or (callable(getattr(held, "step", None)) and hasattr(held, "state_dict"))


def _held(item: object) -> Iterator[tuple[str, object]]:
    if isinstance(item, list | tuple):
        yield from ((str(index), each) for index, each in enumerate(item))
    elif isinstance(item, dict):
        yield from ((str(key), each) for key, each in item.items())
    else:
        yield "", item


def own_groups(value: object) -> Groups | None:
    """Return what an object of any kind says it steps, in `param_groups` of torch's shape; `None` if it doesn't say."""
    groups = getattr(value, "param_groups", None)
    if not isinstance(groups, list | tuple):
        return None
    if not all(isinstance(group, dict) and isinstance(group.get("params"), list | tuple) for group in groups):
        return None
    members = [list(group["params"]) for group in groups]
    return members if all(isinstance(each, torch.Tensor) for group in members for each in group) else None


def refuse_wrong_owners(
    optimizers: Mapping[str, object], parameters: Mapping[str, nn.Parameter], model: nn.Module
) -> None:
    """Raise if a trainable parameter of the model has no owner, or any registered one has two.

    Args:
        optimizers: All registered optimizers by name, torch's and others.
        parameters: The parameters of all registered modules by name.
        model: The model. What only other modules hold need not be stepped: an average of the weights is not.

    Raises:
        UnsupportedState: Naming the parameters, and of two owners both.

    Cost:
        A look at each parameter, and with several optimizers at where its memory is.
    """
    names = {id(parameter): name for name, parameter in parameters.items()}
    owned = _Owned(names)
    for name, optimizer in optimizers.items():
        groups = own_groups(optimizer) or []
        refuse_strangers(groups, names, f"optimizer.{name}")
        inner = inner_groups(optimizer)
        if isinstance(optimizer, Optimizer):
            owned.claim_each(groups, name)
            ours = {id(parameter) for group in groups for parameter in group}
            inner = [[parameter for parameter in group if id(parameter) not in ours] for group in inner]
            owned.claim_all(inner, name)
        else:
            owned.claim_all([*groups, *inner], name)
    if len(optimizers) > 1:
        owned.refuse_shared_memory()
    if optimizers and all(own_groups(optimizer) is not None for optimizer in optimizers.values()):
        _refuse_unowned(owned, parameters, model)


def inner_groups(value: object) -> Groups:
    """Return what the torch optimizers inside an object step."""
    return [group["params"] for inner in inner_optimizers(value).values() for group in inner.param_groups]


def refuse_strangers(groups: Groups, names: Mapping[int, str], scope: str) -> None:
    """Raise `UnsupportedState` if an optimizer steps a parameter of no registered module: it would be lost.

    Args:
        groups: The members of its groups.
        names: Of the parameters of all registered modules.
        scope: What the optimizer is called in messages.
    """
    for index, group in enumerate(groups):
        for position, parameter in enumerate(group):
            if id(parameter) not in names:
                raise UnsupportedState(
                    "an optimizer steps a parameter of no registered module", code="capture.unregistered_parameter",
                    where=f"{scope} group {index} parameter {position}",
                    found=f"{type_name(parameter)} of shape {tuple(parameter.shape)}",
                    hint="hand its module in as one of `components=`; for copies that it keeps and saves itself, hand in "
                    "an object with `capture`, `check` and `restore` that has no `param_groups`",
                )  # fmt: skip


def _refuse_unowned(owned: _Owned, parameters: Mapping[str, nn.Parameter], model: nn.Module) -> None:
    candidates = {
        id(parameter): name
        for name, parameter in parameters.items()
        if parameter.requires_grad and id(parameter) not in owned.owners
    }
    if not candidates:
        return
    ours = {id(parameter): parameter for parameter in model.parameters()}
    masters = Counter(
        tuple(parameter.shape)
        for key, (parameter, *_) in owned.owners.items()
        if key not in ours and parameter.dtype in _WIDE
    )
    unowned = [
        candidates[key]
        for key, parameter in ours.items()
        if key in candidates and not _takes(masters, parameter)
    ]
    if unowned:
        raise UnsupportedState(
            "parameters are trainable, and no optimizer owns them", code="capture.unowned_parameter", where="model",
            found=some(unowned),
            hint="freeze them with `requires_grad_(False)`, or hand in the optimizer that steps them: "
            "`Training(model, {name: optimizer, ...})`",
        )  # fmt: skip


def _takes(masters: Counter[tuple[int, ...]], parameter: torch.Tensor) -> bool:
    """Tell whether a half-precision parameter has a master left: it has gradients, and the master is stepped for it."""
    shape = tuple(parameter.shape)
    if parameter.dtype not in _HALF or masters[shape] == 0:
        return False
    masters[shape] -= 1
    return True


class _Owned:
    """Notes which optimizer owns each parameter, and refuses a second owner."""

    def __init__(self, names: Mapping[int, str]) -> None:
        self._names = names
        self.owners: dict[int, tuple[torch.Tensor, str, str]] = {}
        """By `id` of the parameter: itself, the name of its optimizer, and where in that it is."""

    def claim_each(self, groups: Groups, optimizer: str) -> None:
        """Claim the members of a torch optimizer's groups: each stands there once."""
        for index, group in enumerate(groups):
            for parameter in group:
                self._claim(parameter, optimizer, f"optimizer.{optimizer} group {index}")

    def claim_all(self, groups: Groups, optimizer: str) -> None:
        """Claim what another object steps: its groups may be those of an optimizer that it holds."""
        for parameter in {id(each): each for group in groups for each in group}.values():
            self._claim(parameter, optimizer, f"optimizer.{optimizer}")

    def _claim(self, parameter: torch.Tensor, optimizer: str, place: str) -> None:
        if id(parameter) in self.owners:
            *_, other = self.owners[id(parameter)]
            raise _owned_twice(self._name(parameter), f"{other} and {place}")
        self.owners[id(parameter)] = (parameter, optimizer, place)

    def refuse_shared_memory(self) -> None:
        """Raise if two parameters that lie over each other have two owners. In one optimizer they may."""
        memories: dict[tuple[str, int], list[tuple[int, int, str, str]]] = {}
        for parameter, optimizer, place in self.owners.values():
            for part in _plain(parameter):
                span = (*byte_range(part), optimizer, f"{self._name(parameter)} in {place}")
                memories.setdefault(storage_of(part), []).append(span)
        for spans in memories.values():
            if len(spans) > 1:
                self._refuse_overlap(sorted(spans))

    def _refuse_overlap(self, spans: list[tuple[int, int, str, str]]) -> None:
        reached: dict[str, tuple[int, str]] = {}
        for start, end, optimizer, place in spans:
            for other, (other_end, other_place) in reached.items():
                if other != optimizer and other_end > start:
                    raise _owned_twice(place.partition(" ")[0], f"one memory: {other_place}, and {place}")
            if end > reached.get(optimizer, (0, ""))[0]:
                reached[optimizer] = (end, place)

    def _name(self, parameter: torch.Tensor) -> str:
        return self._names.get(id(parameter), "a parameter of no registered module")


def _plain(parameter: torch.Tensor) -> Iterator[torch.Tensor]:
    for _, part in plain_parts(parameter):
        if is_plain(part) and part.numel() > 0 and part.device.type != "meta":
            yield part


def _owned_twice(name: str, owners: str) -> UnsupportedState:
    return UnsupportedState(
        "a parameter has two owners", code="capture.owned_twice", where=name, found=owners,
        hint="leave it to one of them; of two that take turns hand in the one that steps now, and of an optimizer and "
        "an object around it the outer one",
    )  # fmt: skip
