"""Any value of a record as JSON values: what `--json` prints and tables are made of."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

from segue._record.composite import CapturedSubclass, Composite
from segue._record.tensors import CapturedArray, CapturedTensor
from segue.errors import shown


def plain(value: Any) -> Any:
    """Turn a tree into JSON values; what JSON has no form for becomes a short text.

    Tensors become their dtype and shape, floats that are not finite their name.
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int):
        return value if _can_be_written(value) else shown(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, CapturedTensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if isinstance(value, CapturedArray):
        return f"array {value.dtype} {list(value.shape)}"
    if isinstance(value, Composite):
        return _composite(value)
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key) if _can_be_written(key) else shown(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return shown(value)


def _can_be_written(value: Any) -> bool:
    try:
        str(value)
    except ValueError:  # CPython refuses to write out an integer of more than 4300 digits
        return False
    return True


def _composite(value: Composite) -> str:
    """Describe a tensor that consists of others by its kind, dtype and shape."""
    kind = value.class_name.rpartition(".")[2] if isinstance(value, CapturedSubclass) else value.tag
    dtype = str(getattr(value, "dtype", "")).removeprefix("torch.")
    return " ".join(filter(None, (kind, dtype, str(list(getattr(value, "shape", ()))))))


def to_json(value: Any) -> str:
    """Write plain values as indented JSON, in ASCII, so that no terminal or pipe mangles a name."""
    return json.dumps(plain(value), indent=2, allow_nan=False)
