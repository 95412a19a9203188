"""What a gradient must be to take part in a window, and what is said of one that is not."""

from __future__ import annotations

from typing import Any

import torch

from segue._window.running import RunningSum
from segue.errors import ABSENT, WindowError

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_LAYOUTS = (torch.strided, torch.sparse_coo)


def refuse_unfit(running: RunningSum, gradient: torch.Tensor) -> None:
    """Raise `WindowError` for a gradient that can't be summed, naming what was expected and what was found."""
    if running.has_handed_out(gradient):
        raise WindowError(
            "the gradient of the last window is still there", code="window.not_consumed", where=running.where,
            expected=None, found=_described(gradient),
            hint="call `optimizer.zero_grad()` after `optimizer.step()`, with set_to_none=True (the default)",
        )  # fmt: skip
    if type(gradient) is not torch.Tensor:
        what = "a gradient of this class can't be summed"
        _refuse(running, "gradient", what, "torch.Tensor", type(gradient).__name__)
    if gradient.layout not in _LAYOUTS:
        hint = "compressed layouts can't be added up; make it `to_sparse_coo()` or `to_dense()`"
        what = "a gradient of this layout can't be summed"
        _refuse(running, "layout", what, "strided or sparse_coo", gradient.layout, hint)
    if gradient.dtype not in FLOATS:
        what = "a gradient of this dtype can't be summed"
        _refuse(running, "gradient", what, "a real floating-point dtype", gradient.dtype)
    if gradient.requires_grad:
        hint = "call backward without `create_graph`, or detach it"
        what = "a gradient that is part of a graph can't be summed"
        _refuse(running, "graph", what, "requires_grad=False", "requires_grad=True", hint)
    _refuse_frozen(running)
    _refuse_other_place(running, gradient)
    if running.total is not None:
        _refuse_other_place(running, running.total)


def refuse_unfit_sum(running: RunningSum, total: torch.Tensor) -> None:
    """Raise `WindowError` for a sum that could not stand in its parameter's `.grad`."""
    _refuse_frozen(running)
    _refuse_other_place(running, total)
    dtype = running.parameter.grad_dtype
    if dtype is not None and dtype not in FLOATS:
        what = "a parameter takes no gradient of a real floating-point dtype"
        _refuse(running, "grad_dtype", what, "a real floating-point dtype", dtype)


def refuse_stranger(running: RunningSum) -> None:
    """Raise `WindowError` for a sum whose parameter has left the model."""
    what = "the window holds a sum for a parameter that the model no longer has"
    hint = "replace parameters between windows, or begin again with a new accumulator"
    _refuse(running, "unknown", what, "a parameter of the model", running.name, hint)


def refuse_standing(running: RunningSum, gradient: torch.Tensor) -> None:
    """Raise `WindowError` for a gradient that stands in `.grad` where none may."""
    if running.has_handed_out(gradient):
        refuse_unfit(running, gradient)
    what = "a gradient was never added to the window"
    hint = "add each microbatch after its backward, before the window is finished"
    _refuse(running, "not_added", what, None, _described(gradient), hint)


def _refuse_frozen(running: RunningSum) -> None:
    # An optimizer would step a frozen parameter that has a gradient (torch 2.13).
    if not running.parameter.requires_grad:
        hint = "freeze between windows, and set its `.grad` to None"
        what = "a frozen parameter has a gradient"
        _refuse(running, "frozen", what, "requires_grad=True", "requires_grad=False", hint)


def _refuse_other_place(running: RunningSum, gradient: torch.Tensor) -> None:
    """Refuse after `parameter.data = ...`, under which gradients and sums stay as they are."""
    parameter = running.parameter
    if parameter.shape != gradient.shape:
        what = "a gradient has another shape than its parameter"
        _refuse(running, "shape", what, tuple(parameter.shape), tuple(gradient.shape))
    if parameter.device != gradient.device:
        what = "a gradient is on another device than its parameter"
        _refuse(running, "device", what, parameter.device, gradient.device)


def _described(gradient: torch.Tensor) -> str:
    return f"{gradient.dtype} {tuple(gradient.shape)}"


def _refuse(
    running: RunningSum,
    code: str,
    what: str,
    expected: Any = ABSENT,
    found: Any = ABSENT,
    hint: str | None = None,
) -> None:
    raise WindowError(
        what, code=f"window.{code}", where=running.where, expected=expected, found=found, hint=hint
    )
