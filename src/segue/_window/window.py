"""What every accumulation window is: sums, a count of microbatches, and the terms another must share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

import torch
from torch import nn

from segue._record.window import WindowState
from segue._window.sums import GradientSums
from segue._window.terms import refuse_other_terms
from segue.errors import WindowError

MAX_MICROBATCHES = 2**64 - 1


class AccumulationWindow(ABC):
    """Base of the accumulators; `PendingSource` to `_capture`."""

    def __init__(self, model: nn.Module, dtype: torch.dtype, microbatches: int | None) -> None:
        if microbatches is not None and (type(microbatches) is not int or microbatches < 1):
            raise WindowError(
                "a window needs at least one microbatch", code="window.size", found=microbatches
            )
        self._sums = GradientSums(model, dtype)
        self._window_microbatches = microbatches
        self._microbatches = 0

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

    def sums(self) -> list[tuple[nn.Parameter, torch.Tensor]]:
        """Return the live sums by parameter, for capture; not copies."""
        return self._sums.pending

    def handed_out(self) -> list[nn.Parameter]:
        """Return the parameters whose `.grad` is still what the last window handed out, for capture."""
        return self._sums.handed_out

    def check_window(self, state: WindowState) -> None:
        """Raise `WindowError` unless this accumulator divides and fills as the recorded one did."""
        refuse_other_terms(state, self.window_state())

    def replace_window(
        self,
        state: WindowState,
        sums: Iterable[tuple[nn.Parameter, torch.Tensor]],
        handed_out: Iterable[nn.Parameter] = (),
    ) -> None:
        """Take over a window that `check_window` admitted; the one in progress is dropped."""
        self._sums.replace(sums, handed_out)
        self._microbatches = state.microbatches

    def _refuse_too_many(self) -> None:
        if self._microbatches >= MAX_MICROBATCHES:
            raise WindowError(
                "too many microbatches in one window", code="window.counter", found=self._microbatches
            )

    def _dtype_name(self) -> str:
        return str(self._sums.dtype).removeprefix("torch.")
