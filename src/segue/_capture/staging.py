"""Copies by value: from a live tensor or array to bytes that only the record owns.

On the CPU `.cpu()`, `.contiguous()`, `.to()` and `.numpy()` may all return the live memory, which the next step
overwrites in place; so a copy is made here, once, always (torch 2.13).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from segue._capture.deferred import deferred_bytes
from segue._capture.subclass import PLAIN_CLASSES, flattened, is_admitted_subclass
from segue._record.composite import SPARSE_PARTS, CapturedSparse, CapturedSubclass, Composite
from segue._record.parts import PartSpec, PartsSpec
from segue._record.tensors import (
    DTYPE_NAMES,
    CapturedArray,
    CapturedTensor,
    MemoryBytes,
    bit_view,
    host_bytes,
    overlaps_itself,
)
from segue._record.tree import plain_array_dtype
from segue.errors import UnsupportedState


def type_name(value: object) -> str:
    """Return the full name of an object's class."""
    return class_name(type(value))


def class_name(cls: type) -> str:
    """Return the full name of a class."""
    return f"{cls.__module__}.{cls.__qualname__}"


def is_of_class(value: object, name: str) -> bool:
    """Tell whether an object is of the class that a record names.

    A program's own classes are in `__main__` when it is run as a script, and in a module when it is imported or run
    with `-m`; so there the module is not compared.
    """
    return is_called(type(value), name)


def is_called(cls: type, name: str) -> bool:
    """Tell whether a class is the one that a record names, as `is_of_class` does of an object's."""
    if class_name(cls) == name:
        return True
    main = "__main__."
    in_main = cls.__module__ == "__main__" or name.startswith(main)
    return in_main and (name == main + cls.__qualname__ or name.endswith(f".{cls.__qualname__}"))


def capture_tensor(tensor: torch.Tensor, where: str) -> CapturedTensor:
    """Copy a tensor's logical bytes, with its dtype, shape, strides and device; or let the copy be made, if it is deferred.

    Raises:
        UnsupportedState: If the tensor is of a class, layout or dtype whose bits can't be kept, or overlaps itself.

    Cost:
        One copy into new host memory; blocks until it is done.
    """
    _refuse_unless_plain(tensor, where)
    source = deferred_bytes(tensor, where) or MemoryBytes(_copied_bytes(tensor))
    return CapturedTensor(
        tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()), str(tensor.device), source
    )


def _copied_bytes(tensor: torch.Tensor) -> torch.Tensor:
    resolved = tensor.detach().resolve_conj().resolve_neg()
    bits = bit_view(resolved).contiguous().cpu()
    if bits.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr():
        bits = bits.clone(memory_format=torch.contiguous_format)
    return host_bytes(bits)


def capture_value(tensor: torch.Tensor, where: str) -> CapturedTensor | Composite:
    """Copy a tensor of any kind that can be kept: strided, sparse, or of an admitted subclass.

    The last two are copied part by part, as they are: nothing is added up, and nothing is dequantized.

    Raises:
        UnsupportedState: If the tensor, or a part of it, can't be kept.

    Cost:
        One copy of every part into new host memory; blocks until it is done.
    """
    if is_admitted_subclass(tensor):
        return _capture_subclass(tensor, where)
    if not is_sparse(tensor):
        return capture_tensor(tensor, where)
    _refuse_lying_indices(tensor, where)
    layout = str(tensor.layout).removeprefix("torch.")
    coalesced = tensor.layout is torch.sparse_coo and tensor.is_coalesced()
    parts = {name: capture_tensor(part, f"{where} {name}") for name, part in plain_parts(tensor)}
    return CapturedSparse(layout, tuple(tensor.shape), coalesced, parts)


def capture_registered(tensor: torch.Tensor, where: str) -> CapturedTensor | CapturedSubclass:
    """Copy a parameter or buffer: strided, or of an admitted subclass. A sparse one is no tensor of a contract.

    Raises:
        UnsupportedState: If the tensor, or a part of it, can't be kept.
    """
    return _capture_subclass(tensor, where) if is_admitted_subclass(tensor) else capture_tensor(tensor, where)


def _capture_subclass(tensor: torch.Tensor, where: str) -> CapturedSubclass:
    parts, context = flattened(tensor, where)
    captured = {name: capture_registered(part, f"{where} {name}") for name, part in parts.items()}
    return CapturedSubclass(
        type_name(tensor), tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()), context, captured
    )


