"""Two clocks: optimizer steps, and the schedule. A save between their ticks resumes one step late.

PyTorch keeps no count of optimizer steps that a scheduler has not answered yet, so a hook counts them from the
moment a training is bound. A step that a gradient scaler skips is none: most optimizers are not even called then,
but fused ones are, and told so by `found_inf`, on the device. It is counted there: to ask for it would make each step
wait for the device (torch 2.13).
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from segue._capture.scheduler import family, optimizer_of

_Count = int | torch.Tensor


@dataclass
class _Ticks:
    marker: tuple[Any, ...]
    outstanding: _Count = 0
    usual: _Count | None = None
    has_told: bool = False


class ScheduleClock:
    """Counts, for each scheduler, the optimizer steps since it last moved, and between its last two moves."""

    def __init__(self, schedulers: Mapping[str, LRScheduler]) -> None:
        self._schedulers = dict(schedulers)
        self._ticks = {name: _Ticks(_marker(scheduler)) for name, scheduler in schedulers.items()}
        # The hook outlives this object in the optimizer; it must not keep a whole training alive.
        this = weakref.ref(self)
        for optimizer in {id(optimizer_of(s)): optimizer_of(s) for s in schedulers.values()}.values():
            handle = optimizer.register_step_post_hook(_hook(this))
            # Before hooks of others: some move their schedule in one, which answers the step that is counted here.
            hooks = optimizer._optimizer_step_post_hooks
            for other in [key for key in hooks if key != handle.id]:
                hooks[other] = hooks.pop(other)
            weakref.finalize(self, handle.remove).atexit = False

    def stepped(self, optimizer: object) -> None:
        """Count one step of this optimizer, unless it skips it."""
        for name, scheduler in self._schedulers.items():
            if optimizer_of(scheduler) is optimizer:
                ticks = self._look(name)
                ticks.outstanding = ticks.outstanding + _taken(optimizer)

    def outstanding(self, name: str) -> int:
        """Return how many optimizer steps this scheduler has not answered."""
        return int(self._look(name).outstanding)

    def usual(self, name: str) -> int | None:
        """Return how many optimizer steps lay between its last two moves, `None` before the second."""
        return int(self._look(name).usual or 0) or None

    def tells_due(self, name: str) -> bool:
        """Tell, once until it moves again, that a scheduler seems to be due.

        It is when as many steps are outstanding as it has waited for so far, no other scheduler of its optimizer has
        answered them (as when SWALR takes over), and it has not come to its end.
        """
        ticks = self._look(name)
        due = self.outstanding(name) == self.usual(name) and not ticks.has_told
        if not due or self._is_answered(name) or _has_ended(self._schedulers[name]):
            return False
        ticks.has_told = True
        return True

    def _is_answered(self, name: str) -> bool:
        optimizer, outstanding = optimizer_of(self._schedulers[name]), self.outstanding(name)
        return any(
            optimizer_of(scheduler) is optimizer and self.outstanding(other) < outstanding
            for other, scheduler in self._schedulers.items()
        )

    def restore(self, name: str, outstanding: int, usual: int | None) -> None:
        """Go on counting from a record, after the scheduler itself was restored."""
        self._ticks[name] = _Ticks(_marker(self._schedulers[name]), outstanding, usual)

    def _look(self, name: str) -> _Ticks:
        ticks, marker = self._ticks[name], _marker(self._schedulers[name])
        if marker != ticks.marker:
            # A move without a step (a step skipped by a scaler) says nothing about the pattern.
            ticks.usual = _latest(ticks.outstanding, ticks.usual)
            ticks.marker, ticks.outstanding, ticks.has_told = marker, 0, False
        return ticks


def _taken(optimizer: object) -> _Count:
    """Return 1 for the step that an optimizer has been called for, 0 if it was told to skip it."""
    found_inf = getattr(optimizer, "found_inf", None)
    return (found_inf == 0).sum() if isinstance(found_inf, torch.Tensor) else 1


def _latest(count: _Count, before: _Count | None) -> _Count | None:
    """Return a count, or the one before if it is zero."""
    if isinstance(count, torch.Tensor):
        return torch.where(count > 0, count, 0 if before is None else before)
    return count or before


def _hook(this: weakref.ref[ScheduleClock]) -> Any:
    def count(optimizer: object, _args: Any, _kwargs: Any) -> None:
        clock = this()
        if clock is not None:
            clock.stepped(optimizer)

    return count


def _has_ended(scheduler: LRScheduler) -> bool:
    """Tell whether a scheduler with an end (OneCycleLR) has reached it; stepping it further is an error."""
    total = vars(scheduler).get("total_steps")
    return isinstance(total, int) and vars(scheduler)["last_epoch"] >= total - 1


def _marker(scheduler: LRScheduler) -> tuple[Any, ...]:
    """Return every number that a schedule holds: some of people's own keep their position in attributes of their own."""
    return tuple(
        tuple(value for value in vars(member).values() if type(value) in (int, float))
        for member in family(scheduler)
    )
