"""The live objects of one training, by name: what capture reads and restore writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from segue._capture.asked import is_initialised
from segue._capture.attributes import own_attributes
from segue._capture.component import kind_of
from segue._capture.gradients import PendingSource
from segue._capture.hidden import remember_attributes
from segue._capture.naming import NamedTensor, named_tensors
from segue._capture.opaque import bind_opaque, refuse_no_optimizer, torch_optimizers
from segue._capture.owners import inner_schedulers
from segue._capture.registered import NOTHING, Registered
from segue._capture.rng import RngStreams
from segue._capture.scaler import bind_scaler
from segue._capture.scheduler import is_scheduler
from segue._capture.sharing import shared_between
from segue._capture.staging import plain_parts, type_name
from segue._session.bound_model import BoundModelState
from segue.errors import TiedParameterConflict, UnsupportedState

T = TypeVar("T")
_PENDING_SOURCE = ("window_state", "parameters", "sums", "handed_out", "check_window", "replace_window")


@dataclass(frozen=True)
class LiveTraining:
    """What was handed to `Training`, in one shape: everything by name."""

    model: nn.Module
    optimizers: Mapping[str, Optimizer]
    """Those of torch, which are read."""
    schedulers: Mapping[str, LRScheduler]
    accumulator: PendingSource | None
    components: Mapping[str, Any]
    rng: RngStreams | None
    model_state: BoundModelState
    """What of the model is captured."""
    opaque: Mapping[str, Any] = field(default_factory=dict)
    """Optimizers that are asked for their state whole: those that are not torch's, or save in a way of their own."""

    def modules(self) -> dict[str, nn.Module]:
        """Return every registered module by the prefix of its parameters' names; the model's is empty."""
        found = {"": self.model}
        for name, value in self.components.items():
            if isinstance(value, nn.Module):
                found[f"{name}/"] = value
        return found

    def modules_by_scope(self) -> dict[str, nn.Module]:
        """Return every registered module by what messages call it: `model`, `component.ema`."""
        return {
            f"component.{prefix[:-1]}" if prefix else "model": each for prefix, each in self.modules().items()
        }

    def tensors(self) -> Iterator[tuple[str, NamedTensor]]:
        """Yield every tensor of the registered modules by its name: a component's has the component's before its own."""
        for prefix, module in self.modules().items():
            for name, item in named_tensors(module, prefix or "model").items():
                yield prefix + name, item

    def shares(self) -> dict[str, Any]:
        """Return what each component that is a module shares with the model or a component before it, by name."""
        names = sorted(name for name, value in self.components.items() if isinstance(value, nn.Module))
        if not names:
            return {}
        modules = {"model": self.model, **{f"component.{name}": self.components[name] for name in names}}
        found = shared_between(modules)
        return {name: found[f"component.{name}"] for name in names}

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return the distinct parameters of all registered modules by canonical name.

        A component's parameters have its name before theirs: `loss/centers`. One that the model holds too keeps
        the model's name.

        Raises:
            TiedParameterConflict: If two parameters get one name.
        """
        found: dict[str, nn.Parameter] = {}
        seen: set[int] = set()
        for name, item in self.tensors():
            if isinstance(item.tensor, nn.Parameter) and id(item.tensor) not in seen:
                if name in found:
                    raise TiedParameterConflict("two parameters have one name", where=name)
                seen.add(id(item.tensor))
                found[name] = item.tensor
        return found

    def versions(self) -> list[int]:
        """Return the version counters of all registered tensors, and of what they consist of; in-place writes move them."""
        return [
            tensor._version
            for _, item in self.tensors()
            if item.tensor is not None
            for tensor in (item.tensor, *(part for _, part in plain_parts(item.tensor)))
            if not tensor.is_inference()
        ]

    def scheduled(self) -> dict[str, Optimizer]:
        """Return every torch optimizer by name, also those inside others: `lookahead.optimizer`. Schedulers drive these."""
        return {name: optimizer for name, optimizer in self.driven().items() if is_initialised(optimizer)}

    def driven(self) -> dict[str, Optimizer]:
        """Return those, and what only looks like a torch optimizer: a schedule may hang on it, and can't be counted."""
        found = dict(self.optimizers)
        for name, value in self.opaque.items():
            found |= torch_optimizers(value, name)
        return found

    def held_schedulers(self) -> list[LRScheduler]:
        """Return the schedulers that optimizers hold themselves, which are asked for their state whole."""
        return [each for value in self.opaque.values() for each in inner_schedulers(value).values()]

    def registered(self) -> Registered:
        """Return everything here that a capture keeps, by what it is called."""
        objects: dict[str, object] = {"model": self.model, "accumulator": self.accumulator, "rng": self.rng}
        objects |= {f"component.{name}": value for name, value in self.components.items()}
        objects |= {
            f"optimizer.{name}": value for name, value in [*self.optimizers.items(), *self.opaque.items()]
        }
        objects |= {f"scheduler.{name}": value for name, value in self.schedulers.items()}
        tensors = {id(item.tensor): name for name, item in self.tensors() if item.tensor is not None}
        present = {name: value for name, value in objects.items() if value is not None}
        return Registered(present, tensors, self.roots())

    def roots(self) -> dict[str, object]:
        """Return everything that was handed in, by the beginning of the paths of what is in it."""
        found: dict[str, object] = {"model": self.model}
        found |= {f"component.{name}": self.components[name] for name in sorted(self.components)}
        optimizers = {**self.optimizers, **self.opaque}
        found |= {f"optimizer.{name}": optimizers[name] for name in sorted(optimizers)}
        found |= {f"scheduler.{name}": self.schedulers[name] for name in sorted(self.schedulers)}
        if self.accumulator is not None:
            found["accumulator"] = self.accumulator
        return {**found, **self.model_state.objects()}

    def asked(self) -> list[str]:
        """Return which of the roots are told their state by code of their own, which may make what was not there."""
        components = [name for name, value in self.components.items() if kind_of(value, name) != "module"]
        return [
            *(f"component.{name}" for name in components),
            *(f"optimizer.{name}" for name in self.opaque),
            *self.model_state.objects(),
        ]

    def optimizer_names(self) -> dict[int, str]:
        """Return the name of each torch optimizer by its `id`."""
        return {id(optimizer): name for name, optimizer in self.scheduled().items()}


