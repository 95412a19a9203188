"""Schedules, between a record and a program: what differs, and what is put back where a change was accepted."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch.optim.lr_scheduler import LRScheduler

from segue._capture.clock import ScheduleClock
from segue._capture.membership import match_groups
from segue._capture.optimizer import group_names
from segue._capture.registered import Registered
from segue._capture.replay import can_replay, plan_replayed_options, replayed
from segue._capture.scheduler import (
    arranged,
    check_scheduler,
    depends_on_registered,
    optimizer_of,
    plan_scheduler,
)
from segue._capture.staging import is_of_class
from segue._capture.writes import ObjectWrite, Write
from segue._record.sections import SchedulerRecord
from segue._record.training import TrainingRecord
from segue._session.live import LiveTraining, parameter_names
from segue.errors import Finding

# What torch's schedulers keep in the groups, and what of that, or of a group's own options, they start from (torch 2.13).
_KEPT_IN_GROUPS = ("initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum", "swa_lr")
_REQUESTS = ("lr", *_KEPT_IN_GROUPS)
# What follows from something else of the same scheduler.
_DERIVED = {
    "_schedule_phases": {"total_steps"},
    "_scale_fn_ref": {"mode", "gamma", "_scale_fn_custom"},
    "anneal_func": {"_anneal_strategy"},
    "mode_worse": {"mode"},
}
_MOVED = "moves the program's schedule to where the record's stands, as if it had been so from the beginning"
_GONE = "drops it; the rate stays where it had brought it"
_BEGINS = "begins it, at the rate with which it begins"
_BEGINS_BESIDE = (
    "begins it beside the others; the present rate stays, and can be set in `param_groups` after resuming"
)
_STAYS = (
    "keeps what the program starts from; a schedule that goes on from the present rate is changed by that rate, in "
    "`param_groups` after resuming"
)


class Schedules:
    """The schedules of a record and of a training, compared.

    Args:
        record: The record.
        live: The training.
    """

    def __init__(self, record: TrainingRecord, live: LiveTraining) -> None:
        self._record = record
        self._live = live

    @functools.cached_property
    def _registered(self) -> Registered:
        return self._live.registered()

    def told_of_rates(self, findings: Iterator[Finding], optimizer: str) -> Iterator[Finding]:
        """Yield findings of an optimizer; where a schedule drives it, with what accepting another rate does.

        Left out is what a schedule keeps in the groups that came or went, which is told of itself.
        """
        codes = {f"optimizer.{optimizer}.{key}" for key in _REQUESTS}
        left_out = self.codes_of_one_sided(optimizer)
        driving = self._recorded_over(optimizer) & self._live.schedulers.keys()
        for finding in findings:
            if finding.code in codes and driving:
                told = _MOVED if all(map(self._is_movable, driving)) else _STAYS
                finding = replace(finding, when_accepted=told)
            if finding.code not in left_out:
                yield finding

    def codes_of_one_sided(self, optimizer: str) -> set[str]:
        """Return the codes of what a schedule keeps in the groups of its optimizer, if one came or went."""
        changed = self._live_over(optimizer) != self._recorded_over(optimizer)
        return {f"optimizer.{optimizer}.{key}" for key in _KEPT_IN_GROUPS} if changed else set()

    def _recorded_over(self, optimizer: str) -> set[str]:
        schedulers = self._record.schedulers.items()
        return {name for name, scheduler in schedulers if scheduler.optimizer == optimizer}

    def _live_over(self, optimizer: str) -> set[str]:
        names, schedulers = self._live.optimizer_names(), self._live.schedulers.items()
        return {name for name, scheduler in schedulers if names[id(optimizer_of(scheduler))] == optimizer}

    def begins(self, optimizer: str) -> bool:
        """Tell whether all schedules of an optimizer are new, so that rates are those that they begin with."""
        now = self._live_over(optimizer)
        return bool(now) and now.isdisjoint(self._record.schedulers)

    def told_of_one_sided(self, finding: Finding, name: str) -> Finding:
        """Return the finding of a schedule that came or went with what accepting it does."""
        scheduler = self._live.schedulers.get(name)
        if scheduler is None:
            return replace(finding, when_accepted=_GONE)
        begins = self.begins(self._live.optimizer_names()[id(optimizer_of(scheduler))])
        return replace(finding, when_accepted=_BEGINS if begins else _BEGINS_BESIDE)

    def check(self, name: str, rates_differ: Callable[[str], bool]) -> Iterator[Finding]:
        """Yield what differs in a schedule that both sides have.

        Args:
            name: The scheduler.
            rates_differ: Whether it is told of an optimizer already that the program asks for other rates.
        """
        told = _MOVED if self._is_movable(name) else _STAYS
        for finding in _primary(self._differences(name)):
            if not (
                finding.code.endswith(".base_lrs") and rates_differ(self._record.schedulers[name].optimizer)
            ):
                yield replace(finding, when_accepted=told) if finding.admissible else finding

    def _differences(self, name: str) -> list[Finding]:
        scheduler, names = self._live.schedulers[name], self._live.optimizer_names()
        record, scope = self._arranged[name], f"scheduler.{name}"
        return list(check_scheduler(record, scheduler, names, scope, self._registered))

    @functools.cached_property
    def _arranged(self) -> dict[str, SchedulerRecord]:
        """What is recorded of each scheduler that both sides have, arranged for groups that came, went or moved."""
        found = {}
        for name, scheduler in self._live.schedulers.items():
            record, places = self._record.schedulers.get(name), self._places.get(name)
            if record is None:
                continue
            if places is not None and is_of_class(scheduler, record.class_name):
                record = arranged(record, scheduler, places, f"scheduler.{name}", self._registered)
            found[name] = record
        return found

    @functools.cached_property
    def _places(self) -> dict[str, list[int | None]]:
        """By scheduler, the recorded group of each group that it drives, unless they are as they were."""
        found = {}
        names = parameter_names(self._live.parameters()) if self._live.schedulers else {}
        for name, scheduler in self._live.schedulers.items():
            optimizer = optimizer_of(scheduler)
            record = self._record.optimizers.get(self._live.optimizer_names()[id(optimizer)])
            if record is not None:
                places = match_groups(record.members, group_names(optimizer, names, "optimizer"))
                if places is not None and places != list(range(len(record.groups))):
                    found[name] = places
        return found

    def _is_movable(self, name: str) -> bool:
        """Tell whether the program's schedule can be moved to where the record's stands, and no other has a say in it."""
        scheduler = self._live.schedulers.get(name)
        if scheduler is None:
            return False
        if depends_on_registered(scheduler, f"scheduler.{name}", self._registered):
            return False  # what it read on the way is not known
        driven = optimizer_of(scheduler)
        alone = sum(optimizer_of(other) is driven for other in self._live.schedulers.values()) == 1
        return alone and can_replay(self._record.schedulers[name], scheduler)

    def plan(self, clock: ScheduleClock, accepted: Collection[str]) -> Iterator[Write]:
        """Plan to put every schedule back, after the options of optimizers; one that was changed on purpose is moved there.

        Raises:
            SchedulerMismatch: If the program's can't get to where the record's stands.
        """
        for name, record in self._arranged.items():
            scope, scheduler = f"scheduler.{name}", self._live.schedulers[name]
            differing = self._differences(name)
            codes = {finding.code for finding in differing} & set(accepted)
            asked = {f"optimizer.{record.optimizer}.{key}" for key in _REQUESTS} & set(accepted)
            movable = self._is_movable(name)
            if (codes or asked) and movable:
                yield from _plan_moved(record, scheduler, scope)
            else:
                kept = {*codes, *(_base_rates(record, scope) if asked else ())}
                kept |= {finding.code for finding in differing if _follows(finding, codes)}
                yield from plan_scheduler(record, scheduler, scope, kept)
                if movable:
                    yield from self._plan_new_groups(record, name)
            outstanding, usual = record.outstanding_steps, record.usual_steps
            yield ObjectWrite(f"{scope} clock", _set_clock(clock, name, outstanding, usual))

    def _plan_new_groups(self, record: SchedulerRecord, name: str) -> Iterator[Write]:
        """Plan to give groups that the record does not have the rates that the schedule has for them by now."""
        new = [index for index, place in enumerate(self._places.get(name, ())) if place is None]
        if new:
            scheduler, scope = self._live.schedulers[name], f"scheduler.{name}"
            _, options = replayed(record, scheduler, scope)
            yield plan_replayed_options(scheduler, options, new, scope)


def _plan_moved(record: SchedulerRecord, scheduler: LRScheduler, scope: str) -> Iterator[Write]:
    stands, options = replayed(record, scheduler, scope)
    yield from plan_scheduler(stands, scheduler, scope, ())
    yield plan_replayed_options(scheduler, options, range(len(options)), scope)


def _primary(findings: list[Finding]) -> list[Finding]:
    """Leave out what follows from something else that differs, as OneCycleLR's phases from its horizon."""
    by_code = {finding.code: finding for finding in findings}
    return [
        finding
        for finding in findings
        if not (_follows(finding, by_code) and _in_proportion(finding, by_code))
    ]


