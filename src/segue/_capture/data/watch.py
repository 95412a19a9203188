"""Whether draws of a source mix with draws of the training on one random stream, a global one or a shared generator.

A source without state is placed by running it again from the pass's beginning. That gives the same order only if nobody
else drew from its streams between its own draws, since nobody else does while it runs again. So each `next` is looked
at: if it moved a stream that somebody else had moved since the source last did, running it again would be wrong.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from segue._capture.data import beginning
from segue._record.tree import same


class Watch:
    """Looks at the global streams around each `next` of a pass, and at those of generators that the loader holds."""

    def __init__(self, loader: Any) -> None:
        self._generators = dict(beginning.generators(loader))
        self._after = self._now()
        self.mixed: set[str] = set()
        """The streams on which draws were mixed, by name; generators by their path."""

    def next_of(self, step: Callable[[], Any]) -> Any:
        """Return what a step returns, having looked before and after it."""
        before = self._now()
        try:
            return step()
        finally:
            after = self._now()
            for name, state in after.items():
                if not _same(state, before[name]):
                    if not _same(before[name], self._after[name]):
                        self.mixed.add(name)
                    self._after[name] = state

    def over(self, iterator: Iterator[Any]) -> Iterator[Any]:
        """Return an iterator over the same items that is looked at."""
        return _Watched(iterator, self)

    def _now(self) -> dict[str, Any]:
        own = {path: beginning.state_of(value, path) for path, value in self._generators.items()}
        return {
            **own,
            "python": random.getstate(),
            "numpy": np.random.get_state(),
            "torch": torch.get_rng_state(),
        }


class _Watched(Iterator[Any]):
    def __init__(self, iterator: Iterator[Any], watch: Watch) -> None:
        self._inner = iterator
        self._watch = watch

    def __next__(self) -> Any:
        return self._watch.next_of(lambda: next(self._inner))


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, tuple) and one and isinstance(one[0], str):
        return one[0] == other[0] and bool((one[1] == other[1]).all()) and one[2:] == other[2:]
    return same(one, other)
