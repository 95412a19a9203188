"""The write protocol: how a checkpoint comes to exist, whole and durable, or not at all.

The wish: when `commit` returns, no crash, power cut or full disk can take this checkpoint away; when it does not
return, nothing that was there before has changed. Writing a temporary folder and renaming it is not enough: on ext4
a power cut half a minute later left empty files under the final name, 20 times of 20. So every byte and every name
is made durable before the next step depends on it, and the folder proves itself by checksums besides.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from segue._store import layout
from segue._store.checksum import commit_line
from segue._store.contents import Contents
from segue._store.failure import explained, joined
from segue._store.filesystem import close_quietly
from segue._store.output import FolderFiles, write_file
from segue._store.place import Identity, Place
from segue._store.writing import describe, refuse_if_too_full, write_data
from segue.errors import CheckpointExists


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
    with explained("write the checkpoint", joined(place.path, identity.name)):
        # A full disk: fail before the first byte, while nothing is half done.
        refuse_if_too_full(place, contents)
        # Exclusive, unguessable name: the writer of a dead attempt that wakes up finds only its own folder.
        with _attempt_folder(place, layout.temporary_name(identity.seq, identity.attempt)) as folder:
            files = FolderFiles(filesystem, folder)
            # Each file is fsynced: else a power cut leaves files of full size with nothing in them.
            data = write_data(files, contents)
            # Names of data before the manifest that names them: on one machine the fsync below would do as well,
            # but ranks on other machines each write through their own mount.
            filesystem.fsync_directory(folder)
            document = describe(contents, identity, data)
            # fsynced: else a power cut leaves an empty manifest beside good data.
            write_file(files, layout.MANIFEST_FILE, document)
            # Last, and fsynced: a folder copied by hand while it was written has no commit line, or a wrong one.
            line = commit_line(document, layout.MANIFEST_FILE)
            write_file(files, layout.COMMIT_FILE, line)
            # The names of manifest and commit: else a power cut after the rename leaves a folder without them.
            filesystem.fsync_directory(folder)
            # One step for every onlooker: a kill before it leaves litter, a kill after it the whole checkpoint.
            _rename(place, folder, identity)
        # The durable commit point: without it a power cut takes the name away, after we have said "saved" and the
        # caller has removed what it replaces.
        filesystem.fsync_directory(root)
    return data.num_bytes + len(document) + len(line)


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


def _rename(place: Place, folder: int, identity: Identity) -> None:
    filesystem = place.filesystem
    temporary, ours = layout.temporary_name(identity.seq, identity.attempt), filesystem.stat(folder)
    try:
        filesystem.rename_noreplace(temporary, identity.name, place.root)
    except OSError as error:
        # NFS can lose the reply to a rename that happened, and report an error for its own retry.
        if place.has(identity.name, ours):
            return
        if isinstance(error, FileExistsError):
            where = joined(place.path, identity.name)
            raise CheckpointExists("a stored checkpoint is never replaced", where=where) from error
        raise
