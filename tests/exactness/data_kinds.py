"""Loaders of every kind that a data position takes, small enough that every cut of them is tried."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import datasets
import torch
import torchdata.nodes as tn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

datasets.disable_progress_bars()

SIZE = 17  # six batches of three, the last one short


class Numbers(Dataset[int]):
    """Samples that are their own ids."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> int:
        return int(index)


def own_part(numbers: list[int]) -> list[int]:
    """Return what falls to this worker."""
    info = get_worker_info()
    return numbers if info is None else numbers[info.id :: info.num_workers]


class Stream(IterableDataset[int]):
    """Keeps its place, and where it resumed: for ever, as in the report of B50."""

    def __init__(self, *, ends_at: str = "beginning") -> None:
        self.ends_at = ends_at
        self.position = self.resume = 0

    def __iter__(self) -> Iterator[int]:
        numbers = own_part(list(range(SIZE)))
        self.position = self.resume
        while self.position < len(numbers):
            self.position += 1
            yield numbers[self.position - 1]
        if self.ends_at == "beginning":
            self.position = 0

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.resume = state["position"]


class Drawn(IterableDataset[int]):
    """Has no state, and draws its order from the global stream of its process when it begins."""

    def __iter__(self) -> Iterator[int]:
        numbers = own_part(list(range(SIZE)))
        yield from (numbers[index] for index in torch.randperm(len(numbers)).tolist())


class Buffered(IterableDataset[int]):
    """B52: a shuffle buffer over a stream, with a generator of its own, and no state."""

    def __iter__(self) -> Iterator[int]:
        chance, buffer = random.Random(5), []
        for number in own_part(list(range(SIZE))):
            buffer.append(number)
            if len(buffer) > 4:
                yield buffer.pop(chance.randrange(len(buffer)))
        while buffer:
            yield buffer.pop(chance.randrange(len(buffer)))


class Eager(Sampler[int]):
    """A sampler of the program's, which draws its order at `iter`, and saves nothing."""

    def __len__(self) -> int:
        return SIZE

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(SIZE).tolist())


class Counting:
    """An iterable with a state, which is no loader."""

    def __init__(self) -> None:
        self.position = self.resume = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.position, self.resume = self.resume, 0
        while self.position < 6:
            self.position += 1
            yield torch.tensor([self.position])
        self.position = 0

    def __len__(self) -> int:
        return 6

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = self.resume = state["position"]


