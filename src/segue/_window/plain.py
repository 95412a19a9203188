"""The plain window: gradients added up in fp32, divided by the number of microbatches, or not at all."""

from __future__ import annotations

from segue._record.window import WindowState
from segue._window.window import AccumulationWindow
from segue.errors import WindowError


class PlainWindow(AccumulationWindow):
    """What `GradientAccumulator` does, but for records."""

    def add(self) -> None:
        """Add what stands in `.grad` to the window and leave `.grad` None.

        Raises:
            WindowError: If the window is full, or a gradient can't be summed: of an integer dtype or a compressed
                layout, part of a graph, of a frozen parameter, of another shape or device than its parameter, or the
                one that `finish` handed out. Nothing has changed.

        Guarantees:
            Each gradient is cast to the dtype of the sums and added, in the order of microbatches; the bits don't
            depend on anything else. A parameter without a gradient gets none, and a sparse gradient stays sparse.

        Cost:
            One addition per parameter. The first gradients of a window become the sums without a copy where both
            have one dtype. Gradients of another dtype are cast through a small scratch.
        """
        self._refuse_another_microbatch()
        self._sums.add(self._sums.check_microbatch(), 1.0, fills=self._fills)
        self._count_microbatch()

    def finish_sums(self) -> None:
        """Put the sums into `.grad`, cast once to each parameter's gradient dtype, and begin a new window.

        Raises:
            WindowError: If a gradient stands in `.grad` that was never added, or a sum no longer fits its parameter;
                nothing has changed.

        Guarantees:
            All or nothing. A sum that is not finite is handed out as it is.

        Cost:
            None where sums and gradients have one dtype, else one cast into memory that backward allocated, or into
            new memory where the last microbatch was not known to be the last.
        """
        self._sums.hand_out(())
        self._microbatches = 0

    def finish_mean(self) -> None:
        """Divide the sums by the number of microbatches in the window, put them into `.grad`, and begin a new one.

        Raises:
            WindowError: If the window is empty; else as for `finish_sums`. Nothing has changed.

        Guarantees:
            One division in the dtype of the sums, then one cast. All or nothing.

        Cost:
            One division per parameter; else as for `finish_sums`.
        """
        if self._microbatches == 0:
            self._sums.refuse_standing()  # one that was never added may be why the window is empty
            raise WindowError(
                "an empty window has no mean", code="window.empty", where="accumulator",
                expected="at least one microbatch", found=0,
            )  # fmt: skip
        self._sums.hand_out((float(self._microbatches),))
        self._microbatches = 0

    def window_state(self) -> WindowState:
        """Return the counters, for capture."""
        count = self._microbatches
        return WindowState("plain", self._dtype_name(), 1.0, self._window_microbatches, count, float(count))
