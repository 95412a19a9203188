"""What a process tells its parent: lines appended to a file, which survive the process being killed.

Each line is one JSON object with an `event`: `begin` (the microbatches that are already done), `loss` (a microbatch
and its loss as a hexadecimal float, so that no digit is lost), `held` (stopped, waiting to be killed) and `end` (the
digests of the final training).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Event = Mapping[str, Any]


class Journal:
    """Writes events. Each line is one system call, so that a kill leaves whole lines."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)

    def write(self, event: str, **fields: Any) -> None:
        """Append one event."""
        os.write(self._descriptor, (json.dumps({"event": event, **fields}) + "\n").encode())

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


class JournalReader:
    """Reads the events that have been appended since the last look."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0

    def new_events(self) -> list[Event]:
        """Return the whole lines that are new, in order; none while there is no file."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._position += len(whole)
        return [json.loads(line) for line in whole.splitlines()]
