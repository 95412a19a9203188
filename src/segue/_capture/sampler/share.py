"""Which places of a global order one rank takes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from segue._capture.sampler.permutation import Places


@dataclass(frozen=True)
class Share:
    """One rank's part of each global batch: a block of `batch_size` places, after those of lower ranks.

    Of the last, incomplete global batch each rank has an equal part, lower ranks one place more where it doesn't
    divide; or none has one, with `drop_last`.
    """

    rank: int
    world_size: int
    batch_size: int
    drop_last: bool

    @property
    def global_batch_size(self) -> int:
        """How many places all ranks take together at a time."""
        return self.world_size * self.batch_size

    def end(self, start: int, length: int) -> int:
        """Return where the last global batch ends that anyone gets, of those that begin at `start`."""
        return start + self._whole(start, length) * self.global_batch_size if self.drop_last else length

    def count(self, start: int, length: int) -> int:
        """Return how many places are this rank's, from `start` on."""
        tail = self._tail(start, length)
        more = tail // self.world_size + (self.rank < tail % self.world_size)
        return self._whole(start, length) * self.batch_size + more

    def places(self, start: int, length: int, first: int, stop: int) -> Places:
        """Return this rank's places from number `first` to `stop`, where its first at or behind `start` is number 0."""
        whole, tail = self._whole(start, length), self._tail(start, length)
        numbers = np.arange(first, stop, dtype=np.uint64)
        batches, within = np.divmod(numbers, np.uint64(self.batch_size))
        places = batches * np.uint64(self.global_batch_size) + within
        places += np.uint64(start + self.rank * self.batch_size)
        last = whole * self.batch_size  # from this number on they are in the tail
        if stop > last:
            lower = self.rank * (tail // self.world_size) + min(self.rank, tail % self.world_size)
            begin = max(first, last)
            offset = start + whole * self.global_batch_size + lower + begin - last
            places[begin - first :] = np.arange(offset, offset + stop - begin, dtype=np.uint64)
        return places

    def _whole(self, start: int, length: int) -> int:
        return (length - start) // self.global_batch_size

    def _tail(self, start: int, length: int) -> int:
        return 0 if self.drop_last else (length - start) % self.global_batch_size
