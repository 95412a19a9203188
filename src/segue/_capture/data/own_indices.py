"""A copy of a plain `DataLoader` that gets its indices from us, one pass at a time."""

from __future__ import annotations

import copy
import hashlib
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import DataLoader


class Indices:
    """Stands where the loader had its sampler; hands out the pass that was prepared last."""

    def __init__(self, batches: Any) -> None:
        self._batches = batches
        self.current: Iterator[Any] = iter(())

    def __iter__(self) -> Iterator[Any]:
        return self.current  # a loader with workers asks twice (torch 2.13), and gets the same

    def __len__(self) -> int:
        return len(self._batches)


class OwnIndices:
    """A loader of the same dataset with the same settings, whose passes begin where they are told to.

    The loader that it is a copy of is left alone: it may be iterated over for something else.

    Args:
        loader: The loader.
        batches: What its indices come from.
    """

    def __init__(self, loader: DataLoader[Any], batches: Any) -> None:
        self._indices = Indices(batches)
        self._original = loader
        self._loader = copy.copy(loader)
        # Set as `DataLoader.__init__` does: afterwards it allows no other sampler.
        place = "sampler" if loader.batch_sampler is None else "batch_sampler"
        vars(self._loader).update({place: self._indices, "_iterator": None})

    @property
    def has_living_workers(self) -> bool:
        """Whether workers wait for the next pass, which then draws no seed for new ones."""
        return self._loader._iterator is not None

    def begin(self, indices: Iterator[Any], *, draws_seed: bool = True) -> Iterator[Any]:
        """Begin a pass over these indices; draws the seed of new workers.

        Args:
            indices: What a sampler would hand out.
            draws_seed: Whether to draw it from where the loader does; else it comes from nowhere.
        """
        self._indices.current = indices
        self._loader.collate_fn = (
            self._original.collate_fn
        )  # one that looks at workers, while a position begins a pass
        if draws_seed:
            return iter(self._loader)
        with self._without_seed():
            return iter(self._loader)

    def set_workers(self, *, living: bool) -> None:
        """Let workers wait for the next pass, or none. Loads nothing, and draws nothing.

        Means something for persistent workers only.
        """
        if not living:
            self._loader._iterator = None
        elif self._loader.persistent_workers and self._loader._iterator is None:
            self.begin(iter(()), draws_seed=False)

    @contextmanager
    def _without_seed(self) -> Iterator[None]:
        own = self._loader.generator
        self._loader.generator = torch.Generator()
        try:
            yield
        finally:
            self._loader.generator = own


class Delivered(Iterator[Any]):
    """The batches of a pass; tells when one is handed out."""

    def __init__(self, iterator: Iterator[Any], told: Callable[[], None]) -> None:
        self._iterator = iterator
        self._told = told

    def __next__(self) -> Any:
        batch = next(self._iterator)
        self._told()
        return batch


class Drawn(Iterator[Any]):
    """The indices of a pass behind those that were delivered, and a digest of these: a loader fetches ahead.

    Args:
        draw: Begins a pass of a sampler.
        delivered: How many to skip. If there are fewer, the digest is not that of so many.
    """

    def __init__(self, draw: Callable[[], Iterator[Any]], delivered: int) -> None:
        self._draw = draw
        self._skipped = delivered
        self._iterator: Iterator[Any] | None = None
        self._hashed = hashlib.blake2b(digest_size=16)
        self._ahead: deque[str] = deque()
        self.digest = self._hashed.hexdigest()
        """Of all that was delivered."""

    def start(self) -> Iterator[Any]:
        """Let the sampler begin now, if it hasn't, and skip."""
        if self._iterator is None:
            self._iterator = self._draw()
            for indices in itertools.islice(self._iterator, self._skipped):
                self._note(indices)
                self.deliver()
        return self._iterator

    def deliver(self) -> None:
        """Take notice that one more was handed out."""
        self.digest = self._ahead.popleft()

    def __next__(self) -> Any:
        indices = next(self.start())
        self._note(indices)
        return indices

    def _note(self, indices: Any) -> None:
        self._hashed.update(f"{indices!r};".encode())
        self._ahead.append(self._hashed.hexdigest())
