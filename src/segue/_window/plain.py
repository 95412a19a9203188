"""The plain window: gradients added up in fp32, divided by the number of microbatches, or not at all."""

from __future__ import annotations

import torch
from torch import nn

from segue._record.window import WindowState
from segue._window.window import AccumulationWindow
from segue.errors import WindowError


class GradientAccumulator(AccumulationWindow):
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
        super().__init__(model, dtype, microbatches)

    def add(self) -> None:
        """Add what stands in `.grad` to the window and leave `.grad` None.

        Raises:
            WindowError: If a gradient can't be summed, or is the one that `finish` handed out; nothing has changed.

        Cost:
            One addition per parameter; no copy where gradient and sum have one dtype.
        """
        self._refuse_too_many()
        self._sums.add(self._sums.check_incoming(), 1.0)
        self._microbatches += 1

    def finish_sums(self) -> None:
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
        count = self._microbatches
        return WindowState("plain", self._dtype_name(), 1.0, self._window_microbatches, count, float(count))
