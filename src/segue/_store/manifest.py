"""The manifest: what is in a checkpoint, as data, and its strict reading.

It is read as if a stranger had written it: first its size, then its JSON, then the exact type and range of every
field; only then may the rest of this package believe it. Unknown keys are refused, since ignoring what one does
not understand is how a reader loads something else than what was saved.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from segue._record.tensors import DTYPES, overlaps_itself
from segue._store import layout, strict_json
from segue._store.checksum import num_blocks
from segue.errors import ABSENT, CorruptCheckpoint, InvalidRecord, UnsupportedFormat

FORMAT = "segue checkpoint"
VERSION = 5
"""The newest version. A checkpoint is written as the oldest that can hold it, so that an older segue can read it."""
MAX_MANIFEST_BYTES = 256 * 2**20
MAX_TENSORS = 1_000_000
MAX_DIMS = 64
MAX_WORLD_SIZE = 2**20
MAX_TENSOR_NAME_BYTES = 1024
_MAX_NUMBER = 2**62
_ALWAYS_ALLOWED_EXTENT_BYTES = 2**30
_MAX_SPREAD = 64
_DIGEST = re.compile(r"[0-9a-f]{32}")
_DEVICE = re.compile(r"[a-z][a-z0-9_]{0,31}(:[0-9]{1,4})?")


@dataclass(frozen=True)
class FileEntry:
    """One file of a checkpoint: its size, and the checksum of the part that no tensor's checksum covers."""

    size: int
    head: int
    """Bytes from the beginning that `xxh3` covers: a tensor file's header, or all of `state.json`."""
    xxh3: str


@dataclass(frozen=True)
class Chunk:
    """Where the bytes of a tensor are. This version has one chunk for each tensor: all of it."""

    file: str
    name: str
    """Its name inside the file."""
    begin: int
    """First byte, counted from the end of the file's header."""
    end: int
    offset: tuple[int, ...]
    """Where it begins in the global shape: all zeros in this version."""
    xxh3: tuple[str, ...]
    """A checksum for each block of 64 MiB."""


