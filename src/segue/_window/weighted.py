"""The weighted window: divided once by the sum of weights, not by the number of microbatches.

Wish: the gradient of a window is that of one batch of all its tokens. Averaging the means of unequal microbatches
gives short ones too much say. So sums are divided once, at the end, by the tokens of the whole window; and both the
sums and the tokens are state, since a count lost in mid-window makes the next update several times too large.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn

from segue._record.window import WindowState
from segue._window.window import AccumulationWindow
from segue.errors import WindowError


def _representable(value: float, dtype: torch.dtype) -> bool:
    """Tell whether a factor is finite in double precision, and in single where sums are."""
    return math.isfinite(value) and math.isfinite(torch.tensor(value, dtype=dtype, device="cpu").item())


def _vanishes(value: float, dtype: torch.dtype) -> bool:
    return value > 0 and torch.tensor(value, dtype=dtype, device="cpu").item() == 0


class WeightedAccumulator(AccumulationWindow):
    """Adds up gradients with a weight each (tokens, samples), and divides once by the total weight.

    Args:
        model: Whose gradients; every parameter that has one takes part.
        dtype: The dtype of the sums, `float32` or `float64`, whatever the parameters have.
        microbatches: How many fill a window, for `is_full`; `None` if the caller decides.
        loss_scale: One fixed factor that the caller puts into every loss; divided out once, at the end.

    Raises:
        WindowError: If an argument is out of range.

    Guarantees:
        A call that raises has changed nothing. The total weight is kept in double precision. Captured and restored
        bit for bit at any microbatch.
    """

    def __init__(
        self,
        model: nn.Module,
        dtype: torch.dtype = torch.float32,
        microbatches: int | None = None,
        loss_scale: float = 1.0,
    ) -> None:
        super().__init__(model, dtype, microbatches)
        scale = float(loss_scale)
        if not scale > 0 or not _representable(scale, dtype) or _vanishes(scale, dtype):
            raise WindowError(
                "a loss scale must be positive and finite in the dtype of the sums",
                code="window.loss_scale",
                found=scale,
            )
        self._loss_scale = scale
        self._total_weight = 0.0

    @property
    def total_weight(self) -> float:
        """The sum of the weights in the window."""
        return self._total_weight

    def add_sum(self, weight: float) -> None:
        """Add the gradients of a microbatch's *summed* loss, and leave `.grad` None.

        Args:
            weight: What the microbatch counts, such as its number of tokens; not negative. With weight 0 it counts
                as a microbatch and contributes nothing.

        Raises:
            WindowError: If the weight is negative, not finite or overflows, or a gradient can't be summed.
        """
        self._add(weight, 1.0)

    def add_mean(self, weight: float) -> None:
        """Add the gradients of a microbatch's *mean* loss, times its weight; otherwise like `add_sum`."""
        self._add(weight, float(weight))

    def _add(self, weight: float, multiplier: float) -> None:
        total = self._checked_total(float(weight))
        self._refuse_too_many()
        incoming = self._sums.check_incoming()
        if weight > 0:
            self._sums.add(incoming, multiplier)
        else:
            self._sums.drop(incoming)
        self._total_weight = total
        self._microbatches += 1

    def _checked_total(self, weight: float) -> float:
        dtype = self._sums.dtype
        if not weight >= 0 or not _representable(weight, dtype) or _vanishes(weight, dtype):
            raise WindowError(
                "a weight must be finite and not negative",
                code="window.weight",
                where="accumulator",
                found=weight,
            )
        total = self._total_weight + weight
        if not _representable(total, dtype):
            raise WindowError(
                "the total weight overflows", code="window.overflow", where="accumulator", found=total
            )
        return total

    def finish_sums(self) -> WindowState:
        """Put the sums into `.grad` undivided, loss scale included, and begin a new window.

        Returns:
            The counters of the finished window; divide by its `total_weight` and `loss_scale` yourself.

        Raises:
            WindowError: If a gradient stands in `.grad` that was never added; nothing has changed.
        """
        state = self.window_state()
        self._sums.hand_out(())
        self._begin()
        return state

    def finish_mean(self) -> None:
        """Divide the sums by loss scale and total weight, put them into `.grad`, and begin a new window.

        Raises:
            WindowError: If the total weight is zero, or a gradient stands in `.grad` that was never added.
        """
        if self._total_weight <= 0:
            raise WindowError(
                "a window without weight has no mean", code="window.empty", where="accumulator",
                found=f"{self._microbatches} microbatches of total weight 0",
                hint="skip this update: `finish_sums()` begins a new window",
            )  # fmt: skip
        self._sums.hand_out((self._loss_scale, self._total_weight))
        self._begin()

    def _begin(self) -> None:
        self._microbatches = 0
        self._total_weight = 0.0

    def window_state(self) -> WindowState:
        """Return the counters, for capture."""
        counts = (self._window_microbatches, self._microbatches, self._total_weight)
        return WindowState("weighted", self._dtype_name(), self._loss_scale, *counts)

    def replace_window(
        self,
        state: WindowState,
        sums: Iterable[tuple[nn.Parameter, torch.Tensor]],
        handed_out: Iterable[nn.Parameter] = (),
    ) -> None:
        """Take over a window that `check_window` admitted; the one in progress is dropped."""
        super().replace_window(state, sums, handed_out)
        self._total_weight = state.total_weight
