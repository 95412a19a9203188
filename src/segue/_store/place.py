"""Where something is written, and as what."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass

from segue._store.filesystem import Filesystem


@dataclass(frozen=True)
class Place:
    """The open directory that a checkpoint is written into."""

    filesystem: Filesystem
    root: int
    path: str
    """For messages; nothing is opened by it."""

    def has(self, name: str, ours: os.stat_result) -> bool:
        """Tell whether a file or folder that was looked at before has this name now."""
        try:
            found = self.filesystem.lstat(name, self.root)
        except OSError:
            return False
        return (ours.st_dev, ours.st_ino) == (found.st_dev, found.st_ino)


@dataclass(frozen=True)
class Identity:
    """Which checkpoint is being written."""

    name: str
    seq: int
    run: str | None
    attempt: str


def new_attempt() -> str:
    """Make an id that nobody can guess or has used: 16 hexadecimal digits."""
    return secrets.token_hex(8)
