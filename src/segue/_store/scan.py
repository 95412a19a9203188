"""Which checkpoints a run has, by their names alone."""

from __future__ import annotations

import os
from dataclasses import dataclass

from segue._store import layout
from segue._store.folder import Folder


@dataclass(frozen=True)
class Candidate:
    """A name that could be a checkpoint; only opening it tells whether it is one."""

    seq: int
    name: str
    path: str


def scan(folder: Folder) -> list[Candidate]:
    """List the candidates of a run, newest first: by number, not by time, which jumps.

    Attempts in progress, trash and names that segue does not make are left out.

    Raises:
        StoreUnavailable: If the folder can't be listed.
    """
    numbered = [(layout.checkpoint_seq(name), name) for name in folder.names()]
    found = [
        Candidate(seq, name, os.path.join(folder.path, name)) for seq, name in numbered if seq is not None
    ]
    return sorted(found, key=lambda candidate: candidate.seq, reverse=True)
