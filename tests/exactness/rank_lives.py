"""Lives of single ranks over one order of samples, each in a process of its own, from records that any rank has saved."""

from __future__ import annotations

import json
import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchdata.stateful_dataloader import StatefulDataLoader

import segue

LENGTH = 53
GLOBAL_BATCH_SIZE = 12
STEPS_OF_EPOCH = 5


class Noisy(Dataset):
    """Augments each sample by draws from all global streams."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> torch.Tensor:
        drawn = [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn()]
        noise = torch.cat([torch.rand(1, dtype=torch.float64), torch.randn(1, dtype=torch.float64)])
        return torch.cat([torch.tensor([index, *drawn], dtype=torch.float64), noise])


@dataclass(frozen=True)
class Life:
    """Which rank of how many, how it reads, and from which step to which; step 0 is the beginning."""

    folder: str
    rank: int = 0
    world_size: int = 1
    start: int = 0
    stop: int = 2 * STEPS_OF_EPOCH
    came_from: str = ""
    """The name of the lives whose record is the start."""
    stateful: bool = False
    workers: int = 0
    persistent: bool = False

    @property
    def name(self) -> str:
        return f"{self.world_size}x-from-{self.start}-{self.workers}-{self.persistent}-{self.stateful}"

    @property
    def diary(self) -> Path:
        return Path(self.folder, f"{self.name}-rank-{self.rank}.json")

    def record(self, step: int) -> Path:
        return Path(self.folder, f"{self.name}-step-{step}")


def live(life: Life) -> None:
    """Go on from a record, or begin; write down each step, and save every step that falls to this rank."""
    torch.set_num_threads(1)
    torch.manual_seed(life.start + 100 * life.rank)
    os.environ.update(RANK=str(life.rank), WORLD_SIZE=str(life.world_size))
    model = nn.Linear(1, 1)
    data = segue.DataPosition(_loader(life))
    training = segue.Training(
        model, torch.optim.SGD(model.parameters(), lr=0.1), components={"data": data}, rng=None
    )
    step = 0
    if life.start:
        # The weights are nobody's here: only what the data position says is shared between ranks.
        step = training.restore(segue.load(Path(life.folder, f"{life.came_from}-step-{life.start}")))
    pages = []
    while step < life.stop:
        for batch in data:
            step += 1
            pages.append(_page(batch, data))
            if step % life.world_size == life.rank:
                segue.save(training.capture(step), life.record(step))
            if step == life.stop:
                break
    life.diary.write_text(json.dumps(pages))


def _loader(life: Life) -> Any:
    batch_size = GLOBAL_BATCH_SIZE // life.world_size
    dataset = segue.SeededSamples(Noisy(), seed=4)
    kind = StatefulDataLoader if life.stateful else DataLoader
    sampler = None if life.stateful else segue.ExactSampler(dataset, batch_size=batch_size, seed=3)
    return kind(
        dataset, batch_size, sampler=sampler, num_workers=life.workers, persistent_workers=life.persistent
    )


def _page(batch: torch.Tensor, data: segue.DataPosition) -> dict[str, Any]:
    """Write down the samples, their bits, and what the position says of itself."""
    state = data.capture()
    return {
        "samples": [int(sample[0]) for sample in batch],
        "bits": batch.view(torch.int64).tolist(),
        "position": None if isinstance(data.loader, StatefulDataLoader) else repr(state),
    }
