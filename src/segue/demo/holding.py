"""Stopping a process exactly where it is to be killed.

The kill must come from outside and be real, and land at the planned place even on a busy machine. So the process stops
there by itself, says so, and waits; it never goes on. In the middle of a save it is stopped by Python's own audit
events, at the moment when a certain file would be created: nothing of segue is patched for it.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from segue.demo.journal import Journal
from segue.demo.settings import Kill, Role

ORPHANED = 70


class KillPlace:
    """Watches the training loop: records each loss, and stops at the planned place."""

    def __init__(self, journal: Journal, role: Role, kill: Kill | None) -> None:
        self._journal = journal
        self._kill = kill
        self._hold_in_save = kill is not None and kill.is_during_save and role is Role.SEGUE
        self._is_armed = False
        if self._hold_in_save:
            sys.addaudithook(self._audit)

    def after_backward(self, microbatch: int, loss: float) -> None:
        """Record the loss; stop if the kill is inside this microbatch."""
        self._journal.write("loss", microbatch=microbatch, loss=loss.hex())
        if self._kill == Kill(microbatch):
            self._hold(microbatch)

    def before_boundary(self, microbatch: int) -> None:
        """Stop, or make the next save stop, if the kill is at this boundary."""
        kill = self._kill
        if kill is None or not kill.is_during_save:
            return
        if microbatch > kill.microbatch:
            raise RuntimeError(f"no save created the file {kill.file} after microbatch {kill.microbatch}")
        if microbatch == kill.microbatch:
            if not self._hold_in_save:
                self._hold(microbatch)
            self._is_armed = True

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._is_armed or event != "open" or self._kill is None:
            return
        name, _mode, flags = arguments
        if isinstance(name, str) and os.path.basename(name) == self._kill.file and flags & os.O_CREAT:
            self._hold(self._kill.microbatch)

    def _hold(self, microbatch: int) -> None:
        self._journal.write("held", microbatch=microbatch)
        # The parent holds the other end and never writes: this returns only if the parent is gone.
        os.read(sys.stdin.fileno(), 1)
        os._exit(ORPHANED)
