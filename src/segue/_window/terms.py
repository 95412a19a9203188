"""The terms of a window: what two accumulators must share for one to go on where the other stopped."""

from __future__ import annotations

import math

from segue._record.window import WindowState
from segue.errors import WindowError


def refuse_other_terms(state: WindowState, own: WindowState) -> None:
    """Raise `WindowError` if a recorded window differs in kind, dtype, loss scale or size, or contradicts itself."""
    for field in ("kind", "dtype", "loss_scale", "window_microbatches"):
        before, now = getattr(state, field), getattr(own, field)
        if before != now:
            raise WindowError(
                f"the accumulator has another {field.replace('_', ' ')}", code=f"window.{field}", where="accumulator",
                expected=before, found=now,
            )  # fmt: skip
    consistent = (
        state.microbatches >= 0
        and math.isfinite(state.total_weight)
        and state.total_weight >= 0
        and (state.microbatches > 0 or state.total_weight == 0)
    )
    if not consistent:
        raise WindowError(
            "the recorded window contradicts itself", code="window.state", where="accumulator",
            found=f"{state.microbatches} microbatches of total weight {state.total_weight}",
        )  # fmt: skip
