"""An accumulation window as a value."""

from __future__ import annotations

from dataclasses import dataclass

from segue._record.gradients import GradientsRecord
from segue._record.structure import embeddable
from segue.errors import InvalidRecord


@embeddable("window_state")
@dataclass(frozen=True)
class WindowState:
    """The counters of an accumulation window; together with its sums, all of it."""

    kind: str
    """`plain` divides by microbatches, `weighted` by the sum of weights."""
    dtype: str
    """The dtype the sums are kept and divided in: `float32` or `float64`."""
    loss_scale: float
    """The fixed factor in every loss of the window; 1.0 for none."""
    window_microbatches: int | None
    """How many microbatches fill the window, or `None` where the caller decides."""
    microbatches: int
    """How many microbatches are in the window, empty ones included."""
    total_weight: float
    """The sum of their weights, in double precision; for a plain window, their number."""


@embeddable("window")
@dataclass(frozen=True)
class WindowRecord:
    """An open window: what has been summed so far and what it will be divided by."""

    state: WindowState
    sums: GradientsRecord
    handed_out: tuple[str, ...] = ()
    """Parameters whose standing gradient is what the last window handed out, and must not be added again."""

    def __post_init__(self) -> None:
        """Refuse sums that no window of these counters can hold."""
        for name, tensor in self.sums.tensors.items():
            found = str(getattr(tensor, "dtype", None)).removeprefix("torch.")
            if found != self.state.dtype:
                raise InvalidRecord(
                    "a window sum is not of the window's dtype", code="record.window", where=name,
                    expected=self.state.dtype, found=found,
                )  # fmt: skip
            if self.state.microbatches == 0 or self.state.total_weight == 0:
                raise InvalidRecord(
                    "a window without weight holds a sum", code="record.window", where=name,
                    found=f"{self.state.microbatches} microbatches of total weight {self.state.total_weight}",
                )  # fmt: skip
