"""The three ways of keeping the demo's training: not at all, by segue, and by state dicts as people do today."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import segue
from segue.bench.peers import load_state_dicts, save_state_dicts
from segue.demo.loop import Keeper, Parts, State
from segue.demo.settings import Role, RunSettings


def open_keeper(
    role: Role, parts: Parts, run: RunSettings, directory: Path
) -> AbstractContextManager[Keeper]:
    """Return the keeper of a role, to be entered while the training runs."""
    match role:
        case Role.UNINTERRUPTED:
            return nullcontext(Unkept())
        case Role.SEGUE:
            return KeptBySegue(parts, run, directory)
        case Role.STATE_DICTS:
            return nullcontext(KeptByStateDicts(parts, run, directory))


class Unkept:
    """Never saves."""

    def resume(self, default: State) -> State:
        return default

    def at_boundary(self, state: State) -> None:
        """Save nothing."""


class KeptBySegue(AbstractContextManager["KeptBySegue"]):
    """Saves every few microbatches, inside windows as well as between them."""

    def __init__(self, parts: Parts, run: RunSettings, directory: Path) -> None:
        self._checkpointer = segue.Checkpointer(
            parts.training, directory, every_microbatches=run.save_every_microbatches, keep_last=3
        )

    def __enter__(self) -> KeptBySegue:
        self._checkpointer.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._checkpointer.close()

    def resume(self, default: State) -> State:
        state: State = self._checkpointer.resume(default=default)
        return state

    def at_boundary(self, state: State) -> None:
        self._checkpointer.save_if_due(state, step=state["step"])


class KeptByStateDicts:
    """Saves after each step, and goes on from the last one: the data from its place there, all else as it comes."""

    def __init__(self, parts: Parts, run: RunSettings, directory: Path) -> None:
        self._parts = parts
        self._run = run
        directory.mkdir(exist_ok=True)
        self._path = directory / "checkpoint.pt"

    def resume(self, default: State) -> State:
        parts = self._parts
        step = load_state_dicts(self._path, parts.model, parts.optimizer, parts.scheduler)
        return {**default, "step": step, "microbatch": step * self._run.window_microbatches}

    def at_boundary(self, state: State) -> None:
        if state["microbatch"] % self._run.window_microbatches == 0:
            parts = self._parts
            save_state_dicts(self._path, parts.model, parts.optimizer, parts.scheduler, state["step"])
