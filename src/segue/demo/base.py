"""The base under the adapter: a decoder that has learnt a little, in one file, as people get theirs.

Made once by a process of its own, `python -m segue.demo.base SETTINGS`, a JSON file as `RunSettings` writes it.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional
from torch.optim import AdamW

from segue.demo.model import Decoder
from segue.demo.settings import RunSettings
from segue.demo.text import PADDING, Corpus, read_text

BASE = "base.safetensors"
NUM_STEPS = 30
# The base must not have seen the microbatches that the adapter learns from.
_SEED_OFFSET = 500_000


def pretrain(run: RunSettings) -> Decoder:
    """Train all of a decoder on the text inside CPython for some steps; the same for a seed, in any process."""
    seed = run.seed + _SEED_OFFSET
    torch.manual_seed(seed)
    corpus = Corpus.of(read_text(None), context=run.model.context, num_sequences=run.num_sequences, seed=seed)
    model = Decoder(run.model)
    optimizer = AdamW(model.parameters(), lr=2e-3)
    for index in range(NUM_STEPS):
        batch = corpus.microbatch(index)
        logits = model(batch.tokens).flatten(0, 1)
        loss = functional.cross_entropy(logits, batch.targets.flatten(), ignore_index=PADDING)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    return model


def write_base(model: Decoder, path: Path) -> None:
    """Write the parameters to a file, each once: the output projection is the embedding."""
    save_file({name: parameter.detach() for name, parameter in model.named_parameters()}, path)


def read_base(model: Decoder, path: Path) -> None:
    """Give the model the values that `write_base` wrote."""
    values = load_file(path)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(values[name])


def write_neighbour(base: Path, path: Path, seed: int) -> str:
    """Write a base that differs in a single bit, anywhere, and tell which."""
    chance, values = random.Random(seed), load_file(base)
    name = chance.choice(sorted(values))
    data = values[name].view(-1).view(torch.uint8)
    byte, bit = chance.randrange(data.numel()), chance.randrange(8)
    data[byte] ^= 1 << bit
    save_file(values, path)
    return f"bit {bit} of byte {byte:,} of {name}"


def main(settings: Path) -> None:
    """Make the base that the settings name."""
    torch.set_num_threads(1)
    run = RunSettings.read(settings)
    if run.adapter is None:
        raise ValueError("without an adapter there is no base")
    write_base(pretrain(run), Path(run.adapter.base))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
