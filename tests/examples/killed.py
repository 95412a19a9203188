"""Runs a script as `python script.py ...` does, and kills it with SIGKILL in the middle of one of its saves.

Python tells a hook of each file that is opened. The last file that a save makes is `commit`: by then everything
else of the checkpoint is written, and it counts for nothing yet. So nothing of the script or of segue is replaced.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from typing import Any


class KillInSave:
    """An audit hook that kills the process in one of its saves, counted from 0."""

    def __init__(self, save: int) -> None:
        self.left = save
        self.process = os.getpid()

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or arguments[0] != "commit" or not arguments[2] & os.O_CREAT:
            return
        if self.left == 0 and os.getpid() == self.process:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1


def run_script(script: str, arguments: list[str], kill_in_save: int | None = None) -> None:
    """Run a script as the main program of this process, to its end or to its death.

    Args:
        script: Its path.
        arguments: Of its command line.
        kill_in_save: In which of its saves to kill it.
    """
    if kill_in_save is not None:
        sys.addaudithook(KillInSave(kill_in_save))
    sys.argv = [script, *arguments]
    sys.path.insert(0, os.path.dirname(script))
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    run_script(sys.argv[2], sys.argv[3:], int(sys.argv[1]))
