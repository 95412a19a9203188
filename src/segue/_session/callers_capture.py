"""Capture in the form of the seeds: what the caller has captured, beside pending gradients and a scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from segue._capture.boundary import refuse_inside_backward
from segue._capture.component import capture_object, kind_of
from segue._capture.environment import capture_environment
from segue._capture.gradients import Parameters, PendingSource, capture_gradients, capture_window
from segue._capture.naming import named_parameters
from segue._capture.plain import freeze
from segue._capture.scheduler import capture_scheduler, is_scheduler
from segue._capture.staging import type_name
from segue._capture.trainable import (
    Pending,
    refuse_frozen_pending,
    refuse_unfit_pending,
    trainable_contract,
)
from segue._record.base import BaseRecord
from segue._record.contract import TrainableContract
from segue._record.sections import ComponentRecord, ModuleRecord, SchedulerRecord
from segue._session.live import by_name, refuse_no_accumulator, refuse_no_model
from segue.errors import UnsupportedState

CALLERS_OPTIMIZERS = "groups"
"""What a scheduler drives, where segue does not know the optimizers."""


def capture(
    model: nn.Module,
    *,
    model_state: Any,
    groups: Any,
    scheduler: Any,
    accumulator: PendingSource | None,
    state: Any,
) -> dict[str, Any]:
    """Return the sections of a record that segue fills: all but what the caller has made."""
    refuse_inside_backward()
    refuse_no_model(model)
    if accumulator is not None:
        refuse_no_accumulator(accumulator)
    parameters = named_parameters(model)
    contract = _checked(model, parameters, accumulator)
    gradients = capture_gradients(parameters)
    window = None if accumulator is None else capture_window(accumulator, parameters)
    schedulers, others = _schedulers(by_name(scheduler, "scheduler"))
    base = BaseRecord("model_state", type_name(model_state), dict.fromkeys(contract.tensors))
    return {
        "model": ModuleRecord({}, {}, contract, base),
        "optimizers": {},
        "schedulers": schedulers,
        "gradients": gradients,
        "window": window,
        "components": others,
        "streams": None,
        "caller_state": freeze(state, "state"),
        "environment": capture_environment(),
        "kind": "model_state" if groups is None else "groups",
    }


def _checked(
    model: nn.Module, parameters: Parameters, accumulator: PendingSource | None
) -> TrainableContract:
    """Check what is pending against the model; return the contract, which is part of that."""
    pending = _pending(parameters, accumulator)
    refuse_unfit_pending(pending, parameters)
    contract = trainable_contract(model)
    refuse_frozen_pending(pending, parameters)
    return contract


def _pending(parameters: Parameters, accumulator: PendingSource | None) -> list[tuple[Any, Any]]:
    standing = [(item, item.grad) for item in parameters.values() if item.grad is not None]
    summed: Pending = () if accumulator is None else accumulator.sums()
    return [*summed, *standing]


def _schedulers(
    given: Mapping[str, Any],
) -> tuple[dict[str, SchedulerRecord], dict[str, ComponentRecord]]:
    """Capture torch's schedulers, and those that only know a state of their own."""
    known, others = {}, {}
    for name, value in given.items():
        scope = f"scheduler.{name}"
        if is_scheduler(value):
            known[name] = capture_scheduler(value, CALLERS_OPTIMIZERS, 0, None, scope)
        elif kind_of(value, name) == "module":
            raise UnsupportedState("a scheduler is no module", where=scope, found=type_name(value))
        else:
            others[name] = capture_object(value, scope)
    return known, others
