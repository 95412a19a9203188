"""What a caller made, as a tree: records of any kind, in containers of any kind."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any

from segue._capture.plain import entry, freeze, refuse_depth
from segue._record.conversion import Precision, precision_name
from segue._record.rank_local import RankLocal
from segue._record.training import TrainingRecord


def as_tree(value: Any, section: str, precision: Precision) -> Any:
    """Copy what a caller made into a tree that shares nothing with it.

    Args:
        value: Plain containers, values, tensors and arrays; records of segue's own; `RankLocal` with these inside.
        section: What it is, for messages.
        precision: What rank-local parts convert themselves to, with their own converter and as they are. All others
            stay what they are.

    Raises:
        UnsupportedState: For anything else, naming path and type.
    """
    if precision_name(precision) != "native":
        value = _converted(value, precision, section)
    return freeze(value, section)


def _converted(value: Any, precision: Precision, where: str, depth: int = 0) -> Any:
    refuse_depth(value, where, depth)
    kind = type(value)
    if kind is RankLocal:
        return value.converted(precision)
    if kind in (list, tuple):
        return kind(_converted(item, precision, f"{where}[{i}]", depth + 1) for i, item in enumerate(value))
    if kind is deque:
        items = (_converted(item, precision, f"{where}[{i}]", depth + 1) for i, item in enumerate(value))
        return deque(items, value.maxlen)
    if kind in (dict, OrderedDict):
        return kind(
            (key, _converted(item, precision, entry(where, key), depth + 1)) for key, item in value.items()
        )
    return value


def is_callers_form(record: TrainingRecord) -> bool:
    """Tell whether model and optimizers of a record are the caller's own, captured by `TrainingRecord.capture`.

    `Training` takes down at least the model's mode, whoever captures the model's tensors.
    """
    base = record.model.base
    return base is not None and base.source == "model_state" and not record.model.training
