"""The weighted window: divided once by the sum of weights, not by the number of microbatches.

Wish: the gradient of a window is that of one batch of all its tokens. Averaging the means of unequal microbatches
gives short ones too much say. So sums are divided once, at the end, by the tokens of the whole window; and both the
sums and the tokens are state, since a count lost in mid-window makes the next update several times too large.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from segue._record.window import WindowState
from segue._window.loss import SummedLoss, read_both, refuse_unknown_leaves
from segue._window.weights import checked_scale, checked_total, checked_weight
from segue._window.window import AccumulationWindow
from segue.errors import WindowError


class WeightedWindow(AccumulationWindow):
    """What `WeightedAccumulator` does, but for records."""

    def __init__(
        self, model: nn.Module, dtype: torch.dtype, microbatches: int | None, loss_scale: float
    ) -> None:
        super().__init__(model, dtype, microbatches)
        self._loss_scale = checked_scale(loss_scale, dtype)
        self._total_weight = 0.0

    @property
    def total_weight(self) -> float:
        """The sum of the weights in the window."""
        return self._total_weight

    def add_sum(self, weight: float) -> None:
        """Add the gradients of a microbatch's *summed* loss, and leave `.grad` None.

        Args:
            weight: What the microbatch counts, such as its number of tokens; not negative. With weight 0 it counts
                as a microbatch, its gradients are checked, and it contributes nothing.

        Raises:
            WindowError: If the weight is negative, not finite in the dtype of the sums or overflows their total, or
                the window is full, or a gradient can't be summed (as for `GradientAccumulator.add`). Nothing has
                changed.

        Guarantees:
            Each gradient is cast to the dtype of the sums and added, in the order of microbatches; the bits don't
            depend on anything else.

        Cost:
            As for `GradientAccumulator.add`.
        """
        self._add(weight, is_mean=False)

    def add_mean(self, weight: float) -> None:
        """Add the gradients of a microbatch's *mean* loss, times its weight; otherwise like `add_sum`.

        Args:
            weight: As for `add_sum`.

        Raises:
            WindowError: As for `add_sum`.

        Guarantees:
            Cast to the dtype of the sums, times the weight in that dtype, then added: three roundings.

        Cost:
            One more multiplication per parameter, through a small scratch.
        """
        self._add(weight, is_mean=True)

    def _add(self, weight: float, *, is_mean: bool) -> None:
        weight, total = self._checked(weight)
        microbatch = self._sums.check_microbatch()
        if weight > 0:
            self._sums.add(microbatch, weight if is_mean else 1.0, fills=self._fills)
        else:
            self._sums.drop(microbatch)
        self._count(total)

    def _checked(self, weight: float) -> tuple[float, float]:
        """Return a weight, and the total with it."""
        dtype = self._sums.dtype
        weight = checked_weight(weight, dtype)
        total = checked_total(self._total_weight + weight, dtype)
        self._refuse_another_microbatch()
        return weight, total

    def _count(self, total: float) -> None:
        self._total_weight = total
        self._count_microbatch()

    def backward_sum(self, loss_sum: torch.Tensor, weight: torch.Tensor) -> SummedLoss:
        """Run the backward of a microbatch's *summed* loss and add its gradients, loss scale included.

        Args:
            loss_sum: Shape [1], floating point: the loss summed over the microbatch, without the loss scale.
            weight: Shape [1], floating point, on the same device: what the microbatch counts. Detached.

        Returns:
            The loss and the weight as they were read, and whether backward ran: not with weight 0, which counts as
            a microbatch and contributes nothing.

        Raises:
            WindowError: If a tensor is of another shape or dtype; a weight is refused as by `add_sum`; a gradient
                stands in `.grad` already, which was never added; or the loss has a gradient for a tensor that the
                model does not have. All of this is checked before backward.
            Exception: What backward raises.

        Guarantees:
            After any exception the window and every `.grad` of the model are as before. The loss is cast to the
            dtype of the sums and multiplied by the loss scale once. A loss that is not finite is not hidden.

        Cost:
            One transfer of two numbers to the host, which waits for the loss; one walk over its graph; then as for
            `add_sum`.
        """
        loss, number = read_both(loss_sum, weight)
        number, total = self._checked(number)
        self._sums.refuse_standing()
        if number > 0:
            refuse_unknown_leaves(loss_sum, self._sums.parameters)
            self._add_backward_of(loss_sum)
        self._count(total)
        return SummedLoss(loss, number, number > 0)

    def _add_backward_of(self, loss_sum: torch.Tensor) -> None:
        try:
            with torch.inference_mode(False), torch.enable_grad():
                scaled = loss_sum.to(self._sums.dtype)
                if self._loss_scale != 1.0:
                    scaled = scaled * self._loss_scale
                scaled.backward()  # type: ignore[no-untyped-call]
            self._sums.add(self._sums.check_microbatch(), 1.0, fills=self._fills)
        except BaseException:
            # No gradient stood before, so whatever stands now was written by the backward that failed.
            self._sums.drop_standing()
            raise

    def finish_sums(self) -> WindowState:
        """Put the sums into `.grad` undivided, loss scale included, and begin a new window.

        Returns:
            The counters of the finished window; divide by its `total_weight` and `loss_scale` yourself.

        Raises:
            WindowError: If a gradient stands in `.grad` that was never added, or a sum no longer fits its parameter;
                nothing has changed.

        Guarantees:
            All or nothing. Allowed for an empty window. A sum that is not finite is handed out as it is.

        Cost:
            As for `GradientAccumulator.finish_sums`.
        """
        state = self.window_state()
        self._sums.hand_out(())
        self._begin()
        return state

    def finish_mean(self) -> None:
        """Divide the sums by loss scale and total weight, put them into `.grad`, and begin a new window.

        Raises:
            WindowError: If the total weight is zero; else as for `finish_sums`. Nothing has changed.

        Guarantees:
            Two divisions one after the other in the dtype of the sums, then one cast. All or nothing.

        Cost:
            Up to two divisions per parameter; else as for `GradientAccumulator.finish_sums`.
        """
        if self._total_weight <= 0:
            self._sums.refuse_standing()  # one that was never added may be why the window is empty
            raise WindowError(
                "a window without weight has no mean", code="window.empty", where="accumulator",
                expected="a positive total weight", found=f"{self._microbatches} microbatches of total weight 0",
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
