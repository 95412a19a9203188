"""A schedule that was changed on purpose: where the program's own would stand by now.

Wish: another rate, a longer horizon, another function holds from here on, as if the program had asked for it from the
beginning.

Why the obvious ways fail. The present rate is state, and most formulas of torch go on from it (torch 2.13): kept, another
initial rate has no effect at all, and another horizon bends the curve from wherever it is. Begun anew, the schedule
repeats its warm-up.

So a copy of the program's scheduler, over an optimizer without parameters, is moved as often as the record's has
moved. What it wrote into its groups by then is what the program's groups get, and where it stands is where the program's
scheduler stands. Functions of the program are called for it, as they are at every move.

What it can't do: schedulers that were told their position (an epoch, a metric), several over one optimizer, which may
have taken turns, and one of the program that has moved already. There the present rate stays, and messages say so.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from segue._capture.scheduler import capture_scheduler, children, family, optimizer_of
from segue._capture.writes import ObjectWrite, Write
from segue._record.sections import SchedulerRecord
from segue.errors import SchedulerMismatch

Options = dict[str, Any]


class _Watched(dict[str, Any]):
    """A group that knows which of its options were written."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._initial = dict(options)
        self._assigned: set[str] = set()
        self._versions = {key: value._version for key, value in _tensors(options).items()}

    def __setitem__(self, key: str, value: Any) -> None:
        self._assigned.add(key)
        super().__setitem__(key, value)

    def written(self) -> Options:
        """Return what was assigned, and the tensors that were filled in place."""
        filled = {
            key for key, value in _tensors(self).items() if value._version != self._versions.get(key, -1)
        }
        replaced = {key for key, value in self.items() if value is not self._initial.get(key)}  # by `update`
        return {key: self[key] for key in sorted(self._assigned | filled | replaced)}


def _tensors(options: Options) -> dict[str, torch.Tensor]:
    return {key: value for key, value in options.items() if isinstance(value, torch.Tensor)}


def can_replay(record: SchedulerRecord, scheduler: LRScheduler) -> bool:
    """Tell whether the program's scheduler can be moved to where the record's is."""
    return _recorded_moves(record) is not None and _live_moves(scheduler) == 0


def _recorded_moves(record: SchedulerRecord) -> int | None:
    return _moves(record.position, [_recorded_moves(child) for child in record.children])


def _live_moves(scheduler: LRScheduler) -> int | None:
    if any(isinstance(member, ReduceLROnPlateau) for member in family(scheduler)):
        return None
    return _moves(vars(scheduler), [_live_moves(child) for child in children(scheduler)])


def _moves(attributes: Mapping[str, Any], nested: Sequence[int | None]) -> int | None:
    """Return how often `step()` was called since the scheduler was made; `None` where that isn't known.

    A ChainedScheduler counts nothing itself, CosineAnnealingWarmRestarts doesn't count its calls, and ReduceLROnPlateau has
    moved by what it was told (torch 2.13).
    """
    if "last_epoch" not in attributes:
        return nested[0] if nested and len(set(nested)) == 1 else None
    last, calls = attributes["last_epoch"], attributes.get("_step_count")
    told = "num_bad_epochs" in attributes or not isinstance(attributes.get("T_cur", 0), int)
    if told or not isinstance(last, int) or last < 0 or calls not in (None, 0, last + 1):
        return None
    return last


def replayed(
    record: SchedulerRecord, scheduler: LRScheduler, scope: str
) -> tuple[SchedulerRecord, list[Options]]:
    """Move a copy of the program's scheduler to where the record's is. Changes nothing that is live.

    Args:
        record: Where it stands.
        scheduler: The live one, as `can_replay` admits it.
        scope: What it is called in messages.

    Returns:
        The record of the copy, and for each group of its optimizer the options that it has written.

    Raises:
        SchedulerMismatch: If it can't get there, such as past its own end.

    Cost:
        As many calls of `step()` as the recorded scheduler has had, a few microseconds each.
    """
    moves = _recorded_moves(record)
    assert moves is not None, "can_replay admits only these"
    stand_in = _stand_in(optimizer_of(scheduler))
    moved = copy.deepcopy(scheduler, {id(optimizer_of(scheduler)): stand_in})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(moves):
                moved.step()
    except Exception as error:
        raise SchedulerMismatch(
            "the program's schedule can't be moved to where the record's stands", code=f"{scope}.moves", where=scope,
            expected=f"{moves} moves", found=f"{type(error).__name__}: {error}",
            hint="give it a horizon that is not behind it",
        ) from error  # fmt: skip
    captured = capture_scheduler(moved, record.optimizer, record.outstanding_steps, record.usual_steps, scope)
    return captured, [group.written() for group in stand_in.param_groups if isinstance(group, _Watched)]


def _stand_in(optimizer: Optimizer) -> Optimizer:
    """Make an optimizer of the same class and options that has no parameters, and notes what is written to its groups."""
    cls = type(optimizer)
    made: Optimizer = cls.__new__(cls)
    plain = torch.optim.SGD([nn.Parameter(torch.empty(0))], lr=0.0)
    groups = [
        {key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups
    ]
    # In one copy: groups and defaults may have one tensor.
    groups, defaults = copy.deepcopy((groups, optimizer.defaults))
    vars(made).update(vars(plain), defaults=defaults, _opt_called=True)
    made.param_groups = [_Watched({**group, "params": []}) for group in groups]
    return made


def plan_replayed_options(
    scheduler: LRScheduler, options: Sequence[Options], groups: Sequence[int], scope: str
) -> Write:
    """Plan to give groups what a replayed schedule has written; run after the optimizer's own options.

    Args:
        scheduler: The live one; what it calls its last rates become those of the groups.
        options: What was written, of each group of its optimizer.
        groups: The groups that shall have it.
        scope: What it is called in messages.
    """
    optimizer = optimizer_of(scheduler)

    def assign() -> None:
        # A new group that has one tensor with another (torch hands one to all) has the rate of that.
        others = [group for at, group in enumerate(optimizer.param_groups) if at not in groups]
        taken = {id(tensor) for group in others for tensor in _tensors(group).values()}
        for index in groups:
            group = optimizer.param_groups[index]
            for key, value in options[index].items():
                if id(group.get(key)) not in taken:
                    _set(group, key, value)
        if "_last_lr" in vars(scheduler):
            rates = [group["lr"] for group in optimizer.param_groups]
            vars(scheduler)["_last_lr"] = [
                rate.clone() if isinstance(rate, torch.Tensor) else rate for rate in rates
            ]

    return ObjectWrite(f"{scope} options", assign)


def _set(group: Options, key: str, value: Any) -> None:
    current = group.get(key)
    if isinstance(current, torch.Tensor) and isinstance(value, torch.Tensor):
        with torch.no_grad():
            current.copy_(value)
    else:
        group[key] = value
