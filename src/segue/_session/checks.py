"""Whether a record fits a training: every difference, in a fixed order, before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import nn

from segue._capture.component import check_component
from segue._capture.gradients import check_gradients, check_window
from segue._capture.history import Layout, check_history
from segue._capture.opaque import check_opaque
from segue._capture.optimizer import ParameterNames, check_optimizer
from segue._capture.staging import is_of_class, type_name
from segue._record.sections import OpaqueOptimizerRecord, OptimizerRecord
from segue._record.tensors import DTYPES
from segue._record.training import Topology, TrainingRecord
from segue._session.callers_values import is_callers_form
from segue._session.lazily import materialised
from segue._session.live import LiveTraining, parameter_names
from segue._session.one_sided import one_sided_names, recorded_modules, without_gone
from segue._session.refusals import refuse_other_version
from segue._session.schedules import Schedules
from segue._session.streams import stream_findings
from segue._session.walked import walked_once
from segue.errors import (
    ComponentMismatch,
    ContractMismatch,
    DeviceMismatch,
    Finding,
    LossyRecord,
    MismatchError,
    OptimizerMismatch,
    SchedulerMismatch,
    TopologyMismatch,
    some,
)


def find_mismatches(record: TrainingRecord, live: LiveTraining) -> list[Finding]:
    """Compare a record with live objects, in the fixed order of the checks. Changes nothing.

    Raises:
        UnsupportedFormat: If the record is of another version.
        UnsupportedState: If the live training itself can't be captured, so that there is nothing to compare with.
    """
    refuse_other_version(record)
    _refuse_callers_form(record)
    live = walked_once(live)
    with materialised(record, live):
        findings = [finding for check in _CHECKS for finding in check(record, live)]
    return sorted(
        findings, key=lambda finding: _FIRST.index(finding.error) if finding.error in _FIRST else len(_FIRST)
    )


def _refuse_callers_form(record: TrainingRecord) -> None:
    if is_callers_form(record):
        raise OptimizerMismatch(
            "model and optimizers of this record are the caller's own", code="record.kind", where="record",
            expected="a record of `Training.capture`", found=f"kind {record.kind!r}, of `TrainingRecord.capture`",
            hint="`record.restore(model, scheduler, restore_model=..., restore_groups=...)` restores it",
        )  # fmt: skip


def _check_topology(record: TrainingRecord, live: LiveTraining) -> Iterator[Finding]:
    if record.topology != Topology():
        yield Finding(
            TopologyMismatch, "topology", "it was captured by another number of processes", "topology",
            record.topology, Topology(),
        )  # fmt: skip


def _check_precision(record: TrainingRecord, live: LiveTraining) -> Iterator[Finding]:
    lossy = record.lossy
    if lossy:
        yield Finding(
            LossyRecord, "record.lossy", "it was stored in a precision that lost bits of it",
            f"{len(lossy)} tensors: {some(lossy)}", "exact", f"precision {record.precision!r}",
            "go on from a record that was stored as it was (`native`)", admissible=True,
            when_accepted="restores what is left of them",
        )  # fmt: skip


def check_model(record: TrainingRecord, live: LiveTraining) -> Iterator[Finding]:
    """Yield what differs in the model."""
    yield from live.model_state.check(record)


def _check_optimizers(record: TrainingRecord, live: LiveTraining) -> Iterator[Finding]:
    parameters = live.parameters()
    names, one_sided = parameter_names(parameters), one_sided_names(record, live)
    schedules = Schedules(record, live)
    yield from _check_each(
        OptimizerMismatch, "optimizer", {**record.optimizers, **(record.opaque_optimizers or {})},
        {**live.optimizers, **live.opaque},
        lambda name, before, now: schedules.told_of_rates(
            _check_optimizer(before, now, names, name, live, one_sided), name
        ),
    )  # fmt: skip
    layouts = _layouts(record, parameters)
    for name, optimizer in record.optimizers.items():
        yield from check_history(optimizer, layouts, f"optimizer.{name}")


def _layouts(record: TrainingRecord, parameters: Mapping[str, nn.Parameter]) -> dict[str, Layout]:
    """Tell what each parameter is: as recorded, since a difference from that has a finding of its own, or else as it is."""
    layouts = {name: Layout(tuple(item.shape), item.dtype) for name, item in parameters.items()}
    for prefix, module in recorded_modules(record).items():
        for name, spec in module.contract.tensors.items():
            if spec is not None:
                layouts[prefix + name] = Layout(spec.shape, DTYPES[spec.dtype])
    return layouts


def _check_optimizer(
    record: OptimizerRecord | OpaqueOptimizerRecord,
    optimizer: Any,
    names: ParameterNames,
    name: str,
    live: LiveTraining,
    one_sided: frozenset[str],
) -> Iterator[Finding]:
    scope, registered, is_whole = f"optimizer.{name}", live.registered(), name in live.opaque
    if isinstance(record, OptimizerRecord) == is_whole and is_of_class(optimizer, record.class_name):
        sides = ("asked whole", "read") if not is_whole else ("read", "asked whole")
        yield Finding(
            OptimizerMismatch, f"{scope}.kind", "an optimizer saves otherwise than it did: hooks on `state_dict`, or "
            "methods of its own", scope, *sides,
        )  # fmt: skip
    elif isinstance(record, OptimizerRecord) == is_whole:
        yield Finding(
            OptimizerMismatch, f"{scope}.class", "another class of optimizer", scope, record.class_name,
            type_name(optimizer),
        )  # fmt: skip
    elif isinstance(record, OptimizerRecord):
        yield from check_optimizer(
            record, optimizer, names, scope, one_sided=one_sided, registered=registered
        )
    else:
        yield from check_opaque(record, optimizer, names, scope, registered)


def _check_pending(record: TrainingRecord, live: LiveTraining) -> Iterator[Finding]:
    parameters, record = live.parameters(), without_gone(record, live)
    yield from check_gradients(record.gradients, parameters)
    if record.window is not None and live.accumulator is not None:
        yield from check_window(record.window, live.accumulator, parameters)
    elif record.window is not None or live.accumulator is not None:
        sides = ("present", "absent") if record.window is not None else ("absent", "present")
        yield Finding(
            ContractMismatch, "window", "an accumulator is on one side only", "accumulator", *sides,
            'hand it in as `Training(..., accumulator=...)`, or leave it out as when it was captured',
        )  # fmt: skip


def _check_schedulers(record: TrainingRecord, live: LiveTraining) -> Iterator[Finding]:
    def rates_differ(optimizer: str) -> bool:
        return any(item.code == f"optimizer.{optimizer}.lr" for item in _check_optimizers(record, live))

    schedules = Schedules(record, live)
    one_sided = {f"scheduler.{name}": name for name in record.schedulers.keys() ^ live.schedulers.keys()}
    for finding in _check_each(
        SchedulerMismatch, "scheduler", record.schedulers, live.schedulers,
        lambda name, before, now: schedules.check(name, rates_differ),
    ):  # fmt: skip
        name = one_sided.get(finding.code)
        yield finding if name is None else schedules.told_of_one_sided(finding, name)


def _check_components(record: TrainingRecord, live: LiveTraining) -> Iterator[Finding]:
    shares = live.shares()
    yield from _check_each(
        ComponentMismatch, "component", record.components, live.components,
        lambda name, before, now: check_component(before, now, name, shares.get(name)),
    )  # fmt: skip


_CHECKS = (
    _check_topology, _check_precision, check_model, _check_optimizers, _check_pending, _check_schedulers,
    _check_components, stream_findings,
)  # fmt: skip


# Whatever part they concern: on other processes or devices nothing else means much.
_FIRST: tuple[type[MismatchError], ...] = (TopologyMismatch, DeviceMismatch)


def _check_each(
    error: type[MismatchError],
    kind: str,
    record: Mapping[str, Any],
    live: Mapping[str, Any],
    check: Callable[[str, Any, Any], Iterator[Finding]],
) -> Iterator[Finding]:
    """Compare what is registered by name: what is on one side only, and each pair by `check(name, before, now)`."""
    for name in sorted(record.keys() | live.keys()):
        if name in record and name in live:
            yield from check(name, record[name], live[name])
        else:
            yield _one_sided(error, kind, name, record, live)


_A = {"optimizer": "an optimizer", "scheduler": "a scheduler", "component": "a component"}


def _one_sided(error: type[MismatchError], kind: str, name: str, record: Any, live: Any) -> Finding:
    where = f"{kind}.{name}"
    if name in live:
        what, then = f"{_A[kind]} of the program is not in the record", "leaves it as the program made it"
        sides = ("absent", type_name(live[name]))
    else:
        what, then = f"{_A[kind]} of the record is missing in the program", "drops it"
        sides = (record[name].class_name, "absent")
    # Not of an optimizer: what was trained without it, or is without it from now on, is told of its parameters.
    can = error is not OptimizerMismatch
    return Finding(error, where, what, where, *sides, admissible=can, when_accepted=then)
