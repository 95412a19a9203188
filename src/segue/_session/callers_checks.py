"""What is checked around the caller's functions: the record before them, what they return after them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from segue._capture.gradients import check_gradients
from segue._capture.naming import named_tensors
from segue._capture.scheduler import is_scheduler
from segue._capture.staging import type_name
from segue._capture.trainable import contract_differences
from segue._record.contract import TrainableContract
from segue._record.precision import in_own_dtypes, refuse_inexact_record
from segue._record.training import TrainingRecord
from segue._session.callers_values import is_callers_form
from segue._session.devices import existing_device
from segue._session.live import by_name
from segue._session.refusals import refuse_all
from segue.errors import (
    ComponentMismatch,
    DeviceMismatch,
    Finding,
    LossyRecord,
    SchedulerMismatch,
)


def is_factory(scheduler: Any) -> bool:
    """Tell whether this makes schedulers, and is none."""
    return (
        callable(scheduler)
        and not is_scheduler(scheduler)
        and not hasattr(scheduler, "load_state_dict")
        and not hasattr(scheduler, "restore")
    )


def recorded_schedulers(record: TrainingRecord) -> dict[str, Any]:
    """Return the records of all schedulers by name, also of those that are not torch's."""
    others = record.components if is_callers_form(record) else {}
    return {**record.schedulers, **others}


def refuse_left_over(record: TrainingRecord, scheduler: Any) -> None:
    """Raise if something of the record has nobody who takes it, or a scheduler nothing to take.

    Raises:
        ComponentMismatch: If it has components: these only a `Training` restores.
        SchedulerMismatch: If a scheduler is on one side only.
    """
    if record.components and not is_callers_form(record):
        name = min(record.components)
        raise ComponentMismatch(
            "the record has components, which `Training.restore` restores", code=f"component.{name}",
            where=f"component.{name}", expected=record.components[name].class_name, found="absent",
        )  # fmt: skip
    recorded = recorded_schedulers(record)
    if not is_factory(scheduler):
        refuse_other_schedulers(recorded, by_name(scheduler, "scheduler"))
    elif not recorded:
        refuse_other_schedulers(recorded, {"scheduler": scheduler})


def refuse_other_schedulers(recorded: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Raise `SchedulerMismatch` for every scheduler that is on one side only."""
    findings = []
    for name in sorted(recorded.keys() ^ given.keys()):
        scope = f"scheduler.{name}"
        if name in given:
            what, sides = "a scheduler that the record does not have", ("absent", type_name(given[name]))
        else:
            what, sides = "a scheduler of the record is missing", (recorded[name].class_name, "absent")
        findings.append(Finding(SchedulerMismatch, scope, what, scope, *sides))
    refuse_all(findings)


def verified(record: TrainingRecord) -> TrainingRecord:
    """Return a record in which every tensor has its own dtype, after reading all of it once.

    Raises:
        StoreError: If stored bytes are damaged.
        LossyRecord: If it was stored in a precision that lost something.
        ContractMismatch: If a pending gradient does not fit the record's own contract.
    """
    record.verify()
    if record.lossy:
        raise LossyRecord(
            "it was stored in a precision that lost bits of it", code="record.lossy", where=record.lossy[0],
            expected="exact", found=f"precision {record.precision!r}, {len(record.lossy)} tensors",
            hint="go on from a record that was stored as it was (`native`)",
        )  # fmt: skip
    refuse_inexact_record(record)
    findings = list(_own_contradictions(record))
    refuse_all(findings)
    return in_own_dtypes(record)


def _own_contradictions(record: TrainingRecord) -> Iterator[Finding]:
    stand_ins = _stand_ins(record.model.contract.trainable_part())
    yield from check_gradients(record.gradients, stand_ins)
    if record.window is not None:
        yield from check_gradients(record.window.sums, stand_ins, "window")


def _stand_ins(contract: TrainableContract) -> dict[str, nn.Parameter]:
    """Make parameters without memory, of the shapes of a contract, that take a gradient of any dtype."""
    made = {}
    for name, spec in contract.tensors.items():
        if spec is not None:
            made[name] = nn.Parameter(torch.empty(spec.shape, dtype=torch.float32, device="meta"))
            made[name].grad_dtype = None
    return made


def refuse_elsewhere(model: nn.Module, device: str | torch.device) -> None:
    """Raise `DeviceMismatch` for every tensor of a model that is not on a device, frozen ones and buffers too."""
    wanted = existing_device(device)
    findings = [
        Finding(
            DeviceMismatch, f"model.device.{name}", "it is on another device than was asked for; nothing is moved",
            f"model {name}", str(wanted), str(item.tensor.device), "move the model before, or in `restore_model`",
        )
        for name, item in named_tensors(model, "model").items()
        if item.tensor is not None and item.tensor.device != wanted
    ]  # fmt: skip
    refuse_all(findings)


def refuse_other_parameters(record: TrainingRecord, model: nn.Module, *, has_optimizers: bool) -> None:
    """Raise `ContractMismatch` if a model's trainable parameters are not those of the record."""
    findings = list(contract_differences(record.model.contract, model, has_optimizers=has_optimizers))
    refuse_all(findings)
