"""A restore as data: checks, then writes.

Everything that can refuse refuses while nothing has changed: all differences are found and reported together, the
bytes are verified, and all memory is allocated. What is left can fail only if the disk dies under it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from segue._capture.clock import ScheduleClock
from segue._capture.component import ObjectRestore, check_component, streams_last
from segue._capture.environment import check_environment
from segue._capture.gradients import check_gradients, check_window, plan_gradients, plan_window
from segue._capture.history import Layout, check_history
from segue._capture.module import plan_module
from segue._capture.opaque import check_opaque
from segue._capture.optimizer import ParameterNames, check_optimizer, plan_optimizer
from segue._capture.scheduler import check_scheduler, plan_scheduler
from segue._capture.staging import type_name
from segue._capture.writes import ObjectWrite, Write, scratch_for
from segue._record.precision import in_own_dtypes, refuse_inexact_record
from segue._record.sections import ModuleRecord, OpaqueOptimizerRecord, OptimizerRecord
from segue._record.tensors import DTYPES
from segue._record.training import RECORD_VERSION, Topology, TrainingRecord
from segue._session.callers_model import callers_record
from segue._session.callers_values import is_callers_form
from segue._session.live import LiveTraining, parameter_names
from segue.errors import (
    ComponentMismatch,
    ContractMismatch,
    DeviceMismatch,
    EnvironmentWarning,
    Finding,
    LossyRecord,
    MismatchError,
    OptimizerMismatch,
    RestoreInterrupted,
    SchedulerMismatch,
    TopologyMismatch,
    UnsupportedFormat,
    shown,
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
    findings = [finding for check in _CHECKS for finding in check(record, live)]
    return sorted(
        findings, key=lambda finding: _FIRST.index(finding.error) if finding.error in _FIRST else len(_FIRST)
    )


def refuse_other_version(record: TrainingRecord) -> None:
    """Raise `UnsupportedFormat` for a record of a version that this code does not know."""
    if record.version != RECORD_VERSION:
        raise UnsupportedFormat(
            "a record of another version", where="record", expected=RECORD_VERSION, found=record.version
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


def _check_model(record: TrainingRecord, live: LiveTraining) -> Iterator[Finding]:
    yield from live.model_state.check(record)


def _check_optimizers(record: TrainingRecord, live: LiveTraining) -> Iterator[Finding]:
    parameters = live.parameters()
    names = parameter_names(parameters)
    yield from _check_each(
        OptimizerMismatch, "optimizer", {**record.optimizers, **(record.opaque_optimizers or {})},
        {**live.optimizers, **live.opaque},
        lambda name, before, now: _check_optimizer(before, now, names, f"optimizer.{name}"),
    )  # fmt: skip
    layouts = _layouts(record, parameters)
    for name, optimizer in record.optimizers.items():
        yield from check_history(optimizer, layouts, f"optimizer.{name}")


def _recorded_modules(record: TrainingRecord) -> dict[str, ModuleRecord]:
    """Return every recorded module by the prefix of its names, as `LiveTraining.modules` does the live ones."""
    components = {f"{name}/": item.module for name, item in record.components.items()}
    return {"": record.model, **{name: module for name, module in components.items() if module is not None}}


def _layouts(record: TrainingRecord, parameters: Mapping[str, nn.Parameter]) -> dict[str, Layout]:
    """Tell what each parameter is: as recorded, since a difference from that has a finding of its own, or else as it is."""
    layouts = {name: Layout(tuple(item.shape), item.dtype) for name, item in parameters.items()}
    for prefix, module in _recorded_modules(record).items():
        for name, spec in module.contract.tensors.items():
            if spec is not None:
                layouts[prefix + name] = Layout(spec.shape, DTYPES[spec.dtype])
    return layouts


def _check_optimizer(
    record: OptimizerRecord | OpaqueOptimizerRecord, optimizer: Any, names: ParameterNames, scope: str
) -> Iterator[Finding]:
    if isinstance(record, OptimizerRecord) != isinstance(optimizer, Optimizer):
        yield Finding(
            OptimizerMismatch, f"{scope}.class", "another class of optimizer", scope, record.class_name,
            type_name(optimizer),
        )  # fmt: skip
    elif isinstance(record, OptimizerRecord):
        yield from check_optimizer(record, optimizer, names, scope)
    else:
        yield from check_opaque(record, optimizer, names, scope)


def _check_pending(record: TrainingRecord, live: LiveTraining) -> Iterator[Finding]:
    parameters = live.parameters()
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
    names = live.optimizer_names()
    yield from _check_each(
        SchedulerMismatch, "scheduler", record.schedulers, live.schedulers,
        lambda name, before, now: check_scheduler(before, now, names, f"scheduler.{name}"),
    )  # fmt: skip


def _check_components(record: TrainingRecord, live: LiveTraining) -> Iterator[Finding]:
    shares = live.shares()
    yield from _check_each(
        ComponentMismatch, "component", record.components, live.components,
        lambda name, before, now: check_component(before, now, name, shares.get(name)),
    )  # fmt: skip


def _check_streams(record: TrainingRecord, live: LiveTraining) -> Iterator[Finding]:
    if record.streams is not None and live.rng is not None:
        yield from live.rng.check(record.streams)
    elif record.streams is not None or live.rng is not None:
        sides = ("captured", "rng=None") if record.streams is not None else ("rng=None", "captured")
        yield Finding(
            ComponentMismatch, "streams", "random streams are on one side only", "random streams", *sides
        )


_CHECKS = (
    _check_topology, _check_precision, _check_model, _check_optimizers, _check_pending, _check_schedulers,
    _check_components, _check_streams,
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
        what, sides = f"{_A[kind]} of the program is not in the record", ("absent", type_name(live[name]))
    else:
        what, sides = (
            f"{_A[kind]} of the record is missing in the program",
            (record[name].class_name, "absent"),
        )
    return Finding(error, where, what, where, *sides)


def refuse(findings: list[Finding], accept: Collection[str]) -> list[Finding]:
    """Raise for all findings that are not accepted; return the accepted ones.

    Raises:
        MismatchError: With every remaining finding.
    """
    admitted = [finding for finding in findings if finding.admissible and finding.code in accept]
    refused = [finding for finding in findings if finding not in admitted]
    if refused:
        error = MismatchError.of(
            [_told_in_vain(finding) if finding.code in accept else finding for finding in refused]
        )
        unknown = sorted(set(accept) - {finding.code for finding in findings})
        if unknown:
            error.add_note(f"accept: no difference has the code {', '.join(map(repr, unknown))}")
        raise error
    return admitted


def refuse_all(findings: Iterable[Finding]) -> None:
    """Raise for all findings where none can be accepted.

    Raises:
        MismatchError: With every finding, if there is any.
    """
    refused = [replace(finding, admissible=False) for finding in findings]
    if refused:
        raise MismatchError.of(refused)


def _told_in_vain(finding: Finding) -> Finding:
    why = "this difference can't be accepted"
    return replace(finding, hint=f"{finding.hint}; {why}" if finding.hint else why)


def environment_findings(record: TrainingRecord) -> list[Finding]:
    """Return what differs in the environment."""
    return list(check_environment(record.environment))


def warn_of_environment(findings: Iterable[Finding], stacklevel: int) -> None:
    """Warn if something differs that can change the last bits from here on."""
    differences = [f"{item.code}: {shown(item.expected)} -> {shown(item.found)}" for item in findings]
    if differences:
        warnings.warn(
            "the state is restored exactly, but the environment differs in what can change the last bits from here on: "
            + "; ".join(differences),
            EnvironmentWarning,
            stacklevel=stacklevel,
        )


class RestorePlan:
    """The writes that make a checked record live. Making the plan allocates everything; `run` only writes."""

    def __init__(
        self, record: TrainingRecord, live: LiveTraining, clock: ScheduleClock, accepted: Collection[str]
    ) -> None:
        refuse_inexact_record(record)
        record = in_own_dtypes(record)
        self._record = record
        self._live = live
        # The streams first: reading the undo copies runs code of others, which may draw.
        self._streams_before = None if live.rng is None else live.rng.capture()
        self._objects = _objects(record, live)
        self.has_written = False
        self._accepted = accepted
        self._writes = list(self._plan(clock))
        self._targets = _targets(record, live)
        self._scratch = scratch_for(self._writes)

    def _plan(self, clock: ScheduleClock) -> Iterator[Write]:
        record, live, accepted = self._record, self._live, self._accepted
        parameters = live.parameters()
        names = parameter_names(parameters)
        for name, component in record.components.items():
            if component.module is not None:
                yield from plan_module(component.module, live.components[name], f"component.{name}")
        yield from plan_module(record.model, live.model, "model")
        for name, optimizer in record.optimizers.items():
            yield from plan_optimizer(optimizer, live.optimizers[name], names, f"optimizer.{name}", accepted)
        yield from plan_gradients(record.gradients, parameters)
        if record.window is not None and live.accumulator is not None:
            yield from plan_window(record.window, live.accumulator, parameters)
        for name, scheduler in record.schedulers.items():
            yield from plan_scheduler(scheduler, live.schedulers[name], f"scheduler.{name}", accepted)
            outstanding, usual = scheduler.outstanding_steps, scheduler.usual_steps
            yield ObjectWrite(f"scheduler.{name} clock", _set_clock(clock, name, outstanding, usual))
        if record.streams is not None and live.rng is not None:
            yield from live.rng.plan(record.streams)

    def run(self) -> None:
        """Write everything: objects that may refuse first, tensors and options, random streams last.

        Raises:
            ComponentMismatch: If a component refuses its state; everything is as it was.
            ContractMismatch: If a component changed the model while it was restored; everything is as it was.
            RestoreInterrupted: If reading fails after writing began, or a component wrote to the model and then
                refused; the training must be rebuilt. `has_written` stays true then, and after any other exception
                (Ctrl-C) that left it half written.
        """
        self._restore_objects()
        self.has_written = True
        for write in self._writes:
            try:
                write.run(self._scratch)
            except Exception as error:
                raise RestoreInterrupted(
                    f"the restore broke off after it had begun to write ({error}); rebuild this training",
                    where=write.where,
                ) from error
        self.has_written = False

    def _restore_objects(self) -> None:
        versions = self._live.versions()
        try:
            self._objects.run()
            self._refuse_replaced()
            self._check_contract_again()
        except RestoreInterrupted:
            self.has_written = True
            raise
        except BaseException as error:
            self._put_streams_back()
            # A caller's object writes to the model by nature; that it is back was compared by value.
            if self._live.versions() != versions and not self._live.model_state.objects():
                self.has_written = True
                raise RestoreInterrupted(
                    "a component refused its state after it had written to the model; rebuild this training",
                    where="components",
                ) from error
            raise

    def _refuse_replaced(self) -> None:
        """Raise if an object put other tensors where writes are planned, as `load_state_dict(assign=True)` does.

        They would go to tensors that the model no longer has.
        """
        now = {name: item.tensor for name, item in self._live.tensors()}
        replaced = [name for name, tensor in self._targets.items() if now.get(name) is not tensor]
        if replaced:
            raise RestoreInterrupted(
                "an object put other tensors into the model while it was restored, which no optimizer knows; let it write "
                "into those that are there (`copy_`), and rebuild this training",
                code="restore.replaced", where=some(replaced),
            )  # fmt: skip

    def _check_contract_again(self) -> None:
        findings = [
            item for item in _check_model(self._record, self._live) if item.code not in self._accepted
        ]
        if findings:
            error = MismatchError.of(findings)
            self._objects.undo(error)
            raise error

    def _put_streams_back(self) -> None:
        if self._live.rng is not None and self._streams_before is not None:
            for write in self._live.rng.plan(self._streams_before):
                write.run(self._scratch)


def _objects(record: TrainingRecord, live: LiveTraining) -> ObjectRestore:
    """Make the restore of what can only be asked: the caller's model, optimizers, then components, which may draw."""
    opaque = record.opaque_optimizers or {}
    optimizers = {f"optimizer.{name}": opaque[name].state for name in sorted(opaque)}
    components = {
        f"component.{name}": record.components[name]
        for name in streams_last(record.components)
        if record.components[name].module is None
    }
    values: dict[str, Any] = {f"component.{name}": value for name, value in live.components.items()}
    values |= {f"optimizer.{name}": value for name, value in live.opaque.items()}
    values |= live.model_state.objects()
    records = {**callers_record(record), **optimizers, **components}
    return ObjectRestore(records, values, reread=optimizers)


def _targets(record: TrainingRecord, live: LiveTraining) -> dict[str, torch.Tensor | None]:
    """Return the tensors that are written, and those that optimizers hold; the rest is a caller's object to place."""
    recorded = {
        prefix + name for prefix, module in _recorded_modules(record).items() for name in module.tensors
    }
    return {
        name: item.tensor
        for name, item in live.tensors()
        if name in recorded or (item.tensor is not None and item.tensor.requires_grad)
    }


def _set_clock(clock: ScheduleClock, name: str, outstanding: int, usual: int | None) -> Any:
    return lambda: clock.restore(name, outstanding, usual)
