"""Schedules, between a record and a program: what differs, and what is put back where a change was accepted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

from torch.optim.lr_scheduler import LRScheduler

from segue._capture.clock import ScheduleClock
from segue._capture.membership import match_groups
from segue._capture.optimizer import group_names
from segue._capture.replay import can_replay, plan_replayed_options, replayed
from segue._capture.scheduler import check_scheduler, optimizer_of, plan_scheduler
from segue._capture.writes import ObjectWrite, Write
from segue._record.sections import SchedulerRecord
from segue._record.training import TrainingRecord
from segue._session.live import LiveTraining, parameter_names
from segue.errors import Finding

# Options of a group that a schedule starts from: torch's schedulers keep them there.
_REQUESTS = ("lr", "max_lr", "min_lr", "max_momentum", "base_momentum", "swa_lr")
_MOVED = "moves the program's schedule to where the record's stands, as if it had been so from the beginning"
_STAYS = (
    "keeps what the program starts from; a schedule that goes on from the present rate is changed by that rate, in "
    "`param_groups` after resuming"
)


def told_of_rates(
    findings: Iterator[Finding], optimizer: str, record: TrainingRecord, live: LiveTraining
) -> Iterator[Finding]:
    """Yield findings of an optimizer; where a schedule drives it, with what accepting another rate does."""
    codes = {f"optimizer.{optimizer}.{key}" for key in _REQUESTS}
    driving = [name for name, scheduler in record.schedulers.items() if scheduler.optimizer == optimizer]
    for finding in findings:
        if finding.code in codes and driving:
            told = _MOVED if all(_is_movable(name, record, live) for name in driving) else _STAYS
            finding = replace(finding, when_accepted=told)
        yield finding


def check_schedule(
    name: str, record: TrainingRecord, live: LiveTraining, rates_differ: Callable[[str], bool]
) -> Iterator[Finding]:
    """Yield what differs in a schedule that both sides have.

    Args:
        name: The scheduler.
        record: The record.
        live: The training.
        rates_differ: Whether it is told of an optimizer already that the program asks for other rates.
    """
    movable = _is_movable(name, record, live)
    for finding in _primary(list(_differences(name, record, live))):
        if finding.code.endswith(".base_lrs"):
            if len(finding.expected) == len(finding.found):
                if rates_differ(record.schedulers[name].optimizer):
                    continue
            elif not movable:  # it has a list of one length, and the groups are of another number
                finding = replace(finding, admissible=False)
        if finding.admissible:
            finding = replace(finding, when_accepted=_MOVED if movable else _STAYS)
        yield finding


def _primary(findings: list[Finding]) -> list[Finding]:
    """Leave out private attributes that follow from what differs as well, as OneCycleLR's phases from its horizon."""
    asked = [finding for finding in findings if not _is_private(finding)]
    return asked or findings


def _is_private(finding: Finding) -> bool:
    return finding.code.rpartition(".")[2].startswith("_")


def _differences(name: str, record: TrainingRecord, live: LiveTraining) -> Iterator[Finding]:
    names = live.optimizer_names()
    return check_scheduler(record.schedulers[name], live.schedulers[name], names, f"scheduler.{name}")


def _is_movable(name: str, record: TrainingRecord, live: LiveTraining) -> bool:
    """Tell whether the program's schedule can be moved to where the record's stands, and no other has a say in it."""
    scheduler = live.schedulers.get(name)
    if scheduler is None:
        return False
    driven = optimizer_of(scheduler)
    alone = sum(optimizer_of(other) is driven for other in live.schedulers.values()) == 1
    return alone and can_replay(record.schedulers[name], scheduler)


def plan_schedules(
    record: TrainingRecord, live: LiveTraining, clock: ScheduleClock, accepted: Collection[str]
) -> Iterator[Write]:
    """Plan to put every schedule back, after the options of optimizers; one that was changed on purpose is moved there.

    Raises:
        SchedulerMismatch: If the program's can't get to where the record's stands.
    """
    for name, scheduler in record.schedulers.items():
        differing = list(_differences(name, record, live))
        codes = {finding.code for finding in differing} & set(accepted)
        asked = {f"optimizer.{scheduler.optimizer}.{key}" for key in _REQUESTS} & set(accepted)
        if (codes or asked) and _is_movable(name, record, live):
            groups_came = not asked and all(code.endswith(".base_lrs") for code in codes)
            yield from _plan_moved(name, record, live, only_new=groups_came)
        else:
            kept = {*codes, *(_base_rates(scheduler, f"scheduler.{name}") if asked else ())}
            kept |= {finding.code for finding in differing if codes and _is_private(finding)}
            yield from plan_scheduler(scheduler, live.schedulers[name], f"scheduler.{name}", kept)
        outstanding, usual = scheduler.outstanding_steps, scheduler.usual_steps
        yield ObjectWrite(f"scheduler.{name} clock", _set_clock(clock, name, outstanding, usual))


def _plan_moved(name: str, record: TrainingRecord, live: LiveTraining, *, only_new: bool) -> Iterator[Write]:
    scheduler, scope = live.schedulers[name], f"scheduler.{name}"
    stands, options = replayed(record.schedulers[name], scheduler, scope)
    yield from plan_scheduler(stands, scheduler, scope, ())
    groups = _new_groups(scheduler, record, live) if only_new else range(len(options))
    yield plan_replayed_options(scheduler, options, groups, scope)


def _new_groups(scheduler: LRScheduler, record: TrainingRecord, live: LiveTraining) -> Sequence[int]:
    """Return the groups of a scheduler's optimizer that the record does not have."""
    optimizer = optimizer_of(scheduler)
    recorded = record.optimizers.get(live.optimizer_names()[id(optimizer)])
    if recorded is None:
        return range(len(optimizer.param_groups))
    names = group_names(optimizer, parameter_names(live.parameters()), "optimizer")
    places = match_groups(recorded.members, names) or []
    return [index for index, place in enumerate(places) if place is None]


def _base_rates(record: SchedulerRecord, scope: str) -> Iterator[str]:
    """Yield the codes of what follows from another initial rate: the list of them that each scheduler keeps."""
    yield f"{scope}.base_lrs"
    for index, child in enumerate(record.children):
        yield from _base_rates(child, f"{scope}.{index}")


def _set_clock(clock: ScheduleClock, name: str, outstanding: int, usual: int | None) -> Any:
    return lambda: clock.restore(name, outstanding, usual)
