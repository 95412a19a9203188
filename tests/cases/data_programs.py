"""A training over a data position, saved after some batches and continued in another one, as two processes would."""

import random

import torch
from torch import nn
from torch.optim import SGD

import segue
from tests.exactness.data_kinds import ids_of


class Program:
    """One process: a loader, a model that draws dropout, and the ids of every batch, by pass."""

    def __init__(self, make, seed=0, *, replay=False):
        torch.manual_seed(seed)
        random.seed(seed)
        self.model = nn.Sequential(nn.Linear(1, 4), nn.Dropout(), nn.Linear(4, 1))
        self.optimizer = SGD(self.model.parameters(), lr=0.01)
        self.data = segue.DataPosition(make(), replay=replay)
        # That is all what a program does: the position alone says where to go on.
        self.training = segue.Training(self.model, self.optimizer, components={"data": self.data})
        self.passes = {}
        self.losses = []

    def run(self, passes, stop=None):
        """Train to the end of so many passes; return a record after `stop` batches, in the body of the last of them."""
        done = 0
        while self.data.epoch < passes:
            own = self.passes.setdefault(self.data.epoch, [])
            for batch in self.data:
                own.append(ids_of(batch))
                loss = self.model(torch.tensor(own[-1])[:, None] / 20).pow(2).mean()
                loss.backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.losses.append(loss.item().hex())
                done += 1
                if done == stop:
                    return self.training.capture()
        return self.training.capture() if stop is None else None


def continued(make, stop, passes=3, seed=99, **options):
    """Return what an uninterrupted program saw, what one saw until it stopped, and what one saw that went on, by pass."""
    whole = Program(make, **options)
    whole.run(passes)
    first = Program(make, **options)
    record = first.run(passes, stop)
    second = Program(make, seed, **options)
    second.training.restore(record)
    second.run(passes)
    assert first.losses + second.losses == whole.losses
    return whole.passes, first.passes, second.passes


def lengths(passes):
    return [len(own) for own in passes.values()]
