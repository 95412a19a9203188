"""Pending gradients as a value: by parameter name, sorted, in their own dtype and layout, owned by the record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from segue._record.composite import CapturedSparse, Composite, ConvertedTensor, blobs
from segue._record.conversion import Precision, converted, host_tensor, refuse_inexact
from segue._record.converted_bytes import Workspace
from segue._record.entries import GradientEntry, gradient_of, refuse_invalid
from segue._record.quantized import QuantizedTensor, QuantScheme
from segue._record.structure import added, embeddable
from segue._record.tensors import CapturedTensor
from segue.errors import InvalidRecord

_KINDS = (CapturedTensor, CapturedSparse, ConvertedTensor, QuantizedTensor)


@embeddable("gradients")
@dataclass(frozen=True)
class GradientsRecord:
    """Gradients by canonical parameter name.

    A name that is missing had no gradient; that is neither a zero nor `None` in a table. The dtype may differ from
    the parameter's: fp32 sums for bf16 parameters keep their precision.

    Made by `segue.capture_gradients`, put back by `segue.restore_gradients`; part of every `TrainingRecord`.
    """

    tensors: Mapping[str, CapturedTensor | Composite]
    """Sorted by name: strided, sparse, quantized, or stored in another dtype."""
    shared: tuple[tuple[str, ...], ...] = added(since=2, default=())
    """Gradients, or parts of sparse ones, that are one memory, such as `a/` and `b/values`, two or more each.

    The backward of a sum gives its one gradient to both summands, and autograd lets a sparse `.grad`, or that of a
    parameter which is summed in another shape, keep it without a copy (torch 2.13): whoever scales one in place, as
    clipping does, scales the other."""

    def __post_init__(self) -> None:
        """Sort, and refuse what is no gradient."""
        for name, tensor in self.tensors.items():
            if not isinstance(tensor, _KINDS):
                raise InvalidRecord(
                    "no gradient", code="gradients.kind", where=f"gradient of {name}", found=type(tensor).__name__
                )  # fmt: skip
        object.__setattr__(self, "tensors", dict(sorted(self.tensors.items())))
        if any(len(group) < 2 for group in self.shared):
            raise InvalidRecord("a place shares memory with none", code="gradients.shared", found=self.shared)
        known: set[str] = set()
        for place in (place for group in self.shared for place in group):
            if place in known or not self._is_place(place):
                raise InvalidRecord("no place that shares memory", code="gradients.shared", where=place)
            known.add(place)

    def _is_place(self, place: str) -> bool:
        name, _, part = place.rpartition("/")
        tensor = self.tensors.get(name)
        if isinstance(tensor, CapturedSparse):
            return part in tensor.parts
        return isinstance(tensor, CapturedTensor | ConvertedTensor) and part == ""

    @classmethod
    def from_entries(cls, entries: Iterable[GradientEntry]) -> GradientsRecord:
        """Make a record from raw data, such as another program wrote.

        Entries are checked one after the other, all of them before anything is made of any; of each in this order:
        its name is new, its two dtypes go together, its shape can be counted, its bytes are as many as they must be
        (for quantized ones, the arithmetic of `segue.quant`), and what it would become can be addressed.

        Args:
            entries: In any order; the record is sorted by name. Bytes are copied.

        Raises:
            InvalidRecord: At the first entry that fails, with a code of its own for each check.
        """
        entries = list(entries)
        refuse_invalid(entries)
        return cls({entry.name: gradient_of(entry) for entry in entries})

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters that have a gradient, sorted."""
        return tuple(self.tensors)

    def dtype(self, name: str) -> torch.dtype | QuantScheme | None:
        """Return the own dtype of a gradient, however it is stored, or `None` if there is none of this name."""
        tensor = self.tensors.get(name)
        if isinstance(tensor, QuantizedTensor):
            return tensor.scheme
        return None if tensor is None else tensor.dtype  # type: ignore[union-attr]

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return the logical shape of a gradient, or `None` if there is none of this name."""
        tensor = self.tensors.get(name)
        return None if tensor is None else tensor.shape  # type: ignore[union-attr]

    def select(self, names: Iterable[str]) -> GradientsRecord:
        """Return the gradients of some parameters, bits and dtypes untouched.

        Args:
            names: A name without a gradient selects nothing; nothing is invented for it.

        Raises:
            InvalidRecord: If a name is given twice.
        """
        if isinstance(names, str):
            raise InvalidRecord(
                "names are given as several", code="gradients.selection", expected="names", found=names,
                hint=f'`select(["{names}"])`',
            )  # fmt: skip
        wanted: set[str] = set()
        for name in names:
            if name in wanted:
                raise InvalidRecord("selected twice", code="gradients.selection", where=f"gradient of {name}")
            wanted.add(name)
        return self._with({name: tensor for name, tensor in self.tensors.items() if name in wanted})

    def renamed(self, table: Mapping[str, str]) -> GradientsRecord:
        """Return the same gradients of parameters with other names; those not in the table keep theirs.

        Raises:
            InvalidRecord: If two gradients would have one name.
        """
        taken: dict[str, str] = {}
        for name in self.tensors:
            first = taken.setdefault(table.get(name, name), name)
            if first != name:
                raise InvalidRecord(
                    "two gradients would have one name", code="gradients.rename",
                    where=f"gradient of {table.get(name, name)}", found=[first, name],
                )  # fmt: skip
        shared = tuple(
            tuple(
                f"{table.get(name, name)}/{part}"
                for name, _, part in (place.rpartition("/") for place in group)
            )
            for group in self.shared
        )
        return GradientsRecord(
            {table.get(name, name): tensor for name, tensor in self.tensors.items()}, shared
        )

    def _with(self, tensors: Mapping[str, CapturedTensor | Composite]) -> GradientsRecord:
        """Return other gradients, which share what they still share."""
        left = [
            tuple(place for place in group if place.rpartition("/")[0] in tensors) for group in self.shared
        ]
        return GradientsRecord(tensors, tuple(group for group in left if len(group) > 1))

    def converted(self, precision: Precision) -> GradientsRecord:
        """Return the same gradients stored in another precision, each with its own dtype beside it.

        Args:
            precision: `"double"`, `"full"`, `"half"` or a floating dtype; `"native"` leaves everything as it is.
                Quantized and sparse gradients are never converted, nor those that are one number.

        Guarantees:
            Whether a conversion lost anything is decided from the values themselves, bit by bit, and kept with
            each gradient; `lossy` lists them, and a restore refuses them. Gradients that are one memory are converted
            all or not at all: else they would come back as two.
        """
        changed = {name: converted(tensor, precision) for name, tensor in self.tensors.items()}
        for group in self.shared:
            names = {place.rpartition("/")[0] for place in group}
            if any(changed[name] is self.tensors[name] for name in names):
                changed |= {name: self.tensors[name] for name in names}
        return self._with(changed)

    def in_own_dtypes(self) -> GradientsRecord:
        """Return the same gradients, each in its own dtype: what was converted is converted back as it is read.

        Raises:
            InvalidRecord: If one that is said to come back exactly doesn't, here and now.
            StoreError: If stored bytes do not match their checksums.
        """
        workspace = Workspace()
        tensors = dict(self.tensors)
        for name, tensor in self.tensors.items():
            if isinstance(tensor, ConvertedTensor):
                refuse_inexact(tensor, f"gradient of {name}", workspace)
                tensors[name] = tensor.restored(workspace)
        return GradientsRecord(tensors, self.shared)

    @property
    def lossy(self) -> tuple[str, ...]:
        """The names of gradients that would not come back with the bits they had."""
        return tuple(
            name
            for name, tensor in self.tensors.items()
            if isinstance(tensor, ConvertedTensor) and not tensor.exact
        )

    def verify(self) -> None:
        """Read all bytes once and compare them with their checksums.

        Raises:
            StoreError: If anything does not match.
        """
        for blob in blobs(dict(self.tensors)):
            blob.source.verify()

    def to_tensors(self, device: str | torch.device = "cpu") -> dict[str, torch.Tensor | QuantizedTensor]:
        """Make live tensors of all gradients, on one device, each in its own dtype.

        Returns:
            By name. Quantized ones stay values: torch has no tensor for them, and nothing is dequantized.

        Raises:
            StoreError: If stored bytes do not match their checksums.
            InvalidRecord: If a sparse gradient's indices are out of range, or torch has no tensor of a shape.

        Guarantees:
            All bytes are verified before the first tensor is made.
        """
        self.verify()
        live = {name: host_tensor(tensor) for name, tensor in self.tensors.items()}
        return {
            name: value.to(device) if isinstance(value, torch.Tensor) else value
            for name, value in live.items()
        }
