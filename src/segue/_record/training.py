"""The record: one training at one boundary, as a value."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from segue._record import structure as _structure
from segue._record import tree as _tree
from segue._record.composite import Composite, blobs
from segue._record.contract import TensorSpec
from segue._record.conversion import PRECISIONS, Precision
from segue._record.gradients import GradientsRecord
from segue._record.precision import converted_tensors, in_precision, refuse_untold
from segue._record.private import refuse_no_streams
from segue._record.sections import (
    ComponentRecord,
    ModuleRecord,
    OpaqueOptimizerRecord,
    OptimizerRecord,
    SchedulerRecord,
)
from segue._record.structure import added
from segue._record.tensors import CapturedTensor
from segue._record.window import WindowRecord
from segue.errors import InvalidRecord

RECORD_VERSION = 1


@dataclass(frozen=True)
class Topology:
    """Which part of a run this record is."""

    world_size: int = 1
    rank: int = 0


@dataclass(frozen=True)
class TrainingRecord:
    """Everything that decides how a training goes on, captured at one boundary between microbatches.

    A value: it shares no memory with the live training, and comparing two needs neither. A record that was loaded
    reads its tensors from the open files as they are needed, verified each time.
    """

    model: ModuleRecord
    optimizers: Mapping[str, OptimizerRecord]
    schedulers: Mapping[str, SchedulerRecord]
    gradients: GradientsRecord
    """What stood in `.grad`."""
    window: WindowRecord | None
    components: Mapping[str, ComponentRecord]
    streams: Mapping[str, Any] | None
    """Random streams by name; `None` where the caller opted out."""
    caller_state: Any
    """The caller's tree; read it through `state`."""
    environment: Mapping[str, Any]
    """What changes floating-point results: versions, threads, flags."""
    kind: str = "full"
    """`full`, `model_state` where part of the model is left out or is the caller's, `groups` where the optimizers are."""
    step: int | None = None
    """Optimizer steps, as told by the caller."""
    microbatch: int | None = None
    """Boundaries passed since the run began, as counted by the checkpointer."""
    topology: Topology = field(default_factory=Topology)
    lineage: tuple[Any, ...] = ()
    """What was accepted at earlier resumes of this run, oldest first."""
    version: int = RECORD_VERSION
    model_state: Any = added(since=3)
    """What the caller, or an object of the caller's, captured of the model, as it was given; `None` where segue did."""
    groups: Any = added(since=3)
    """Optimizer records that the caller made, as they were given."""
    precision: str = added(since=3, default="native")
    """What tensors were converted to last; each says whether it was, and whether it lost anything."""
    opaque_optimizers: Mapping[str, OpaqueOptimizerRecord] | None = added(since=3)
    """Optimizers that are not torch's, by names that none of `optimizers` has; `None` where there are none."""
    private_streams: Any = added(since=5)
    """Generators of the program's own, a dictionary of trees by where they were found; `None` where there are none."""

    def __post_init__(self) -> None:
        """Refuse a name that two optimizers have, since a program has one of that name, and an unknown precision."""
        twice = sorted(self.optimizers.keys() & (self.opaque_optimizers or {}).keys())
        if twice:
            raise InvalidRecord("two optimizers have one name", code="record.optimizers", found=twice[:5])
        if self.precision not in PRECISIONS:
            raise InvalidRecord(
                "no such precision", code="record.precision", where="precision", expected=PRECISIONS, found=self.precision,
            )  # fmt: skip
        refuse_no_streams(self.private_streams)
        refuse_untold(self)

    def __repr__(self) -> str:
        # Not all of it: a notebook shows what a cell ends in.
        optimizers = [*self.optimizers, *(self.opaque_optimizers or {})]
        return (
            f"{type(self).__name__}(kind={self.kind!r}, step={self.step}, microbatch={self.microbatch}, "
            f"{len(self.model.tensors)} tensors of the model, optimizers {optimizers})"
        )

    @property
    def state(self) -> Any:
        """The caller state as new live values: plain values, host tensors and arrays."""
        return _tree.thaw(self.caller_state)

    def converted(self, precision: Precision) -> TrainingRecord:
        """Return the same record stored in another precision, each tensor with its own dtype beside it.

        Converted are parameters, buffers, optimizer state and pending gradients, also of components that are modules,
        and tensors in caller-made sections. Never converted are quantized and sparse tensors, what has no dimension
        (counters, learning rates, scales), and everything that is no floating-point number and no integer of 32 or 64
        bits; nor window sums, random streams, caller state, schedulers, options, and the state that other objects keep.

        Args:
            precision: `"native"` leaves everything as it is. `"double"` stores floats as float64 and integers as int64,
                `"full"` as float32 and int32, `"half"` as float16 and int16. A floating dtype is for floats alone.

        Raises:
            InvalidRecord: If there is no such precision.

        Guarantees:
            Whether a conversion lost anything is decided from the values themselves, bit by bit, and kept with each
            tensor; `lossy` lists those that did, and a restore refuses them unless told otherwise. A record that
            lost nothing restores the same bits, and has the digests of the one that it was made of.

        Cost:
            A read of everything that is converted, in host memory of its new size.
        """
        return in_precision(self, precision)

    @property
    def lossy(self) -> tuple[str, ...]:
        """Where the tensors stand that would not come back with the bits they had, such as `model/layer.weight`."""
        return tuple(place for place, tensor in converted_tensors(self) if not tensor.exact)

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors and arrays in the record."""
        return sum(blob.num_bytes for blob in blobs(self.sections()))

    def sections(self) -> dict[str, Any]:
        """Return every field as a tree, by name: what stores and digests work on."""
        trees: dict[str, Any] = _structure.unstructure(self.as_stored())
        return trees

    def as_stored(self) -> TrainingRecord:
        """Return the record as stores write it: nothing in it but values and trees."""
        return self

    @staticmethod
    def from_sections(sections: Mapping[str, Any]) -> TrainingRecord:
        """Build a record from trees: the inverse of `sections`.

        Raises:
            InvalidRecord: If a section is missing, unknown or malformed.
        """
        record: TrainingRecord = _structure.structure(TrainingRecord, dict(sections))
        return record

    def verify(self) -> None:
        """Read every tensor once and compare it with its checksum.

        Raises:
            StoreError: If anything does not match.
        """
        for blob in blobs(self.sections()):
            blob.source.verify()

    def with_device(self, device: str) -> TrainingRecord:
        """Return the same record with every tensor placed on one device."""
        placed: TrainingRecord = _placed(self, device)
        return placed


SECTIONS = tuple(item.name for item in fields(TrainingRecord))
OPTIONAL_SECTIONS = frozenset(
    item.name for item in fields(TrainingRecord) if _structure.SINCE in item.metadata
)
"""The fields that a record has no section for where they are not used."""


def _placed(value: Any, device: str) -> Any:
    """Rebuild a record with all placements replaced; trees keep their shape."""
    if isinstance(value, CapturedTensor | Composite):
        return value.with_device(device)
    if isinstance(value, TensorSpec):
        return replace(value, device=device)
    if isinstance(value, dict) and not isinstance(value, Counter):  # which would count the pairs
        return type(value)((key, _placed(item, device)) for key, item in value.items())
    if type(value) in (list, tuple):
        return type(value)(_placed(item, device) for item in value)
    if type(value) is deque:
        return deque((_placed(item, device) for item in value), value.maxlen)
    if hasattr(value, "__dataclass_fields__") and not hasattr(value, "source"):
        return replace(
            value, **{item.name: _placed(getattr(value, item.name), device) for item in fields(value)}
        )
    return value
