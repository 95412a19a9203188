"""Telling what it costs to store gradients that were used already."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from segue._capture.uncovered_frames import stacklevel
from segue.errors import ConsumedGradientsWarning


def warn_of_consumed_gradients(standing: Mapping[str, int]) -> None:
    """Warn of gradients that `step` has used and that still stand.

    Args:
        standing: Their bytes by the name of their optimizer.
    """
    told = ", ".join(f"optimizer.{name}: {num_bytes:,} bytes" for name, num_bytes in standing.items())
    warnings.warn(
        f"gradients that `step` has used already still stand in `.grad` ({told}); they may be wanted, so each checkpoint "
        "that is made at such a moment stores them. Call `zero_grad()` after `step()`, not before the next backward, to "
        "spare these bytes",
        ConsumedGradientsWarning,
        stacklevel=stacklevel(),
    )
