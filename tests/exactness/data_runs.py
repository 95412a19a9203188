"""One process of a training over a data position: from a record, or from the beginning, to a boundary or the end."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import random
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

import segue
from tests.exactness.data_kinds import KINDS, REPLAYED, WORKERS, ids_of

torch.set_num_threads(1)

PASSES = 3


@dataclass(frozen=True)
class DataPlan:
    """What one process does."""

    kind: str
    workers: str
    folder: str
    seed: int = 0
    start: int | None = None
    """The boundary whose record is restored; `None` trains from the beginning."""
    stop: int | None = None
    """The boundary behind which this process ends."""
    keeps: bool = False
    """Whether every boundary is saved; capturing happens at every one in any case, unless `captures` says no."""
    captures: bool = True
    saves_at_once: bool = False
    """Whether the record is replaced by one that is captured right after it was restored."""


class Training:
    """The live objects of one process."""

    def __init__(self, plan: DataPlan) -> None:
        random.seed(plan.seed)
        np.random.seed(plan.seed)
        torch.manual_seed(plan.seed)
        self.plan = plan
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.loader = KINDS[plan.kind](WORKERS[plan.workers])
        self.data = segue.DataPosition(self.loader, replay=plan.kind in REPLAYED)
        self.training = segue.Training(self.model, self.optimizer, components={"data": self.data})
        self.state: dict[str, Any] = {"boundary": 0}
        self.trace: list[dict[str, Any]] = []

    def run(self) -> None:
        """Train as planned; write what was seen at every boundary."""
        if self.plan.start is None:
            self.keep()
        else:
            self.resume(self.plan.start)
        try:
            while self.data.epoch < PASSES and not self.is_done:
                for batch in self.data:
                    self.step(batch)
                    self.boundary(ids_of(batch))
                    if self.is_done:
                        break
                else:
                    self.boundary(None)
        finally:
            shut(self.loader)
        name = "all" if self.plan.start is None else f"from-{self.plan.start}"
        Path(self.plan.folder, f"{name}.json").write_text(json.dumps(self.trace))

    @property
    def is_done(self) -> bool:
        return self.plan.stop is not None and self.state["boundary"] >= self.plan.stop

    def resume(self, boundary: int) -> None:
        path = record_path(self.plan, boundary)
        record = segue.from_bytes(path.read_bytes())
        self.state = self.training.restore(record)
        again = self.training.capture(self.state)
        assert segue.diff(record, again).identical, str(segue.diff(record, again))
        if self.plan.saves_at_once:
            path.write_bytes(segue.to_bytes(again))
            self.state = self.training.restore(segue.from_bytes(path.read_bytes()))
        self.evaluate_if_due()

    def step(self, batch: Any) -> None:
        ids = torch.tensor(ids_of(batch))
        inputs = torch.stack([ids, ids.sqrt(), ids % 5, torch.rand(len(ids))], dim=1) / 20
        loss = (self.model(inputs).squeeze(1) - ids / 20).pow(2).mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.loss = loss.item().hex()

    def boundary(self, ids: list[float] | None) -> None:
        self.state["boundary"] += 1
        self.trace.append(
            {
                "boundary": self.state["boundary"],
                "pass": self.data.epoch,
                "delivered": self.data.delivered,
                "ids": ids,
                "loss": self.loss if ids is not None else None,
                "bits": self.bits(),
            }
        )
        self.keep()
        self.evaluate_if_due()

    def evaluate_if_due(self) -> None:
        """Build an iterator that shuffles and draw from all streams, between a save and the next batch."""
        if self.state["boundary"] % 3 != 1:
            return
        self.model.eval()
        with torch.no_grad():
            for batch in DataLoader(torch.arange(8.0).reshape(2, 4), shuffle=True):
                self.model(batch)
        self.model.train()
        random.random()
        np.random.rand()

    def bits(self) -> str:
        digest = hashlib.sha256()
        for tensor in (*self.model.state_dict().values(), torch.get_rng_state()):
            digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        digest.update(repr((random.getstate(), np.random.get_state()[1].tolist())).encode())
        return digest.hexdigest()

    def keep(self) -> None:
        if not self.plan.captures:
            return
        record = self.training.capture(self.state)
        if self.plan.keeps:
            record_path(self.plan, self.state["boundary"]).write_bytes(segue.to_bytes(record))


def record_path(plan: DataPlan, boundary: int) -> Path:
    return Path(plan.folder, f"record-{boundary}.tar")


def shut(loader: Any) -> None:
    """End the workers of a loader now."""
    iterator = getattr(getattr(loader, "loader", loader), "_iterator", None)
    if hasattr(iterator, "_shutdown_workers"):
        iterator._shutdown_workers()


def carry_out(plan: DataPlan) -> None:
    """Carry out a plan in this process."""
    multiprocessing.set_start_method(
        "fork", force=True
    )  # of workers; that of this process would be inherited
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", message="'set_vital' is deprecated")  # torchdata 0.11 on torch 2.13
    Training(plan).run()
