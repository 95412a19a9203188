"""A record laid out as files, and back: which tensor goes where, under which name.

`model.safetensors` holds what the model's own state dict would, under the model's own names, so that anything that
reads safetensors can load it; of a tensor that consists of others, each part, as `name.part`. Every other tensor or
array goes to `training.safetensors` by its path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from segue._record.contract import TensorSpec
from segue._record.structure import needed_version
from segue._record.tensors import DTYPE_NAMES, DTYPES, Blob, ByteSource, CapturedTensor
from segue._record.training import OPTIONAL_SECTIONS, SECTIONS, TrainingRecord
from segue._record.tree import Path, blob_name, decode, encode
from segue._store import layout, strict_json
from segue._store.codec import Placed, file_order, write_header
from segue._store.manifest import MAX_TENSOR_NAME_BYTES, MAX_WORLD_SIZE, Manifest, TensorEntry, check_writable
from segue.errors import CorruptCheckpoint, InvalidRecord

STATE_SECTIONS = ("caller_state", "components", "model_state", "groups", "opaque_optimizers")
"""The sections of any size, which have a file of their own."""
PLAIN_SECTIONS = ("kind", "step", "microbatch", "topology")
"""The sections that stand as plain JSON at the top of the manifest."""
MANIFEST_SECTIONS = tuple(name for name in SECTIONS if name not in (*STATE_SECTIONS, *PLAIN_SECTIONS))
MAX_STATE_BYTES = 2**31
_PERSISTENT = ("parameter", "buffer")


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """One tensor to be written."""

    reference: str
    """Its name in the trees."""
    name: str
    """Its name in the file."""
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: str
    source: ByteSource


@dataclass(frozen=True)
class FilePlan:
    """One tensor file to be written: its header, and its tensors in the order of their bytes."""

    head: bytes
    tensors: tuple[tuple[TensorPlan, Placed], ...]

    @property
    def size(self) -> int:
        return len(self.head) + (self.tensors[-1][1].end if self.tensors else 0)


@dataclass(frozen=True)
class Contents:
    """A record as it will be stored, with all sizes known and nothing written yet."""

    record: TrainingRecord
    files: Mapping[str, FilePlan]
    state: bytes
    sections: Mapping[str, Any]
    version: int
    """The oldest version of the format that can hold the record."""

    @property
    def num_bytes(self) -> int:
        return len(self.state) + sum(plan.size for plan in self.files.values())

    @property
    def num_tensors(self) -> int:
        return sum(len(plan.tensors) for plan in self.files.values())


def lay_out(record: TrainingRecord) -> Contents:
    """Decide where everything of a record goes.

    Raises:
        InvalidRecord: If the record holds what the format cannot, or is beyond its limits.

    Cost:
        No tensor byte is read; a few microseconds for each tensor.
    """
    record = record.as_stored()
    sections = record.sections()
    _check_counts(record)
    sorter = _Sorter(record.model.contract.tensors)
    trees = {
        name: encode(tree, sorter.place, (name,))
        for name, tree in sections.items()
        if name not in PLAIN_SECTIONS
    }
    in_state = {name: trees.pop(name) for name in STATE_SECTIONS if name in trees}
    state = strict_json.dump(in_state).encode("utf-8")
    if len(state) > MAX_STATE_BYTES:
        raise InvalidRecord(
            "caller state and components are too large", code="record.size", expected=MAX_STATE_BYTES
        )
    files = {name: _file_plan(sorter.tensors[name], name) for name in layout.TENSOR_FILES}
    return Contents(record, files, state, trees, needed_version(record))


def _check_counts(record: TrainingRecord) -> None:
    for name in ("step", "microbatch"):
        value = getattr(record, name)
        if value is not None and not (type(value) is int and 0 <= value < 2**62):
            raise InvalidRecord("not a count", code="record.field", where=name, found=value)
    topology = record.topology
    if not 0 <= topology.rank < topology.world_size <= MAX_WORLD_SIZE:
        raise InvalidRecord("no such rank", code="record.field", where="topology", found=topology)


class _Sorter:
    """Collects the tensors of a record by file while its trees are encoded."""

    def __init__(self, contract: Mapping[str, TensorSpec | None]) -> None:
        self._contract = contract
        self.tensors: dict[str, dict[str, TensorPlan]] = {name: {} for name in layout.TENSOR_FILES}

    def place(self, path: Path, blob: Blob) -> str:
        """Take one tensor or array and return its reference."""
        reference = blob_name(path)
        own_name = self._own_name(path, blob)
        if own_name is not None and own_name not in self.tensors[layout.MODEL_FILE]:
            self._add(layout.MODEL_FILE, _plan(reference, own_name, blob))
        else:
            self._add(layout.TRAINING_FILE, _plan(reference, reference, blob))
        return reference

    def _own_name(self, path: Path, blob: Blob) -> str | None:
        """Return the name under which the model's own state dict has it, or `None` if it has not.

        A part of a tensor is called `name.part`, unless another tensor has that name. What a tensor without parts is
        stored as, in another precision, is called as that tensor.
        """
        if path[:2] != ("model", "tensors") or not isinstance(blob, CapturedTensor):
            return None
        names = [part for part in path[2:] if isinstance(part, str)]
        spec = self._contract.get(names[0]) if names else None
        if spec is not None and spec.parts is None:
            names = names[:1]
        name = ".".join(names)
        is_taken = len(names) > 1 and name in self._contract
        persistent = spec is not None and spec.kind in _PERSISTENT
        return name if persistent and not is_taken and _is_plain_name(name) else None

    def _add(self, file: str, plan: TensorPlan) -> None:
        check_writable(
            plan.reference, plan.dtype, plan.shape, plan.strides, plan.device, plan.source.num_bytes
        )
        if self.tensors[file].setdefault(plan.name, plan) is not plan:
            raise InvalidRecord("two tensors have one name", code="record.name", where=plan.name)


def _plan(reference: str, name: str, blob: Blob) -> TensorPlan:
    if isinstance(blob, CapturedTensor):
        dtype = DTYPE_NAMES[blob.dtype]
        return TensorPlan(reference, name, dtype, blob.shape, blob.strides, blob.device, blob.source)
    return TensorPlan(reference, name, "uint8", (blob.num_bytes,), (1,), "cpu", blob.source)


def _is_plain_name(name: str) -> bool:
    return (
        name.isprintable() and name != "__metadata__" and len(name.encode("utf-8")) <= MAX_TENSOR_NAME_BYTES
    )


def _file_plan(tensors: Mapping[str, TensorPlan], file: str) -> FilePlan:
    plans: list[tuple[TensorPlan, Placed]] = []
    position = 0
    for plan in sorted(tensors.values(), key=lambda plan: file_order(plan.name, plan.dtype)):
        end = position + plan.source.num_bytes
        plans.append((plan, Placed(plan.dtype, plan.shape, position, end)))
        position = end
    return FilePlan(write_header({plan.name: placed for plan, placed in plans}, file), tuple(plans))


def assemble(
    manifest: Manifest,
    state: Any,
    source: Callable[[str, TensorEntry], ByteSource],
    manifest_path: str,
    state_path: str,
) -> TrainingRecord:
    """Build the record from what was stored: the inverse of `lay_out`.

    Args:
        manifest: Valid in itself.
        state: The parsed `state.json`.
        source: Makes the byte source of a tensor from its reference and index entry.
        manifest_path: For messages.
        state_path: For messages.

    Raises:
        CorruptCheckpoint: If a section is missing, unknown or malformed, or if trees and index do not name the same
            tensors, each once.
    """
    _check_keys(manifest.sections, MANIFEST_SECTIONS, manifest_path)
    _check_keys(state, STATE_SECTIONS, state_path)
    resolver = _Resolver(manifest.tensors, source)
    sections: dict[str, Any] = {
        "kind": manifest.kind,
        "step": manifest.step,
        "microbatch": manifest.microbatch,
        "topology": {"world_size": manifest.world_size, "rank": manifest.rank},
    }
    for trees, path in ((manifest.sections, manifest_path), (state, state_path)):
        for name, tree in trees.items():
            sections[name] = _decoded(tree, resolver, name, path)
    resolver.check_all_used(manifest_path)
    try:
        record = TrainingRecord.from_sections(sections)
    except InvalidRecord as error:
        raise _malformed(error, manifest_path) from error
    _check_version_holds(record, manifest.version, manifest_path)
    return record


def _check_version_holds(record: TrainingRecord, version: int, path: str) -> None:
    """Refuse content that a reader of the version it claims to be would not understand."""
    needed = needed_version(record)
    if needed > version:
        raise CorruptCheckpoint(
            "it claims an older version of the format than its content needs",
            where=path,
            expected=needed,
            found=version,
        )


def _check_keys(trees: Any, expected: tuple[str, ...], path: str) -> None:
    needed = set(expected) - OPTIONAL_SECTIONS
    if type(trees) is not dict or not needed <= trees.keys() <= set(expected):
        found = sorted(trees) if type(trees) is dict else trees
        raise CorruptCheckpoint("unknown or missing sections", where=path, expected=expected, found=found)


def _decoded(tree: Any, resolver: _Resolver, name: str, path: str) -> Any:
    try:
        return decode(tree, resolver.resolve, (name,))
    except InvalidRecord as error:
        raise _malformed(error, path) from error


def _malformed(error: InvalidRecord, path: str) -> CorruptCheckpoint:
    entry = error.where or "the record"
    return CorruptCheckpoint(
        f"{error.what} at {entry!a}"[:300], where=path, expected=error.expected, found=error.found
    )


class _Resolver:
    """Finds tensors by reference, each once."""

    def __init__(
        self, tensors: Mapping[str, TensorEntry], source: Callable[[str, TensorEntry], ByteSource]
    ) -> None:
        self._tensors = tensors
        self._source = source
        self._used: set[str] = set()

    def resolve(self, reference: str) -> CapturedTensor:
        entry = self._tensors.get(reference) if type(reference) is str else None
        if entry is None:
            raise InvalidRecord("no such tensor in the index", code="record.tensor", where=reference)
        if reference in self._used:
            raise InvalidRecord("a tensor is named twice", code="record.tensor", where=reference)
        self._used.add(reference)
        return CapturedTensor(
            DTYPES[entry.dtype], entry.shape, entry.strides, entry.device, self._source(reference, entry)
        )

    def check_all_used(self, path: str) -> None:
        unused = self._tensors.keys() - self._used
        if unused:
            raise CorruptCheckpoint(
                "the index has tensors that no section names", where=path, found=sorted(unused)[:5]
            )
