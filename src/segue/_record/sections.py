"""The sections of a record that mirror live objects: modules, optimizers, schedulers, components, streams."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from segue._record.contract import TrainableContract
from segue._record.tensors import CapturedTensor


@dataclass(frozen=True)
class ModuleRecord:
    """A module's parameters, all of its buffers and its modes."""

    tensors: Mapping[str, CapturedTensor | None]
    """By canonical name, one per alias group; `None` for a registered buffer that is `None`."""
    training: Mapping[str, bool]
    """The `training` flag of each submodule by name; the module itself is `""`."""
    contract: TrainableContract


@dataclass(frozen=True)
class GroupRecord:
    """One `param_group`: its members by name, in order, and its options."""

    parameters: tuple[str, ...]
    options: Any
    """A dictionary of trees: every key but `params`, the caller's own keys included."""
    configured: Any
    """The options as they were when the optimizer was first bound to a `Training`: what the program asked for."""


@dataclass(frozen=True)
class OptimizerRecord:
    """A torch optimizer: groups by name and state by parameter name and slot."""

    class_name: str
    groups: tuple[GroupRecord, ...]
    state: Mapping[str, Any]
    """State by parameter name; a parameter that never had state is absent."""


@dataclass(frozen=True)
class SchedulerRecord:
    """A learning-rate scheduler: where it stands, and how it was configured."""

    class_name: str
    optimizer: str
    """The name of the optimizer that it drives."""
    configuration: Any
    """Constructor options and fingerprints of callables; compared at restore."""
    position: Any
    """What moves; restored."""
    children: tuple[SchedulerRecord, ...]
    """Nested schedulers, as in `SequentialLR`."""
    outstanding_steps: int
    """Optimizer steps since this scheduler last moved."""
    usual_steps: int | None
    """Optimizer steps between its last two moves; `None` before the second move."""


@dataclass(frozen=True)
class ComponentRecord:
    """Any other object with state that was registered by name."""

    kind: str
    """`module`, `state_dict`, or `component` for an object with `capture`, `check`, `restore`."""
    class_name: str
    module: ModuleRecord | None
    """The state of a component that is a module."""
    tree: Any
    """The state of any other."""
