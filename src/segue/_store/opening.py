"""From a URL to the store that it means."""

from __future__ import annotations

import os

from segue._store import layout
from segue._store.file_store import FileStore
from segue._store.protocol import Store
from segue._store.store import DirectoryStore
from segue._store.url import path_of


def store_at(url: str | os.PathLike[str], *, lock_timeout_seconds: float = 30.0) -> Store:
    """Make the store of a run.

    Args:
        url: A path, or a `file://` or `memory://` URL; one file if it ends in `.segue` and no folder
            is called so, else a folder.
        lock_timeout_seconds: How long `acquire` waits for another writer.

    Raises:
        StoreUnavailable: If the URL is of another kind.
    """
    path = path_of(url)
    # A folder that is called so, is one.
    is_file = path.endswith(layout.FILE_SUFFIX) and not os.path.isdir(path)
    kind = FileStore if is_file else DirectoryStore
    return kind(path, lock_timeout_seconds=lock_timeout_seconds)