@dataclass(frozen=True)
class TensorEntry:
    """One tensor, or the bytes of one array as a flat uint8 tensor."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: str
    chunk: Chunk

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize


@dataclass(frozen=True)
class Manifest:
    """Everything about a checkpoint but the tensors' bytes and the caller's trees."""

    version: int
    """Of the format: the oldest that can hold the checkpoint."""
    run: str | None
    """The run it belongs to; `None` for an export that stands alone."""
    seq: int
    attempt: str
    kind: str
    step: int | None
    microbatch: int | None
    world_size: int
    rank: int
    sizes: Mapping[str, int]
    """Tensor bytes of each section that has any."""
    files: Mapping[str, FileEntry]
    tensors: Mapping[str, TensorEntry]
    """By reference, as it stands in the trees."""
    sections: Mapping[str, Any]
    """Encoded trees of the sections that are not in `state.json`."""

    @property
    def data_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(self.sizes.values())

    @property
    def file_bytes(self) -> int:
        """Bytes of all files that the manifest describes."""
        return sum(entry.size for entry in self.files.values())


def section_sizes(tensors: Mapping[str, TensorEntry]) -> dict[str, int]:
    """Sum up the bytes of each section, sorted by name."""
    sizes: dict[str, int] = {}
    for name, entry in tensors.items():
        section = name.partition("/")[0]
        sizes[section] = sizes.get(section, 0) + entry.num_bytes
    return dict(sorted(sizes.items()))


def to_bytes(manifest: Manifest) -> bytes:
    """Write a manifest: one top-level key, tensor or section a line, so that people can read and grep it.

    Raises:
        InvalidRecord: If it would be larger than any reader accepts.
    """
    dump = strict_json.dump
    top: dict[str, Any] = {
        "format": FORMAT,
        "version": manifest.version,
        "run": manifest.run,
        "seq": manifest.seq,
        "attempt": manifest.attempt,
        "kind": manifest.kind,
        "step": manifest.step,
        "microbatch": manifest.microbatch,
        "topology": {"world_size": manifest.world_size, "rank": manifest.rank},
        "sizes": dict(manifest.sizes),
    }
    lines = [f"{dump(key)}: {dump(value)}" for key, value in top.items()]
    files = {
        name: {"size": entry.size, "head": entry.head, "xxh3": entry.xxh3}
        for name, entry in manifest.files.items()
    }
    tensors = {name: _tensor_json(entry) for name, entry in manifest.tensors.items()}
    for key, table in (("files", files), ("tensors", tensors), ("sections", manifest.sections)):
        entries = ",\n  ".join(f"{dump(name)}: {dump(value)}" for name, value in table.items())
        lines.append(f"{dump(key)}: {{\n  {entries}\n}}")
    data = ("{\n" + ",\n".join(lines) + "\n}\n").encode("utf-8")
    if len(data) > MAX_MANIFEST_BYTES:
        raise InvalidRecord(
            "the manifest would be too large; keep large trees in the caller state or in components",
            code="record.size",
            expected=MAX_MANIFEST_BYTES,
            found=len(data),
        )
    return data


def _tensor_json(entry: TensorEntry) -> dict[str, Any]:
    chunk = entry.chunk
    return {
        "dtype": entry.dtype,
        "shape": entry.shape,
        "strides": entry.strides,
        "device": entry.device,
        "chunks": [[chunk.file, chunk.name, chunk.begin, chunk.end, chunk.offset, chunk.xxh3]],
    }


def from_bytes(data: bytes, where: str) -> Manifest:
    """Read a manifest as hostile input: the inverse of `to_bytes`.

    Args:
        data: The whole file; its size was limited and its checksum compared before.
        where: Its path, for messages.

    Raises:
        CorruptCheckpoint: If it is anything but what `to_bytes` could have written.
        UnsupportedFormat: If it names another format or a newer version.
    """
    top = strict_json.parse(data, where)
    if type(top) is not dict:
        raise _Fields(where).bad("manifest", "expected an object", top)
    _check_format(top, where)
    return _Fields(where).manifest(top)


def _check_format(top: dict[str, Any], where: str) -> None:
    check_version(top.get("format", ABSENT), top.get("version", ABSENT), FORMAT, VERSION, where)


def check_version(name: Any, version: Any, expected: str, newest: int, where: str) -> None:
    """Refuse another format, and a version that this code does not know, before looking at anything else.

    Raises:
        UnsupportedFormat: With the version, if a newer segue wrote it.
        CorruptCheckpoint: If the version is no version.
    """
    if name != expected:
        raise UnsupportedFormat("not written by segue", where=where, expected=expected, found=name)
    if type(version) is not int or version < 1:
        raise CorruptCheckpoint("bad version", where=where, found=version)
    if version > newest:
        raise UnsupportedFormat(
            f"written by a newer segue (format {version})", where=where, expected=newest, found=version
        )


class _Fields:
    """Builds the parts of a manifest from JSON; an error names the file and the entry."""

    def __init__(self, where: str) -> None:
        self._where = where

    def bad(self, entry: str, what: str, found: Any = ABSENT) -> CorruptCheckpoint:
        return CorruptCheckpoint(f"{what} at {entry!a}"[:300], where=self._where, found=found)

    def manifest(self, top: dict[str, Any]) -> Manifest:
        keys = (
            "format", "version", "run", "seq", "attempt", "kind", "step", "microbatch", "topology", "sizes", "files",
            "tensors", "sections",
        )  # fmt: skip
        self._object("manifest", top, keys)
        topology = self._object("topology", top["topology"], ("world_size", "rank"))
        world_size = self._integer("topology/world_size", topology["world_size"], 1, MAX_WORLD_SIZE)
        tensors = self._tensors(top["tensors"])
        files = self._object("files", top["files"], layout.DATA_FILES)
        return Manifest(
            version=top["version"],
            run=None if top["run"] is None else self._attempt("run", top["run"]),
            seq=self._integer("seq", top["seq"], 0, layout.MAX_SEQ),
            attempt=self._attempt("attempt", top["attempt"]),
            kind=self._text("kind", top["kind"]),
            step=self._optional_count("step", top["step"]),
            microbatch=self._optional_count("microbatch", top["microbatch"]),
            world_size=world_size,
            rank=self._integer("topology/rank", topology["rank"], 0, world_size - 1),
            sizes=self._sizes(top["sizes"], tensors),
            files={name: self._file(f"files/{name}", entry) for name, entry in files.items()},
            tensors=tensors,
            sections=self._mapping("sections", top["sections"]),
        )

    def _sizes(self, tree: Any, tensors: Mapping[str, TensorEntry]) -> dict[str, int]:
        sizes = self._mapping("sizes", tree)
        for name, size in sizes.items():
            self._integer(f"sizes/{name}", size, 0, _MAX_NUMBER)
        if sizes != section_sizes(tensors):
            raise self.bad("sizes", "the sizes are not those of the tensors", sizes)
        return sizes

    def _file(self, entry: str, tree: Any) -> FileEntry:
        fields = self._object(entry, tree, ("size", "head", "xxh3"))
        size = self._integer(f"{entry}/size", fields["size"], 0, _MAX_NUMBER)
        head = self._integer(f"{entry}/head", fields["head"], 0, size)
        return FileEntry(size, head, self._digest(f"{entry}/xxh3", fields["xxh3"]))

    def _tensors(self, tree: Any) -> dict[str, TensorEntry]:
        table = self._mapping("tensors", tree)
        if len(table) > MAX_TENSORS:
            raise self.bad("tensors", f"more than {MAX_TENSORS} tensors", len(table))
        return {name: self._tensor(f"tensors/{name}", item) for name, item in table.items()}

    def _tensor(self, entry: str, tree: Any) -> TensorEntry:
        fields = self._object(entry, tree, ("dtype", "shape", "strides", "device", "chunks"))
        dtype, device = fields["dtype"], fields["device"]
        if type(dtype) is not str or dtype not in DTYPES:
            raise self.bad(entry, "unknown dtype", dtype)
        if type(device) is not str or not _DEVICE.fullmatch(device):
            raise self.bad(entry, "bad device", device)
        shape = self._numbers(f"{entry}/shape", fields["shape"])
        strides = self._numbers(f"{entry}/strides", fields["strides"])
        problem = layout_problem(shape, strides, DTYPES[dtype].itemsize)
        if problem is not None:
            raise self.bad(entry, problem, [shape, strides])
        num_bytes = math.prod(shape) * DTYPES[dtype].itemsize
        return TensorEntry(
            dtype, shape, strides, device, self._chunk(entry, fields["chunks"], shape, num_bytes)
        )

    def _chunk(self, entry: str, tree: Any, shape: tuple[int, ...], num_bytes: int) -> Chunk:
        entry = f"{entry}/chunks"
        if type(tree) is not list or len(tree) != 1 or type(tree[0]) is not list or len(tree[0]) != 6:
            raise self.bad(entry, "expected one chunk of six fields", tree)
        file, name, begin, end, offset, digests = tree[0]
        if file not in layout.TENSOR_FILES:
            raise self.bad(entry, "not a tensor file", file)
        begin = self._integer(entry, begin, 0, _MAX_NUMBER)
        end = self._integer(entry, end, begin, _MAX_NUMBER)
        if end - begin != num_bytes:
            raise self.bad(entry, "the bytes do not fit the shape", [end - begin, num_bytes])
        if self._numbers(entry, offset) != (0,) * len(shape):
            raise self.bad(entry, "a chunk is not the whole tensor", offset)
        if type(digests) is not list or len(digests) != num_blocks(num_bytes):
            raise self.bad(entry, "not one checksum for each block", digests)
        checksums = tuple([self._digest(entry, item) for item in digests])
        return Chunk(file, self._text(entry, name), begin, end, (0,) * len(shape), checksums)

    def _object(self, entry: str, tree: Any, keys: tuple[str, ...]) -> dict[str, Any]:
        if type(tree) is not dict or tree.keys() != set(keys):
            found = sorted(tree) if type(tree) is dict else tree
            raise self.bad(entry, f"expected exactly the keys {', '.join(keys)}", found)
        return tree

    def _mapping(self, entry: str, tree: Any) -> dict[str, Any]:
        if type(tree) is not dict:
            raise self.bad(entry, "expected an object", tree)
        return tree

    def _integer(self, entry: str, value: Any, low: int, high: int) -> int:
        if type(value) is not int or not low <= value <= high:
            raise self.bad(entry, f"expected an integer from {low} to {high}", value)
        return value

    def _optional_count(self, entry: str, value: Any) -> int | None:
        return None if value is None else self._integer(entry, value, 0, _MAX_NUMBER)

    def _numbers(self, entry: str, tree: Any) -> tuple[int, ...]:
        if type(tree) is not list or len(tree) > MAX_DIMS:
            raise self.bad(entry, f"expected a list of at most {MAX_DIMS} integers", tree)
        return tuple([self._integer(entry, item, 0, _MAX_NUMBER) for item in tree])

    def _text(self, entry: str, value: Any) -> str:
        if type(value) is not str or len(value.encode("utf-8")) > MAX_TENSOR_NAME_BYTES:
            raise self.bad(entry, f"expected a string of at most {MAX_TENSOR_NAME_BYTES} bytes", value)
        return value

    def _attempt(self, entry: str, value: Any) -> str:
        if type(value) is not str or not layout.is_attempt(value):
            raise self.bad(entry, "bad id", value)
        return value

    def _digest(self, entry: str, value: Any) -> str:
        if type(value) is not str or not _DIGEST.fullmatch(value):
            raise self.bad(entry, "expected a checksum of 32 hexadecimal digits", value)
        return value


def layout_problem(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> str | None:
    """Tell what is wrong with a tensor's layout, or `None`; also asked before writing.

    A tensor may be spread over more memory than it has bytes, but a few bytes in a file must not claim terabytes:
    up to 1 GiB, or 64 times its own size, whichever is more.
    """
    if len(shape) != len(strides):
        return "not one stride for each dimension"
    if len(shape) > MAX_DIMS:
        return f"more than {MAX_DIMS} dimensions"
    if math.prod(size for size in shape if size) * itemsize >= _MAX_NUMBER:
        return "the shape overflows"
    if 0 in shape:
        return None
    if overlaps_itself(shape, strides):
        return "elements share memory"
    extent = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    if extent * itemsize > max(_ALWAYS_ALLOWED_EXTENT_BYTES, _MAX_SPREAD * math.prod(shape) * itemsize):
        return "the strides spread it over far more memory than it fills"
    return None


def check_writable(
    reference: str, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...], device: str, num_bytes: int
) -> None:
    """Refuse to write what no reader accepts.

    Raises:
        InvalidRecord: If the layout contradicts the bytes or is out of the format's limits.
    """
    itemsize = DTYPES[dtype].itemsize
    problem = layout_problem(shape, strides, itemsize)
    if problem is None and math.prod(shape) * itemsize != num_bytes:
        problem = "the bytes do not fit the shape"
    if problem is None and not _DEVICE.fullmatch(device):
        problem = f"bad device {device!a}"
    if problem is not None:
        raise InvalidRecord(problem, code="record.layout", where=reference, found=[shape, strides, num_bytes])
