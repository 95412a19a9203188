"""What one process does with the lives of optimizers: live them whole, save at each cut, or go on from the cuts."""

from __future__ import annotations

import gc
import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import segue
from segue.errors import ConsumedGradientsWarning, SegueError
from tests.exactness import seen
from tests.exactness.lives import EVENT, LIVES, WINDOW, Life

torch.set_num_threads(1)

MICROBATCHES = 6 * WINDOW
TOTAL = 2 * MICROBATCHES
"""Before each microbatch something may happen: two acts."""
CUTS = {
    "before the first step": 2,
    "before it happens": 2 * EVENT,
    "as it has happened": 2 * EVENT + 1,
    "in the window after": 2 * EVENT + 2,
    "after the next step": 2 * (EVENT + WINDOW),
    "long after": 2 * (EVENT + 2 * WINDOW) + 2,
}
AROUND = ("before it happens", "as it has happened", "in the window after")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Case:
    """One life of one optimizer."""

    life: str
    kind: str
    dtype: str
    cuts: tuple[str, ...] = tuple(CUTS)

    @property
    def folder(self) -> str:
        """Where it keeps its records."""
        return f"{self.life} {self.kind} {self.dtype}"


def born(case: Case) -> Life:
    return LIVES[case.life](case.kind, DTYPES[case.dtype])


def act(life: Life, number: int) -> None:
    if number % 2 == 0:
        life.begin(number // 2)
    else:
        life.microbatch(number // 2)


def look(life: Life) -> dict[str, str]:
    components = {name: vars(value).get("calls") for name, value in life.components.items()}
    return seen.digests(seen.sections(life.net, life.optimizers, life.schedulers, [life.losses, components]))


def state_of(life: Life, number: int) -> dict[str, Any]:
    return {"act": number, "losses": life.losses, "rebuilt": number > 2 * EVENT}


def prepare_process() -> None:
    """Make warnings errors, and what the imports have made no place to look for schedules in: first captures do."""
    gc.freeze()
    warnings.simplefilter("error")
    warnings.simplefilter("ignore", ConsumedGradientsWarning)


def record(cases: tuple[Case, ...], root: str) -> None:
    """Live each life to its end without segue, and note everything; then up to each cut, and save there."""
    prepare_process()
    for case in cases:
        folder = Path(root, case.folder)
        torch.manual_seed(7)
        life = born(case)
        whole = {0: look(life)}
        for number in range(TOTAL):
            act(life, number)
            whole[number + 1] = look(life)
        folder.mkdir()
        (folder / "whole.json").write_text(json.dumps(whole))
        for cut in case.cuts:
            _save_at_cut(case, folder, cut)


def _save_at_cut(case: Case, folder: Path, cut: str) -> None:
    """Live up to a cut, and save there for the first time: when a run is saved must not change what is saved."""
    torch.manual_seed(7)
    life = born(case)
    training, optimizers = life.training(), life.optimizers
    for number in range(CUTS[cut]):
        act(life, number)
        if life.optimizers is not optimizers:  # they were made anew, so a training is too
            training, optimizers = life.training(), life.optimizers
    with segue.Checkpointer(training, folder / cut) as checkpointer:
        checkpointer.save(state_of(life, CUTS[cut])).wait()


def go_on(cases: tuple[Case, ...], root: str, seed: int) -> None:
    """Go on with each life from every cut, and note everything."""
    prepare_process()
    torch.manual_seed(seed)
    for case in cases:
        folder = Path(root, case.folder)
        for cut in case.cuts:
            try:
                rest = _rest(case, folder / cut)
            except SegueError as error:
                rest = {"refused": f"{type(error).__name__} {error.code}"}
            (folder / f"{cut}.json").write_text(json.dumps(rest))


def _rest(case: Case, run: Path) -> dict[Any, Any]:
    life = born(case)
    checkpointer = segue.Checkpointer(life.training(), run)
    optimizers = life.optimizers
    life.prepare(checkpointer.newest())
    if life.optimizers is not optimizers:
        checkpointer = segue.Checkpointer(life.training(), run)
    with checkpointer:
        state = checkpointer.resume(default=None)
    life.losses = state["losses"]
    rest = {state["act"]: look(life)}
    for number in range(state["act"], TOTAL):
        act(life, number)
        rest[number + 1] = look(life)
    return rest


def outcome(case: Case, root: str | Path, cut: str) -> str:
    """Return `exact`, or what differs first from the life that was not cut."""
    folder = Path(root, case.folder)
    whole = json.loads((folder / "whole.json").read_text())
    rest = json.loads((folder / f"{cut}.json").read_text())
    if "refused" in rest:
        return f"refused: {rest['refused']}"
    if list(map(int, rest)) != list(range(CUTS[cut], TOTAL + 1)):
        return "it is not seen from the cut to the end"
    for boundary, found in rest.items():
        expected = whole[boundary]
        differing = [name for name in {**expected, **found} if found.get(name) != expected.get(name)]
        if differing:
            return f"after act {boundary}: {', '.join(differing)} differ"
    return "exact"
