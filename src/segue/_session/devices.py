"""Devices as callers name them: `cuda` is the present one of several, and nothing lives on a device without a number."""

from __future__ import annotations

import torch

from segue.errors import DeviceMismatch


def existing_device(device: str | torch.device) -> torch.device:
    """Return a device as tensors on it name theirs.

    Raises:
        DeviceMismatch: If there is none, or it holds no values.
    """
    try:
        wanted = torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        raise _no_device(device, error) from error
    if wanted.type == "meta":
        raise DeviceMismatch(
            "a model on `meta` has no values to go on with", code="device", where="device", found="meta"
        )
    return wanted


def device_name(device: str | torch.device) -> str:
    """Return what a record calls a device; one that this process does not have keeps the name that it was given.

    Raises:
        DeviceMismatch: If torch has no such name.
    """
    try:
        named = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise _no_device(device, error) from error
    try:
        return str(torch.empty(0, device=named).device)
    except (RuntimeError, AssertionError):
        return str(named)


def _no_device(device: object, error: Exception) -> DeviceMismatch:
    return DeviceMismatch(
        "there is no such device", code="device", where="device", expected=str(device), found=str(error)
    )
