"""Reading the checkpoint in a single file."""

from __future__ import annotations

import dataclasses

from segue._store.container import opened_container
from segue._store.folder import Folder
from segue._store.manifest import Manifest
from segue._store.reader import CheckpointInfo, StoredCheckpoint, info_of, open_folder, read_manifest


def open_file(folder: Folder, name: str) -> StoredCheckpoint:
    """Open the checkpoint in a file.

    Args:
        folder: Where the file is; not closed here.
        name: Of the file.

    Raises:
        CheckpointNotFound: If there is nothing of that name.
        StoreError: As `opened_container` and `open_folder` do.
    """
    with opened_container(folder, name) as inside:
        checkpoint = open_folder(inside)
        checkpoint.info = dataclasses.replace(checkpoint.info, num_bytes=inside.num_bytes)
        return checkpoint


def read_file_manifest(folder: Folder, name: str) -> tuple[Manifest, CheckpointInfo]:
    """Read the manifest of the checkpoint in a file, and nothing else.

    Raises:
        CheckpointNotFound: If there is nothing of that name.
        StoreError: As `opened_container` and `read_manifest` do.
    """
    with opened_container(folder, name) as inside:
        committed = read_manifest(inside)
        info = info_of(committed, inside.path)
        return committed.manifest, dataclasses.replace(info, num_bytes=inside.num_bytes)
