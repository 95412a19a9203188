"""What one process does with such a program: run it whole and save at each cut, or go on from the cuts."""

from __future__ import annotations

import gc
import json
import warnings
from pathlib import Path
from typing import Any

import torch

import segue
from segue.errors import SegueError
from tests.exactness import seen
from tests.exactness.module_programs import PROGRAMS, STEPS, Program

torch.set_num_threads(1)


def look(program: Program) -> dict[str, str]:
    """Digest everything by section, as read without segue."""
    found: dict[str, str] = {}
    for name, module in program.modules().items():
        optimizers = {"optimizer": program.optimizer} if name == "net" else {}
        schedulers = program.schedulers if name == "net" else {}
        modes = [(path, child.training) for path, child in module.named_modules()]
        buffers = [path for path, _ in module.named_buffers()]
        parts = seen.sections(
            module, optimizers, schedulers, [program.losses, program.told(), modes, buffers]
        )
        found |= {f"{name} {part}": digest for part, digest in seen.digests(parts).items()}
    return found


def cuts_of(name: str) -> range:
    """Return the microbatches after which a program is cut: a lazily built one after its first forward."""
    return range(1 if "Lazy" in name or "Lazily" in name else 0, STEPS + 1)


def prepare_process() -> None:
    gc.freeze()
    warnings.simplefilter("error")


def record(names: tuple[str, ...], root: str) -> None:
    """Run each program to its end without saving; then once more, saving at each cut."""
    prepare_process()
    for name in names:
        for saves in (False, True):
            torch.manual_seed(7)
            program = PROGRAMS[name]()
            whole: dict[int, Any] = {}
            for number in range(STEPS + 1):
                if number in cuts_of(name):
                    whole[number] = look(program)
                    if saves:
                        state = {"number": number, "losses": program.losses}
                        segue.save(program.training.capture(state), Path(root, f"{name}-{number}"))
                if number < STEPS:
                    program.step(number)
            Path(root, f"{name}-{'saved' if saves else 'whole'}.json").write_text(json.dumps(whole))


def go_on(names: tuple[str, ...], root: str, seed: int) -> None:
    """Go on with each program from every cut, and note everything."""
    prepare_process()
    torch.manual_seed(seed)
    for name in names:
        for cut in cuts_of(name):
            try:
                rest = _rest(name, Path(root, f"{name}-{cut}"))
            except SegueError as error:
                rest = {"refused": f"{type(error).__name__} {error.code}"}
            Path(root, f"{name}-{cut}.json").write_text(json.dumps(rest))


def _rest(name: str, place: Path) -> dict[Any, Any]:
    program = PROGRAMS[name]()
    state = program.training.restore(segue.load(place))
    program.losses = state["losses"]
    rest = {state["number"]: look(program)}
    for number in range(state["number"], STEPS):
        program.step(number)
        rest[number + 1] = look(program)
    return rest


def outcome(name: str, root: str | Path, cut: int) -> str:
    """Return `exact`, or what differs first from the run that was never cut nor saved."""
    whole = json.loads(Path(root, f"{name}-whole.json").read_text())
    if whole != json.loads(Path(root, f"{name}-saved.json").read_text()):
        return "saving has changed the run"
    rest = json.loads(Path(root, f"{name}-{cut}.json").read_text())
    if "refused" in rest:
        return f"refused: {rest['refused']}"
    if list(map(int, rest)) != list(range(cut, STEPS + 1)):
        return "it is not seen from the cut to the end"
    for boundary, found in rest.items():
        differing = [
            part for part in {**whole[boundary], **found} if found.get(part) != whole[boundary].get(part)
        ]
        if differing:
            return f"after {boundary}: {', '.join(differing)} differ"
    return "exact"
