"""A sampler whose position is that of the whole run, not of one rank."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sized
from typing import Any, Final, SupportsIndex

import numpy as np
from torch.utils.data import Sampler

from segue._capture.sampler.keys import COUNTS, SEEDS, checked
from segue._capture.sampler.permutation import ALGORITHM, Permutation
from segue._capture.sampler.share import Share
from segue.errors import ABSENT, ComponentMismatch

_CHUNK: Final = 4096  # places that are computed at a time: a millisecond
_IN_ORDER: Final = "in order"


class ExactSampler(Sampler[int]):
    """Hand out the samples of each epoch in an order that any number of ranks can go on with, anywhere in it.

    The order belongs to the run: it follows from `seed`, `epoch` and the number of samples alone. Global batch `k` is
    the next `world_size * batch_size` samples of it, and each rank takes its block of `batch_size`. What is kept is
    how many samples all ranks together were given, so that another number of ranks goes on behind them.

        sampler = segue.ExactSampler(dataset, batch_size=32, seed=0)
        data = segue.DataPosition(DataLoader(dataset, batch_size=32, sampler=sampler))

    Args:
        dataset: The dataset, or anything else with a length; or that length.
        batch_size: Of one rank, as told to the loader. One rank alone may leave it out.
        seed: Of the order, from 0 to 2**64 - 1.
        shuffle: Whether to shuffle each epoch anew; else samples come as they are numbered.
        drop_last: Whether to leave out the incomplete global batch at the end of an epoch. Without it each rank has an
            equal part of that batch, lower ranks one sample more where it doesn't divide: no sample comes twice and
            none is left out, so a rank may have one batch less than the others if there are fewer samples than ranks.
        rank: Which part to take, from 0; by default the variable `RANK` (as set by `torchrun`), or 0 without it.
        world_size: How many ranks there are; by default the variable `WORLD_SIZE`, or 1 without it.

    Raises:
        TypeError: If something is of the wrong kind, only one of `rank` and `world_size` is known, or `batch_size` is
            missing where it matters: among several ranks, and with `drop_last`.
        ValueError: If a number is out of range.

    Guarantees:
        The order for a seed is the same for ever, on every machine and with every version of torch. Nothing is drawn
        from any random stream.

    Cost:
        Under a microsecond for each sample, when it is handed out; nothing at the start of an epoch or at a resume,
        and no memory that grows with the dataset.
    """

    def __init__(
        self,
        dataset: Sized | SupportsIndex,
        *,
        batch_size: SupportsIndex | None = None,
        seed: SupportsIndex = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        rank: SupportsIndex | None = None,
        world_size: SupportsIndex | None = None,
    ) -> None:
        self._length = _length_of(dataset)
        self._seed = checked(seed, "seed", SEEDS)
        self._shuffle = bool(shuffle)
        rank, world_size = _topology(rank, world_size)
        self._batch_size = None if batch_size is None else checked(batch_size, "batch_size", COUNTS, 1)
        if self._batch_size is None and (world_size > 1 or drop_last):
            raise TypeError(
                "among several ranks, and with drop_last, the sampler must know the batch size of a rank: "
                "ExactSampler(dataset, batch_size=...)"
            )
        self._share = Share(rank, world_size, self._batch_size or 1, bool(drop_last))
        self._epoch = 0
        self._start = 0  # where the global batches of this pass begin: where the sampler was placed
        self._committed = 0

    def __repr__(self) -> str:
        """Show what decides the order, and which part is taken."""
        share = self._share
        return (
            f"ExactSampler({self._length}, batch_size={self._batch_size}, seed={self._seed}, shuffle={self._shuffle}, "
            f"drop_last={share.drop_last}, rank={share.rank}, world_size={share.world_size})"
        )

    @property
    def length(self) -> int:
        """How many samples an epoch has, over all ranks, those of an incomplete batch included."""
        return self._length

    @property
    def seed(self) -> int:
        """The seed of the order."""
        return self._seed

    @property
    def shuffle(self) -> bool:
        """Whether each epoch is shuffled anew."""
        return self._shuffle

    @property
    def drop_last(self) -> bool:
        """Whether the incomplete global batch at the end of an epoch is left out."""
        return self._share.drop_last

    @property
    def batch_size(self) -> int | None:
        """The batch size of one rank; `None` if one rank alone didn't say."""
        return self._batch_size

    @property
    def rank(self) -> int:
        """Which part of the order this sampler hands out."""
        return self._share.rank

    @property
    def world_size(self) -> int:
        """How many parts there are."""
        return self._share.world_size

    @property
    def epoch(self) -> int:
        """The epoch whose order this is."""
        return self._epoch

    @property
    def committed(self) -> int:
        """How many samples of this epoch all ranks together were given."""
        return self._committed

    @property
    def order(self) -> str:
        """The name of the algorithm that makes the order."""
        return ALGORITHM if self._shuffle else _IN_ORDER

    def __len__(self) -> int:
        """Return how many samples this rank has in a whole epoch."""
        return self._share.count(0, self._length)

    def __iter__(self) -> Iterator[int]:
        """Return this rank's samples, from behind those that were committed to the end of the epoch.

        What was handed out isn't committed by that: a loader's workers fetch ahead.
        """
        return self._samples(self._epoch, self._committed)

    def _samples(self, epoch: int, start: int) -> Iterator[int]:
        for first in range(0, count := self._share.count(start, self._length), _CHUNK):
            places = self._share.places(start, self._length, first, min(first + _CHUNK, count))
            yield from self._ids(epoch, places).tolist()

    def _ids(self, epoch: int, places: Any) -> Any:
        return Permutation(self._length, self._seed, epoch).at(places) if self._shuffle else places

    def global_order(self, first: int = 0, stop: int | None = None) -> list[int]:
        """Return part of this epoch's order, over all ranks.

        Args:
            first: The first place.
            stop: The place behind the last; by default the end of the epoch.
        """
        begin, end, _ = slice(first, stop).indices(self._length)
        ids: list[int] = self._ids(self._epoch, np.arange(begin, max(begin, end), dtype=np.uint64)).tolist()
        return ids

    def set_epoch(self, epoch: SupportsIndex) -> None:
        """Go to the beginning of another epoch; that of the current one changes nothing.

        `DataPosition` does this at the beginning of each pass.
        """
        if (number := checked(epoch, "epoch", COUNTS)) != self._epoch:
            self.place(number)

    def place(self, epoch: SupportsIndex, committed: SupportsIndex = 0) -> None:
        """Go to a place: the next iterator begins behind `committed` samples of `epoch`.

        Raises:
            TypeError: If one of them is no whole number.
            ValueError: If one is out of range.
        """
        number = checked(epoch, "epoch", COUNTS)
        self._start = self._committed = checked(committed, "committed", self._length + 1)
        self._epoch = number

    def commit(self, samples: SupportsIndex) -> None:
        """Tell that all ranks together were given so many more samples; `DataPosition` does it for each batch.

        A loop of your own commits `world_size * batch_size` for each batch that it was handed; of the last one, what
        is left.

        Raises:
            TypeError: If it is no whole number.
            ValueError: If the epoch has fewer left.
        """
        left = self._share.end(self._start, self._length) - self._committed
        self._committed += checked(samples, "samples", left + 1)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the run: the same on every rank, whatever its part."""
        return {**self._identity(), "epoch": self._epoch, "committed": self._committed}

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Go on behind the samples that were committed; also among another number of ranks.

        Raises:
            ComponentMismatch: If the state is that of another order, or no state; nothing is changed then.
        """
        for name, own in self._identity().items():
            found = state.get(name, ABSENT) if isinstance(state, Mapping) else ABSENT
            if type(found) is not type(own) or found != own:
                raise ComponentMismatch(
                    f"the sampler's state has another {name}", code=f"sampler.{name}", where="sampler",
                    expected=found, found=own, hint="a position has a meaning in its own order only",
                )  # fmt: skip
        try:
            self.place(state["epoch"], state["committed"])
        except (KeyError, TypeError, ValueError) as error:
            raise ComponentMismatch(
                f"the sampler's state has no position: {error}", code="sampler.position", where="sampler"
            ) from error

    def _identity(self) -> dict[str, Any]:
        return {
            "order": self.order,
            "length": self._length,
            "seed": self._seed if self._shuffle else None,
        }


def _length_of(dataset: Sized | SupportsIndex) -> int:
    if isinstance(dataset, Sized):
        return checked(len(dataset), "the length of the dataset", COUNTS)
    if not hasattr(dataset, "__index__"):
        raise TypeError(
            f"the order needs the number of samples, and {type(dataset).__name__} has no length; for a dataset that "
            "is only iterated, hand its StatefulDataLoader to segue.DataPosition"
        )
    return checked(dataset, "the number of samples", COUNTS)


def _topology(rank: SupportsIndex | None, world_size: SupportsIndex | None) -> tuple[int, int]:
    if rank is None and world_size is None:
        rank, world_size = _variable("RANK"), _variable("WORLD_SIZE")
        if rank is None and world_size is None:
            return 0, 1
    if rank is None or world_size is None:
        missing = "rank" if rank is None else "world_size"
        raise TypeError(f"rank and world_size go together, and {missing} is missing")
    ranks = checked(world_size, "world_size", COUNTS, 1)
    return checked(rank, "rank", ranks), ranks


def _variable(name: str) -> int | None:
    text = os.environ.get(name)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise ValueError(
            f"the environment variable {name} is {text!r}; tell the sampler its rank and world_size"
        ) from None
