"""What only the record has, or only the program: parameters that came or went on purpose.

A parameter that is gone takes with it what was recorded of it alone: its gradient, its sum, its state. That it is gone is
told once, of its module.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TypeVar

from segue._record.gradients import GradientsRecord
from segue._record.sections import ModuleRecord
from segue._record.training import TrainingRecord
from segue._session.live import LiveTraining

S = TypeVar("S")


def recorded_modules(record: TrainingRecord) -> dict[str, ModuleRecord]:
    """Return every recorded module by the prefix of its names, as `LiveTraining.modules` does the live ones."""
    components = {f"{name}/": item.module for name, item in record.components.items()}
    return {"": record.model, **{name: module for name, module in components.items() if module is not None}}


def one_sided_names(record: TrainingRecord, live: LiveTraining) -> frozenset[str]:
    """Return the names of tensors that only the record's modules have, or only the program's."""
    recorded = {
        prefix + name
        for prefix, module in recorded_modules(record).items()
        for name in module.contract.tensors
    }
    return frozenset(recorded ^ {name for name, _ in live.tensors()})


def without_gone(record: TrainingRecord, live: LiveTraining) -> TrainingRecord:
    """Return the record without pending gradients of parameters that the program does not have, which is told of these."""
    return without_pending(record, one_sided_names(record, live))


def without_pending(record: TrainingRecord, gone: frozenset[str]) -> TrainingRecord:
    """Return the record without what is pending of some parameters."""
    window = record.window
    if gone.isdisjoint(
        [
            *record.gradients.names,
            *(window.sums.names if window else ()),
            *(window.handed_out if window else ()),
        ]
    ):
        return record
    if window is not None:
        handed_out = tuple(name for name in window.handed_out if name not in gone)
        window = replace(window, sums=_select(window.sums, gone), handed_out=handed_out)
    return replace(record, gradients=_select(record.gradients, gone), window=window)


def _select(gradients: GradientsRecord, gone: Collection[str]) -> GradientsRecord:
    return gradients.select(name for name in gradients.names if name not in gone)


def left_frozen(live: LiveTraining, accepted: frozenset[str]) -> frozenset[str]:
    """Return the parameters that were accepted to have left their optimizer, and are frozen in the program: so they stay."""
    if not any(".missing." in code for code in accepted):
        return frozenset()
    optimizers = [*live.optimizers, *live.opaque]
    return frozenset(
        name
        for name, parameter in live.parameters().items()
        if not parameter.requires_grad
        and any(f"optimizer.{optimizer}.missing.{name}" in accepted for optimizer in optimizers)
    )


def shared_part(record: TrainingRecord, live: LiveTraining) -> TrainingRecord:
    """Return what of an admitted record the program has a place for."""
    record = without_gone(record, live)
    opaque = record.opaque_optimizers
    return replace(
        record,
        optimizers=_of(record.optimizers, live.optimizers),
        opaque_optimizers=None if opaque is None else _of(opaque, live.opaque),
        schedulers=_of(record.schedulers, live.schedulers),
        components=_of(record.components, live.components),
    )


def _of(recorded: Mapping[str, S], live: Collection[str]) -> dict[str, S]:
    return {name: section for name, section in recorded.items() if name in live}
