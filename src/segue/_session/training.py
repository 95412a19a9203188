"""The live objects of one run, bound together."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from segue._capture.adapters import refuse_hidden_state
from segue._capture.boundary import refuse_cached_weights, refuse_inside_backward
from segue._capture.clock import ScheduleClock
from segue._capture.component import STREAMS_NAME, Component, Stateful, capture_component, streams_last
from segue._capture.consumed import ConsumedGradients
from segue._capture.environment import capture_environment
from segue._capture.gradients import PendingSource, capture_gradients, capture_window
from segue._capture.module import bind_module
from segue._capture.opaque import capture_opaque, is_asked_whole
from segue._capture.optimizer import capture_optimizer
from segue._capture.options import bind_optimizer
from segue._capture.owners import refuse_wrong_owners
from segue._capture.plain import freeze
from segue._capture.private_streams import PrivateStreams
from segue._capture.registered import Registered, refuse_addresses
from segue._capture.rng import RngStreams
from segue._capture.scheduler import bind_scheduler, capture_scheduler, optimizer_of, refuse_unregistered
from segue._capture.single_stream import with_single_streams
from segue._capture.staging import type_name
from segue._capture.uncovered_frames import stacklevel
from segue._record.rename import known_names, renamed
from segue._record.sections import SchedulerRecord
from segue._record.tree import copied
from segue._session.averages import refuse_averages, watch_anew, watch_averages
from segue._session.bound_model import bound
from segue._session.checks import find_mismatches
from segue._session.consumed import warn_of_consumed_gradients
from segue._session.counters import warn_of_stuck_counters
from segue._session.coverage import Coverage
from segue._session.former_names import with_names_of_today
from segue._session.live import (
    LiveTraining,
    by_name,
    parameter_names,
    refuse_no_model,
    refuse_wrong_kinds,
    remember_all,
)
from segue._session.model_state import FullModel, ModelState
from segue._session.pending_capture import AsyncCaptures, PendingCapture
from segue._session.plan import RestorePlan
from segue._session.record import TrainingRecord
from segue._session.refusals import entries_in, environment_findings, refuse, warn_of_environment
from segue._session.walked import walked_once
from segue._window.window import moments, windows_used_since
from segue.errors import (
    RestoreInterrupted,
    ScheduleWarning,
    UnsupportedState,
)


class Training:
    """Everything that decides how a training goes on, bound together so that it can be captured and restored.

    Args:
        model: The model, in any wrapper; its tensors are filled in place at restore.
        optimizers: One optimizer (stored as `"optimizer"`), or several by name, which own disjoint sets of parameters:
            torch optimizers, and other objects with `state_dict` and `load_state_dict`, or with `capture`, `check` and
            `restore`.
        schedulers: One learning-rate scheduler (stored as `"scheduler"`), or several by name.
        accumulator: A `GradientAccumulator` or `WeightedAccumulator`; without one, what stands in `.grad` is pending.
            Gradients standing in `.grad` are captured in any case.
        model_state: What of the model is captured: `FullModel()`; `TrainableOnly(base=...)`, the trainable part beside a
            frozen base that is named; or an object of your own with `capture`, `check` and `restore`, which answers for
            every trainable parameter.
        components: Other objects with state by name: modules (an EMA, a loss with parameters), objects with
            `state_dict` and `load_state_dict`, or with `capture`, `check` and `restore`. One named `"rng"` replaces
            the default random streams.
        rng: `RngStreams()`, all global random streams, or `None` for none.
        strict: Refuse to restore where the environment differs in what changes floating-point results; otherwise
            `EnvironmentWarning`. Refuse to capture where something has changed that nothing registered keeps; otherwise
            `UncoveredStateWarning`.
        not_state: Paths of what changes and is no state, as those warnings print them: a cache, a meter. `*` stands for
            anything; what is below a path is meant too.

    Raises:
        UnsupportedState: If an object is not of the kind its place takes.
        BaseMismatch: If the base of `TrainableOnly` was rewritten since its identity was taken.

    Guarantees:
        Binding changes no bit of the training. It adds step hooks to torch optimizers: one that sees groups which are
            added later, two that tell averaged weights from trained ones, and to each scheduled one another, which counts.

    Cost:
        None that grows with the model. Options of optimizers and schedulers are copied.

    Collective:
        No.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Stateful | Component | Mapping[str, Stateful | Component],
        schedulers: LRScheduler | Mapping[str, LRScheduler] | None = None,
        *,
        accumulator: PendingSource | None = None,
        model_state: ModelState = FullModel(),  # noqa: B008  (a value)
        components: Mapping[str, Any] | None = None,
        rng: RngStreams | None = RngStreams(),  # noqa: B008  (stateless)
        strict: bool = False,
        not_state: Collection[str] = (),
    ) -> None:
        refuse_no_model(model)
        components = with_single_streams(by_name(components, "component"))
        named = by_name(optimizers, "optimizer")
        self._live = LiveTraining(
            model,
            {
                name: value
                for name, value in named.items()
                if isinstance(value, Optimizer) and not is_asked_whole(value)
            },
            by_name(schedulers, "scheduler"),
            accumulator,
            components,
            None if STREAMS_NAME in components else rng,
            bound(model_state, model),
            {name: value for name, value in named.items() if is_asked_whole(value)},
        )
        self._strict = strict
        self._lineage: tuple[Any, ...] = ()
        self._searched = False
        self._has_told_of_consumed = False
        self._is_half_written = False
        self._async_captures = AsyncCaptures(list(self._live.optimizers.values()))
        self._bound_at = next(moments)
        registered = self._bind()
        self._coverage = Coverage(self._live, registered, not_state, strict=strict)

    def _bind(self) -> Registered:
        live = walked_once(self._live)
        refuse_wrong_kinds(live)
        for prefix, module in self._live.modules().items():
            bind_module(module, prefix or "model")
        for name, optimizer in self._live.optimizers.items():
            bind_optimizer(optimizer, f"optimizer.{name}")
        remember_all(live)
        registered = live.registered()
        for name, scheduler in self._live.schedulers.items():
            bind_scheduler(scheduler, f"scheduler.{name}", registered)
        self._clock = ScheduleClock(self._live.schedulers)
        self._averages = watch_averages(live)
        self._consumed = ConsumedGradients(self._live.scheduled())
        return registered

    def capture(
        self, state: Any = None, *, step: int | None = None, microbatch: int | None = None
    ) -> TrainingRecord:
        """Copy the whole training state at this boundary between microbatches.

        Args:
            state: The caller's own state, a tree of plain values, tensors and arrays; copied now.
            step: Optimizer steps so far, for people and file listings.
            microbatch: Boundaries so far, likewise.

        Returns:
            A value that shares nothing with the live training.

        Raises:
            NotAtBoundary: Inside a backward, between a scaler's `unscale_` and `update`, or while averaged weights stand
                in the model.
            UnsupportedState: If something live has no exact representation; the message names path and type. If a
                trainable parameter of the model has no optimizer, or a parameter has two.
            PendingGradientError: If a pending gradient belongs to no trainable registered parameter.
            RestoreInterrupted: If the last restore broke off half way.

        Guarantees:
            Read-only: a run that captures at every microbatch is bit for bit the run that never does.

        Cost:
            One copy of everything into new host memory; blocks until it is done.

        Collective:
            No.
        """
        refuse_inside_backward()
        refuse_cached_weights()
        self._refuse_half_written()
        live = walked_once(self._live)
        self._refuse_unregistered()
        self._warn_of_due_schedules()
        parameters = live.parameters()
        self._refuse_other_windows(parameters)
        refuse_wrong_owners({**live.optimizers, **live.opaque}, parameters, live.model)
        if not live.model_state.objects():
            refuse_hidden_state(live.model, "model", live.components.values())
        names, registered = parameter_names(parameters), live.registered()
        shares = live.shares()
        self._coverage.look(registered, has_caller_state=state is not None, state=state)
        # Objects with code of their own first, and the streams after them: their `state_dict` may draw.
        model, model_state = live.model_state.capture()
        components = {
            name: capture_component(live.components[name], name, shares.get(name))
            for name in streams_last(live.components, live.components)
        }
        for name, component in components.items():
            refuse_addresses(component.tree, registered, f"component.{name}")
        opaque = {
            name: capture_opaque(live.opaque[name], names, f"optimizer.{name}", registered)
            for name in sorted(live.opaque)
        }
        streams = None if live.rng is None else live.rng.capture()
        private_streams = PrivateStreams(live.roots()).capture()
        optimizers = {
            name: capture_optimizer(optimizer, names, f"optimizer.{name}", registered)
            for name, optimizer in live.optimizers.items()
        }
        record = TrainingRecord(
            model=model,
            model_state=model_state,
            kind=live.model_state.kind,
            optimizers=optimizers,
            schedulers={name: self._capture_scheduler(name, registered) for name in live.schedulers},
            gradients=capture_gradients(parameters),
            window=None if live.accumulator is None else capture_window(live.accumulator, parameters),
            components=components,
            streams=streams,
            caller_state=freeze(state, "state"),
            environment=capture_environment(live.modules_by_scope()),
            step=step,
            microbatch=microbatch,
            lineage=copied(self._lineage),
            opaque_optimizers=opaque or None,
            private_streams=private_streams,
        )
        refuse_averages(self._averages, live, record)
        warn_of_stuck_counters(record)
        self._warn_of_consumed_gradients()
        return record

    def capture_async(
        self, state: Any = None, *, step: int | None = None, microbatch: int | None = None
    ) -> PendingCapture:
        """Copy what must be copied now, and return a future of the record; training may go on at once.

        Args and errors are those of `capture`; errors are raised by `result()` or `await`.

        Returns:
            A `concurrent.futures.Future` that can also be awaited. The record equals, bit for bit, that of `capture`
            at the same moment.

        Raises:
            ConcurrentMutation: By `result()` or `await`, if a tensor whose copy was deferred has been changed other
                than by `step` of a registered torch optimizer, before that or one of these was called. No record
                comes out then.

        Guarantees:
            Deferred are only trainable parameters and state of registered torch optimizers, from 1 MiB; `step` of these
            optimizers waits until the copies are complete. All other is copied before this returns: gradients, window
            sums, buffers, streams, components, caller state, all other parameters. Not always
            noticed in what is deferred: writes of a few elements that no version counter shows (`.data`, NumPy,
            kernels launched by hand), and those of another thread in the moment of `result()`. Read-only, as
            `capture`.

        Cost:
            Blocks for the copies that are not deferred, and for those of the call before if they are not complete.
            The rest is copied by one thread; on accelerators by a stream of its own, into pinned host memory. Memory
            as for `capture`.

        Collective:
            No.
        """
        return self._async_captures.start(lambda: self.capture(state, step=step, microbatch=microbatch))

    def _capture_scheduler(self, name: str, registered: Registered) -> SchedulerRecord:
        scheduler = self._live.schedulers[name]
        driven = self._live.optimizer_names()[id(optimizer_of(scheduler))]
        outstanding, usual = self._clock.outstanding(name), self._clock.usual(name)
        return capture_scheduler(scheduler, driven, outstanding, usual, f"scheduler.{name}", registered)

    def _refuse_half_written(self) -> None:
        if self._is_half_written:
            raise RestoreInterrupted(
                "a restore of this training broke off half way, so its state is no one's; restore again, or rebuild it",
                where="training",
            )

    def _refuse_unregistered(self) -> None:
        # Walking all objects takes tens of milliseconds, so once; afterwards the mark tells that they leave on `step`.
        alive = () if self._searched else gc.get_objects()
        known = [*self._live.schedulers.values(), *self._live.held_schedulers()]
        refuse_unregistered(self._live.driven(), known, alive)
        self._searched = True

    def _refuse_other_windows(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Raise for a window in use over this training's parameters that nobody handed in: its sums would be lost."""
        window = self._live.accumulator
        others = [other for other in windows_used_since(self._bound_at) if other is not window]
        if not others:
            return
        registered = {id(parameter) for parameter in parameters.values()}
        kept = set() if window is None else {id(total) for _, total in window.sums()}
        for other in others:
            if any(id(own) in registered and id(total) not in kept for own, total in other.sums()):
                raise UnsupportedState(
                    "an accumulator that is not registered has an open window; its sums would be lost",
                    code="capture.unregistered_window", where="accumulator",
                    found=f"{type_name(other)} with {other.microbatches} microbatches",
                    hint="hand it in as `Training(..., accumulator=...)`; of several, save when the others are finished",
                )  # fmt: skip

    def _warn_of_due_schedules(self) -> None:
        for name in self._live.schedulers:
            if self._clock.tells_due(name):
                warnings.warn(
                    f"scheduler.{name} is due: {self._clock.outstanding(name)} optimizer steps since it last moved, "
                    f"and it has moved every {self._clock.usual(name)} so far. A program that resumes after "
                    "`scheduler.step()` will be one move late; save after it.",
                    ScheduleWarning,
                    stacklevel=stacklevel(),
                )

    def _warn_of_consumed_gradients(self) -> None:
        if self._has_told_of_consumed or not (standing := self._consumed.standing()):
            return
        self._has_told_of_consumed = True
        warn_of_consumed_gradients(standing)

    def check(
        self, record: TrainingRecord, *, accept: Collection[str] = (), rename: Mapping[str, str] | None = None
    ) -> None:
        """Tell whether a record fits this training, without changing anything.

        Args:
            record: From `capture`, `segue.load` or `Checkpointer.newest`.
            accept: Codes of differences to admit; each refusal prints the entry that would admit it.
            rename: From recorded names of the model's parameters, buffers or submodules to what they are called now.

        Raises:
            MismatchError: With every difference that is not accepted: missing, extra, renamed, reshaped, re-dtyped,
                re-strided, frozen or thawed, tied or untied tensors; optimizers, groups, options, order; schedulers;
                pending gradients; components; streams; devices.
            UnsupportedFormat: If the record is of another version.

        Cost:
            Nothing is read but layouts and small state.

        Collective:
            No.
        """
        self._admit(with_names_of_today(renamed(record, rename or {}), self._live.modules()), accept)

    def _admit(self, record: TrainingRecord, accept: Collection[str]) -> list[str]:
        refuse_cached_weights()
        accept = entries_in(accept)
        findings = find_mismatches(record, self._live)
        environment = environment_findings(record, self._live.modules_by_scope())
        if self._strict:
            findings += environment
        elif environment:
            unaccepted = [finding for finding in environment if finding.code not in accept]
            warn_of_environment(unaccepted)
        return list(dict.fromkeys(finding.code for finding in refuse(findings, accept)))

    def restore(
        self, record: TrainingRecord, *, accept: Collection[str] = (), rename: Mapping[str, str] | None = None
    ) -> Any:
        """Put a record back into the live training. Checks everything first; inverse of `capture`.

        Args:
            record: From `capture`, `segue.load` or `Checkpointer.newest`; not changed, not aliased, may be used again.
            accept: Codes of differences to admit; state follows names, an accepted option stays as the program has it.
                Of tensors that came or went, `"model.extra.head.*"` admits all under a name.
            rename: From recorded names of the model's parameters, buffers or submodules to what they are called now.

        Returns:
            The caller state of the record, as new values.

        Raises:
            MismatchError: With every difference that is not accepted; nothing has changed.
            StoreError: If the record's stored bytes are damaged; nothing has changed.
            ComponentMismatch: If a component refuses its state; everything has been put back.
            RestoreInterrupted: If stored bytes vanish after writing began; rebuild this training.

        Guarantees:
            After any other error than `RestoreInterrupted` all live state is bit-identical to before. State goes to
            its parameter by name, without a cast; group dictionaries and tensor options are updated in place.

        Cost:
            Stored bytes are read twice, once to verify. New optimizer state and gradients are allocated before the
            first write; live state of the same layout is filled in place. Waits for a capture that is under way.

        Collective:
            No.
        """
        return self.restore_verified(record, accept=accept, rename=rename or {}, verified=False)

    def restore_verified(
        self, record: TrainingRecord, *, accept: Collection[str], rename: Mapping[str, str], verified: bool
    ) -> Any:
        """Restore as `restore` does, leaving out the first pass over bytes that were verified just now."""
        self._async_captures.settle()
        known = known_names(record) if rename else ()
        effective = {old: new for old, new in rename.items() if old in known}
        record = with_names_of_today(renamed(record, rename), self._live.modules())
        accepted = self._admit(record, accept)
        if not verified:
            record.verify()
        warn_of_stuck_counters(record)
        # State that is allocated in inference mode could never be stepped again (torch 2.13).
        with torch.inference_mode(False):
            # Made first: what can't be made, as a tensor whose library is not imported, is refused while nothing has changed.
            state = record.state
            plan = RestorePlan(record, self._live, self._clock, accepted, accept)
            self._run(plan)
            accepted = [*accepted, *plan.accepted_late]
            self._lineage = copied(record.lineage) + _acceptance(record, accepted, effective)
            return state

    def _run(self, plan: RestorePlan) -> None:
        try:
            plan.run()
        except BaseException:
            self._is_half_written = self._is_half_written or plan.has_written
            raise
        self._is_half_written = False
        watch_anew(self._averages, self._live)


def _acceptance(
    record: TrainingRecord, accepted: Collection[str], rename: Mapping[str, str]
) -> tuple[Any, ...]:
    """Return the entry of the lineage that tells what was changed on purpose, if anything was."""
    if not accepted and not rename:
        return ()
    entry = {"step": record.step, "microbatch": record.microbatch}
    return ({**entry, "accepted": sorted(set(accepted)), "renamed": dict(rename)},)
