"""What a weight, a loss scale and a total may be: finite, and not lost in the dtype that the sums are divided in."""

from __future__ import annotations

import math

import torch

from segue.errors import WindowError


def is_representable(value: float, dtype: torch.dtype) -> bool:
    """Tell whether a number is finite, and stays so in a dtype."""
    return math.isfinite(value) and math.isfinite(_rounded(value, dtype))


def vanishes(value: float, dtype: torch.dtype) -> bool:
    """Tell whether a positive number is zero in a dtype."""
    return value > 0 and _rounded(value, dtype) == 0


def _rounded(value: float, dtype: torch.dtype) -> float:
    return torch.tensor(value, dtype=dtype, device="cpu").item()


def checked_scale(value: float, dtype: torch.dtype) -> float:
    """Return a loss scale that can be multiplied in and divided out.

    Raises:
        WindowError: If it is not positive, not finite, or zero in the dtype.
    """
    scale = float(value)
    if not scale > 0 or not is_representable(scale, dtype) or vanishes(scale, dtype):
        raise WindowError(
            "a loss scale must be positive and finite in the dtype of the sums", code="window.loss_scale",
            where="accumulator", expected=f"positive and finite in {dtype}", found=scale,
        )  # fmt: skip
    return scale


def checked_weight(value: object, dtype: torch.dtype) -> float:
    """Return the weight of a microbatch.

    Raises:
        WindowError: If it is negative, not finite, or positive and zero in the dtype.
    """
    if isinstance(value, str | bytes):
        raise _no_weight(value)
    try:
        weight = float(value.detach() if isinstance(value, torch.Tensor) else value)  # type: ignore[arg-type]
    except OverflowError:  # an int beyond double precision
        weight = math.inf
    except (TypeError, ValueError, RuntimeError) as error:
        raise _no_weight(value) from error
    if vanishes(weight, dtype):
        raise WindowError(
            "a weight is lost in the dtype of the sums", code="window.weight", where="accumulator",
            expected=f"0, or positive in {dtype}", found=weight, hint="sum in float64, or weigh in larger units",
        )  # fmt: skip
    if not weight >= 0 or not is_representable(weight, dtype):
        raise WindowError(
            "a weight must be finite and not negative", code="window.weight", where="accumulator",
            expected=f"0, or positive and finite in {dtype}", found=weight,
        )  # fmt: skip
    return weight


def _no_weight(value: object) -> WindowError:
    return WindowError(
        "a weight must be a number", code="window.weight", where="accumulator", expected="a number",
        found=type(value).__name__,
    )  # fmt: skip


def checked_total(total: float, dtype: torch.dtype) -> float:
    """Return a total weight that can be divided by.

    Raises:
        WindowError: If it is infinite in the dtype.
    """
    if not is_representable(total, dtype):
        raise WindowError(
            "the total weight overflows", code="window.overflow", where="accumulator",
            expected=f"finite in {dtype}", found=total,
        )  # fmt: skip
    return total
