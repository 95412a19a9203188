"""Schedulers in the form of the seeds: prepared by the caller, or made for the restored optimizers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from segue._capture.component import ObjectRestore, check_component
from segue._capture.rebuilding import as_they_began, optimizers_in
from segue._capture.scheduler import check_scheduler, is_scheduler, optimizer_of, plan_scheduler
from segue._capture.staging import type_name
from segue._capture.writes import run_all
from segue._record.sections import ComponentRecord, SchedulerRecord
from segue._record.training import TrainingRecord
from segue._session.callers_capture import CALLERS_OPTIMIZERS
from segue._session.callers_checks import is_factory, recorded_schedulers, refuse_other_schedulers
from segue._session.live import by_name
from segue._session.refusals import refuse_all
from segue.errors import Finding, SchedulerMismatch


def restored_schedulers(record: TrainingRecord, scheduler: Any, optimizers: Any) -> Any:
    """Put schedulers into their recorded positions; none is stepped.

    Args:
        record: The record.
        scheduler: One, several by name, or a function of the live optimizers that makes them.
        optimizers: The live optimizers, in any shape.

    Returns:
        The scheduler, or schedulers, in the shape in which they were given or made.

    Raises:
        SchedulerMismatch: If one is on one side only, of another class or configuration, or drives another optimizer;
            no scheduler has changed.
        ComponentMismatch: If one that is not torch's refuses its state; it has been put back.
    """
    live = optimizers_in(optimizers)
    if is_factory(scheduler):
        with as_they_began(live):
            scheduler = scheduler(optimizers)
    given, recorded = by_name(scheduler, "scheduler"), recorded_schedulers(record)
    refuse_other_schedulers(recorded, given)
    names = _names(optimizers)
    findings = [
        finding
        for name in sorted(given)
        for finding in _findings(recorded[name], given[name], name, names, {id(item) for item in live})
    ]
    refuse_all(findings)
    _write(recorded, given)
    return scheduler


def _names(optimizers: Any) -> dict[int, str]:
    """Return the names of live optimizers that a caller keeps by name, as `Training` does."""
    if not isinstance(optimizers, Mapping):
        return {}
    return {id(item): name for name, value in optimizers.items() for item in optimizers_in(value)}


def _findings(
    record: SchedulerRecord | ComponentRecord,
    scheduler: Any,
    name: str,
    names: Mapping[int, str],
    live: set[int],
) -> Iterator[Finding]:
    scope = f"scheduler.{name}"
    if isinstance(record, SchedulerRecord) != is_scheduler(scheduler):
        yield Finding(
            SchedulerMismatch, f"{scope}.class", "another class of scheduler", scope, record.class_name,
            type_name(scheduler),
        )  # fmt: skip
    elif isinstance(record, ComponentRecord):
        yield from check_component(record, scheduler, name)
    else:
        driven = optimizer_of(scheduler)
        if live and id(driven) not in live:
            yield Finding(
                SchedulerMismatch, f"{scope}.optimizer", "it drives an optimizer that is not among the restored ones",
                scope, hint="hand in a function that makes it: `scheduler=lambda optimizers: ...`",
            )  # fmt: skip
        known = names if record.optimizer != CALLERS_OPTIMIZERS else {}
        yield from check_scheduler(record, scheduler, {id(driven): record.optimizer, **known}, scope)


def _write(recorded: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    others = {name: record for name, record in recorded.items() if isinstance(record, ComponentRecord)}
    ObjectRestore(
        {f"scheduler.{name}": record for name, record in others.items()},
        {f"scheduler.{name}": given[name] for name in others},
    ).run()
    for name in recorded.keys() - others.keys():
        run_all(plan_scheduler(recorded[name], given[name], f"scheduler.{name}", ()))
