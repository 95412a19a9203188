"""Tensor subclasses that segue admits: an allow-list of classes, and their context as a tree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from segue._record.composite import CapturedSubclass


def rebuild(captured: CapturedSubclass, parts: Mapping[str, Any]) -> torch.Tensor:
    """Make a tensor of the captured class over new parts."""
    raise NotImplementedError
