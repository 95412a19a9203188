"""Writing the files of a checkpoint in their order, wherever they go."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass

from segue._store import layout, manifest
from segue._store.checksum import digest
from segue._store.contents import Contents
from segue._store.manifest import FileEntry, Manifest, TensorEntry
from segue._store.output import Files, write_file
from segue._store.place import Identity, Place
from segue._store.tensor_file import write_tensors

_MANIFEST_BYTES_PER_TENSOR = 512


@dataclass(frozen=True)
class WrittenData:
    """What the manifest has to say about the data files."""

    files: dict[str, FileEntry]
    tensors: dict[str, TensorEntry]

    @property
    def num_bytes(self) -> int:
        return sum(entry.size for entry in self.files.values())


def refuse_if_too_full(place: Place, contents: Contents) -> None:
    """Check for room before anything is written.

    Raises:
        OSError: If there is less than the checkpoint will take, and a twentieth.
    """
    needed = contents.num_bytes + contents.num_tensors * _MANIFEST_BYTES_PER_TENSOR
    if place.filesystem.free_bytes(place.root) < needed + needed // 20:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def write_data(files: Files, contents: Contents) -> WrittenData:
    """Write all files but the manifest and the commit line, hashing while writing.

    Raises:
        OSError: If that failed.
        StoreError: If a tensor comes from a stored checkpoint that turned out to be damaged.
    """
    entries: dict[str, FileEntry] = {}
    tensors: dict[str, TensorEntry] = {}
    for name, plan in contents.files.items():
        tensors.update(write_tensors(files, name, plan))
        entries[name] = FileEntry(plan.size, len(plan.head), digest(plan.head))
    state = contents.state
    write_file(files, layout.STATE_FILE, state)
    entries[layout.STATE_FILE] = FileEntry(len(state), len(state), digest(state))
    return WrittenData(entries, tensors)


def describe(contents: Contents, identity: Identity, data: WrittenData) -> bytes:
    """Make the manifest of what was written."""
    record = contents.record
    return manifest.to_bytes(
        Manifest(
            version=contents.version,
            run=identity.run,
            seq=identity.seq,
            attempt=identity.attempt,
            kind=record.kind,
            step=record.step,
            microbatch=record.microbatch,
            world_size=record.topology.world_size,
            rank=record.topology.rank,
            sizes=manifest.section_sizes(data.tensors),
            files=data.files,
            tensors=data.tensors,
            sections=contents.sections,
        )
    )
