"""Where a URL points."""

from __future__ import annotations

import os
from urllib.parse import unquote, urlsplit

from segue._store.filesystem import Filesystem
from segue._store.local import LocalFilesystem
from segue._store.memory import PROCESS_MEMORY
from segue.errors import StoreUnavailable

_MEMORY = "memory"
_IN_MEMORY = (f"{_MEMORY}://", "bytes://")
"""How the paths begin of what is on no disk; those of bytes are made by `in_memory` alone."""


def path_of(url: str | os.PathLike[str]) -> str:
    """Return what a path or URL names, as stores take it: an absolute local path, or a `memory://` URL as it is.

    Absolute now, since programs change directory.

    Raises:
        StoreUnavailable: If it names another kind of place, or what no file can be called.
    """
    text = os.fspath(url)
    if not isinstance(text, str) or not text:
        raise StoreUnavailable("a checkpoint's place is a path or a URL", code="store.url", found=text)
    if "://" not in text:
        return absolute(os.path.expanduser(text))
    parts = urlsplit(text)
    if parts.scheme == _MEMORY:
        return _memory_path(text)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        raise StoreUnavailable(
            "a checkpoint's place is a local path, or in memory", code="store.url", where=text,
            found=parts.scheme, expected="file:// or memory://",
        )  # fmt: skip
    if parts.query or parts.fragment or not parts.path:
        raise StoreUnavailable(
            "a URL of a file ends with its path", code="store.url", where=text, expected="%3F and %23 for ? and # in a name"
        )  # fmt: skip
    return absolute(unquote(parts.path))


def memory_path(url: str) -> str:
    """Return the path that a `memory://` URL names.

    Raises:
        StoreUnavailable: If it is none: what is meant for a disk must not end in memory.
    """
    path = path_of(url)
    if not is_memory(path):
        raise StoreUnavailable(
            "not a place in memory", code="store.url", where=path, expected="memory://name"
        )
    return path


def _memory_path(text: str) -> str:
    names = [name for name in text.partition("://")[2].split("/") if name]
    if not names or {".", ".."} & set(names):
        raise StoreUnavailable(
            "a place in memory needs a name", code="store.url", where=text, expected="memory://name"
        )
    return f"{_MEMORY}://{'/'.join(names)}"


def local_path(url: str | os.PathLike[str]) -> str:
    """Return the local path that a path or `file://` URL names; for those who can't look into this process.

    Raises:
        StoreUnavailable: If it names another kind of place.
    """
    path = path_of(url)
    if is_memory(path):
        raise StoreUnavailable(
            "what is in memory is known only to the process that has it", code="store.url", where=path
        )
    return path


def is_memory(path: str) -> bool:
    """Tell whether a path is one in the memory of a process."""
    return path.startswith(f"{_MEMORY}://")


def absolute(path: str | os.PathLike[str]) -> str:
    """Make a path absolute, as stores take it; what is in memory has a name instead, which stays.

    Raises:
        StoreUnavailable: If no file can have such a name, or it is a URL of another kind.
    """
    text = os.fspath(path)
    if text.startswith(_IN_MEMORY):
        return text
    if "://" in text and not os.path.isabs(text):
        return path_of(text)
    try:
        nameable = b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        nameable = False
    if not nameable:
        raise StoreUnavailable("no file can have such a name", code="store.url", where=text)
    return os.path.abspath(text)


def filesystem_at(path: str) -> Filesystem:
    """Return the filesystem that an absolute path is in."""
    return PROCESS_MEMORY if is_memory(path) else LocalFilesystem()


def without_links(path: str) -> str:
    """Follow the symbolic links in an absolute path."""
    return path if is_memory(path) else os.path.realpath(path)


def forget(url: str) -> bool:
    """Drop what is at a `memory://` URL, a run or a checkpoint, to free its memory.

    Returns:
        Whether there was anything. Records that were read from it stay readable.

    Raises:
        StoreUnavailable: If the URL is of another kind: nothing on a disk is deleted by this.
    """
    return PROCESS_MEMORY.forget(memory_path(url))
