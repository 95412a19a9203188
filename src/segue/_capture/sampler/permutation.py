"""A shuffled order that is computed place by place: nothing is drawn, and nothing is kept.

A Feistel network over pairs of digits: a place is split into `left * columns + right`, and twelve rounds in turn
rotate the left digit by a hash of the right one, and the right by a hash of the left. Each round can be undone, so
the whole is a permutation of all pairs. There may be more pairs than places; from one that is no place, the walk
goes on until it meets one (cycle walking), which permutes the places among themselves.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from segue._capture.sampler.keys import hashed

ALGORITHM: Final = "feistel-1"
"""Its name in records. Another order for the same seed would be another algorithm, by another name."""

_ROUNDS: Final = 12
_LEAST_SIDE: Final = 16  # rounds over fewer digits mix too little: some orders would come more often
_FEW_PAIRS: Final = 1024
Places = NDArray[np.uint64]
_Indices = NDArray[np.intp]


class Permutation:
    """All places below `length`, in an order that follows from seed and epoch.

    Args:
        length: How many places; at least 1.
        seed: Of the run.
        epoch: Of the order.
    """

    def __init__(self, length: int, seed: int, epoch: int) -> None:
        self.length = length
        rows = max(_LEAST_SIDE, math.isqrt(length - 1) + 1)
        columns = max(_LEAST_SIDE, -(-length // rows))
        # With an even side rotations are odd permutations too; else only half of all orders would ever come.
        columns += columns % 2
        self._rows, self._columns = np.uint64(rows), np.uint64(columns)
        self._keys = [
            np.uint64(hashed(b"segue.order", length, seed, epoch, number)) for number in range(_ROUNDS)
        ]
        # Few places may lie among many pairs, and the walk be long: look each step up.
        pairs = rows * columns
        self._steps = self._through(np.arange(pairs, dtype=np.uint64)) if pairs <= _FEW_PAIRS else None

    def at(self, places: Places) -> Places:
        """Return what stands at these places of the order."""
        found = self._step(places)
        outside: _Indices = np.flatnonzero(found >= self.length)
        while outside.size:
            found[outside] = self._step(found[outside])
            outside = outside[found[outside] >= self.length]
        return found

    def _step(self, pairs: Places) -> Places:
        return self._through(pairs) if self._steps is None else self._steps[pairs]

    def _through(self, places: Places) -> Places:
        left, right = np.divmod(places, self._columns)
        for number, key in enumerate(self._keys):
            if number % 2 == 0:
                left = _rotated(left, _mixed(right ^ key), self._rows)
            else:
                right = _rotated(right, _mixed(left ^ key), self._columns)
        return left * self._columns + right


def _rotated(digits: Places, hashes: Places, base: np.uint64) -> Places:
    """Add a number below `base`, taken from the upper half of each hash, modulo `base`."""
    moved = digits + (((hashes >> _HALF) * base) >> _HALF)
    moved[moved >= base] -= base
    return moved


def _mixed(values: Places) -> Places:
    """Return splitmix64's finalizer of each value: every bit of it depends on every bit of the value."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


_HALF = np.uint64(32)
