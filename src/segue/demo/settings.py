"""What one process of the demo is told, and how it is told: as a JSON file, since it is another process."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from segue.demo.model import ModelSize


class Role(StrEnum):
    """Which of the runs a process belongs to; also the name of its folder."""

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
class AdapterSettings:
    """Low-rank layers on the attention of a model that is frozen."""

    base: str
    """The file with the frozen model; each process reads it."""
    rank: int = 8
    scale: float = 2.0
    dropout: float = 0.05


@dataclass(frozen=True)
class RunSettings:
    """The training, the same in all runs."""

    text: str | None = None
    """A file; `None` for the text inside CPython."""
    seed: int = 0
    num_microbatches: int = 160
    window_microbatches: int = 4
    save_every_microbatches: int = 3
    num_sequences: int = 8
    model: ModelSize = field(default_factory=ModelSize)
    adapter: AdapterSettings | None = None
    """What is trained in place of the whole model."""

    @property
    def num_steps(self) -> int:
        return self.num_microbatches // self.window_microbatches

    @property
    def roles(self) -> tuple[Role, ...]:
        """The runs there are. With an adapter the question is what its checkpoints hold, so state dicts are left out."""
        return tuple(Role) if self.adapter is None else (Role.UNINTERRUPTED, Role.SEGUE)

    def with_adapter(self, base: Path) -> RunSettings:
        """Return the same training of an adapter, over a base so much larger that the sizes speak."""
        size = replace(self.model, width=192)
        return replace(self, model=size, adapter=AdapterSettings(str(base)))

    def write(self, path: Path) -> None:
        """Write to a file; inverse of `read`."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> RunSettings:
        """Read what `write` wrote."""
        return cls.from_fields(json.loads(path.read_text()))

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> RunSettings:
        """Make settings of what `dataclasses.asdict` made of some."""
        adapter = fields["adapter"] and AdapterSettings(**fields["adapter"])
        return cls(**{**fields, "model": ModelSize(**fields["model"]), "adapter": adapter})


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
        kill = fields["kill"] and Kill(**fields["kill"])
        return cls(Role(fields["role"]), fields["directory"], RunSettings.from_fields(fields["run"]), kill)
