"""The smallest training whose end depends on all that a checkpoint holds."""

from __future__ import annotations

import torch
from torch import nn

from segue._record.digest import digests
from segue._session.checkpointer import Checkpointer
from segue._session.training import Training
from segue._store.protocol import Store

_WINDOW = 3


class SmallTraining:
    """A model with momentum and dropout, cut in the middle of a window."""

    def __init__(self, seed: int) -> None:
        before = torch.get_rng_state()
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1))
        torch.set_rng_state(before)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.training = Training(self.model, self.optimizer)

    def run(self, store: Store | None, *, until: int) -> None:
        """Train for some microbatches, from the newest checkpoint of a store if it has one, saving after each."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            if store is None:
                self._train(None, {"microbatch": 0}, until)
                return
            with Checkpointer(self.training, store, signals=()) as checkpointer:
                self._train(checkpointer, checkpointer.resume(default={"microbatch": 0}), until)

    def _train(self, checkpointer: Checkpointer | None, state: dict[str, int], until: int) -> None:
        while state["microbatch"] < until:
            self.model(torch.ones(2, 3)).sum().backward()
            state["microbatch"] += 1
            if state["microbatch"] % _WINDOW == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()
            if checkpointer is not None:
                checkpointer.save(state)

    def scribble(self) -> None:
        """Change everything that is live, as the next step of a training does."""
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(1)

    def digests(self) -> dict[str, str]:
        """Digest model, optimizer and pending gradients."""
        found = digests(self.training.capture())
        return {name: found[name] for name in ("model", "optimizers", "gradients")}
