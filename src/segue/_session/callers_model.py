"""A model that an object of the caller's captures and restores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from segue._capture.component import Component, capture_object
from segue._capture.modes import modes_of
from segue._capture.module import contract_of
from segue._capture.staging import is_of_class, type_name
from segue._record.base import BaseRecord
from segue._record.sections import ComponentRecord, ModuleRecord
from segue._record.training import TrainingRecord
from segue._record.tree import thaw
from segue._session.model_checks import MODEL_SCOPE, SHOWN, kind_finding
from segue.errors import ComponentMismatch, Finding


class CallersModel:
    """What an object of the caller's captures; segue keeps the contract of the trainable parameters beside it."""

    kind = "model_state"

    def __init__(self, model: nn.Module, archive: Component) -> None:
        self.model = model
        self._archive = archive

    def objects(self) -> dict[str, Any]:
        return {MODEL_SCOPE: self._archive}

    def capture(self) -> tuple[ModuleRecord, Any]:
        contract = contract_of(self.model, "model").trainable_part()
        base = BaseRecord("model_state", type_name(self._archive), dict.fromkeys(contract.tensors))
        captured = capture_object(self._archive, MODEL_SCOPE)
        modes = dict(modes_of(self.model, "model"))
        return ModuleRecord({}, modes, contract, base), captured.tree

    def check(self, record: TrainingRecord) -> Iterator[Finding]:
        difference = kind_finding(record, SHOWN["model_state"])
        if difference is not None:
            yield difference
            return
        base = record.model.base
        assert base is not None, "what an object of the caller's captured names it"
        if not is_of_class(self._archive, base.identity):
            yield Finding(
                ComponentMismatch, f"{MODEL_SCOPE}.class", "another class captures the model", MODEL_SCOPE,
                base.identity, type_name(self._archive),
            )  # fmt: skip
            return
        found = contract_of(self.model, "model").trainable_part()
        yield from record.model.contract.differences(found, "model")
        for clause in self._archive.check(thaw(record.model_state)) or ():
            yield Finding(ComponentMismatch, f"{MODEL_SCOPE}.check", clause, MODEL_SCOPE)


def callers_record(record: TrainingRecord) -> dict[str, ComponentRecord]:
    """Return what the caller's object captured of the model, as one of the objects that are asked to restore."""
    base = record.model.base
    if base is None or base.source != "model_state":
        return {}
    return {MODEL_SCOPE: ComponentRecord("component", base.identity, None, record.model_state)}
