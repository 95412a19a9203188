"""Numbers that follow from other numbers, the same on every machine and for ever."""

from __future__ import annotations

import hashlib
import operator
import struct
from typing import Final, SupportsIndex

SEEDS: Final = 1 << 64
"""Seeds lie below this."""
COUNTS: Final = 1 << 63
"""Epochs, indices and lengths lie below this."""


def hashed(purpose: bytes, *numbers: int) -> int:
    """Return 64 bits of SHA-256 over a purpose and some numbers of 64 bits, all little-endian."""
    packed = struct.pack(f"<{len(numbers)}Q", *numbers)
    return int.from_bytes(hashlib.sha256(purpose + packed).digest()[:8], "little")


def checked(value: SupportsIndex, name: str, below: int, least: int = 0) -> int:
    """Return a whole number as an `int`.

    Raises:
        TypeError: If it isn't one.
        ValueError: If it is less than `least` or not below `below`.
    """
    if isinstance(value, bool):
        raise TypeError(f"{name} must be a whole number, not {value!r}")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, not {value!r}") from None
    if not least <= number < below:
        raise ValueError(f"{name} must be at least {least} and below {below}, not {number}")
    return number
