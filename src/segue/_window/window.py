"""What every accumulation window is: sums, a count of microbatches, and the terms another must share."""

from __future__ import annotations

import itertools
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Self

import torch
from torch import nn

from segue._record.window import WindowState
from segue._window.sums import GradientSums
from segue._window.terms import MAX_MICROBATCHES, refuse_contradictions, refuse_other_terms
from segue.errors import WindowError

_alive: weakref.WeakSet[AccumulationWindow] = weakref.WeakSet()


moments = itertools.count(1)
"""A clock: who takes a number later gets a higher one."""


def windows_used_since(moment: int) -> list[AccumulationWindow]:
    """Return every window of this process that a microbatch was added to after a moment, and that is still open.

    A capture must not leave one out. One that nobody uses any more, as after a notebook's cell was run again, is none.
    """
    return [window for window in list(_alive) if window._last_used > moment and window.microbatches > 0]


class AccumulationWindow(ABC):
    """Base of the windows; `PendingSource` to `_capture`."""

    _last_used: int

    def __new__(cls, *_args: object, **_kwargs: object) -> Self:
        # Here and not in `__init__`, which copies are made without.
        made = super().__new__(cls)
        made._last_used = 0
        _alive.add(made)
        return made

    def __init__(self, model: nn.Module, dtype: torch.dtype, microbatches: int | None) -> None:
        if not isinstance(model, nn.Module):
            raise WindowError(
                "an accumulator is made over a module", code="window.model", where="accumulator",
                expected="torch.nn.Module", found=type(model).__name__,
            )  # fmt: skip
        if microbatches is not None and (type(microbatches) is not int or microbatches < 1):
            raise WindowError(
                "the number of microbatches of a window must be a positive int", code="window.size", where="accumulator",
                expected="a positive int, or None", found=microbatches,
            )  # fmt: skip
        self._sums = GradientSums(model, dtype)
        self._window_microbatches = microbatches
        self._microbatches = 0

    @property
    def model(self) -> nn.Module:
        """The model whose gradients are summed."""
        return self._sums.model

    @property
    def microbatches(self) -> int:
        """How many microbatches are in the window, empty ones included."""
        return self._microbatches

    @property
    def is_full(self) -> bool:
        """Whether the window has all its microbatches; never, where their number was not given."""
        return self._window_microbatches is not None and self._microbatches >= self._window_microbatches

    @abstractmethod
    def window_state(self) -> WindowState:
        """Return the counters, for capture."""

    def parameters(self) -> list[nn.Parameter]:
        """Return the model's distinct parameters."""
        return self._sums.parameters

    def sums(self) -> list[tuple[nn.Parameter, torch.Tensor]]:
        """Return the live sums by parameter, for capture; not copies."""
        return self._sums.pending

    def handed_out(self) -> list[nn.Parameter]:
        """Return the parameters whose `.grad` is still what the last window handed out, for capture."""
        return self._sums.handed_out

    def check_window(self, state: WindowState) -> None:
        """Raise `WindowError` unless this accumulator divides and fills as the recorded one did."""
        refuse_other_terms(state, self.window_state())
        refuse_contradictions(state, self._sums.dtype)

    def replace_window(
        self,
        state: WindowState,
        sums: Iterable[tuple[nn.Parameter, torch.Tensor]],
        handed_out: Iterable[nn.Parameter] = (),
    ) -> None:
        """Take over a window that `check_window` admitted; the one in progress is dropped."""
        self._sums.replace(sums, handed_out)
        self._microbatches = state.microbatches

    def _count_microbatch(self) -> None:
        self._microbatches += 1
        self._last_used = next(moments)

    def _refuse_another_microbatch(self) -> None:
        if self._microbatches >= MAX_MICROBATCHES:
            raise WindowError(
                "too many microbatches in one window", code="window.counter", where="accumulator",
                expected=f"at most {MAX_MICROBATCHES}", found=self._microbatches,
            )  # fmt: skip
        if self.is_full:
            raise WindowError(
                "the window is full", code="window.full", where="accumulator",
                expected=f"{self._window_microbatches} microbatches", found="one more",
                hint="call `finish_mean()` when `is_full`; or leave `microbatches` out, and finish when you decide",
            )  # fmt: skip

    @property
    def _fills(self) -> bool:
        """Whether the next microbatch fills the window."""
        return self._microbatches + 1 == self._window_microbatches

    def _dtype_name(self) -> str:
        return str(self._sums.dtype).removeprefix("torch.")
