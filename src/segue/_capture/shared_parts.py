"""Gradients that are one memory, and come back as one.

The backward of a sum gives its one gradient to both summands. Autograd copies it for a parameter that is itself a
summand. A sparse gradient keeps it as its values, and so does a parameter that is summed in another shape
(`a.view(2, 3) + b.view(2, 3)`), since each view of that gradient is a tensor of its own (torch 2.13). As long as
nothing writes in place that makes no difference; clipping does, and so does the next backward, which adds to both.

Indices are another matter: those of two embeddings are often parts of one batch (`ids[:-1]` and `ids[1:]`), but torch
never writes to them in place. They come back as one where they are one, and apart where they only overlap.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch

from segue._capture.memory import Memory, byte_range, storage_of
from segue._capture.staging import is_plain, plain_parts
from segue._record.composite import CapturedSparse, Composite
from segue._record.conversion import same_tensor_bits
from segue._record.gradients import GradientsRecord
from segue._record.tensors import CapturedTensor
from segue.errors import InvalidRecord, UnsupportedState


class _Claim(NamedTuple):
    """Plain memory that a gradient consists of."""

    name: str
    place: str
    tensor: torch.Tensor
    is_written: bool
    """Whether torch ever writes to it in place: not if it holds indices."""


class SharedParts:
    """Notes which gradients, or parts of them, are one, and refuses what overlaps in any other way."""

    def __init__(self) -> None:
        self._memory = Memory()
        self._first: dict[int, _Claim] = {}
        self._crowded: set[int] = set()
        self._places: dict[object, list[str]] = {}

    def claim(self, gradient: torch.Tensor, name: str, where: str) -> None:
        """Add a gradient, which must live as long as this.

        Raises:
            UnsupportedState: If it overlaps another one, but is not exactly the same memory.

        Cost:
            A few microseconds; nearly every gradient has a storage of its own, where there is nothing to compare.
        """
        for part, tensor in plain_parts(gradient):
            if not is_plain(tensor) or tensor.numel() == 0:
                continue
            is_written = not part or part == "values" or gradient.layout is torch.strided
            claim = _Claim(name, f"{name}/{part}", tensor, is_written)
            storage = tensor.untyped_storage().data_ptr()
            first = self._first.setdefault(storage, claim)
            if first is claim:
                continue
            if storage not in self._crowded:
                self._crowded.add(storage)
                self._compare(first, where)
            self._compare(claim, where)

    def _compare(self, claim: _Claim, where: str) -> None:
        if self._is_known(claim) or not claim.is_written:
            return
        other = self._memory.claim(claim.tensor, claim.name)
        if other is not None:
            raise UnsupportedState(
                "gradients that share memory can't be kept", where=where, found=f"shared with {other}"
            )

    def _is_known(self, claim: _Claim) -> bool:
        """Note where memory stands; tell whether the same memory stood somewhere before."""
        tensor = claim.tensor
        layout = None if tensor.is_contiguous() else (tensor.shape, tensor.stride())
        bits = tensor.dtype, tensor.is_conj(), tensor.is_neg()
        places = self._places.setdefault((storage_of(tensor), byte_range(tensor), bits, layout), [])
        places.append(claim.place)
        return len(places) > 1

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """The places that are one memory, sorted."""
        return tuple(sorted(tuple(sorted(places)) for places in self._places.values() if len(places) > 1))


def assemble_shared(record: GradientsRecord, devices: Mapping[str, torch.device]) -> dict[str, torch.Tensor]:
    """Make the live gradients of a record that are sparse or share memory, over one memory where they shared it.

    Args:
        record: Of any gradients.
        devices: Where each is to be, by name.

    Raises:
        InvalidRecord: If indices point nowhere, or what is said to be one is not equal.
    """
    owners = {place: group[0] for group in record.shared for place in group}
    made: dict[str, torch.Tensor] = {}

    def part(name: str, part_name: str, captured: CapturedTensor | Composite) -> torch.Tensor:
        place = f"{name}/{part_name}"
        tensor: torch.Tensor = captured.to_host().to(devices[name])
        first = made.setdefault(owners.get(place, place), tensor)
        return tensor if first is tensor else _over_memory_of(first, tensor, f"gradient of {name}")

    live = {}
    for name, captured in record.tensors.items():
        if isinstance(captured, CapturedSparse):
            parts = {key: part(name, key, tensor) for key, tensor in captured.parts.items()}
            live[name] = captured.assemble(parts)
        elif f"{name}/" in owners:
            live[name] = part(name, "", captured)
    return live


def _over_memory_of(first: torch.Tensor, tensor: torch.Tensor, where: str) -> torch.Tensor:
    """Return a tensor with the layout and the bits of another, in the memory of the first.

    Not a view of it, which autograd would treat otherwise.
    """
    both_dense = first.is_contiguous() and tensor.is_contiguous() and first.numel() == tensor.numel()
    is_one_layout = both_dense or (first.shape, first.stride()) == (tensor.shape, tensor.stride())
    if (
        first.dtype is not tensor.dtype
        or first.device != tensor.device
        or not is_one_layout
        or not same_tensor_bits(first.view(tensor.shape), tensor)
    ):
        raise InvalidRecord("gradients that are one memory differ", code="gradients.shared", where=where)
    memory = first.untyped_storage()
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(
        memory, first.storage_offset(), tensor.shape, tensor.stride()
    )
