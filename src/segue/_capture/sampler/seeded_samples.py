"""A dataset whose augmentation depends on the seed, the epoch and the sample, and on nothing else."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Final, SupportsIndex

import torch
from torch.utils.data import Dataset

from segue._capture.sampler.kept_streams import kept_streams
from segue._capture.sampler.keys import COUNTS, SEEDS, checked
from segue._capture.sampler.seeds import per_sample_seed


class SeededSamples(Dataset[Any]):
    """Read each sample of a dataset under random streams of its own, in whatever process that happens.

    A worker's streams are lost with it, and no loader saves them; so randomness in `dataset[index]` is exact only if
    it follows from something that is known again. Here it follows from `per_sample_seed(seed, epoch, index)`: Python's,
    NumPy's and torch's global streams are seeded by it before each sample, and put back after it.

        data = segue.DataPosition(StatefulDataLoader(segue.SeededSamples(dataset, seed=0), num_workers=2))

    Args:
        dataset: A dataset that is read by an index.
        seed: From 0 to 2**64 - 1.

    Raises:
        TypeError: If the dataset has no `__getitem__`, or the seed is no whole number.
        ValueError: If the seed is out of range.

    Guarantees:
        The same bits for a sample of an epoch with any number of workers, persistent or not, forked or spawned, in any
        order, in batches of any size. Nothing that the program draws is changed.
        Not covered are generators that the dataset keeps to itself, since their numbers follow from how often they
        were asked: draw from the global streams, or seed your generator for each sample by
        `segue.per_sample_seed(seed, epoch, index)`. Nor are streams of accelerators, and threads that draw meanwhile.

    Cost:
        A tenth of a millisecond for each batch that a loader reads, and a fifth of that for each sample. A dataset with
        `__getitems__` is asked for one sample at a time: the randomness of a whole batch would depend on what else is
        in it.
    """

    def __init__(self, dataset: Any, seed: SupportsIndex = 0) -> None:
        if not _reads_one(dataset) and not hasattr(dataset, "__getitems__"):
            raise TypeError(
                f"samples are seeded by their index, and {type(dataset).__name__} is only iterated; let it keep "
                "its random state in `state_dict` and `load_state_dict`"
            )
        self.dataset: Final = dataset
        """What is read."""
        self.seed: Final = checked(seed, "seed", SEEDS)
        """The seed of all samples."""
        # In memory that workers share, forked or spawned: persistent ones live longer than an epoch.
        self._shared_epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]

    def __repr__(self) -> str:
        """Show the dataset and the seed."""
        return f"SeededSamples({self.dataset!r}, seed={self.seed})"

    @property
    def epoch(self) -> int:
        """The epoch whose randomness samples have."""
        return int(self._shared_epoch)

    def set_epoch(self, epoch: SupportsIndex) -> None:
        """Give samples the randomness of this epoch, in all workers, and tell the dataset if it has `set_epoch`.

        `DataPosition` does this at the beginning of each pass.
        """
        number = checked(epoch, "epoch", COUNTS)
        if callable(inner := getattr(self.dataset, "set_epoch", None)):
            inner(number)
        self._shared_epoch.fill_(number)

    def __len__(self) -> int:
        """Return the length of the dataset."""
        return len(self.dataset)

    def __getitem__(self, index: SupportsIndex) -> Any:
        """Return one sample; an index below zero counts from the end, and has the randomness of the one it means."""
        return self._read([index], self._one)[0]

    def __getitems__(self, indices: Sequence[SupportsIndex]) -> list[Any]:
        """Return some samples, as a loader asks for them: by the dataset's `__getitems__` if it has one."""
        asks_many = callable(getattr(self.dataset, "__getitems__", None))
        return self._read(indices, self._one_of_many if asks_many else self._one)

    def _read(self, indices: Sequence[SupportsIndex], read: Callable[[int], Any]) -> list[Any]:
        numbers = [self._number(index) for index in indices]
        epoch, samples = self.epoch, []
        with kept_streams() as seed:
            for number in numbers:
                seed(per_sample_seed(self.seed, epoch, number))
                samples.append(read(number))
        return samples

    def _one(self, number: int) -> Any:
        return self.dataset[number] if _reads_one(self.dataset) else self._one_of_many(number)

    def _one_of_many(self, number: int) -> Any:
        (sample,) = self.dataset.__getitems__([number])
        return sample

    def __deepcopy__(self, memo: dict[int, Any]) -> SeededSamples:
        """Return a copy with an epoch of its own, which its workers share."""
        twin = SeededSamples(copy.deepcopy(self.dataset, memo), self.seed)
        twin._shared_epoch.copy_(self._shared_epoch)
        return twin

    def _number(self, index: SupportsIndex) -> int:
        number = checked(index, "the index of a sample", COUNTS, -COUNTS)
        if number >= 0:
            return number
        length = len(self.dataset)
        if number < -length:
            raise IndexError(f"index {number} of {length} samples")
        return number + length


def _reads_one(dataset: Any) -> bool:
    """Tell whether a dataset has a `__getitem__`, and not only the one of torch's classes, which raises."""
    return getattr(type(dataset), "__getitem__", Dataset.__getitem__) is not Dataset.__getitem__
