"""The gradients of one microbatch: all checked, and sorted by how they are added, before the first is."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from segue._window.refusals import FLOATS, refuse_unfit
from segue._window.running import RunningSum


class Terms:
    """Gradients and the running sums they go to, side by side.

    Two lists, not one of pairs: thousands of new tuples at each microbatch would call the garbage collector.
    """

    __slots__ = ("gradients", "running")

    def __init__(self) -> None:
        self.running: list[RunningSum] = []
        self.gradients: list[torch.Tensor] = []

    def append(self, running: RunningSum, gradient: torch.Tensor) -> None:
        self.running.append(running)
        self.gradients.append(gradient)

    def __add__(self, other: Terms) -> Terms:
        both = Terms()
        both.running = self.running + other.running
        both.gradients = self.gradients + other.gradients
        return both


class Microbatch:
    """What stands in `.grad` after one backward."""

    __slots__ = ("cast", "direct", "first", "sparse")

    def __init__(self) -> None:
        self.first = Terms()
        """Strided ones of parameters that have no sum yet."""
        self.direct = Terms()
        """Strided ones of the dtype of their sum."""
        self.cast = Terms()
        """Strided ones of another dtype."""
        self.sparse = Terms()
        """Those that are sparse, or meet a sparse sum."""

    @property
    def all(self) -> tuple[Terms, ...]:
        """Every gradient."""
        return self.first, self.direct, self.cast, self.sparse


def checked_microbatch(sums: Iterable[RunningSum], work_dtype: torch.dtype) -> Microbatch:
    """Return the gradients that stand in `.grad`.

    Raises:
        WindowError: If one can't be summed, or is still what the last window handed out.

    Cost:
        About a microsecond for each parameter, which is why this is one loop.
    """
    microbatch = Microbatch()
    first, direct, cast = microbatch.first.append, microbatch.direct.append, microbatch.cast.append
    strided, own_class = torch.strided, torch.Tensor
    for running in sums:
        parameter = running.parameter
        gradient = parameter.grad
        if gradient is None:
            continue
        dtype, shape = gradient.dtype, gradient.shape
        # At first sight only: whatever this doubts is for `refuse_unfit` to judge.
        is_plainly_fit = (
            type(gradient) is own_class
            and dtype in FLOATS
            and gradient.layout is strided
            and not gradient.requires_grad
            and parameter.requires_grad
            and shape == parameter.shape
            and gradient.device == parameter.device
            and running.handed_out is None
        )
        if is_plainly_fit and running.strided_shape == shape:
            (direct if dtype is work_dtype else cast)(running, gradient)
        elif is_plainly_fit and running.total is None:
            first(running, gradient)
        else:
            refuse_unfit(running, gradient)
            if running.total is None and not gradient.is_sparse:
                first(running, gradient)
            else:
                microbatch.sparse.append(running, gradient)
    return microbatch
