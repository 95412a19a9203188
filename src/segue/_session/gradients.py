"""Gradients alone, without a `Training`: what stands in `.grad`, or in a table of one's own, as a value and back."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from segue._capture import gradients as pending
from segue._capture.boundary import refuse_inside_backward
from segue._capture.naming import named_parameters
from segue._capture.staging import type_name
from segue._capture.writes import run_all
from segue._record.gradients import GradientsRecord
from segue._record.quantized import QuantizedTensor
from segue._session.former_names import gradients_with_names_of_today
from segue.errors import InvalidRecord, MismatchError, PendingGradientError, UnsupportedState

GradientTable = Mapping[str, torch.Tensor | QuantizedTensor]


def capture_gradients(source: nn.Module | GradientTable) -> GradientsRecord:
    """Take the pending gradients as a value, without clearing them.

    Args:
        source: A module, whose `.grad` are taken by canonical name, a tied one once; or a table of gradients by
            parameter name, quantized ones too. Shapes, dtypes, layouts and devices are kept as they are.

    Returns:
        The gradients, sorted by name, in host memory that only the record owns. What has no gradient is absent.

    Raises:
        NotAtBoundary: Inside a backward, of a module.
        PendingGradientError: If a frozen parameter has a gradient, or a table has no tensor under a name.
        UnsupportedState: If a gradient is part of a graph, overlaps another without being the same memory, or can't
            be kept.

    Guarantees:
        Read-only. `restore_gradients` gives every bit back.

    Cost:
        One copy of each gradient into host memory; blocks until device reads are complete.

    Collective:
        No.
    """
    if isinstance(source, nn.Module):
        refuse_inside_backward()
        return pending.capture_gradients(named_parameters(source))
    if not isinstance(source, Mapping):
        raise UnsupportedState(
            "gradients are taken of a module or of a table by name", code="gradients.source", where="capture_gradients",
            found=type_name(source),
        )  # fmt: skip
    _refuse_missing(source)
    record = pending.capture_table(
        {name: value for name, value in source.items() if isinstance(value, torch.Tensor)}, "gradient"
    )
    quantized = {
        name: value.to_host() for name, value in source.items() if isinstance(value, QuantizedTensor)
    }
    return GradientsRecord({**record.tensors, **quantized}, record.shared)


def _refuse_missing(table: GradientTable) -> None:
    for name, value in table.items():
        if not isinstance(value, torch.Tensor | QuantizedTensor):
            raise PendingGradientError(
                "a name has no gradient", code="gradients.missing", where=f"gradient of {name}", found=None if value is None else type_name(value),
                hint="leave it out: absent is not zero",
            )  # fmt: skip


def restore_gradients(record: GradientsRecord, model: nn.Module) -> None:
    """Put recorded gradients into `.grad`, each on its parameter's own device.

    They replace what stands there, and are never added to it: a parameter without a recorded gradient has none
    afterwards.

    Args:
        record: From `capture_gradients`, a `TrainingRecord`, or `GradientsRecord.from_entries`. Not changed, and not
            shared with afterwards.
        model: Whose parameters; restore their values from the same checkpoint first.

    Raises:
        ContractMismatch: If a gradient has no parameter here, only a frozen one, or one of another shape, or if it
            is quantized or of a dtype that the parameter does not take (see `Parameter.grad_dtype`).
        LossyRecord: If a gradient was stored in a precision that lost bits.
        InvalidRecord: If a sparse gradient's indices are out of range.
        StoreError: If stored bytes do not match their checksums.

    Guarantees:
        Every gradient is checked, its bytes verified and its memory allocated before the first is placed; after a
        refusal nothing has changed.

    Cost:
        Two reads of each stored gradient, and one copy to its device.

    Collective:
        No.
    """
    if not isinstance(record, GradientsRecord) or not isinstance(model, nn.Module):
        raise InvalidRecord(
            "not a gradients record and a module", code="gradients.record", where="restore_gradients",
            expected="(GradientsRecord, torch.nn.Module)", found=(type(record).__name__, type(model).__name__),
        )  # fmt: skip
    record, parameters = gradients_with_names_of_today(record, model), named_parameters(model)
    findings = [
        *pending.check_gradients(record, parameters),
        *pending.check_lossless(record, "gradient"),
        *pending.check_trainable(record, parameters, "gradient"),
    ]
    if findings:
        raise MismatchError.of(findings)
    record.verify()
    record = record.in_own_dtypes()
    # Gradients that are allocated in inference mode could never be added to outside of it (torch 2.13).
    with torch.inference_mode(False):
        run_all(pending.plan_gradients(record, parameters))
