"""The plain window: gradients added up in fp32, divided by the number of microbatches, or not at all."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from segue._record.window import WindowState
from segue._window.sums import GradientSums
from segue._window.terms import refuse_other_terms
from segue.errors import WindowError

MAX_MICROBATCHES = 2**64 - 1


class GradientAccumulator:
    """Adds up the gradients of several microbatches outside `.grad`, in fp32 or fp64.

    Args:
        model: Whose gradients; every parameter that has one takes part.
        dtype: The dtype of the sums, `float32` or `float64`, whatever the parameters have.
        microbatches: How many fill a window, for `is_full`; `None` if the caller decides. A shorter window (at the
            end of an epoch) is divided by the number of microbatches that are in it.

    Raises:
        WindowError: If the dtype is another, or `microbatches` is not positive.

    Guarantees:
        A call that raises has changed nothing. Captured and restored bit for bit at any microbatch.
    """

    def __init__(
        self, model: nn.Module, dtype: torch.dtype = torch.float32, microbatches: int | None = None
    ) -> None:
        if microbatches is not None and (type(microbatches) is not int or microbatches < 1):
            raise WindowError(
                "a window needs at least one microbatch", code="window.size", found=microbatches
            )
        self._sums = GradientSums(model, dtype)
        self._window_microbatches = microbatches
        self._microbatches = 0

    @property
    def microbatches(self) -> int:
        """How many microbatches are in the window."""
        return self._microbatches

    @property
    def is_full(self) -> bool:
        """Whether the window has all its microbatches; never, where their number was not given."""
        return self._window_microbatches is not None and self._microbatches >= self._window_microbatches

    def add(self) -> None:
        """Add what stands in `.grad` to the window and leave `.grad` None.

        Raises:
            WindowError: If a gradient can't be summed, or is the one that `finish` handed out; nothing has changed.

        Cost:
            One addition per parameter; no copy where gradient and sum have one dtype.
        """
        if self._microbatches >= MAX_MICROBATCHES:
            raise WindowError(
                "too many microbatches in one window", code="window.counter", found=self._microbatches
            )
        self._sums.add(self._sums.check_incoming(), 1.0)
        self._microbatches += 1

    def finish_sum(self) -> None:
        """Put the sums into `.grad`, cast once to each parameter's gradient dtype, and begin a new window.

        Raises:
            WindowError: If a gradient stands in `.grad` that was never added; nothing has changed.
        """
        self._sums.hand_out(())
        self._microbatches = 0

    def finish_mean(self) -> None:
        """Divide the sums by the number of microbatches in the window, put them into `.grad`, and begin a new one.

        Raises:
            WindowError: If the window is empty, or a gradient stands in `.grad` that was never added.
        """
        if self._microbatches == 0:
            raise WindowError("an empty window has no mean", code="window.empty", where="accumulator")
        self._sums.hand_out((float(self._microbatches),))
        self._microbatches = 0

    def window_state(self) -> WindowState:
        """Return the counters, for capture."""
        dtype = str(self._sums.dtype).removeprefix("torch.")
        count = self._microbatches
        return WindowState("plain", dtype, 1.0, self._window_microbatches, count, float(count))

    def sums(self) -> list[tuple[nn.Parameter, torch.Tensor]]:
        """Return the live sums by parameter, for capture; not copies."""
        return self._sums.pending

    def check_window(self, state: WindowState) -> None:
        """Raise `WindowError` unless this accumulator divides and fills as the recorded one did."""
        refuse_other_terms(state, self.window_state())

    def replace_window(self, state: WindowState, sums: Iterable[tuple[nn.Parameter, torch.Tensor]]) -> None:
        """Take over a window that `check_window` admitted; the one in progress is dropped."""
        self._sums.replace(sums)
        self._microbatches = state.microbatches
