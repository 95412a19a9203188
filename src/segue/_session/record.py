"""The record as people hold it: a value, with the ways to and from live objects that infer nothing.

`Training` knows what it is bound to, and captures all of it. Here the caller says of everything what it is: `capture`
takes records of model and optimizers that the caller made, and does not look into them; `restore` hands them back to
the caller's functions, in a fixed order, and takes what they return. This is the form of the seeds.

The way is written down in `callers_capture` and `callers_restore`; this class joins them with the value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch

from segue._capture.gradients import PendingSource
from segue._record import training as _training
from segue._record.conversion import Precision, precision_name
from segue._session import callers_capture, callers_restore
from segue._session.callers_pending import refuse_unweighted
from segue._session.callers_restore import RestoredTraining
from segue._session.callers_values import as_tree
from segue._session.devices import device_name
from segue._session.pending_capture import AsyncCaptures, PendingCapture

_SECTIONS = tuple(item.name for item in fields(_training.TrainingRecord))


@dataclass(frozen=True, repr=False)
class TrainingRecord(_training.TrainingRecord):
    """Everything that decides how a training goes on, captured at one boundary between microbatches.

    A value: it shares no memory with the live training, and comparing two needs neither. A record that was loaded
    reads its tensors from the open files as they are needed, verified each time.

    Made by `Training.capture`, which captures what it is bound to, and by `TrainingRecord.capture`, which takes what
    the caller has captured. The latter keeps `model_state` and `groups` as they were given, the very objects; they
    share what their maker lets them share.
    """

    is_given: bool = field(default=False, compare=False, repr=False)
    """Whether `model_state` and `groups` are the objects that `capture` was given. After loading they are what was
    stored: plain containers and records, with captured tensors, of which `restore` makes live ones."""
    placed_on: str | None = field(default=None, compare=False, repr=False)
    """The device on which all of it was placed, by `with_device` or `segue.load(device=...)`."""

    @classmethod
    def of(cls, record: _training.TrainingRecord) -> TrainingRecord:
        """Return the same value as one of this class."""
        if isinstance(record, cls):
            return record
        return cls(**{name: getattr(record, name) for name in _SECTIONS})

    @classmethod
    def capture(
        cls,
        model: torch.nn.Module,
        *,
        model_state: Any,
        groups: Any = None,
        scheduler: Any = None,
        accumulator: PendingSource | None = None,
        state: Any = None,
        step: int | None = None,
        microbatch: int | None = None,
    ) -> TrainingRecord:
        """Put what the caller has captured of model and optimizers beside the pending gradients and a scheduler.

        Capture everything at one boundary between microbatches; whether it belongs together nothing here can tell.

        Args:
            model: Whose trainable parameters the pending gradients belong to; their values are not read.
            model_state: What restores every trainable parameter, such as `segue.capture_module(model)`, or an adapter
                alone. Kept as it is: the same object, not copied, not looked at. A `state_dict()` is no copy: what
                trains on changes it.
            groups: Optimizer records of any kind, in any container, such as `segue.capture_optimizer(...)` or
                `RankLocal(...)`; kept likewise.
            scheduler: A torch scheduler, an object with `state_dict` and `load_state_dict`, or one with `capture`,
                `check` and `restore`; or several by name.
            accumulator: A `GradientAccumulator` or `WeightedAccumulator` over the model; without one, what stands in
                `.grad` is pending. Gradients standing in `.grad` are captured in any case.
            state: The caller's own state, a tree of plain values, tensors and arrays; copied now. Random streams and
                the position in the data belong here.
            step: Optimizer steps so far, for people and file listings.
            microbatch: Boundaries so far, likewise.

        Returns:
            The record; its `kind` is `groups` if groups are given, else `model_state`.

        Raises:
            PendingGradientError: If a pending gradient fits no parameter of the model in shape or device, or only a
                frozen one, or is quantized.
            TiedParameterConflict: If two trainable parameters are one memory, and differ in dtype or shape.
            NotAtBoundary: Inside a backward.
            UnsupportedState: If a pending gradient, the scheduler or the caller state can't be kept.

        Guarantees:
            Read-only, in this order: pending gradients are checked against the model; the contract of its trainable
            parameters is taken; gradients are copied; the scheduler is. Nothing else is captured: no values of the
            model, no optimizer, no random streams, no mode.

        Cost:
            One copy of the pending gradients and of the caller state.

        Collective:
            No.
        """
        sections = callers_capture.capture(
            model, model_state=model_state, groups=groups, scheduler=scheduler, accumulator=accumulator, state=state
        )  # fmt: skip
        return cls(
            **sections,
            model_state=model_state,
            groups=groups,
            step=step,
            microbatch=microbatch,
            is_given=True,
        )

    @classmethod
    def capture_async(
        cls,
        model: torch.nn.Module,
        *,
        model_state: Any,
        groups: Any = None,
        scheduler: Any = None,
        accumulator: PendingSource | None = None,
        state: Any = None,
        step: int | None = None,
        microbatch: int | None = None,
    ) -> PendingCapture:
        """Capture as `capture` does; what goes wrong is raised by the future.

        Args and errors are those of `capture`.

        Returns:
            A `concurrent.futures.Future` that can also be awaited, of a record equal bit for bit to that of `capture`.

        Cost:
            Everything is copied before this returns: whose `step` would have to wait for a later copy, nobody here
            knows.
        """
        return AsyncCaptures([]).start(
            lambda: cls.capture(
                model, model_state=model_state, groups=groups, scheduler=scheduler, accumulator=accumulator, state=state,
                step=step, microbatch=microbatch,
            )
        )  # fmt: skip

    def restore(
        self,
        model: Any,
        scheduler: Any = None,
        *,
        restore_model: Callable[[Any, Any], torch.nn.Module | None],
        restore_groups: Callable[[Any, Any], tuple[torch.nn.Module, Any]] | None = None,
        restore_optimizer: Callable[[Any, Any, Any], Any] | None = None,
        device: str | torch.device | None = None,
    ) -> RestoredTraining:
        """Let the caller's functions restore model and optimizers; then restore pending gradients and the scheduler.

        Each function is called once, or not at all, with exactly what `capture` was given; after loading, with equal
        values: host tensors for tensors, and records and `RankLocal` as they were. Of a record that `Training` made,
        the model's state is its `ModuleRecord`, and the groups are its `OptimizerRecord`s by name. In this order:

        1. The record's version is compared; stored bytes are read once and compared with their checksums.
        2. `restore_model(model_state, model)` returns the restored model.
        3. If a `device` is asked for, every tensor of the model must be there.
        4. The model's trainable parameters are compared with the record's: names, shapes, dtypes, layouts, ties.
        5. `restore_groups(model, groups)` returns the model and the live optimizers, in any shape. Or
           `restore_optimizer(model, state, groups)` returns the live optimizers, made for the final model and with the
           caller state at hand; then the pending gradients have been checked already.
        6. The parameters are compared again, also in the dtypes their gradients may have, which optimizers set.
        7. Pending gradients are restored, each on its parameter's own device.
        8. The scheduler takes up its position; it is not stepped.

        Args:
            model: A prepared model, or whatever `restore_model` makes one of.
            scheduler: The prepared scheduler; or a function of the live optimizers that makes it, since torch's need
                theirs; or several by name. While that function runs, learning rates are the initial ones, and
                afterwards all options of the optimizers are what they were: torch's schedulers begin with a first
                step of their own.
            restore_model: Returns a model, the given one or another; `None` is the given one.
            restore_groups: Returns a model and the live optimizers.
            restore_optimizer: In its place; at most one of both.
            device: Where the model must be; nothing is moved. By default wherever its tensors are; but a record of
                `kind` `model_state` that was loaded for a device asks for that.

        Returns:
            `RestoredTraining`. Its accumulator is a new one, of the recorded terms, over the returned model; `None` if
            the record was made without one, and pending gradients stand in `.grad`. Of a weighted window it is a plain
            one, and the state is the pair of the window's counters and the caller's state: `restore_weighted` is what
            goes on with the window.

        Raises:
            UnsupportedFormat: If the record is of another version; nothing was called.
            TypeError: If the record has what no function is given for, or both for optimizers.
            SchedulerMismatch: If the scheduler is on one side only, or of another kind.
            StoreError: If stored bytes are damaged; nothing was called.
            LossyRecord: If it was stored in a precision that lost something; nothing was called.
            DeviceMismatch: If a tensor of the model is elsewhere.
            ContractMismatch: If the model's trainable parameters are others, or pending gradients don't fit.
            Exception: Whatever a function raises, as it is.

        Guarantees:
            Nothing is inferred: no communicator, no move, no cast, no step, no random stream. The record is not
            changed and may be restored again; of what it was given, later restores get the same objects.
            What a function has done stays done if a later step refuses.

        Cost:
            Stored bytes are read twice, once to verify.

        Collective:
            No; what the functions do is theirs.
        """
        return callers_restore.restore(
            self, callers_restore.Callbacks(restore_model, restore_groups, restore_optimizer), model, scheduler, device
        )  # fmt: skip

    def restore_weighted(
        self,
        model: Any,
        scheduler: Any = None,
        *,
        restore_model: Callable[[Any, Any], torch.nn.Module | None],
        restore_groups: Callable[[Any, Any], tuple[torch.nn.Module, Any]] | None = None,
        restore_optimizer: Callable[[Any, Any, Any], Any] | None = None,
        device: str | torch.device | None = None,
    ) -> RestoredTraining:
        """Restore as `restore` does, and go on with a weighted window.

        Args are those of `restore`.

        Returns:
            `RestoredTraining` with a `WeightedAccumulator` of exactly the recorded counters, dtype and loss scale, and
            with the caller's state.

        Raises:
            ContractMismatch: If the record has no weighted window; nothing was called. Else as `restore`.
        """
        refuse_unweighted(self)
        return callers_restore.restore(
            self, callers_restore.Callbacks(restore_model, restore_groups, restore_optimizer), model, scheduler, device,
            is_weighted=True,
        )  # fmt: skip

    def as_stored(self) -> _training.TrainingRecord:
        """Return the record as stores write it: nothing in it but values and trees.

        Raises:
            UnsupportedState: If `model_state` or `groups` hold what can't be stored, naming path and type.

        Cost:
            A copy of every live tensor in `model_state` and `groups`.
        """
        return self._with_trees("native")

    def _with_trees(self, precision: Precision) -> _training.TrainingRecord:
        """Return the stored form, of which rank-local parts have gone through their converters."""
        made = self.model_state, self.groups
        if self.is_given:
            made = (
                as_tree(self.model_state, "model_state", precision),
                as_tree(self.groups, "groups", precision),
            )
        own = {name: getattr(self, name) for name in _SECTIONS}
        return _training.TrainingRecord(**{**own, "model_state": made[0], "groups": made[1]})

    def without_given(self) -> _training.TrainingRecord:
        """Return everything but what `capture` was given, which is for nobody here to look at."""
        own = {name: getattr(self, name) for name in _SECTIONS}
        if self.is_given:
            own |= {"model_state": None, "groups": None}
        return _training.TrainingRecord(**own)

    def converted(self, precision: Precision) -> TrainingRecord:
        if precision_name(precision) == "native":
            return self
        return TrainingRecord.of(self._with_trees(precision).converted(precision))

    @property
    def lossy(self) -> tuple[str, ...]:
        """Where the tensors stand that would not come back with the bits they had, such as `model/layer.weight`."""
        return self.without_given().lossy

    def verify(self) -> None:
        """Read every tensor once and compare it with its checksum; what `capture` was given is left alone.

        Raises:
            StoreError: If anything does not match.
        """
        self.without_given().verify()

    def with_device(self, device: str | torch.device) -> TrainingRecord:
        """Return the same record with every tensor placed on one device; what `capture` was given is left alone.

        Raises:
            DeviceMismatch: If torch has no device of that name.
        """
        device = device_name(device)
        placed = replace(TrainingRecord.of(self.without_given().with_device(device)), placed_on=device)
        if not self.is_given:
            return placed
        return replace(placed, model_state=self.model_state, groups=self.groups, is_given=True)

    @staticmethod
    def from_sections(sections: Mapping[str, Any]) -> TrainingRecord:
        """Build a record from trees: the inverse of `sections`.

        Raises:
            InvalidRecord: If a section is missing, unknown or malformed.
        """
        return TrainingRecord.of(_training.TrainingRecord.from_sections(sections))
