"""Opening a stored checkpoint: everything is checked before anything is believed.

All files are opened relative to one directory descriptor, without following links, and stay open: what was checked
is what will be read, even if the folder is renamed, pruned or swapped meanwhile. Nothing on disk is changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple

import xxhash

from segue._record.tensors import ByteSource
from segue._record.training import TrainingRecord
from segue._store import layout, manifest, strict_json
from segue._store.checksum import commit_line, digest
from segue._store.codec import check_header
from segue._store.contents import MAX_STATE_BYTES, assemble
from segue._store.failure import joined
from segue._store.folder import Folder
from segue._store.manifest import FileEntry, Manifest, TensorEntry
from segue._store.output import SLICE_BYTES
from segue._store.stored_bytes import OpenFile, StoredBytes
from segue.errors import (
    CorruptCheckpoint,
    IncompleteCheckpoint,
    StoreError,
    UnsafeCheckpoint,
    UnsupportedFormat,
)

_COMMIT_BYTES = len(commit_line(b"", layout.MANIFEST_FILE))
_COMMIT = re.compile(rb"[0-9a-f]{64}  manifest\.json\n")


@dataclass(frozen=True)
class CheckpointInfo:
    """What a listing shows of a checkpoint; read from its manifest alone."""

    seq: int
    path: str
    num_bytes: int
    """All files together."""
    attempt: str
    step: int | None
    microbatch: int | None


class CommittedManifest(NamedTuple):
    """A manifest that was read, and what is known of its file."""

    manifest: Manifest
    num_bytes: int
    sha256: str
    """What the commit line says, in hexadecimal: it names the checkpoint with every byte of it."""


def read_manifest(folder: Folder) -> CommittedManifest:
    """Read commit line and manifest of a checkpoint, and nothing else.

    Raises:
        IncompleteCheckpoint: If either is missing.
        CorruptCheckpoint: If the commit line is not exactly that of the manifest, or the manifest is not valid.
        UnsafeCheckpoint: If either is not a regular file.
        UnsupportedFormat: If a newer segue wrote it.
    """
    line = folder.read_file(layout.COMMIT_FILE, _COMMIT_BYTES)
    # Byte for byte: a reader that merely splits it accepts some truncated lines.
    if not _COMMIT.fullmatch(line):
        raise CorruptCheckpoint("not a commit line", where=folder.path_of(layout.COMMIT_FILE), found=line)
    document = folder.read_file(layout.MANIFEST_FILE, manifest.MAX_MANIFEST_BYTES)
    where = folder.path_of(layout.MANIFEST_FILE)
    if line != commit_line(document, layout.MANIFEST_FILE):
        found = hashlib.sha256(document).hexdigest()
        raise CorruptCheckpoint(
            "the manifest is not the one that was committed",
            where=where,
            expected=line[:64].decode(),
            found=found,
        )
    return CommittedManifest(manifest.from_bytes(document, where), len(document), line[:64].decode())


def info_of(committed: CommittedManifest, path: str) -> CheckpointInfo:
    """Sum up a manifest."""
    description = committed.manifest
    num_bytes = description.file_bytes + committed.num_bytes + _COMMIT_BYTES
    return CheckpointInfo(
        description.seq, path, num_bytes, description.attempt, description.step, description.microbatch
    )


class StoredCheckpoint:
    """One checkpoint, open for reading. Its manifest and headers are verified; its data is, whenever it is read."""

    def __init__(self, committed: CommittedManifest, files: dict[str, OpenFile], path: str) -> None:
        self.info = info_of(committed, path)
        self.path = path
        self.manifest = committed.manifest
        self.manifest_sha256 = committed.sha256
        self._files = files

    def record(self) -> TrainingRecord:
        """Build the record. Its tensors stay in the files until they are read, and are verified then.

        Raises:
            CorruptCheckpoint: If a section is malformed, or `state.json` changed since the checkpoint was opened.

        Guarantees:
            The record keeps what it needs open; the checkpoint may be removed meanwhile, but not closed.
        """
        state_file = self._files[layout.STATE_FILE]
        data = bytes(state_file.read(self.manifest.files[layout.STATE_FILE].size))
        _check_head(digest(data), self.manifest.files[layout.STATE_FILE], state_file.path)
        state = strict_json.parse(data, state_file.path)
        return assemble(
            self.manifest, state, self._source, joined(self.path, layout.MANIFEST_FILE), state_file.path
        )

    def _source(self, reference: str, entry: TensorEntry) -> ByteSource:
        chunk = entry.chunk
        offset = self.manifest.files[chunk.file].head + chunk.begin
        return StoredBytes(self._files[chunk.file], reference, offset, entry.num_bytes, chunk.xxh3)

    def verify(self) -> TrainingRecord:
        """Read every byte once and compare it with its checksum.

        Returns:
            The record, as from `record`; building it is part of the verification.

        Raises:
            CorruptCheckpoint: At the first that differs, naming file and tensor.

        Cost:
            One sequential read of the whole checkpoint; 8 MiB of memory beside the caller's tree.
        """
        for name, entry in self.manifest.files.items():
            _verify_head(self._files[name], entry)
        for reference, tensor in self.manifest.tensors.items():
            self._source(reference, tensor).verify()
        return self.record()

    def close(self) -> None:
        """Close the files; records of this checkpoint can then no longer be read."""
        for file in self._files.values():
            file.close()

    def __enter__(self) -> StoredCheckpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_folder(folder: Folder, *, seq: int | None = None) -> StoredCheckpoint:
    """Open a checkpoint from its open folder.

    Args:
        folder: Not closed here; not needed afterwards.
        seq: The number in the folder's name, where it has one; an export may be called anything.

    Raises:
        IncompleteCheckpoint: If a file is missing.
        UnsafeCheckpoint: If there is a name that no writer makes, or one that is not a regular file.
        CorruptCheckpoint: If commit line, manifest, sizes or headers do not fit together.
        UnsupportedFormat: If a newer segue wrote it.
        StoreUnavailable: If it can't be read at all.
    """
    committed = _read_own_manifest(folder)
    description = committed.manifest
    if seq is not None and description.run is not None and description.seq != seq:
        raise CorruptCheckpoint(
            "the manifest is that of another number: a renamed copy?",
            where=folder.path_of(layout.MANIFEST_FILE),
            expected=seq,
            found=description.seq,
        )
    with contextlib.ExitStack() as opened:
        files: dict[str, OpenFile] = {}
        for name in layout.DATA_FILES:
            files[name] = folder.open_file(name)
            opened.callback(files[name].close)
        _check_files(files, description)
        opened.pop_all()
    return StoredCheckpoint(committed, files, folder.path)


def _read_own_manifest(folder: Folder) -> CommittedManifest:
    """Read the manifest of a folder that has exactly the files of this version.

    A newer format may have other files: then its version is the news, not they.
    """
    problem = _name_problem(folder)
    if problem is None:
        return read_manifest(folder)
    try:
        read_manifest(folder)
    except UnsupportedFormat:
        raise
    except StoreError:
        pass
    raise problem


def _name_problem(folder: Folder) -> StoreError | None:
    names = {name for name in folder.names() if not layout.is_ignored(name)}
    missing = sorted(set(layout.CHECKPOINT_FILES) - names)
    if missing:
        return IncompleteCheckpoint(f"no {', '.join(missing)}", where=folder.path, found=sorted(names)[:10])
    extra = sorted(names - set(layout.CHECKPOINT_FILES))
    if extra:
        return UnsafeCheckpoint(f"a name that no writer makes: {extra[0]!a}"[:300], where=folder.path)
    return None


def _check_files(files: dict[str, OpenFile], description: Manifest) -> None:
    for name, entry in description.files.items():
        size = files[name].size
        if size != entry.size:
            raise CorruptCheckpoint(
                "the size is not that of the manifest",
                where=files[name].path,
                expected=entry.size,
                found=size,
            )
    for name in layout.TENSOR_FILES:
        entry, path = description.files[name], files[name].path
        head = bytes(files[name].read(entry.head))
        _check_head(digest(head), entry, path)
        tensors = [item for item in description.tensors.values() if item.chunk.file == name]
        named = {item.chunk.name: item for item in tensors}
        if len(named) != len(tensors):
            raise CorruptCheckpoint("two tensors have one name", where=path)
        check_header(head, entry.size, named, path)
    _check_state(files[layout.STATE_FILE], description.files[layout.STATE_FILE])


def _check_state(file: OpenFile, entry: FileEntry) -> None:
    if entry.size > MAX_STATE_BYTES or entry.head != entry.size:
        raise CorruptCheckpoint(
            "too large, or not hashed as a whole", where=file.path, expected=MAX_STATE_BYTES, found=entry.size
        )
    _verify_head(file, entry)


def _verify_head(file: OpenFile, entry: FileEntry) -> None:
    hasher = xxhash.xxh3_128()
    for start in range(0, entry.head, SLICE_BYTES):
        hasher.update(file.read(min(SLICE_BYTES, entry.head - start), start))
    _check_head(hasher.hexdigest(), entry, file.path)


def _check_head(found: str, entry: FileEntry, path: str) -> None:
    if found != entry.xxh3:
        raise CorruptCheckpoint(
            "the header's bytes are not those that were saved"
            if entry.head != entry.size
            else "the bytes are not those that were saved",
            where=path,
            expected=entry.xxh3,
            found=found,
        )
