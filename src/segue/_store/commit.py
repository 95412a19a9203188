"""The write protocol: how a checkpoint comes to exist, whole and durable, or not at all.

The wish: when `commit` returns, no crash, power cut or full disk can take this checkpoint away; when it does not
return, nothing that was there before has changed. Writing a temporary folder and renaming it is not enough: on ext4
a power cut half a minute later left empty files under the final name, 20 times of 20. So every byte and every name
is made durable before the next step depends on it, and the folder proves itself by checksums besides.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass

from segue._store import layout, manifest
from segue._store.checksum import commit_line, digest
from segue._store.contents import Contents
from segue._store.failure import joined, unavailable
from segue._store.filesystem import Filesystem, close_quietly
from segue._store.manifest import FileEntry, Manifest, TensorEntry
from segue._store.output import write_file
from segue._store.tensor_file import write_tensors
from segue.errors import CheckpointExists

_MANIFEST_BYTES_PER_TENSOR = 512


@dataclass(frozen=True)
class Place:
    """The open directory that a checkpoint is written into."""

    filesystem: Filesystem
    root: int
    path: str
    """For messages; nothing is opened by it."""


@dataclass(frozen=True)
class Identity:
    """Which checkpoint is being written."""

    name: str
    seq: int
    run: str | None
    attempt: str


def commit(place: Place, contents: Contents, identity: Identity) -> int:
    """Store a record under a name, all or nothing.

    Returns:
        The bytes it takes on disk.

    Raises:
        CheckpointExists: If the name is taken.
        StoreFull: If there is not enough room; what was written is removed.
        StoreUnavailable: If anything else failed. The files of the attempt are removed, unless only the very last
            step failed: then the checkpoint stands, whole, but may not survive a power cut.

    Guarantees:
        After any failure, a kill at any moment, or a power cut at any moment, everything stored before is as it
        was, and the new checkpoint is there whole or not at all.
    """
    filesystem, root = place.filesystem, place.root
    with _explained(place, identity.name):
        _refuse_if_too_full(
            place, contents
        )  # a full disk: fail before the first byte, while nothing is half done
        # Exclusive, unguessable name: the writer of a dead attempt that wakes up finds only its own folder.
        with _attempt_folder(place, layout.temporary_name(identity.seq, identity.attempt)) as folder:
            # Each file is fsynced: else a power cut leaves files of full size with nothing in them.
            files, tensors = _write_data(filesystem, folder, contents)
            # Names of data before the manifest that names them: on one machine the fsync below would do as well,
            # but ranks on other machines each write through their own mount.
            filesystem.fsync_directory(folder)
            document = manifest.to_bytes(_describe(contents, identity, files, tensors))
            # fsynced: else a power cut leaves an empty manifest beside good data.
            write_file(filesystem, folder, layout.MANIFEST_FILE, document)
            # Last, and fsynced: a folder copied by hand while it was written has no commit line, or a wrong one.
            line = commit_line(document, layout.MANIFEST_FILE)
            write_file(filesystem, folder, layout.COMMIT_FILE, line)
            # The names of manifest and commit: else a power cut after the rename leaves a folder without them.
            filesystem.fsync_directory(folder)
            # One step for every onlooker: a kill before it leaves litter, a kill after it the whole checkpoint.
            _rename(place, folder, identity)
        # The durable commit point: without it a power cut takes the name away, after we have said "saved" and the
        # caller has removed what it replaces.
        filesystem.fsync_directory(root)
    return sum(entry.size for entry in files.values()) + len(document) + len(line)


@contextlib.contextmanager
def _explained(place: Place, name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise unavailable("write the checkpoint", joined(place.path, name), error) from error


def _refuse_if_too_full(place: Place, contents: Contents) -> None:
    needed = contents.num_bytes + contents.num_tensors * _MANIFEST_BYTES_PER_TENSOR
    if place.filesystem.free_bytes(place.root) < needed + needed // 20:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextlib.contextmanager
def _attempt_folder(place: Place, name: str) -> Iterator[int]:
    """Make and open the folder of an attempt; whatever goes wrong inside, remove it again."""
    filesystem, folder = place.filesystem, None
    try:
        filesystem.make_directory(name, place.root)
        folder = filesystem.open_directory(name, place.root)
        yield folder
    except BaseException:
        _abandon(place, name, folder)
        raise
    finally:
        if folder is not None:
            close_quietly(filesystem, folder)


def _abandon(place: Place, name: str, folder: int | None) -> None:
    """Remove a failed attempt, to free its space; what cannot be removed now is swept by the next holder of the lock."""
    if folder is not None:
        with contextlib.suppress(OSError):
            for entry in place.filesystem.list_names(folder):
                with contextlib.suppress(OSError):
                    place.filesystem.unlink(entry, folder)
    with contextlib.suppress(OSError):
        place.filesystem.remove_directory(name, place.root)


def _write_data(
    filesystem: Filesystem, folder: int, contents: Contents
) -> tuple[dict[str, FileEntry], dict[str, TensorEntry]]:
    files: dict[str, FileEntry] = {}
    tensors: dict[str, TensorEntry] = {}
    for name, plan in contents.files.items():
        tensors.update(write_tensors(filesystem, folder, name, plan))
        files[name] = FileEntry(plan.size, len(plan.head), digest(plan.head))
    state = contents.state
    write_file(filesystem, folder, layout.STATE_FILE, state)
    files[layout.STATE_FILE] = FileEntry(len(state), len(state), digest(state))
    return files, tensors


def _describe(
    contents: Contents, identity: Identity, files: dict[str, FileEntry], tensors: dict[str, TensorEntry]
) -> Manifest:
    record = contents.record
    return Manifest(
        version=contents.version,
        run=identity.run,
        seq=identity.seq,
        attempt=identity.attempt,
        kind=record.kind,
        step=record.step,
        microbatch=record.microbatch,
        world_size=record.topology.world_size,
        rank=record.topology.rank,
        sizes=manifest.section_sizes(tensors),
        files=files,
        tensors=tensors,
        sections=contents.sections,
    )


def _rename(place: Place, folder: int, identity: Identity) -> None:
    filesystem = place.filesystem
    temporary = layout.temporary_name(identity.seq, identity.attempt)
    try:
        filesystem.rename_noreplace(temporary, identity.name, place.root)
    except OSError as error:
        # NFS can lose the reply to a rename that happened, and report an error for its own retry.
        if _is_named(place, folder, identity.name):
            return
        if isinstance(error, FileExistsError):
            where = joined(place.path, identity.name)
            raise CheckpointExists("a stored checkpoint is never replaced", where=where) from error
        raise


def _is_named(place: Place, folder: int, name: str) -> bool:
    try:
        ours, found = place.filesystem.stat(folder), place.filesystem.lstat(name, place.root)
    except OSError:
        return False
    return (ours.st_dev, ours.st_ino) == (found.st_dev, found.st_ino)
