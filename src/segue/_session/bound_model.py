"""The model of one training, as it is captured: a setting over a live model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from torch import nn

from segue._capture.component import Component
from segue._capture.module import capture_module
from segue._capture.staging import type_name
from segue._record.sections import ModuleRecord
from segue._record.training import TrainingRecord
from segue._session.callers_model import CallersModel
from segue._session.model_checks import module_findings
from segue._session.model_state import FullModel, TrainableOnly
from segue._session.partial_model import PartialModel
from segue.errors import Finding, UnsupportedState


class BoundModelState(Protocol):
    """The model of one training, as it is captured."""

    @property
    def kind(self) -> str:
        """The kind of its records."""
        ...

    def objects(self) -> dict[str, Any]:
        """Return the object that restores the model, if it is the caller's, by its scope."""
        ...

    def capture(self) -> tuple[ModuleRecord, Any]:
        """Return the model's section, and what the caller's object captured, or `None`."""
        ...

    def check(self, record: TrainingRecord) -> Iterator[Finding]:
        """Yield what keeps the record's model from fitting."""
        ...


def bound(model_state: Any, model: nn.Module) -> BoundModelState:
    """Bind a setting to a model.

    Raises:
        UnsupportedState: If it is none, or names a base that this model does not have.
    """
    if model_state is None or isinstance(model_state, FullModel):
        return WholeModel(model)
    if isinstance(model_state, TrainableOnly):
        return PartialModel(model, model_state)
    if isinstance(model_state, Component) and not isinstance(model_state, type):
        return CallersModel(model, model_state)
    raise UnsupportedState(
        "what of the model is captured is `FullModel()`, `TrainableOnly(base=...)`, or an object with `capture`, `check` "
        "and `restore`", code="model_state.kind", where="model_state", found=type_name(model_state),
    )  # fmt: skip


@dataclass(frozen=True)
class WholeModel:
    """Everything registered."""

    model: nn.Module
    kind = "full"

    def objects(self) -> dict[str, Any]:
        return {}

    def capture(self) -> tuple[ModuleRecord, Any]:
        return capture_module(self.model, "model"), None

    def check(self, record: TrainingRecord) -> Iterator[Finding]:
        yield from module_findings(record, self.model, None)
