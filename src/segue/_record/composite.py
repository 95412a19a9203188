"""Tensors that consist of plain ones: sparse tensors, and tensor subclasses that flatten into parts.

One shape for all of them: a `description` (a tree without tensors: class, shape, layout, context) and named `parts`.
What has parts is never converted: an uncoalesced sparse gradient stays uncoalesced, a quantized moment keeps its
codes and scales. Nothing is added up, requantized or dequantized on the way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch

from segue._record.converted_bytes import ConvertedBytes, Workspace
from segue._record.embedded import embedded_as
from segue._record.tensors import Blob, CapturedArray, CapturedTensor
from segue.errors import InvalidRecord


class Composite(ABC):
    """A captured tensor made of captured tensors. Compare with `tree.same`; `==` is identity."""

    tag: ClassVar[str]
    """Its name in the typed encoding."""
    since: ClassVar[int] = 2
    """The first version of the format that has it."""

    @property
    def needed_version(self) -> int:
        """The oldest version of the format that can hold this one, its parts aside."""
        return self.since

    @property
    @abstractmethod
    def parts(self) -> Mapping[str, CapturedTensor | Composite]:
        """The tensors it consists of, by name, in a fixed order."""

    @property
    @abstractmethod
    def description(self) -> dict[str, Any]:
        """Everything else about it, as a tree without tensors."""

    @classmethod
    @abstractmethod
    def from_parts(cls, description: Mapping[str, Any], parts: Mapping[str, Any]) -> Self:
        """Build one from data that may be hostile: the inverse of `description` and `parts`.

        Raises:
            InvalidRecord: If they contradict each other.
        """

    @abstractmethod
    def to_host(self) -> Any:
        """Make a new live value in host memory."""

    @property
    def num_bytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.num_bytes for part in self.parts.values())

    def with_device(self, device: str) -> Self:
        """Return the same value placed on another device."""
        placed = {name: part.with_device(device) for name, part in self.parts.items()}
        return type(self).from_parts(self.description, placed)


Captured = CapturedTensor | CapturedArray | Composite
CAPTURED = (CapturedTensor, CapturedArray, Composite)


def invalid(what: str, expected: Any = None, found: Any = None) -> InvalidRecord:
    """Make the error for a composite that contradicts itself."""
    return InvalidRecord(what, code="record.composite", expected=expected, found=found)


def fields_of(description: Mapping[str, Any], **types: type | tuple[type, ...]) -> list[Any]:
    """Return the fields of a description in the order given, after checking that they are all of it.

    Raises:
        InvalidRecord: If one is missing, unknown, or of another type.
    """
    if type(description) is not dict or description.keys() != types.keys():
        raise invalid("bad description", sorted(types), description)
    for name, kind in types.items():
        if not isinstance(description[name], kind):
            raise invalid(f"bad {name}", kind, description[name])
    return [description[name] for name in types]


def is_shape(value: Any) -> bool:
    """Tell whether a tree is a shape: a tuple of ints that are not negative."""
    return type(value) is tuple and all(type(size) is int and size >= 0 for size in value)


def is_expanded(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Tell whether several elements of a layout are one memory, which can't be written element by element."""
    return any(size > 1 and stride == 0 for size, stride in zip(shape, strides, strict=True))


FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
"""The real floating-point dtypes: what gradients may be, and what a precision setting converts between."""
INTEGERS = (torch.int64, torch.int32)
"""The integer dtypes that a precision setting converts; the smaller ones and `bool` are what they are on purpose."""

