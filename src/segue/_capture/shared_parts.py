"""Sparse gradients that are one memory, and come back as one.

The backward of a sum gives its one gradient to both summands. Of a dense gradient autograd makes a copy then; a sparse
one keeps it as its values, and two embeddings that look up the same ids share their indices as well (torch 2.13). As
long as nothing writes in place that makes no difference; clipping does.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from segue._capture.memory import Memory, byte_range, storage_of
from segue._capture.staging import plain_parts
from segue._record.composite import CapturedSparse
from segue._record.gradients import GradientsRecord
from segue._record.tensors import CapturedTensor, same_bits
from segue.errors import InvalidRecord, UnsupportedState


class SharedParts:
    """Notes which parts of several gradients are one, and refuses what overlaps in any other way."""

    def __init__(self) -> None:
        self._memory = Memory()
        self._places: dict[object, list[str]] = {}

    def claim(self, gradient: torch.Tensor, name: str, where: str) -> None:
        """Add a gradient.

        Raises:
            UnsupportedState: If it overlaps another one and is no sparse tensor with exactly the same part.
        """
        for part, tensor in plain_parts(gradient):
            if part and tensor.numel():
                place = f"{name}/{part}"
                layout = (storage_of(tensor), byte_range(tensor), tensor.dtype, tensor.shape, tensor.stride())
                places = self._places.setdefault(layout, [])
                places.append(place)
                if len(places) > 1:
                    continue
            other = self._memory.claim(tensor, name)
            if other is not None:
                raise UnsupportedState(
                    "gradients that share memory can't be kept", where=where, found=f"shared with {other}"
                )

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """The places that are one memory, sorted."""
        return tuple(sorted(tuple(sorted(places)) for places in self._places.values() if len(places) > 1))


def assemble_sparse(record: GradientsRecord, devices: Mapping[str, torch.device]) -> dict[str, torch.Tensor]:
    """Make the live sparse gradients of a record, over shared memory where they shared it.

    Args:
        record: Of any gradients.
        devices: Where each is to be, by name.

    Raises:
        InvalidRecord: If indices point nowhere, or parts that are said to be one are not equal.
    """
    owners = {place: group[0] for group in record.shared for place in group}
    made: dict[str, tuple[CapturedTensor, torch.Tensor]] = {}
    live = {}
    for name, captured in record.tensors.items():
        if isinstance(captured, CapturedSparse):
            parts = {}
            for part, tensor in captured.parts.items():
                owner = owners.get(f"{name}/{part}", f"{name}/{part}")
                if owner not in made:
                    made[owner] = tensor, tensor.to_host().to(devices[name])
                parts[part] = _same(made[owner], tensor, f"gradient of {name}")
            live[name] = captured.assemble(parts)
    return live


def _same(made: tuple[CapturedTensor, torch.Tensor], captured: CapturedTensor, where: str) -> torch.Tensor:
    first, live = made
    if first is not captured and not same_bits(first, captured):
        raise InvalidRecord(
            "parts of sparse gradients that are one memory differ", code="gradients.shared", where=where
        )
    return live
