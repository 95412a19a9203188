"""Restore in the form of the seeds: through the caller's functions, in one fixed order.

What can be told from the record alone is refused before any function is called: its version, damaged bytes, gradients
that its own contract does not know. From then on the functions act, perhaps with collectives of their own, and nothing
they did is undone; but what is segue's to write, gradients and scheduler, is written when everything was checked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from segue._capture.staging import type_name
from segue._record.training import TrainingRecord as Value
from segue._record.tree import thaw
from segue._session.accumulators import GradientAccumulator, WeightedAccumulator
from segue._session.callers_checks import (
    refuse_elsewhere,
    refuse_left_over,
    refuse_other_parameters,
    verified,
)
from segue._session.callers_pending import refuse_impossible_window, restored_pending
from segue._session.callers_schedulers import restored_schedulers
from segue._session.callers_values import is_callers_form
from segue._session.former_names import with_names_of_today
from segue._session.refusals import environment_findings, refuse_other_version, warn_of_environment

if TYPE_CHECKING:
    from segue._session.record import TrainingRecord


@dataclass(frozen=True)
class RestoredTraining:
    """A training that was restored through the caller's functions."""

    model: nn.Module
    """What the last of them returned."""
    optimizer: Any
    """The live optimizers, exactly as they were returned; `None` if the record has none."""
    scheduler: Any
    """The scheduler that was prepared, or made, in its recorded position."""
    accumulator: GradientAccumulator | WeightedAccumulator | None
    """A new one with the recorded window; `None` if the record was made without one."""
    state: Any
    """The caller's state; of a weighted window in a plain accumulator, the pair of its counters and that."""


@dataclass(frozen=True)
class Callbacks:
    """The functions that a caller restores with."""

    restore_model: Callable[[Any, Any], nn.Module | None]
    restore_groups: Callable[[Any, Any], tuple[nn.Module, Any]] | None
    restore_optimizer: Callable[[Any, Any, Any], Any] | None


@dataclass(frozen=True)
class _Handed:
    """What the functions are given."""

    model_state: Any
    groups: Any
    state: Any


def restore(
    record: TrainingRecord,
    callbacks: Callbacks,
    model: Any,
    scheduler: Any,
    device: str | torch.device | None,
    *,
    is_weighted: bool = False,
) -> RestoredTraining:
    """Restore a record, as `TrainingRecord.restore` tells."""
    refuse_other_version(record)
    refuse_left_over(record, scheduler)
    _refuse_ambiguous(record, callbacks)
    value = verified(record.without_given())
    refuse_impossible_window(value)
    warn_of_environment(environment_findings(value))
    handed = _handed(record, value)
    model = _model(callbacks.restore_model(handed.model_state, model), model, "restore_model")
    wanted = device if device is not None else _requested(record)
    if wanted is not None:
        refuse_elsewhere(model, wanted)
    value = with_names_of_today(value, {"": model})
    refuse_other_parameters(value, model, has_optimizers=False)
    model, optimizers = _restored_optimizers(callbacks, handed, model)
    refuse_other_parameters(value, model, has_optimizers=True)
    accumulator = restored_pending(value, model, is_weighted=is_weighted)
    scheduler = restored_schedulers(value, scheduler, optimizers)
    state = value.state if is_weighted else handed.state
    return RestoredTraining(model, optimizers, scheduler, accumulator, state)


def _requested(record: TrainingRecord) -> str | None:
    """Return where a record was loaded for; groups of the caller's may be on any devices."""
    return record.placed_on if record.kind == "model_state" else None


def _refuse_ambiguous(record: Value, callbacks: Callbacks) -> None:
    """Raise if it isn't clear who restores the optimizers: what nobody restores would be lost without a word."""
    if callbacks.restore_groups is not None and callbacks.restore_optimizer is not None:
        raise TypeError("restore takes one of restore_groups and restore_optimizer, not both")
    has_groups = record.groups is not None or record.optimizers or record.opaque_optimizers
    if has_groups and callbacks.restore_groups is None and callbacks.restore_optimizer is None:
        raise TypeError("the record has optimizers; give restore_groups or restore_optimizer")


def _handed(record: TrainingRecord, value: Value) -> _Handed:
    """Return what `capture` was given, or after loading, its equal; of a record that `Training` made, its sections."""
    state = _beside_counters(value)
    if record.is_given:
        return _Handed(record.model_state, record.groups, state)
    base = value.model.base
    is_callers_model = base is not None and base.source == "model_state"
    groups = value.groups
    if not is_callers_form(value):
        groups = {**value.optimizers, **(value.opaque_optimizers or {})}
    return _Handed(thaw(value.model_state) if is_callers_model else value.model, thaw(groups), state)


def _beside_counters(value: Value) -> Any:
    """Return the caller's state, and with a weighted window the pair that the seeds store."""
    if value.window is None or value.window.state.kind != "weighted":
        return value.state
    return value.window.state, value.state


def _restored_optimizers(callbacks: Callbacks, handed: _Handed, model: nn.Module) -> tuple[nn.Module, Any]:
    if callbacks.restore_groups is not None:
        returned = callbacks.restore_groups(model, handed.groups)
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise TypeError(
                f"restore_groups returns the model and the live optimizers, not {type_name(returned)}"
            )
        restored, optimizers = returned
        return _model(restored, model, "restore_groups"), optimizers
    if callbacks.restore_optimizer is not None:
        return model, callbacks.restore_optimizer(model, handed.state, handed.groups)
    return model, None


def _model(returned: Any, given: Any, function: str) -> nn.Module:
    """Return the model that a function returned; who fills one in place may return nothing."""
    model = given if returned is None else returned
    if not isinstance(model, nn.Module):
        raise TypeError(f"{function} returns the model, not {type_name(model)}")
    return model
