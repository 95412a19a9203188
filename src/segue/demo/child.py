"""One process of a run: `python -m segue.demo.child SETTINGS`, a JSON file as `ProcessSettings` writes it."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import segue
from segue._record.digest import digests
from segue.demo.holding import KillPlace
from segue.demo.journal import Journal
from segue.demo.keepers import open_keeper
from segue.demo.loop import build, train
from segue.demo.settings import ProcessSettings
from segue.demo.text import Corpus, read_text

JOURNAL = "journal.jsonl"
FINAL = "final"
CHECKPOINTS = "checkpoints"


def run_process(settings: ProcessSettings) -> None:
    """Train until the end or the kill, and leave the final training beside the run's own checkpoints."""
    torch.set_num_threads(1)
    run, directory = settings.run, Path(settings.directory)
    text = read_text(Path(run.text) if run.text else None)
    corpus = Corpus.of(text, context=run.model.context, num_sequences=run.num_sequences, seed=run.seed)
    journal = Journal(directory / JOURNAL)
    parts = build(run)
    place = KillPlace(journal, settings.role, settings.kill)
    with open_keeper(settings.role, parts, run, directory / CHECKPOINTS) as keeper:
        state = train(
            parts, run, corpus, keeper, place, lambda state: journal.write("begin", done=state["microbatch"])
        )
    record = parts.training.capture(state, step=state["step"], microbatch=state["microbatch"])
    segue.save(record, directory / FINAL)
    journal.write("end", digests=digests(record))
    journal.close()


if __name__ == "__main__":
    run_process(ProcessSettings.read(Path(sys.argv[1])))
