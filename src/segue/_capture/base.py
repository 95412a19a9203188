"""The frozen base of a model: what it is, by digest, and what of a model is no part of it.

Wish: a checkpoint of an adapter is as small as the adapter and can't be put on the wrong base. The frozen tensors are
read once in a process and never copied, moved or held; afterwards their memory and version counters tell whether they
are what they were.

No counter sees a write through `.data` or NumPy (torch 2.13), and that is how peft merges an adapter into its base and
takes it out again, which leaves the base rounded (peft 0.21). So a sample of each tensor is kept with its digest; where
one sample is not what it was, nothing that was remembered counts, of any tensor. What it still loses: such writes of a few
elements, in one tensor or all over the base.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import NamedTuple

import torch
import xxhash
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.weak import WeakIdKeyDictionary

from segue._capture.adapters import base_places, refuse_merged
from segue._capture.naming import NamedTensor, joined, named_tensors, walk
from segue._capture.packed import is_packed, meaning_of
from segue._capture.sampling import sample
from segue._capture.staging import is_plain, parts_spec, plain_parts, type_name
from segue._record.base import BaseIdentity, combined_digest
from segue._record.digest import tree_digest
from segue._record.tensors import bit_view, live_memory
from segue.errors import UnsupportedState

BLOCK_BYTES = 64 * 2**20

# What a forward changes though nothing is trained: always state, never base.
_RUNNING_STATISTICS = (nn.modules.batchnorm._NormBase,)

_SAMPLED_ELEMENTS = 1024
# What takes less than a sample's indexing does, or not much more: 50 microseconds (one busy core).
_READ_WHOLE_BYTES = 2**20


class Mark(NamedTuple):
    """What tells, without reading a tensor, that its bytes are what they were."""

    places: tuple[tuple[StorageWeakRef, int, int], ...]
    """Memory, place in it and version counter of each part.

    A weak reference and no address: `model.bfloat16().float()` rounds, and may come back to the very address that it
    began with, since it replaces `.data`, which no version counter sees (torch 2.13).
    """
    look: bytes
    """Some elements of each part, or a digest of all."""

    def is_untold(self, now: Mark | None) -> bool:
        """Tell whether the tensor was written since and only a look shows it."""
        return now is not None and now.places == self.places and now.look != self.look


_digests: MutableMapping[torch.Tensor, tuple[Mark, str]] = WeakIdKeyDictionary()


class BasePlace(NamedTuple):
    """Where a tensor stands in the model without its adapters."""

    name: str
    is_adapter: bool
    is_statistic: bool


def base_identity(model: nn.Module) -> BaseIdentity:
    """Identify everything frozen in a model, parameters and buffers, by its content.

    Take it of the model as it is trained, when the base is loaded and frozen; names are those of the model without
    peft's wrappers, so that it may be taken before the adapter is made or after. One that rewrites the base as it is
    made (PiSSA, OLoRA, CorDA) gives it another identity.

    Args:
        model: In any wrapper. Adapters of peft are no part of its base, nor are running statistics of normalisations,
            which training changes.

    Returns:
        A digest of names, dtypes, shapes and bytes (XXH3-128: against mistakes, not against forgery), and one of each
        tensor's bytes.

    Raises:
        UnsupportedState: If nothing is frozen, adapters are merged into the base, or a frozen tensor has no values or
            can't be read bit by bit.

    Guarantees:
        Read-only: nothing is copied, moved or kept but the digests.

    Cost:
        One read of everything frozen, at the speed of memory (measured: over 10 GB/s); then remembered for as long as
        the tensors are not written to, which their version counters tell, and a sample of each. Tensors on accelerators
        are read through 64 MiB of host memory.

    Collective:
        No.
    """
    refuse_merged(model, "model")
    tensors = named_tensors(model, "model")
    places = base_places_of(model, "model", tensors)
    frozen = {places[name].name: item for name, item in tensors.items() if is_base(item, places[name])}
    if not frozen:
        raise UnsupportedState(
            "nothing of this model is frozen, so it has no base", code="base.nothing_frozen", where="model",
            found=type_name(model), hint="freeze the base first: `parameter.requires_grad_(False)`, or let peft do it",
        )  # fmt: skip
    forget_if_untold(tensor for _, tensor in _tensors(frozen))
    digests = {name: tensor_digest(tensor, f"model {name}") for name, tensor in _tensors(frozen)}
    lines = [(name, *_layout(tensor, name), digests[name]) for name, tensor in _tensors(frozen)]
    return BaseIdentity(combined_digest(lines), dict(sorted(digests.items())))


def _tensors(items: Mapping[str, NamedTensor]) -> Iterator[tuple[str, torch.Tensor]]:
    for name, item in items.items():
        if item.tensor is not None:
            yield name, item.tensor


def _layout(tensor: torch.Tensor, name: str) -> tuple[object, ...]:
    parts = parts_spec(tensor, name)
    return str(tensor.dtype), list(tensor.shape), None if parts is None else parts.class_name


def is_base(item: NamedTensor, place: BasePlace) -> bool:
    """Tell whether a tensor is of the kind that a base consists of: frozen, and neither adapter nor statistic."""
    if item.tensor is None or item.tensor.requires_grad:
        return False
    return not (place.is_adapter or place.is_statistic)


def base_places_of(module: nn.Module, scope: str, tensors: Mapping[str, NamedTensor]) -> dict[str, BasePlace]:
    """Find for each tensor, by canonical name, where it stands in the model without adapters.

    A tied tensor has the first of its names there; it is part of an adapter, or a statistic, if it is so anywhere.
    """
    by_path = {path: (base_path, within) for path, base_path, within in base_places(module)}
    owners = dict(walk(module, scope))
    found = {}
    for name, item in tensors.items():
        places = []
        for alias in item.aliases:
            path, _, own = alias.rpartition(".")
            base_path, within = by_path.get(path, (path, False))
            places.append((joined(base_path, own), within, isinstance(owners.get(path), _RUNNING_STATISTICS)))
        is_statistic = item.kind != "parameter" and any(statistic for *_, statistic in places)
        found[name] = BasePlace(
            min(place for place, *_ in places), any(within for _, within, _ in places), is_statistic
        )
    return found


def mark_of(tensor: torch.Tensor) -> Mark | None:
    """Return what tells that a tensor has not been written to since; `None` if nothing can."""
    try:
        parts = _parts(tensor, "")
    except UnsupportedState:  # reading it tells why, and where
        return None
    if any(part.is_inference() or not _is_readable(part) for part in parts):
        return None
    places = tuple(
        (StorageWeakRef(part.untyped_storage()), int(part.storage_offset()), part._version)  # type: ignore[no-untyped-call]
        for part in parts
    )
    return Mark(places, b"".join(map(_look, parts)))


def _parts(tensor: torch.Tensor, where: str) -> list[torch.Tensor]:
    beside = meaning_of(tensor, where)[0] if is_packed(tensor) else []
    return [*(part for _, part in plain_parts(tensor)), *beside]


def _look(part: torch.Tensor) -> bytes:
    """Look at a tensor: at all of it where that is quick."""
    if part.device.type == "cpu" and part.nbytes <= _READ_WHOLE_BYTES:
        hasher = xxhash.xxh3_128()
        _absorb(hasher, part)
        return hasher.digest()
    return sample(part, _SAMPLED_ELEMENTS).cpu().numpy().tobytes()


def forget_if_untold(tensors: Iterable[torch.Tensor]) -> None:
    """Forget all digests if any of these tensors was written where no version counter shows it.

    Such a write rarely comes alone, and one of few elements may have missed every sample of the tensor beside.
    """
    for tensor in tensors:
        known = _digests.get(tensor)
        if known is not None and known[0].is_untold(mark_of(tensor)):
            _digests.clear()
            return


def tensor_digest(tensor: torch.Tensor, where: str) -> str:
    """Digest a tensor's logical bytes, row by row; of one that consists of others, theirs and what it is.

    Remembered; of several tensors, `forget_if_untold` comes first.

    Raises:
        UnsupportedState: If it has no values, or is of a layout that can't be read so.
    """
    mark = mark_of(tensor)
    known = _digests.get(tensor)
    if known is not None and mark is not None and known[0] == mark:
        return known[1]
    digest = _read(tensor, where)
    if mark is not None:
        _digests[tensor] = (mark, digest)
    return digest


def _is_readable(tensor: torch.Tensor) -> bool:
    is_strided = not tensor.is_nested and tensor.layout is torch.strided
    return is_strided and tensor.device.type != "meta" and not tensor.is_quantized


def _read(tensor: torch.Tensor, where: str) -> str:
    if not _is_readable(tensor):
        is_strided = tensor.layout is torch.strided
        found = (
            (tensor.device.type if tensor.device.type == "meta" else tensor.dtype)
            if is_strided
            else tensor.layout
        )
        raise UnsupportedState(
            "a frozen tensor can't be read bit by bit", code="base.unreadable", where=where, found=str(found)
        )
    hasher = xxhash.xxh3_128()
    if not is_plain(tensor):
        hasher.update(_described(tensor, where))
    for part in _parts(tensor, where):
        _absorb(hasher, part)
    return hasher.hexdigest()


def _absorb(hasher: xxhash.xxh3_128, part: torch.Tensor) -> None:
    for block in blocks(part.detach().resolve_conj().resolve_neg()):
        hasher.update(block)


def _described(tensor: torch.Tensor, where: str) -> bytes:
    if is_packed(tensor):
        return tree_digest(meaning_of(tensor, where)[1]).encode()
    spec = parts_spec(tensor, where)
    if spec is None:
        raise UnsupportedState(
            "this tensor subclass is not supported yet",
            code="base.unreadable",
            where=where,
            found=type_name(tensor),
        )
    return tree_digest([spec.class_name, spec.context, [*spec.tensors]]).encode()


def blocks(tensor: torch.Tensor, block_bytes: int = BLOCK_BYTES) -> Iterator[memoryview]:
    """Yield the logical bytes of a tensor: its own memory where that is in order, else through copies of a block."""
    if tensor.numel() == 0:
        return
    bits = bit_view(tensor)
    if bits.device.type == "cpu" and bits.is_contiguous():
        yield live_memory(bits, bits.nbytes)
        return
    for piece in _pieces(bits, block_bytes):
        owned = piece.cpu().contiguous()
        yield live_memory(owned, owned.nbytes)


def _pieces(bits: torch.Tensor, block_bytes: int) -> Iterator[torch.Tensor]:
    if bits.nbytes <= block_bytes or bits.dim() == 0:
        yield bits
        return
    row_bytes = bits.nbytes // bits.shape[0]
    if row_bytes <= block_bytes:
        yield from torch.split(bits, block_bytes // row_bytes)
        return
    for row in bits:
        yield from _pieces(row, block_bytes)
