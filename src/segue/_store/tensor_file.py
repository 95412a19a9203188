"""Writing one tensor file as a stream: each byte is hashed from its source while it is written, in one pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

from segue._record.tensors import ByteSource, read_bytes
from segue._store.checksum import BLOCK_BYTES, BlockHasher, digest
from segue._store.codec import Placed
from segue._store.contents import FilePlan, TensorPlan
from segue._store.manifest import Chunk, TensorEntry
from segue._store.output import SLICE_BYTES, Files, Output


@runtime_checkable
class Sliced(Protocol):
    """A source that gives its bytes piece by piece, so that copying a stored tensor needs no room for all of it."""

    def slices(self) -> Iterator[memoryview]:
        """Yield the bytes in order, in pieces that are valid until the next one."""
        ...


def write_tensors(files: Files, file: str, plan: FilePlan) -> dict[str, TensorEntry]:
    """Write a tensor file.

    Returns:
        The index entries by reference, in the order of the data.

    Raises:
        OSError: If anything failed; the file is then worthless.
        StoreError: If a source turned out to be damaged.

    Cost:
        One pass over the bytes; at most 16 MiB of memory beyond the record.
    """
    with files.file(file, plan.size) as output:
        output.add(memoryview(plan.head))
        return {
            tensor.reference: _write_tensor(output, file, tensor, placed) for tensor, placed in plan.tensors
        }


def _write_tensor(output: Output, file: str, plan: TensorPlan, placed: Placed) -> TensorEntry:
    digests = _write_bytes(output, plan.source)
    chunk = Chunk(file, plan.name, placed.begin, placed.end, (0,) * len(plan.shape), digests)
    return TensorEntry(plan.dtype, plan.shape, plan.strides, plan.device, chunk)


def _write_bytes(output: Output, source: ByteSource) -> tuple[str, ...]:
    if source.num_bytes <= SLICE_BYTES < BLOCK_BYTES:
        data = read_bytes(source)
        output.add(data)
        return (digest(data),)
    hasher = BlockHasher()
    for piece in _pieces(source):
        hasher.update(piece)
        output.add(piece)
    return tuple(hasher.digests())


def _pieces(source: ByteSource) -> Iterator[memoryview]:
    """Cut the bytes into slices that are still in the cache when they are written."""
    if isinstance(source, Sliced):
        yield from source.slices()
        return
    data = read_bytes(source)
    for start in range(0, len(data), SLICE_BYTES):
        yield data[start : start + SLICE_BYTES]
