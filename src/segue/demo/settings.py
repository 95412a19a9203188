"""What one process of the demo is told, and how it is told: as a JSON file, since it is another process."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from segue.demo.model import ModelSize


class Role(StrEnum):
    """Which of the three runs a process belongs to; also the name of its folder."""

    UNINTERRUPTED = "uninterrupted"
    SEGUE = "segue"
    STATE_DICTS = "state-dicts"


@dataclass(frozen=True)
class Kill:
    """A place in the run at which the process is killed."""

    microbatch: int
    """Counted from 1."""
    file: str | None = None
    """`None` to kill inside this microbatch, after its backward. Else after it, while its checkpoint is being
    written: at the moment when this file of it would be created."""

    @property
    def is_during_save(self) -> bool:
        return self.file is not None


@dataclass(frozen=True)
class RunSettings:
    """The training, the same in all three runs."""

    text: str | None = None
    """A file; `None` for the text inside CPython."""
    seed: int = 0
    num_microbatches: int = 160
    window_microbatches: int = 4
    save_every_microbatches: int = 3
    num_sequences: int = 8
    model: ModelSize = field(default_factory=ModelSize)

    @property
    def num_steps(self) -> int:
        return self.num_microbatches // self.window_microbatches


@dataclass(frozen=True)
class ProcessSettings:
    """One process of one run."""

    role: Role
    directory: str
    run: RunSettings
    kill: Kill | None
    """Where to stop and wait for the kill; `None` to run to the end."""

    def write(self, path: Path) -> None:
        """Write to a file; inverse of `read`."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> ProcessSettings:
        """Read what `write` wrote."""
        fields: dict[str, Any] = json.loads(path.read_text())
        run = dict(fields["run"], model=ModelSize(**fields["run"]["model"]))
        kill = fields["kill"] and Kill(**fields["kill"])
        return cls(Role(fields["role"]), fields["directory"], RunSettings(**run), kill)
