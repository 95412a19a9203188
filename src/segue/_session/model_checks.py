"""Whether a model is the one that a record keeps a part of: the same part, and the same base."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from segue._capture.base import forget_if_untold, tensor_digest
from segue._capture.module import check_module
from segue._capture.naming import NamedTensor, named_tensors
from segue._record.base import BaseIdentity, BaseRecord
from segue._record.sections import ModuleRecord
from segue._record.training import TrainingRecord
from segue.errors import ABSENT, BaseMismatch, ContractMismatch, Finding, some

MODEL_SCOPE = "model_state"
"""What of the model is captured, in messages."""

SHOWN = {
    None: "FullModel()",
    "digest": "TrainableOnly(base=...)",
    "declared": "TrainableOnly(base=...)",
    "model_state": "an object of the caller's",
}


def kind_finding(record: TrainingRecord, program: str) -> Finding | None:
    """Return that a record keeps another part of the model than the program would, or `None`.

    Args:
        record: The record.
        program: What the program captures, as people write it.
    """
    base = record.model.base
    recorded = SHOWN[None if base is None else base.source]
    if recorded == program:
        return None
    # Between all and part nothing is lost either way, but the next checkpoint is of another kind. A base that nobody
    # has read can't be told from the program's, and what segue captured means nothing to an object of the caller's.
    can = (base is None or base.source == "digest") and program != SHOWN["model_state"]
    return Finding(
        ContractMismatch, "model.kind", "another part of the model is captured", MODEL_SCOPE, recorded, program,
        "capture the same part of the model as before", admissible=can,
    )  # fmt: skip


def module_findings(
    record: TrainingRecord, model: nn.Module, base: BaseIdentity | str | None
) -> Iterator[Finding]:
    """Yield what keeps a model from fitting what segue captured of one."""
    difference = kind_finding(record, SHOWN[None if base is None else "digest"])
    if difference is not None:
        yield difference
        if not difference.admissible:
            return
    yield from base_findings(record.model, model, base)
    yield from check_module(record.model, model, "model")


def base_findings(
    record: ModuleRecord, model: nn.Module, base: BaseIdentity | str | None
) -> Iterator[Finding]:
    """Yield that a model's frozen tensors are not those that the record left out."""
    recorded = record.base
    if recorded is None or recorded.source == "model_state":
        return
    named = base if isinstance(base, str) else None
    if recorded.source == "declared" or named is not None:
        if recorded.identity != named:
            yield Finding(
                BaseMismatch, "model.base", "another base", "model", _named(recorded), _said(base),
                "load the base that the checkpoint names, and name it as before",
            )  # fmt: skip
        return
    tensors = named_tensors(model, "model")
    live = (tensors[name].tensor for name in recorded.omitted if name in tensors)
    forget_if_untold(tensor for tensor in live if tensor is not None)
    differing = [
        name
        for name, digest in recorded.omitted.items()
        if name in tensors and not _has_digest(tensors[name], digest, f"model {name}")
    ]
    if differing:
        yield Finding(
            BaseMismatch, "model.base", "another base: frozen tensors that the record left out have other bytes",
            f"model: {len(differing)} of {len(recorded.omitted)} tensors: {some(differing)}", _named(recorded), _said(base),
            "load the base that the adapter was trained on; if something rewrites it, as PiSSA does when it is made and a merge "
            "that was taken back, build it as it was",
        )  # fmt: skip


def _has_digest(item: NamedTensor, digest: str | None, where: str) -> bool:
    return item.tensor is not None and tensor_digest(item.tensor, where) == digest


def _named(base: BaseRecord) -> str:
    return f"base {base.shown}" if base.source == "digest" else repr(base.identity)


def _said(base: BaseIdentity | str | None) -> Any:
    if base is None:
        return ABSENT
    return f"base {base.digest[:12]}" if isinstance(base, BaseIdentity) else repr(base)
