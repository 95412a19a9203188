"""The terms of a window: what two accumulators must share for one to go on where the other stopped."""

from __future__ import annotations

import torch

from segue._record.window import WindowState
from segue._window.weights import is_representable, vanishes
from segue.errors import WindowError

MAX_MICROBATCHES = 2**64 - 1


def refuse_other_terms(state: WindowState, own: WindowState) -> None:
    """Raise `WindowError` if a recorded window differs in kind, dtype, loss scale or size."""
    for field in ("kind", "dtype", "loss_scale", "window_microbatches"):
        before, now = getattr(state, field), getattr(own, field)
        if before != now:
            raise WindowError(
                f"the accumulator has another {field.replace('_', ' ')}", code=f"window.{field}", where="accumulator",
                expected=before, found=now,
            )  # fmt: skip


def refuse_contradictions(state: WindowState, dtype: torch.dtype) -> None:
    """Raise `WindowError` if the counters of a recorded window can't have come about."""
    count, total = state.microbatches, state.total_weight
    size = state.window_microbatches
    consistent = (
        0 <= count <= (MAX_MICROBATCHES if size is None else size)
        and total >= 0
        and is_representable(total, dtype)
        and not vanishes(total, dtype)
        and (count > 0 or total == 0)
        and (state.kind != "plain" or total == float(count))
    )
    if not consistent:
        raise WindowError(
            "the recorded window contradicts itself", code="window.state", where="accumulator",
            expected="counters that a window can have", found=f"{count} of {size} microbatches, total weight {total}",
        )  # fmt: skip
