"""The running sum of one parameter within a window."""

from __future__ import annotations

import weakref

import torch
from torch import nn


class RunningSum:
    """What a window holds of one parameter; `total` is None as long as it has had no gradient."""

    __slots__ = ("handed_out", "kept", "name", "parameter", "spare", "strided_shape", "total")

    def __init__(self, name: str, parameter: nn.Parameter) -> None:
        self.name = name
        self.parameter = parameter
        self.total: torch.Tensor | None = None
        self.strided_shape: torch.Size | None = None
        """The shape of the total; None for a sparse one."""
        self.spare: torch.Tensor | None = None
        """The memory of the last window's sum, for the next one's."""
        self.kept: torch.Tensor | None = None
        """The gradient that filled the window, whose memory the sum is to be handed out in."""
        self.handed_out: weakref.ref[torch.Tensor] | None = None
        """What the last window put into `.grad`."""

    @property
    def where(self) -> str:
        """How errors name it."""
        return f"gradient of {self.name}"

    def hold(self, total: torch.Tensor) -> None:
        """Hold this sum from now on; what stands in `.grad` next is a new gradient."""
        self.total, self.handed_out = total, None
        self.strided_shape = None if total.is_sparse else total.shape

    def clear(self) -> None:
        """Hold nothing any more, and know of nothing handed out."""
        self.total = self.strided_shape = self.kept = self.handed_out = None

    def hand_out(self, gradient: torch.Tensor) -> None:
        """Put the finished sum into `.grad` and hold nothing; the sum's own memory stays, if that is another."""
        self.parameter.grad = gradient
        if self.total is not gradient and not gradient.is_sparse:
            self.spare = self.total
        self.clear()
        self.handed_out = weakref.ref(gradient)

    def mark_handed_out(self) -> None:
        """Remember that what stands in `.grad` must not be added again."""
        gradient = self.parameter.grad
        self.handed_out = None if gradient is None else weakref.ref(gradient)

    def has_handed_out(self, gradient: torch.Tensor) -> bool:
        """Tell whether a gradient is the very tensor that the last window handed out."""
        return self.handed_out is not None and self.handed_out() is gradient
