"""JSON as a stranger may have written it: what two parsers could read differently, or slowly, is refused.

Python's parser takes duplicate keys (the last wins), NaN, integers of any length (quadratic), and nests until the
stack ends. Each of these has been somebody's vulnerability. All checks but those on values run before it.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Never

import numpy as np

from segue.errors import CorruptCheckpoint

MAX_DEPTH = 256
"""Levels of objects and arrays: four for each of the 64 levels that a tree may have."""
_MAX_INTEGER_DIGITS = 19
_SLICE_BYTES = 2**20
_QUOTE = ord('"')
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_DEPTH_CHANGE = np.zeros(256, dtype=np.int8)
_DEPTH_CHANGE[[ord("["), ord("{")]] = 1
_DEPTH_CHANGE[[ord("]"), ord("}")]] = -1


def parse(data: bytes, where: str) -> Any:
    """Parse one JSON document, strictly.

    Args:
        data: The whole document, of a size the caller has already limited.
        where: The file, for messages.

    Raises:
        CorruptCheckpoint: If it is not UTF-8 JSON without a byte-order mark, nests deeper than `MAX_DEPTH`, repeats
            a key, or holds a number that is not finite or has more than 19 digits.
    """
    if _depth(data) > MAX_DEPTH:
        raise CorruptCheckpoint(
            "nested too deeply", code="store.corrupt.json", where=where, expected=MAX_DEPTH
        )
    try:
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_constant=_no_constant,
            parse_int=_short_int,
            parse_float=_finite_float,
        )
        if _SURROGATE.search(data):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpoint(f"not valid: {error}", code="store.corrupt.json", where=where) from error
    return value


def _depth(data: bytes) -> int:
    """Find the deepest nesting without a stack and in little memory: brackets outside of strings, counted."""
    plain = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    level, quotes, deepest = 0, 0, 0
    for start in range(0, len(plain), _SLICE_BYTES):
        part = np.frombuffer(plain, dtype=np.uint8, offset=start, count=min(_SLICE_BYTES, len(plain) - start))
        inside = np.cumsum(part == _QUOTE, dtype=np.int32) + quotes
        levels = np.cumsum(np.where(inside & 1, 0, _DEPTH_CHANGE[part]), dtype=np.int32) + level
        deepest = max(deepest, int(levels.max()))
        level, quotes = int(levels[-1]), int(inside[-1]) & 1
    return deepest


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key occurs twice")
    return value


def _no_constant(name: str) -> Never:
    raise ValueError(f"{name} is no JSON")


def _short_int(text: str) -> int:
    if len(text.lstrip("-")) > _MAX_INTEGER_DIGITS:
        raise ValueError("an integer is too long")
    return int(text)


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number is too large")
    return value


def dump(value: Any) -> str:
    """Write JSON compactly: the inverse of `parse`, for values that `encode` made."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
