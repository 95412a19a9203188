"""The terms of a window: what two accumulators must share for one to go on where the other stopped."""

from __future__ import annotations

import torch

from segue._record.window import WindowState
from segue._window.weights import is_representable, vanishes
from segue.errors import ContractMismatch, Finding, WindowError, shown

MAX_MICROBATCHES = 2**64 - 1
_TERMS = {
    "kind": "the accumulator is of another kind",
    "dtype": "the accumulator keeps its sums in another dtype",
    "loss_scale": "the accumulator has another loss scale",
    "window_microbatches": "the accumulator has windows of another number of microbatches",
}


def refuse_other_terms(state: WindowState, own: WindowState) -> None:
    """Raise one `WindowError` for all in which a recorded window differs: kind, dtype, loss scale, size."""
    findings = [
        Finding(
            ContractMismatch,
            f"window.{field}",
            what,
            "accumulator",
            getattr(state, field),
            getattr(own, field),
            "an open window keeps its terms: build the accumulator as it was, or change it between windows",
        )
        for field, what in _TERMS.items()
        if getattr(state, field) != getattr(own, field)
    ]
    if findings:
        first, *also = findings
        raise WindowError(
            first.what, code=first.code, where=first.where, expected=first.expected, found=first.found, hint=first.hint,
            also=also,
        )  # fmt: skip


def refuse_contradictions(state: WindowState, dtype: torch.dtype) -> None:
    """Raise `WindowError` if the counters of a recorded window can't have come about."""
    count, total = state.microbatches, state.total_weight
    size = state.window_microbatches
    consistent = (
        0 <= count <= MAX_MICROBATCHES
        and (size is None or count <= size)
        and total >= 0
        and is_representable(total, dtype)
        and not vanishes(total, dtype)
        and (count > 0 or total == 0)
        and (state.kind != "plain" or total == float(count))
    )
    if not consistent:
        raise WindowError(
            "the recorded window contradicts itself", code="window.state", where="accumulator",
            expected="counters that a window can have",
            found=f"{shown(count)} of {shown(size)} microbatches, total weight {shown(total)}",
        )  # fmt: skip
