"""Telling of counters that can't count on, when they are kept and when they are restored."""

from __future__ import annotations

import warnings

from segue._capture.uncovered_frames import stacklevel
from segue._record.counters import StuckCounter, stuck_counters
from segue._record.training import TrainingRecord
from segue.errors import CounterWarning


def warn_of_stuck_counters(record: TrainingRecord) -> None:
    """Warn once for each part of a training that has such counters.

    Args:
        record: What is kept, or about to be restored; the counters are read.
    """
    stuck: dict[str, list[StuckCounter]] = {}
    for counter in stuck_counters(record):
        stuck.setdefault(counter.where, []).append(counter)
    for where, counters in stuck.items():
        first = counters[0]
        others = f" (and {len(counters) - 1} more)" if len(counters) > 1 else ""
        warnings.warn(
            f"{where}: the {first.name}{others} is {first}. It is kept as it is; cast it to {first.wider} before going on.",
            CounterWarning,
            stacklevel=stacklevel(),
        )