class LookAhead:
    """B53: fetches one batch more than it has handed out, as accelerate does; has no state."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self.loader)
        ahead = next(batches, None)
        while ahead is not None:
            batch, ahead = ahead, next(batches, None)
            yield batch


class Noisy(Numbers):
    """Samples with noise from the global stream of the process that loads them."""

    def __getitem__(self, index: int) -> float:
        return index + round(random.random(), 6) / 2 + round(float(torch.rand(())), 6) / 4


def streamed() -> Any:
    table = datasets.Dataset.from_dict({"id": list(range(SIZE))})
    return table.to_iterable_dataset(num_shards=4)


def _graph(sampler: Any, workers: int) -> Any:
    node = tn.SamplerWrapper(sampler)
    load = Numbers().__getitem__
    mapped = (
        tn.ParallelMapper(node, load, num_workers=workers, method="thread")
        if workers
        else tn.Mapper(node, load)
    )
    return tn.Batcher(mapped, 3, drop_last=False)


def _generator(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


Options = dict[str, Any]
# Over samples that are asked by index.
INDEXED: dict[str, Callable[[Options], Any]] = {
    "in order": lambda o: StatefulDataLoader(Numbers(), 3, **o),
    "shuffle": lambda o: StatefulDataLoader(Numbers(), 3, shuffle=True, **o),
    "drop_last": lambda o: StatefulDataLoader(Numbers(), 3, shuffle=True, drop_last=True, **o),
    "every third state": lambda o: StatefulDataLoader(Numbers(), 3, shuffle=True, snapshot_every_n_steps=3, **o),
    "generator": lambda o: StatefulDataLoader(Numbers(), 3, shuffle=True, generator=_generator(), **o),
    "weighted": lambda o: StatefulDataLoader(
        Numbers(), 3, sampler=WeightedRandomSampler([1.0 + i for i in range(SIZE)], SIZE), **o
    ),
    "subset": lambda o: StatefulDataLoader(Numbers(), 3, sampler=SubsetRandomSampler(range(SIZE)), **o),
    "random of torch": lambda o: StatefulDataLoader(
        Numbers(), 3, sampler=RandomSampler(Numbers(), replacement=True, num_samples=40), **o
    ),
    "random of torch, generator": lambda o: StatefulDataLoader(
        Numbers(), 3, sampler=RandomSampler(Numbers(), generator=_generator()), **o
    ),
    "batches of torch": lambda o: StatefulDataLoader(
        Numbers(), batch_sampler=BatchSampler(RandomSampler(Numbers(), generator=_generator()), 3, False), **o
    ),
    "distributed": lambda o: StatefulDataLoader(
        Numbers(), 3, sampler=DistributedSampler(Numbers(), 2, 0, seed=3), **o
    ),
    "stateful distributed": lambda o: StatefulDataLoader(
        Numbers(), 3, sampler=StatefulDistributedSampler(Numbers(), 2, 0, seed=3), **o
    ),
    "own sampler": lambda o: StatefulDataLoader(Numbers(), 3, sampler=Eager(), **o),
}  # fmt: skip
# Over datasets that are iterated over.
ITERATED: dict[str, Callable[[Options], Any]] = {
    "stream": lambda o: StatefulDataLoader(Stream(), 3, **o),
    "stream that ends at its end": lambda o: StatefulDataLoader(Stream(ends_at="end"), 3, **o),
    "stream, every third state": lambda o: StatefulDataLoader(Stream(), 3, snapshot_every_n_steps=3, **o),
    "buffer": lambda o: StatefulDataLoader(Buffered(), 3, **_mortal(o)),
    "drawn": lambda o: StatefulDataLoader(Drawn(), 3, **_mortal(o)),
    "datasets": lambda o: StatefulDataLoader(streamed(), 3, **o),
    "datasets, buffer": lambda o: StatefulDataLoader(streamed().shuffle(seed=3, buffer_size=5), 3, **o),
    "datasets, map": lambda o: StatefulDataLoader(streamed().map(_again), 3, **o),
}
# Without workers of a loader.
ALONE: dict[str, Callable[[Options], Any]] = {
    "datasets alone": lambda o: streamed(),
    "datasets alone, buffer": lambda o: streamed().shuffle(seed=3, buffer_size=5),
    "datasets alone, batched map": lambda o: streamed().map(_twice, batched=True, batch_size=5),
    "datasets alone, filter": lambda o: streamed().filter(_is_kept),
    "datasets alone, skip and take": lambda o: streamed().skip(2).take(11),
    "datasets alone, two": lambda o: datasets.concatenate_datasets([streamed(), streamed()]),
    "counting": lambda o: Counting(),
    "nodes, stateful distributed": lambda o: tn.Loader(
        _graph(StatefulDistributedSampler(Numbers(), 2, 0, seed=42), 0)
    ),
    "nodes, distributed": lambda o: tn.Loader(_graph(DistributedSampler(Numbers(), 2, 0, seed=42), 0)),
    "nodes in threads": lambda o: tn.Loader(
        _graph(StatefulDistributedSampler(Numbers(), 2, 0, seed=42), 2)
    ),
    "nodes, random": lambda o: tn.Loader(_graph(RandomSampler(Numbers(), generator=_generator()), 0)),
    "nodes, global random": lambda o: tn.Loader(_graph(RandomSampler(Numbers()), 0)),
    "nodes, in order": lambda o: tn.Loader(_graph(SequentialSampler(Numbers()), 0)),
    "last node": lambda o: _graph(StatefulDistributedSampler(Numbers(), 2, 0, seed=42), 0),
    "nodes, counting": lambda o: tn.Loader(tn.Batcher(tn.IterableWrapper(Counting()), 4, drop_last=False)),
    "nodes, datasets": lambda o: tn.Loader(tn.Batcher(tn.IterableWrapper(streamed()), 3, drop_last=False)),
    "nodes, several": lambda o: tn.Loader(
        tn.MultiNodeWeightedSampler(
            {"a": tn.IterableWrapper(range(8)), "b": tn.IterableWrapper(range(50, 60))}, {"a": 0.5, "b": 0.5}, seed=3
        )
    ),
}  # fmt: skip
# Run again from the beginning of the pass, which is asked for.
REPLAYED: dict[str, Callable[[Options], Any]] = {
    "replay": lambda o: StatefulDataLoader(Numbers(), 3, shuffle=True, **o),
    "replay, noise in workers": lambda o: StatefulDataLoader(Noisy(), 3, shuffle=True, **_mortal(o)),
    "replay of a plain loader": lambda o: DataLoader(Numbers(), 3, shuffle=True, **_mortal(o)),
    "replay of a look-ahead": lambda o: LookAhead(
        StatefulDataLoader(Numbers(), 3, shuffle=True, **_mortal(o))
    ),
}
KINDS = {**INDEXED, **ITERATED, **ALONE, **REPLAYED}
IN_PROCESS, NEW, LIVING = {}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}
WORKERS: dict[str, Options] = {"0": IN_PROCESS, "1": {"num_workers": 1}, "2": NEW, "2 living": LIVING}


def _mortal(options: Options) -> Options:
    return {**options, "persistent_workers": False}


def _again(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": row["id"], "twice": 2 * row["id"]}


def _twice(rows: dict[str, Any]) -> dict[str, Any]:
    return {"twice": [2 * each for each in rows["id"]]}


def _is_kept(row: dict[str, Any]) -> bool:
    return row["id"] % 3 != 0


def ids_of(batch: Any) -> list[float]:
    """Return the ids of a batch of any of these loaders."""
    if isinstance(batch, dict):
        batch = batch["id"]
    if isinstance(batch, torch.Tensor):
        return [float(each) for each in batch.reshape(-1).tolist()]
    rows = batch if isinstance(batch, list) else [batch]
    return [float(row["id"] if isinstance(row, dict) else row) for row in rows]
