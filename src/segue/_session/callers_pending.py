"""Pending gradients in the form of the seeds: into `.grad`, and into an accumulator that is made for them."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from segue._capture.gradients import (
    Parameters,
    check_gradients,
    check_trainable,
    check_window,
    plan_gradients,
    plan_window,
)
from segue._capture.naming import named_parameters
from segue._capture.writes import run_all
from segue._record.tensors import DTYPES
from segue._record.training import TrainingRecord
from segue._record.window import WindowRecord, WindowState
from segue._session.accumulators import GradientAccumulator, WeightedAccumulator
from segue._session.refusals import refuse_all
from segue.errors import ContractMismatch, Finding, InvalidRecord

Accumulator = GradientAccumulator | WeightedAccumulator


def refuse_unweighted(record: TrainingRecord) -> None:
    """Raise `ContractMismatch` for a record that has no weighted window to go on with."""
    kind = None if record.window is None else record.window.state.kind
    if kind != "weighted":
        raise ContractMismatch(
            "the record has no weighted window", code="window.kind", where="accumulator", expected="weighted",
            found=kind or "absent", hint="`restore` goes on with it",
        )  # fmt: skip


def refuse_impossible_window(record: TrainingRecord) -> None:
    """Raise for a window that no accumulator has, whatever the model.

    Raises:
        InvalidRecord: If there is no accumulator of its kind.
        WindowError: If its counters contradict each other.
    """
    if record.window is not None:
        _accumulator(record.window.state, nn.Module()).check_window(record.window.state)


def restored_pending(record: TrainingRecord, model: nn.Module, *, is_weighted: bool) -> Accumulator | None:
    """Restore pending gradients, each on its parameter's own device, and return the accumulator that has the sums.

    Raises:
        ContractMismatch: If one has no parameter, only a frozen one, or one that does not take it; or if the window
            contradicts itself. Nothing has changed.
    """
    parameters = named_parameters(model)
    window, accumulator = record.window, None
    if window is not None:
        window = window if is_weighted else replace(window, state=_plain(window.state))
        accumulator = _accumulator(window.state, model)
    findings = [
        *check_gradients(record.gradients, parameters),
        *check_trainable(record.gradients, parameters, "gradient"),
        *_window_findings(window, accumulator, parameters),
    ]
    refuse_all(findings)
    # Gradients that are allocated in inference mode could never be added to outside of it (torch 2.13).
    with torch.inference_mode(False):
        writes = plan_gradients(record.gradients, parameters)
        if window is not None and accumulator is not None:
            writes += plan_window(window, accumulator, parameters)
        run_all(writes)
    return accumulator


def _plain(state: WindowState) -> WindowState:
    """Return the counters of a plain window of the same microbatches: the weights are for the caller to divide by."""
    return replace(state, kind="plain", loss_scale=1.0, total_weight=float(state.microbatches))


def _accumulator(state: WindowState, model: nn.Module) -> Accumulator:
    dtype = DTYPES.get(state.dtype)
    if dtype is None or state.kind not in ("plain", "weighted"):
        raise InvalidRecord(
            "no accumulator has such a window",
            code="record.window",
            where="window",
            found=(state.kind, state.dtype),
        )
    if state.kind == "plain":
        return GradientAccumulator(model, dtype, state.window_microbatches)
    return WeightedAccumulator(model, dtype, state.window_microbatches, state.loss_scale)


def _window_findings(
    window: WindowRecord | None, accumulator: Accumulator | None, parameters: Parameters
) -> list[Finding]:
    if window is None or accumulator is None:
        return []
    return [
        *check_window(window, accumulator, parameters),
        *check_trainable(window.sums, parameters, "window"),
    ]
