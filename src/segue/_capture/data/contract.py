"""What decides the order of the batches, compared entry by entry before anything is touched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from segue._capture.data.classes import same_class
from segue._capture.data.source import Progress, Source
from segue._record.tree import same
from segue.errors import ABSENT, ComponentMismatch, Finding

_WHAT = {
    "batch_size": "another batch size",
    "drop_last": "the last short batch is dropped on one side only",
    "num_workers": "another number of workers",
    "prefetch_factor": "workers fetch further ahead, or less far",
    "persistent_workers": "workers live on from pass to pass on one side only",
    "batch_sampler": "another class of batch sampler",
    "sampler": "another class of sampler",
    "dataset": "another class of dataset",
    "dataset_length": "another number of samples",
    "dataset_identity": "another dataset",
    "nodes": "other nodes, or other settings of them",
    "class": "another class of loader",
    "replay": "the position is found again in another way",
}
_HINTS = {
    "batch_size": "build the loader with the batch size of the record",
    "drop_last": "build the loader with the `drop_last` of the record",
    "num_workers": "build the loader with as many workers as in the record",
    "dataset_length": "build the dataset as it was: another number of samples is another order",
    "dataset_identity": "build the dataset as it was, from the same files with the same functions",
    "replay": "build the `DataPosition` with the `replay` of the record",
}


def differences(
    recorded: Mapping[str, Any], source: Source, position: Any, progress: Progress, scope: str
) -> Iterator[Finding]:
    """Yield every entry in which the loader differs from the record, with what accepting it would do."""
    live = source.contract()
    for name in sorted(recorded.keys() | live.keys(), key=str):
        before, now = recorded.get(name, ABSENT), live.get(name, ABSENT)
        if _equal(name, before, now):
            continue
        # Between passes a position may be `None` by nature.
        can_go_on = position is not None or not progress.is_inside
        then = source.may_differ(str(name), position, progress) if can_go_on else None
        yield Finding(
            ComponentMismatch, f"{scope}.{name}", _what(str(name)), scope, before, now, _hint(str(name)),
            admissible=then is not None, when_accepted=then or "",
        )  # fmt: skip


def _what(name: str) -> str:
    aspect, _, setting = name.partition(".")
    return _WHAT.get(name) or (
        f"the {aspect.replace('_', ' ')} differs in `{setting}`" if setting else f"another {name}"
    )


def _hint(name: str) -> str:
    return _HINTS.get(name, "build the loader as it was when the record was captured")


def _equal(name: str, before: Any, now: Any) -> bool:
    if before is ABSENT or now is ABSENT:
        return False
    if name in ("dataset", "sampler", "batch_sampler", "class"):
        return same_class(before, now)
    return type(before) is type(now) and same(before, now)


def is_contract(value: Any) -> bool:
    """Tell whether a value of a record can be a contract."""
    return type(value) is dict and all(type(name) is str and name.isprintable() for name in value)


def moved(findings: Iterable[Finding], scope: str) -> list[str]:
    """Return the entries of the contract that findings are about."""
    return [finding.code.removeprefix(f"{scope}.") for finding in findings]