def remember_all(live: LiveTraining) -> None:
    """Remember what optimizers keep in attributes, and factors of gradient scalers, the first time that each is seen."""
    any_own = live.opaque or any(own_attributes(optimizer) for optimizer in live.optimizers.values())
    names = parameter_names(live.parameters()) if any_own else {}
    registered = live.registered() if any_own else NOTHING
    for optimizer in live.optimizers.values():
        remember_attributes(optimizer, names, registered)
    for value in live.opaque.values():
        bind_opaque(value, names, registered)
    for component in live.components.values():
        bind_scaler(component)


def parameter_names(parameters: Mapping[str, nn.Parameter]) -> dict[int, str]:
    """Return the name of each parameter by its `id`."""
    return {id(parameter): name for name, parameter in parameters.items()}


def by_name(values: T | Mapping[str, T] | None, alone: str) -> dict[str, T]:
    """Put a single object under its default name; keep a mapping's own names."""
    if values is None:
        return {}
    named = dict(values) if isinstance(values, Mapping) else {alone: values}
    for name in named:
        if not isinstance(name, str) or not name or not name.isprintable():
            raise TypeError(f"names are non-empty printable strings, not {name!r}")
    return named


def refuse_no_model(model: object) -> None:
    """Raise `UnsupportedState` for a model that is no module."""
    if not isinstance(model, nn.Module):
        raise _not_supported("the model must be a torch.nn.Module", "model", model)


def refuse_wrong_kinds(live: LiveTraining) -> None:
    """Raise `UnsupportedState` for an object that is not what its place in `Training` takes."""
    for name, optimizer in live.opaque.items():
        refuse_no_optimizer(optimizer, f"optimizer.{name}")
    for name, scheduler in live.schedulers.items():
        if not is_scheduler(scheduler):
            raise _no_scheduler(name, scheduler)
        if id(scheduler.optimizer) not in live.optimizer_names():
            raise _drives_another(scheduler.optimizer, name, live)
    if live.accumulator is not None:
        refuse_no_accumulator(live.accumulator)
    if live.rng is not None and not isinstance(live.rng, RngStreams):
        raise _not_supported("rng takes `RngStreams()` or None", "rng", live.rng)
    for name, value in live.components.items():
        if isinstance(value, list | tuple):
            raise _not_supported("components are given by name", f"component.{name}", value)
        kind_of(value, name)


def refuse_no_accumulator(value: object) -> None:
    """Raise `UnsupportedState` for an accumulator that is none."""
    if not all(hasattr(value, name) for name in _PENDING_SOURCE):
        raise _not_supported(
            "an accumulator must be a GradientAccumulator or WeightedAccumulator", "accumulator", value
        )


def _drives_another(optimizer: object, scheduler: str, live: LiveTraining) -> UnsupportedState:
    is_known = any(optimizer is each for each in live.driven().values())
    if isinstance(optimizer, Optimizer) and not is_known:
        what, found = "a scheduler drives another optimizer", "an optimizer that is not registered"
    else:
        what, found = (
            "a scheduler drives what is no torch optimizer: its steps can't be counted",
            type_name(optimizer),
        )
    hint = "make it for the torch optimizer inside, as before `accelerator.prepare`" if is_known else None
    return UnsupportedState(what, where=f"scheduler.{scheduler}", found=found, hint=hint)


def _no_scheduler(name: str, value: object) -> UnsupportedState:
    error = _not_supported("a scheduler must be a torch LRScheduler", f"scheduler.{name}", value)
    if is_scheduler(getattr(value, "scheduler", None)):  # accelerate's
        error.hint = "hand in the one inside: `scheduler.scheduler`"
    return error


def _not_supported(what: str, where: str, value: object) -> UnsupportedState:
    hint = None
    if isinstance(value, list | tuple):
        hint = 'give several by name, `{"a": ..., "b": ...}`: names are how a checkpoint knows them'
    return UnsupportedState(what, where=where, found=type_name(value), hint=hint)