# The parts of each layout: those that hold indices, then the values.
SPARSE_PARTS: dict[torch.layout, tuple[str, ...]] = {
    torch.sparse_coo: ("indices", "values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}
LAYOUTS: dict[str, torch.layout] = {str(layout).removeprefix("torch."): layout for layout in SPARSE_PARTS}


@dataclass(frozen=True, eq=False)
class CapturedSparse(Composite):
    """A sparse tensor: indices and values as they were, in their order, duplicates included."""

    tag: ClassVar[str] = "sparse"

    layout: str
    """One of `LAYOUTS`."""
    shape: tuple[int, ...]
    coalesced: bool
    """What the tensor said of itself; adding to it depends on that. False for the compressed layouts."""
    tensors: Mapping[str, CapturedTensor]

    @property
    def dtype(self) -> torch.dtype:
        """The element type of the values."""
        return self.tensors["values"].dtype

    @property
    def device(self) -> str:
        """Where it lived."""
        return self.tensors["values"].device

    @property
    def parts(self) -> Mapping[str, CapturedTensor]:
        return self.tensors

    @property
    def description(self) -> dict[str, Any]:
        return {"layout": self.layout, "shape": self.shape, "coalesced": self.coalesced}

    @classmethod
    def from_parts(cls, description: Mapping[str, Any], parts: Mapping[str, Any]) -> Self:
        layout, shape, coalesced = fields_of(description, layout=str, shape=tuple, coalesced=bool)
        if layout not in LAYOUTS or not is_shape(shape):
            raise invalid("bad sparse layout", sorted(LAYOUTS), (layout, shape))
        names = SPARSE_PARTS[LAYOUTS[layout]]
        if set(parts) != set(names) or not all(type(part) is CapturedTensor for part in parts.values()):
            raise invalid("bad parts of a sparse tensor", names, sorted(parts))
        return cls(layout, shape, coalesced, {name: parts[name] for name in names})

    def to_host(self) -> torch.Tensor:
        """Make a new sparse host tensor; errors are those of `assemble`."""
        return self.assemble({name: part.to_host() for name, part in self.parts.items()})

    def assemble(self, parts: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Make a live sparse tensor over live parts, which it keeps.

        Raises:
            InvalidRecord: If its indices are out of range, or parts do not fit each other: torch would read and
                write wherever they point.
        """
        *indices, values = (parts[name] for name in self.parts)
        size = list(self.shape)
        try:
            if self.layout == "sparse_coo":
                return torch.sparse_coo_tensor(
                    indices[0], values, size, is_coalesced=self.coalesced, check_invariants=True
                )
            return torch.sparse_compressed_tensor(
                indices[0], indices[1], values, size, layout=LAYOUTS[self.layout], check_invariants=True
            )
        except (RuntimeError, TypeError) as error:  # the latter for sizes beyond 64 bits
            first_line = str(error).splitlines()[0]
            raise invalid(f"not a sparse tensor: {first_line}"[:300], found=self.description) from error


@dataclass(frozen=True, eq=False)
class ConvertedTensor(Composite):
    """A tensor of floats or integers that is stored in another dtype than its own: what a precision setting makes.

    Its strides are those of the stored tensor. Coming back, it is converted on the host to its own dtype, as in the
    seeds.
    """

    tag: ClassVar[str] = "converted"

    dtype: torch.dtype
    """Its own dtype."""
    stored: CapturedTensor
    exact: bool
    """Whether coming back gives the bits that it had; who converted it says so."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The logical shape."""
        return self.stored.shape

    @property
    def strides(self) -> tuple[int, ...]:
        """The memory layout it had, in elements."""
        return self.stored.strides

    @property
    def device(self) -> str:
        """Where it lived."""
        return self.stored.device

    @property
    def parts(self) -> Mapping[str, CapturedTensor]:
        return {"stored": self.stored}

    @property
    def description(self) -> dict[str, Any]:
        return {"dtype": self.dtype, "exact": self.exact}

    @property
    def needed_version(self) -> int:
        return self.since if self.dtype in FLOATS else 3

    @classmethod
    def from_parts(cls, description: Mapping[str, Any], parts: Mapping[str, Any]) -> Self:
        dtype, exact = fields_of(description, dtype=torch.dtype, exact=bool)
        stored = parts.get("stored")
        if len(parts) != 1 or type(stored) is not CapturedTensor:
            raise invalid("bad parts of a converted tensor", ("stored",), sorted(parts))
        if not are_converted(dtype, stored.dtype):
            raise invalid(
                "only floats are converted to floats, and integers to integers", found=(dtype, stored.dtype)
            )
        if exact and dtype is stored.dtype:
            raise invalid("what is stored in its own dtype is not converted", found=dtype)
        if is_expanded(stored.shape, stored.strides):
            raise invalid("expanded memory can't be converted", found=(stored.shape, stored.strides))
        return cls(dtype, stored, exact)

    def restored(self, workspace: Workspace | None = None) -> CapturedTensor:
        """Return it in its own dtype; its bytes are converted each time they are read.

        Args:
            workspace: What to read them through; its own when missing.
        """
        source = ConvertedBytes(self.stored, self.dtype, workspace or Workspace())
        return replace(self.stored, dtype=self.dtype, source=source)

    def to_host(self) -> torch.Tensor:
        return self.restored().to_host()


def are_converted(own: torch.dtype, stored: torch.dtype) -> bool:
    """Tell whether a precision setting stores the one as the other."""
    return (own in FLOATS and stored in FLOATS) or (own in INTEGERS and stored in (*INTEGERS, torch.int16))


@dataclass(frozen=True, eq=False)
class CapturedSubclass(Composite):
    """A tensor of a subclass that flattens into parts and a context (`__tensor_flatten__`), such as torchao's."""

    tag: ClassVar[str] = "subclass"

    class_name: str
    """The full name of its class; one that `_record.subclass` admits."""
    dtype: torch.dtype
    """What the tensor says of itself; its parts have dtypes of their own."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    context: Any
    """What the class flattened besides tensors, as a tree made by `_record.subclass`."""
    tensors: Mapping[str, CapturedTensor | Composite]
    """One or more, in the order in which the class names them."""

    @property
    def device(self) -> str:
        """Where it lived: where its parts did."""
        device: str = getattr(next(iter(self.tensors.values())), "device", "")
        return device

    @property
    def parts(self) -> Mapping[str, CapturedTensor | Composite]:
        return self.tensors

    @property
    def description(self) -> dict[str, Any]:
        return {
            "class_name": self.class_name,
            "dtype": self.dtype,
            "shape": self.shape,
            "strides": self.strides,
            "context": self.context,
            "order": tuple(self.tensors),
        }

    @classmethod
    def from_parts(cls, description: Mapping[str, Any], parts: Mapping[str, Any]) -> Self:
        class_name, dtype, shape, strides, context, order = fields_of(
            description,
            class_name=str,
            dtype=torch.dtype,
            shape=tuple,
            strides=tuple,
            context=object,
            order=tuple,
        )
        if not is_shape(shape) or not is_shape(strides) or len(shape) != len(strides):
            raise invalid("bad layout of a tensor subclass", found=(shape, strides))
        if not order or len(order) != len(parts) or set(order) != parts.keys():
            raise invalid("bad parts of a tensor subclass", order, sorted(parts))
        if not all(isinstance(part, CapturedTensor | Composite) for part in parts.values()):
            raise invalid("a part of a tensor subclass is no tensor", found=sorted(parts))
        tensors = {name: parts[name] for name in order}
        return cls(class_name, dtype, shape, strides, context, tensors)

    def to_host(self) -> torch.Tensor:
        """Make a new host tensor of the class.

        Raises:
            InvalidRecord: If the class is not one that segue admits, or its library is not imported.
        """
        from segue._record.subclass import rebuild

        return rebuild(self, {name: part.to_host() for name, part in self.tensors.items()})


Registered = CapturedTensor | CapturedSubclass | ConvertedTensor
"""What a parameter, a buffer or a slot of optimizer state is captured as, where it is a tensor that can be filled."""


def blobs(tree: Any) -> Iterator[Blob]:
    """Yield every plain tensor and array in a tree, in order; of a composite, its parts."""
    if isinstance(tree, CapturedTensor | CapturedArray):
        yield tree
    elif isinstance(tree, Composite):
        for part in tree.parts.values():
            yield from blobs(part)
    elif isinstance(tree, dict):
        for value in tree.values():
            yield from blobs(value)
    elif isinstance(tree, list | tuple | deque):
        for value in tree:
            yield from blobs(value)
    elif (embedded := embedded_as(type(tree))) is not None:
        yield from blobs(embedded.take_apart(tree))