def parts_spec(tensor: torch.Tensor, where: str) -> PartsSpec | None:
    """Describe what a live tensor consists of, without reading it; `None` for one that isn't of an admitted subclass.

    Raises:
        UnsupportedState: If its context can't be kept.
    """
    if not is_admitted_subclass(tensor):
        return None
    parts, context = flattened(tensor, where)
    specs = {
        name: PartSpec(
            str(part.dtype).removeprefix("torch."), tuple(part.shape), tuple(part.stride()),
            parts_spec(part, f"{where} {name}"),
        )
        for name, part in parts.items()
    }  # fmt: skip
    return PartsSpec(type_name(tensor), context, specs)


def is_plain(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor is strided and of torch's own class: it holds its bits itself."""
    return type(tensor) in PLAIN_CLASSES and tensor.layout is torch.strided


def _refuse_lying_indices(tensor: torch.Tensor, where: str) -> None:
    """Raise for a sparse tensor whose indices are not what it says: torch makes such ones unchecked, and no restore could."""
    parts = [part for _, part in plain_parts(tensor)]
    size = list(tensor.shape)
    try:
        if tensor.layout is torch.sparse_coo:
            torch._validate_sparse_coo_tensor_args(parts[0], parts[1], size, tensor.is_coalesced())
        else:
            torch._validate_sparse_compressed_tensor_args(parts[0], parts[1], parts[2], size, tensor.layout)
    except RuntimeError as error:
        raise UnsupportedState(
            "a sparse tensor contradicts itself", where=where, found=str(error).splitlines()[0],
            hint="`coalesce()` it, or make it with `check_invariants=True`",
        ) from error  # fmt: skip


def is_sparse(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor is of torch's own class and of a sparse layout whose parts can be kept."""
    return type(tensor) in PLAIN_CLASSES and tensor.layout in SPARSE_PARTS


def plain_parts(tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the live tensors that hold a tensor's bits, with their names: itself, with an empty name, if strided.

    In the order of the captured tensor's; a part of a part is called by both names, joined by a dot.
    """
    if is_plain(tensor):
        yield "", tensor
        return
    if is_admitted_subclass(tensor):
        for name, part in flattened(tensor, "")[0].items():
            for inner, plain in plain_parts(part):
                yield f"{name}.{inner}" if inner else name, plain
        return
    if not is_sparse(tensor):
        yield "", tensor
        return
    prefix = "_" if tensor.layout is torch.sparse_coo else ""  # the public ones demand a coalesced tensor
    for name in SPARSE_PARTS[tensor.layout]:
        yield name, getattr(tensor.detach(), prefix + name)()


def refuse_unsupported(tensor: torch.Tensor, where: str) -> None:
    """Raise `UnsupportedState` unless `capture_registered` can keep this tensor's bits."""
    if is_admitted_subclass(tensor):
        for name, part in flattened(tensor, where)[0].items():
            refuse_unsupported(part, f"{where} {name}")
    else:
        _refuse_unless_plain(tensor, where)


def _refuse_unless_plain(tensor: torch.Tensor, where: str) -> None:
    if type(tensor) not in PLAIN_CLASSES:
        raise _unsupported("this tensor subclass is not supported yet", where, type_name(tensor))
    if tensor.is_nested or tensor.layout is not torch.strided:
        found = "nested" if tensor.is_nested else str(tensor.layout)
        raise _unsupported("this tensor layout is not supported yet", where, found)
    if tensor.dtype not in DTYPE_NAMES or tensor.is_quantized:
        raise _unsupported("this dtype is not supported yet", where, str(tensor.dtype))
    if tensor.device.type == "meta":
        raise _unsupported("a meta tensor has no values", where, "meta")
    if overlaps_itself(tuple(tensor.shape), tensor.stride()):
        found = f"shape {tuple(tensor.shape)}, strides {tensor.stride()}"
        raise _unsupported("a tensor whose elements share memory can't be restored", where, found)


def _unsupported(what: str, where: str, found: str) -> UnsupportedState:
    return UnsupportedState(what, where=where, found=found)


def capture_array(array: np.ndarray[Any, Any], where: str) -> CapturedArray:
    """Copy an array's bytes, with its dtype (byte order included), shape and order.

    Raises:
        UnsupportedState: If the array is of a subclass, or holds objects or fields.
    """
    try:
        dtype = plain_array_dtype(array.dtype.str)
    except ValueError:
        dtype = None
    if type(array) is not np.ndarray or dtype != array.dtype:
        raise _unsupported(
            "this kind of NumPy array is not supported", where, f"{type_name(array)} of {array.dtype}"
        )
    fortran = array.flags.f_contiguous and not array.flags.c_contiguous
    data = np.frombuffer(array.tobytes("F" if fortran else "C"), dtype=np.uint8)
    owned = torch.empty(data.size, dtype=torch.uint8, device="cpu")
    owned.numpy()[:] = data
    return CapturedArray(array.dtype.str, array.shape, fortran, MemoryBytes(owned))