def _follows(finding: Finding, codes: Collection[str]) -> bool:
    scope, _, key = finding.code.rpartition(".")
    return any(f"{scope}.{cause}" in codes for cause in _DERIVED.get(key, ()))


def _in_proportion(finding: Finding, by_code: Mapping[str, Finding]) -> bool:
    """Tell whether phases are no others than another horizon makes of them: their number, and where the first ends."""
    scope, _, key = finding.code.rpartition(".")
    if key != "_schedule_phases":
        return True
    horizon = by_code[f"{scope}.total_steps"]
    sides = ((finding.expected, horizon.expected), (finding.found, horizon.found))
    try:
        before, now = (
            (len(phases), round((phases[0]["end_step"] + 1) / total, 6)) for phases, total in sides
        )
    except (TypeError, KeyError, IndexError, ZeroDivisionError):  # one side has none, or a file lies
        return False
    return bool(before == now)


def _base_rates(record: SchedulerRecord, scope: str) -> Iterator[str]:
    """Yield the codes of what follows from another initial rate: the list of them that each scheduler keeps."""
    yield f"{scope}.base_lrs"
    for index, child in enumerate(record.children):
        yield from _base_rates(child, f"{scope}.{index}")


def _set_clock(clock: ScheduleClock, name: str, outstanding: int, usual: int | None) -> Any:
    return lambda: clock.restore(name, outstanding, usual)
