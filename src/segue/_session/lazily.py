"""Lazily built modules of a training, which get the shapes of a record."""

from __future__ import annotations

from segue._capture.lazily import Materialised
from segue._record.training import TrainingRecord
from segue._session.live import LiveTraining
from segue._session.one_sided import recorded_modules


def materialised(record: TrainingRecord, live: LiveTraining) -> Materialised:
    """Return what gives the lazy tensors of a training's modules memory: for the time of a check, or for good."""
    modules = live.modules()
    return Materialised(
        (module, modules[prefix], f"component.{prefix.removesuffix('/')}" if prefix else "model")
        for prefix, module in recorded_modules(record).items()
        if prefix in modules
    )
