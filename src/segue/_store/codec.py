"""The safetensors format, both ways: the layout of a file, its header as bytes, and the header checked.

A file is eight bytes with the header's length (little-endian), the header as JSON, and each tensor's row-major
bytes, one after the other without a gap. We pad the header with spaces, which the format allows, so that data
begins at a multiple of 64; and order tensors by item size, so that each is aligned to its own.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from segue._record.tensors import DTYPES
from segue._store import strict_json
from segue._store.manifest import TensorEntry
from segue.errors import CorruptCheckpoint, InvalidRecord

ALIGNMENT_BYTES = 64
LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000
"""The safetensors library reads no longer header."""

# What the library reads back (0.8.0). Every other dtype is written as bytes, U8, with one more dimension: the item
# size. The true dtype stands in our index.
CODES: dict[str, str] = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32",
    "uint64": "U64", "int64": "I64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "complex64": "C64", "float8_e4m3fn": "F8_E4M3", "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2": "F8_E5M2",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
}  # fmt: skip
_METADATA = {"format": "pt"}  # loaders of Hugging Face models look for it


@dataclass(frozen=True)
class Placed:
    """Where one tensor is in a file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    def header_entry(self) -> dict[str, Any]:
        """Describe it as safetensors does."""
        code = CODES.get(self.dtype)
        shape = list(self.shape) if code else [*self.shape, DTYPES[self.dtype].itemsize]
        return {"dtype": code or "U8", "shape": shape, "data_offsets": [self.begin, self.end]}


def file_order(name: str, dtype: str) -> tuple[int, str]:
    """Return the sort key of a tensor in its file: largest items first, then by name."""
    return -DTYPES[dtype].itemsize, name


def write_header(tensors: Mapping[str, Placed], where: str) -> bytes:
    """Make the bytes before the data.

    Args:
        tensors: By name, in the order of the data.
        where: The file, for messages.

    Raises:
        InvalidRecord: If the header would be longer than the safetensors library reads.
    """
    entries: dict[str, Any] = {"__metadata__": _METADATA}
    entries.update((name, placed.header_entry()) for name, placed in tensors.items())
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    text += b" " * (-(LENGTH_BYTES + len(text)) % ALIGNMENT_BYTES)
    if len(text) > MAX_HEADER_BYTES:
        raise InvalidRecord(
            "too many tensors for one file", code="record.size", where=where, expected=MAX_HEADER_BYTES
        )
    return struct.pack("<Q", len(text)) + text


def check_header(head: bytes, size: int, expected: Mapping[str, TensorEntry], where: str) -> None:
    """Check that a header says exactly what the manifest says, and that its tensors tile the file.

    Args:
        head: The bytes before the data; their checksum was compared before.
        size: The size of the whole file.
        expected: The index entries of this file, by name in the file.
        where: The file, for messages.

    Raises:
        CorruptCheckpoint: If a tensor is missing, extra, of another dtype, shape or place, or if the tensors leave
            a gap, overlap, or do not end with the file.
    """
    if len(head) < LENGTH_BYTES or struct.unpack("<Q", head[:LENGTH_BYTES])[0] != len(head) - LENGTH_BYTES:
        raise CorruptCheckpoint("the header's length is not that of the manifest", where=where)
    if len(head) - LENGTH_BYTES > MAX_HEADER_BYTES:
        raise CorruptCheckpoint("the header is too long", where=where, expected=MAX_HEADER_BYTES)
    header = strict_json.parse(head[LENGTH_BYTES:], where)
    if type(header) is not dict:
        raise CorruptCheckpoint("the header is no object", where=where)
    _check_metadata(header.pop("__metadata__", {}), where)
    if header.keys() != expected.keys():
        names = sorted(header.keys() ^ expected.keys())
        raise CorruptCheckpoint("header and manifest name different tensors", where=where, found=names[:5])
    for name, entry in expected.items():
        placed = Placed(entry.dtype, entry.shape, entry.chunk.begin, entry.chunk.end)
        _check_entry(name, placed.header_entry(), header[name], where)
    _check_tiling(expected.items(), size - len(head), where)


def _check_metadata(metadata: Any, where: str) -> None:
    if type(metadata) is not dict or not all(type(value) is str for value in metadata.values()):
        raise CorruptCheckpoint("bad __metadata__ in the header", where=where, found=metadata)


def _check_entry(name: str, expected: dict[str, Any], found: Any, where: str) -> None:
    # In Python true equals 1, and 1.0 does: so the types are compared as well.
    same = found == expected and all(
        type(number) is int for number in (*found["shape"], *found["data_offsets"])
    )
    if not same:
        raise CorruptCheckpoint(
            f"header and manifest differ at {name!a}"[:300], where=where, expected=expected, found=found
        )


def _check_tiling(tensors: Iterable[tuple[str, TensorEntry]], data_bytes: int, where: str) -> None:
    position = 0
    for name, entry in sorted(tensors, key=lambda item: (item[1].chunk.begin, item[1].chunk.end)):
        if entry.chunk.begin != position:
            raise CorruptCheckpoint(
                f"a gap or an overlap before {name!a}",
                where=where,
                expected=position,
                found=entry.chunk.begin,
            )
        position = entry.chunk.end
    if position != data_bytes:
        raise CorruptCheckpoint(
            "the tensors do not end with the file", where=where, expected=position, found=data_bytes
        )
