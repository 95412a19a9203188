"""The write protocol of a single file; `commit` says what each step is for."""

from __future__ import annotations

import contextlib

from segue._store import layout
from segue._store.checksum import commit_line
from segue._store.container import ContainerFiles
from segue._store.contents import Contents
from segue._store.failure import explained, joined
from segue._store.output import Output, write_file
from segue._store.place import Identity, Place
from segue._store.writing import describe, refuse_if_too_full, write_data
from segue.errors import CheckpointExists


def commit_file(place: Place, contents: Contents, identity: Identity, *, replace: bool) -> int:
    """Store a record as one file, all or nothing.

    Args:
        place: The open directory of the file.
        contents: What to store.
        identity: Its name is that of the file.
        replace: Whether to take the place of a file of that name, in one step.

    Returns:
        The size of the file.

    Raises:
        CheckpointExists: If the name is taken, unless `replace`.
        StoreFull: If there is not enough room; what was written is removed.
        StoreUnavailable: If anything else failed. The attempt is removed, unless only the very last step failed:
            then the new file stands, whole, but a power cut may bring back the old one.

    Guarantees:
        After any failure, a kill or a power cut at any moment, there is the old file or the new one, whole.
    """
    filesystem, root = place.filesystem, place.root
    temporary = layout.temporary_file_name(identity.name, identity.attempt)
    with explained("write the checkpoint", joined(place.path, identity.name)):
        refuse_if_too_full(place, contents)
        try:
            num_bytes = _write(place, temporary, contents, identity)
            _rename(place, temporary, identity.name, replace=replace)
        except BaseException:
            with contextlib.suppress(OSError):
                filesystem.unlink(temporary, root)
            raise
        filesystem.fsync_directory(root)
    return num_bytes


def _write(place: Place, temporary: str, contents: Contents, identity: Identity) -> int:
    output = Output(place.filesystem.create_file(temporary, place.root))
    try:
        files = ContainerFiles(output)
        document = describe(contents, identity, write_data(files, contents))
        write_file(files, layout.MANIFEST_FILE, document)
        write_file(files, layout.COMMIT_FILE, commit_line(document, layout.MANIFEST_FILE))
        files.finish()
    finally:
        output.close()
    return files.num_bytes


def _rename(place: Place, temporary: str, name: str, *, replace: bool) -> None:
    filesystem = place.filesystem
    ours = filesystem.lstat(temporary, place.root)
    try:
        if replace:
            filesystem.rename_replace(temporary, name, place.root)
        else:
            filesystem.rename_noreplace(temporary, name, place.root)
    except OSError as error:
        if place.has(name, ours):  # the reply was lost, not the rename
            return
        if isinstance(error, FileExistsError):
            where = joined(place.path, name)
            raise CheckpointExists("a stored checkpoint is never replaced", where=where) from error
        raise
