"""A restore as data: checks, then writes.

Everything that can refuse refuses while nothing has changed: all differences are found and reported together, the
bytes are verified, and all memory is allocated. What is left can fail only if the disk dies under it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import torch

from segue._capture.clock import ScheduleClock
from segue._capture.component import ObjectRestore, streams_last
from segue._capture.data.position import with_accepted
from segue._capture.extra_state import extra_objects
from segue._capture.gradients import plan_gradients, plan_window
from segue._capture.module import flag_write, plan_module
from segue._capture.opaque import ask
from segue._capture.optimizer import plan_optimizer
from segue._capture.scaler import with_accepted_factors
from segue._capture.writes import Write, scratch_for
from segue._record.precision import in_own_dtypes, refuse_inexact_record
from segue._record.training import TrainingRecord
from segue._session.callers_model import callers_record
from segue._session.checks import check_model
from segue._session.lazily import materialised
from segue._session.live import LiveTraining, parameter_names
from segue._session.one_sided import left_frozen, recorded_modules, shared_part, without_pending
from segue._session.schedules import Schedules
from segue._session.streams import StreamsRestore
from segue._session.walked import walked_once
from segue.errors import (
    MismatchError,
    RestoreInterrupted,
    some,
)


class RestorePlan:
    """The writes that make a checked record live. Making the plan allocates everything; `run` only writes."""

    def __init__(
        self,
        record: TrainingRecord,
        live: LiveTraining,
        clock: ScheduleClock,
        accepted: Collection[str],
        accept: Collection[str] = (),
    ) -> None:
        refuse_inexact_record(record)
        self.accepted_late: list[str] = []
        self._live = live
        live = walked_once(live)
        self._schedules = Schedules(record, live)
        self._left = left_frozen(live, frozenset(accepted))
        record = in_own_dtypes(without_pending(shared_part(record, live), self._left))
        self._record = record
        self._accept = accept
        self._lazy = materialised(record, live).__enter__()
        try:
            self._make(record, live, clock, accepted)
        except BaseException:
            self._lazy.undo()
            raise

    def _make(
        self, record: TrainingRecord, live: LiveTraining, clock: ScheduleClock, accepted: Collection[str]
    ) -> None:
        # The streams first: reading the undo copies runs code of others, which may draw.
        self._streams = StreamsRestore(record, self._live, self._accept)
        self._objects = _objects(record, live, accepted)
        self.has_written = False
        self._accepted = frozenset(accepted)
        try:
            self._writes = list(self._plan(live, clock))
        finally:  # functions of the program that decide a schedule may have drawn
            self._streams.put_back()
        self._targets = _targets(record, live)
        self._scratch = scratch_for(self._writes)

    def _plan(self, live: LiveTraining, clock: ScheduleClock) -> Iterator[Write]:
        record, accepted, schedules = self._record, self._accepted, self._schedules
        parameters = live.parameters()
        names = parameter_names(parameters)
        for name, component in record.components.items():
            if component.module is not None:
                yield from plan_module(component.module, live.components[name], f"component.{name}")
        yield from plan_module(record.model, live.model, "model")
        for name, optimizer in record.optimizers.items():
            kept = {*accepted, *schedules.codes_of_one_sided(name)}
            begins = schedules.begins(name)
            yield from plan_optimizer(
                optimizer, live.optimizers[name], names, f"optimizer.{name}", kept, begins=begins
            )
        for name in self._left:
            yield flag_write(name, parameters[name], False)
        yield from plan_gradients(record.gradients, parameters)
        if record.window is not None and live.accumulator is not None:
            yield from plan_window(record.window, live.accumulator, parameters)
        yield from schedules.plan(clock, accepted)
        yield from self._streams.plan()

    def run(self) -> None:
        """Write everything: objects that may refuse first, tensors and options, random streams last.

        Raises:
            ComponentMismatch: If a component refuses its state; everything is as it was.
            ContractMismatch: If a component changed the model while it was restored; everything is as it was.
            RestoreInterrupted: If reading fails after writing began, or a component wrote to the model and then
                refused; the training must be rebuilt. `has_written` stays true then, and after any other exception
                (Ctrl-C) that left it half written.
        """
        try:
            self._restore_objects()
        except BaseException:
            if not self.has_written:
                self._lazy.undo()
            raise
        self.has_written = True
        self._lazy.keep()
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
            self._compare_streams_again()
        except RestoreInterrupted:
            self.has_written = True
            raise
        except BaseException as error:
            self._streams.put_back()
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
        findings = [item for item in check_model(self._record, self._live) if item.code not in self._accepted]
        if findings:
            error = MismatchError.of(findings)
            self._objects.undo(error)
            raise error

    def _compare_streams_again(self) -> None:
        try:
            self.accepted_late = self._streams.admit()
        except MismatchError as error:
            self._objects.undo(error)
            raise


def _objects(record: TrainingRecord, live: LiveTraining, accepted: Collection[str]) -> ObjectRestore:
    """Make the restore of what can only be asked: models, optimizers, then components, which may draw."""
    opaque = record.opaque_optimizers or {}
    names, registered = parameter_names(live.parameters()), live.registered()
    asked = {
        f"optimizer.{name}": ask(opaque[name], live.opaque[name], names, registered)
        for name in sorted(opaque)
    }
    optimizers = {scope: record for scope, (record, _) in asked.items()}
    components = {
        f"component.{name}": with_accepted(
            with_accepted_factors(
                record.components[name], live.components[name], f"component.{name}", accepted
            ),
            live.components[name],
            f"component.{name}",
            accepted,
        )
        for name in streams_last(record.components, live.components)
        if record.components[name].module is None
    }
    values: dict[str, Any] = {f"component.{name}": value for name, value in live.components.items()}
    values |= {scope: value for scope, (_, value) in asked.items()}
    values |= live.model_state.objects()
    extra = _extra_states(record, live)
    values |= {scope: value for scope, (_, value) in extra.items()}
    told = {scope: state for scope, (state, _) in extra.items()}
    records = {**callers_record(record), **told, **optimizers, **components}
    return ObjectRestore(records, values, reread={*optimizers, *told})


def _extra_states(record: TrainingRecord, live: LiveTraining) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for prefix, module in recorded_modules(record).items():
        name = prefix.removesuffix("/")
        scope, value = (f"component.{name}", live.components[name]) if name else ("model", live.model)
        found |= extra_objects(module.extra, value, scope)
    return found


def _targets(record: TrainingRecord, live: LiveTraining) -> dict[str, torch.Tensor | None]:
    """Return the tensors that are written, and those that optimizers hold; the rest is a caller's object to place."""
    recorded = {
        prefix + name for prefix, module in recorded_modules(record).items() for name in module.tensors
    }
    return {
        name: item.tensor
        for name, item in live.tensors()
        if name in recorded or (item.tensor is not None and item.tensor.requires_grad)
    }
