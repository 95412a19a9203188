"""Where a URL points."""

from __future__ import annotations

import os
from urllib.parse import unquote, urlsplit

from segue.errors import StoreUnavailable


def local_path(url: str | os.PathLike[str]) -> str:
    """Return the local path that a path or `file://` URL names, made absolute now: programs change directory.

    Raises:
        StoreUnavailable: If it names another kind of place.
    """
    text = os.fspath(url)
    if not isinstance(text, str) or not text:
        raise StoreUnavailable("a checkpoint's place is a path or a URL", code="store.url", found=text)
    if "://" not in text:
        return os.path.abspath(os.path.expanduser(text))
    parts = urlsplit(text)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        raise StoreUnavailable(
            "only local directories are supported yet", code="store.url", where=text, found=parts.scheme
        )
    return unquote(parts.path)
