"""The factors of a gradient scaler: current ones are state, what the program asked for is contract.

`load_state_dict` takes them from the record with the scale (torch 2.13), so that a growth interval which was edited
would have no effect, and nobody would be told. They are compared as options of optimizers are (ADR 0003). The scale
itself is state alone: the one that a program begins with is not in what torch saves.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

import torch

from segue._record.sections import ComponentRecord
from segue._record.tree import same
from segue.errors import ComponentMismatch, Finding

_first_seen: weakref.WeakKeyDictionary[torch.amp.GradScaler, dict[str, Any]] = weakref.WeakKeyDictionary()


def bind_scaler(value: object) -> None:
    """Remember the factors of a gradient scaler, the first time it is seen in this process; of other objects nothing."""
    if isinstance(value, torch.amp.GradScaler):
        _first_seen.setdefault(value, _factors(value))


def _factors(scaler: torch.amp.GradScaler) -> dict[str, Any]:
    if not scaler.is_enabled():
        return {}
    return {
        "growth_factor": scaler.get_growth_factor(),
        "backoff_factor": scaler.get_backoff_factor(),
        "growth_interval": scaler.get_growth_interval(),
    }


def configured_factors(value: object, tree: Any) -> dict[str, Any] | None:
    """Return the factors that the program asked for, as far as the run has others by now; `None` for nothing."""
    if not isinstance(value, torch.amp.GradScaler) or type(tree) is not dict:
        return None
    asked = _first_seen.get(value, {})
    return {
        key: factor for key, factor in asked.items() if key in tree and not same(tree[key], factor)
    } or None


def check_factors(record: ComponentRecord, scaler: torch.amp.GradScaler, scope: str) -> Iterator[Finding]:
    """Yield the factors that the program asks for otherwise than it did, and than the run has arrived at since."""
    for key, then, now in _differences(record, scaler):
        yield Finding(
            ComponentMismatch, f"{scope}.{key}", "a factor of the gradient scaler differs", f"{scope} {key}", then, now,
            admissible=True,
        )  # fmt: skip


def _differences(record: ComponentRecord, scaler: torch.amp.GradScaler) -> Iterator[tuple[str, Any, Any]]:
    current: dict[str, Any] = record.tree if type(record.tree) is dict else {}
    asked: dict[str, Any] = {**current, **(record.configured if type(record.configured) is dict else {})}
    for key, now in _first_seen.get(scaler, _factors(scaler)).items():
        if key in current and not same(asked[key], now) and not same(current[key], now):
            yield key, asked[key], now


def with_accepted_factors(
    record: ComponentRecord, value: object, scope: str, accept: Collection[str]
) -> ComponentRecord:
    """Return the record with the factors of the program where these were accepted as changed."""
    if not isinstance(value, torch.amp.GradScaler) or record.kind != "state_dict":
        return record
    current = _factors(value)
    kept = {key: current[key] for key, _, _ in _differences(record, value) if f"{scope}.{key}" in accept}
    return replace(record, tree={**record.tree, **kept}) if kept else record
