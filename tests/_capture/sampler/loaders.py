"""Plain loaders of every form that a data position takes, and runs over them that are cut at every boundary."""

from __future__ import annotations

import itertools
import random

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, Sampler, SequentialSampler

import segue

LENGTH = 23


READ: list[int] = []
"""Which samples were read in this process; not an attribute, which would be state."""


class Counted(Dataset):
    """Notes which samples were read."""

    def __init__(self, length=LENGTH):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        READ.append(index)
        return index


class Shuffled(Sampler):
    """Keeps a generator, which it draws from for each pass, and a count; says both."""

    def __init__(self, length=LENGTH, seed=5):
        self.length = length
        self.generator = random.Random(seed)
        self.given = 0

    def __len__(self):
        return self.length

    def __iter__(self):
        order = list(range(self.length))
        self.generator.shuffle(order)
        for index in order:
            self.given += 1
            yield index

    def state_dict(self):
        return {"generator": list(self.generator.getstate()), "given": self.given}

    def load_state_dict(self, state):
        self.generator.setstate(tuple(state["generator"]))
        self.given = state["given"]


class FromTheGlobalStream(Sampler):
    """Draws each pass from torch's global stream; what it says is only how many passes began."""

    def __init__(self):
        self.passes = 0

    def __len__(self):
        return LENGTH

    def __iter__(self):
        self.passes += 1
        yield from torch.randperm(LENGTH).tolist()

    def state_dict(self):
        return {"passes": self.passes}

    def load_state_dict(self, state):
        self.passes = state["passes"]


class Buckets(Shuffled):
    """A batch sampler of its own, with batches of different lengths, which counts what it gave as it gives it."""

    def __len__(self):
        return 8

    def __iter__(self):
        order = list(range(self.length))
        self.generator.shuffle(order)
        cuts = [0, 4, 5, 9, 12, 13, 17, 20, 23]
        for first, stop in itertools.pairwise(cuts):
            self.given += stop - first
            yield order[first:stop]


def _exact(**options):
    return segue.ExactSampler(LENGTH, seed=2, rank=0, world_size=1, **options)


FORMS = {
    "exact": lambda ds, **w: DataLoader(ds, batch_size=4, sampler=_exact(), **w),
    "exact_drop_last": lambda ds, **w: DataLoader(ds, batch_size=4, drop_last=True, sampler=_exact(), **w),
    "exact_sampler_drops": lambda ds, **w: DataLoader(
        ds, batch_size=4, sampler=_exact(batch_size=4, drop_last=True), **w
    ),
    "exact_batch_sampler": lambda ds, **w: DataLoader(
        ds, batch_sampler=BatchSampler(_exact(), 4, False), **w
    ),
    "exact_batches_as_samples": lambda ds, **w: DataLoader(
        Lists(ds), sampler=BatchSampler(_exact(), 4, False), batch_size=None, **w
    ),
    "exact_samples": lambda ds, **w: DataLoader(ds, sampler=_exact(), batch_size=None, **w),
    "exact_in_order": lambda ds, **w: DataLoader(ds, batch_size=4, sampler=_exact(shuffle=False), **w),
    "sequential": lambda ds, **w: DataLoader(ds, batch_size=4, **w),
    "sequential_batch_sampler": lambda ds, **w: DataLoader(
        ds, batch_sampler=BatchSampler(SequentialSampler(ds), 4, True), **w
    ),
    "sequential_samples": lambda ds, **w: DataLoader(ds, batch_size=None, **w),
    "distributed": lambda ds, **w: DataLoader(
        ds, batch_size=2, sampler=DistributedSampler(ds, num_replicas=2, rank=1, seed=3), **w
    ),
    "stateful": lambda ds, **w: DataLoader(ds, batch_size=4, sampler=Shuffled(), **w),
    "stateful_global": lambda ds, **w: DataLoader(ds, batch_size=4, sampler=FromTheGlobalStream(), **w),
    "stateful_batches": lambda ds, **w: DataLoader(ds, batch_sampler=Buckets(), **w),
    "own_generator": lambda ds, **w: DataLoader(
        ds, batch_size=4, sampler=_exact(), generator=torch.Generator().manual_seed(3), **w
    ),
}
WORKERS = {
    "two_workers": {"num_workers": 2},
    "living_workers": {"num_workers": 2, "persistent_workers": True},
}


class Lists(Dataset):
    """Reads a batch for a list of indices."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, indices):
        return torch.tensor([self.dataset[index] for index in indices])


class Run:
    """A program that reads batches, draws, and saves after each of them and after each pass."""

    def __init__(self, build, record=None, **workers):
        torch.manual_seed(99 if record else 7)
        self.dataset = Counted()
        self.loader = build(self.dataset, **workers)
        self.data = segue.DataPosition(self.loader)
        model = nn.Linear(1, 1)
        self.training = segue.Training(
            model, torch.optim.SGD(model.parameters(), lr=0.1), components={"data": self.data}
        )
        self.seen = self.training.restore(record)["seen"] if record else []
        self.records = []

    def save(self):
        self.records.append(self.training.capture({"seen": list(self.seen)}))

    def go(self, total, saves=False):
        """Read until `total` batches were read; return all that was seen, and where the streams stand then."""
        while len(self.seen) < total:
            for batch in self.data:
                drawn = torch.rand(1).item().hex()
                self.seen.append([self.data.epoch, torch.as_tensor(batch).flatten().tolist(), drawn])
                if saves:
                    self.save()
                if len(self.seen) >= total:
                    break
            else:
                if saves:
                    self.save()
        return self.seen, torch.get_rng_state().tolist()
