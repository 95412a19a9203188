"""A whole record in another precision, and back: which of its tensors are meant.

Parameters, buffers, optimizer state and pending gradients; of a caller-made section whatever is a tensor. Never what
a step counts or looks up, nor what another object keeps to itself: window sums, random streams, caller state, options,
schedulers, components that are no modules, optimizers that aren't torch's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch

from segue._record.composite import Composite, ConvertedTensor
from segue._record.conversion import (
    PRECISIONS,
    Convertible,
    Precision,
    converted,
    precision_name,
    refuse_inexact,
)
from segue._record.converted_bytes import Workspace
from segue._record.gradients import GradientsRecord
from segue._record.sections import ComponentRecord, ModuleRecord, OptimizerRecord
from segue._record.tensors import CapturedTensor
from segue._record.tree import Path, key_part, shown_path
from segue.errors import InvalidRecord

if TYPE_CHECKING:
    from segue._record.training import TrainingRecord


def in_precision(record: TrainingRecord, precision: Precision) -> TrainingRecord:
    """Return a record stored in a precision: what `TrainingRecord.converted` does."""
    name = precision_name(precision)
    return record if name == "native" else _Conversion(precision).record(record, precision=name)


def converted_tensors(record: TrainingRecord) -> list[tuple[str, ConvertedTensor]]:
    """Return what is stored in another dtype than its own, and where it stands: `model/layer.weight`."""
    search = _Search()
    search.record(record)
    return search.found


def refuse_untold(record: TrainingRecord) -> None:
    """Raise for a record of no precision that holds converted state all the same.

    Before version 3 of the format gradients alone could be converted; what has a precision is written as version 3.

    Raises:
        InvalidRecord: If there is such state.
    """
    modules = [record.model, *(item.module for item in record.components.values() if item.module is not None)]
    values = chain(
        *(module.tensors.values() for module in modules),
        *(slots.values() for optimizer in record.optimizers.values() for slots in optimizer.state.values()),
    )
    if record.precision == "native" and any(isinstance(value, ConvertedTensor) for value in values):
        raise InvalidRecord(
            "state is converted, but the record doesn't say so", code="record.precision", where="precision",
            expected=PRECISIONS[1:], found="native",
        )  # fmt: skip


def in_own_dtypes(record: TrainingRecord) -> TrainingRecord:
    """Return a record in which every tensor has its own dtype; what was converted is converted back as it is read.

    Cost:
        A look at every tensor; host memory of the size of the largest converted one.
    """
    return _Restoration().record(record)


def refuse_inexact_record(record: TrainingRecord) -> None:
    """Raise if a tensor that is said to come back exactly doesn't, here and now.

    Raises:
        InvalidRecord: If one doesn't.
        StoreError: If stored bytes do not match their checksums.

    Cost:
        A read of every converted tensor, and two conversions of it.
    """
    workspace = Workspace()
    for place, tensor in converted_tensors(record):
        refuse_inexact(tensor, place, workspace)


class _Walk(ABC):
    """Rebuilds a record, wherever a converted tensor may stand; what each becomes is for a subclass to say."""

    @abstractmethod
    def tensor(self, path: Path, tensor: CapturedTensor | Composite) -> Any:
        """Return what stands in the place of a captured tensor."""

    def own_way(self, path: Path, value: Convertible) -> Any:
        """Return what a value in a caller-made section becomes that has a converter of its own."""
        return value

    def record(self, record: TrainingRecord, **fields: Any) -> TrainingRecord:
        """Return the record of these fields and what everything else becomes."""
        return replace(
            record,
            **fields,
            model=self.module(("model",), record.model),
            optimizers={
                name: self.optimizer(("optimizers", name), item) for name, item in record.optimizers.items()
            },
            gradients=self.gradients(("gradients",), record.gradients),
            window=None
            if record.window is None
            else replace(record.window, sums=self.sums(("window", "sums"), record.window.sums)),
            components={
                name: self.component(("components", name), item) for name, item in record.components.items()
            },
            model_state=self.tree(("model_state",), record.model_state),
            groups=self.tree(("groups",), record.groups),
        )

    def module(self, path: Path, module: ModuleRecord) -> ModuleRecord:
        tensors = {
            name: None if tensor is None else self.tensor((*path, name), tensor)
            for name, tensor in module.tensors.items()
        }
        return replace(module, tensors=tensors)

    def optimizer(self, path: Path, optimizer: OptimizerRecord) -> OptimizerRecord:
        state = {name: self.slots((*path, name), slots) for name, slots in optimizer.state.items()}
        return replace(optimizer, state=state)

    def slots(self, path: Path, slots: Mapping[Any, Any]) -> Any:
        """Return the state of one parameter."""
        return self.tree(path, slots)

    def component(self, path: Path, component: ComponentRecord) -> ComponentRecord:
        if component.module is None:
            return component
        return replace(component, module=self.module(path, component.module))

    def gradients(self, path: Path, gradients: GradientsRecord) -> GradientsRecord:
        tensors = {name: self.tensor((*path, name), tensor) for name, tensor in gradients.tensors.items()}
        return replace(gradients, tensors=tensors)

    def sums(self, path: Path, sums: GradientsRecord) -> GradientsRecord:
        """Return the sums of a window."""
        return self.gradients(path, sums)

    def tree(self, path: Path, tree: Any) -> Any:
        kind = type(tree)
        if isinstance(tree, CapturedTensor | Composite):
            return self.tensor(path, tree)
        if kind in (dict, OrderedDict):
            return kind(
                (key, self.tree((*path, key_part(index, key)), item))
                for index, (key, item) in enumerate(tree.items())
            )
        if kind in (list, tuple):
            return kind(self.tree((*path, str(index)), item) for index, item in enumerate(tree))
        if kind is deque:
            items = (self.tree((*path, str(index)), item) for index, item in enumerate(tree))
            return deque(items, tree.maxlen)
        return self._embedded(path, tree)

    def _embedded(self, path: Path, value: Any) -> Any:
        """Return what a record becomes that stands in a caller-made section."""
        if isinstance(value, ModuleRecord):
            return self.module(path, value)
        if isinstance(value, OptimizerRecord):
            return self.optimizer(path, value)
        if isinstance(value, ComponentRecord):
            return self.component(path, value)
        if isinstance(value, GradientsRecord):
            return self.gradients(path, value)
        return self.own_way(path, value) if isinstance(value, Convertible) else value


class _Conversion(_Walk):
    def __init__(self, precision: Precision) -> None:
        self._precision = precision

    def tensor(self, path: Path, tensor: CapturedTensor | Composite) -> Any:
        return converted(tensor, self._precision)

    def own_way(self, path: Path, value: Convertible) -> Any:
        return value.converted(self._precision)

    def slots(self, path: Path, slots: Mapping[Any, Any]) -> Any:
        return slots if _has_codes(slots) else self.tree(path, slots)

    def gradients(self, path: Path, gradients: GradientsRecord) -> GradientsRecord:
        return gradients.converted(self._precision)

    def sums(self, path: Path, sums: GradientsRecord) -> GradientsRecord:
        return sums


def _has_codes(slots: Mapping[Any, Any]) -> bool:
    """Tell whether the state of a parameter is quantized.

    bitsandbytes keeps a moment as bytes, with scales and a table beside them; without its exact scales a code means
    something else.
    """
    return any(
        isinstance(slot, CapturedTensor) and slot.shape and slot.dtype in (torch.uint8, torch.int8)
        for slot in slots.values()
    )


class _Search(_Walk):
    def __init__(self) -> None:
        self.found: list[tuple[str, ConvertedTensor]] = []

    def tensor(self, path: Path, tensor: CapturedTensor | Composite) -> Any:
        if isinstance(tensor, ConvertedTensor):
            self.found.append((shown_path(path), tensor))
        return tensor


class _Restoration(_Walk):
    def __init__(self) -> None:
        self._workspace = Workspace()

    def tensor(self, path: Path, tensor: CapturedTensor | Composite) -> Any:
        return tensor.restored(self._workspace) if isinstance(tensor, ConvertedTensor) else tensor
