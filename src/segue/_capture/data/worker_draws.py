"""Whether workers of a loader draw at random: their streams end with their process, and nobody restores them.

Wish: a random augmentation in workers, whose draws are others after a resume, is told and not silently trained on.
torchdata doesn't save the streams of workers (0.11), and which numbers a sample gets depends on who fetches it.

A collate function sees each batch in its worker, behind all samples of it. So it is handed to new workers inside of one
that compares the streams with what they were behind the batch before, and sets marks in memory that the training shares.
It draws nothing and changes no batch. What it still loses: what is drawn from Python's or NumPy's stream before the first
batch of a worker that has a `worker_init_fn`. Generators that the dataset holds are looked at too: a worker draws from its own
copy, so that what the training captures of them never moves.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data import get_worker_info

from segue._capture.generators import GeneratorKind, is_global, kind_of_generator
from segue._capture.reached import reached
from segue._record.tree import same

_STREAMS: Final = ("python", "numpy", "torch", "generators of the dataset")


class WorkerDraws:
    """Knows which streams the workers of one loader have drawn from."""

    def __init__(self) -> None:
        self._marks: torch.Tensor | None = None

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams that a worker has drawn from, ever."""
        if self._marks is None:
            return ()
        return tuple(name for name, mark in zip(_STREAMS, self._marks.tolist(), strict=True) if mark)

    @contextlib.contextmanager
    def watching(self, loader: Any) -> Iterator[None]:
        """Let workers that this loader starts meanwhile be looked at; the loader is as it was afterwards."""
        own = loader.collate_fn
        if not loader.num_workers or isinstance(own, LookingCollate):
            yield
            return
        if self._marks is None:
            self._marks = torch.zeros(len(_STREAMS), dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]
        loader.collate_fn = LookingCollate(own, self._marks, is_seeded=loader.worker_init_fn is None)
        try:
            yield
        finally:
            loader.collate_fn = own


class LookingCollate:
    """A collate function that looks, in a worker, whether anything was drawn since the batch before.

    Args:
        collate: What makes the batch.
        marks: Shared memory: one for each stream.
        is_seeded: Whether workers begin with the seeds that torch gives them.
    """

    def __init__(self, collate: Callable[[Any], Any], marks: torch.Tensor, *, is_seeded: bool) -> None:
        self._collate = collate
        self._marks = marks
        self._is_seeded = is_seeded
        self._before: tuple[Any, ...] | None = None
        self._held: list[tuple[GeneratorKind, Any]] | None = None

    def __call__(self, samples: Any) -> Any:
        if get_worker_info() is None or self._marks.all():
            return self._collate(samples)
        before = self._at_beginning() if self._before is None else self._before
        batch = self._collate(samples)
        self._before = (*_states(), self._held_states())
        for index, (then, now) in enumerate(zip(before, self._before, strict=True)):
            if then is not None and _has_drawn(then, now):
                self._marks[index] = 1
        return batch

    def _at_beginning(self) -> tuple[Any, ...]:
        """Return what the streams were before the first sample, as far as the seeds tell."""
        info = get_worker_info()
        assert info is not None, "asked in a worker"
        own = _state_of(torch.Generator().manual_seed(info.seed))
        python = ("", random.Random(info.seed).getstate()) if self._is_seeded else None
        return python, None, own, None

    def _held_states(self) -> list[tuple[int | None, Any]]:
        """Return the states of the generators that the worker's copy of the dataset holds, found once."""
        if self._held is None:
            info = get_worker_info()
            assert info is not None, "asked in a worker"
            self._held = list(_generators_in(info.dataset))
        return [(_seed_of(generator), kind.read(generator)) for kind, generator in self._held]


def _has_drawn(before: Any, now: Any) -> bool:
    if isinstance(now, list):
        return any(seed == new_seed and not same(then, state)
                   for (seed, then), (new_seed, state) in zip(before, now, strict=True))  # fmt: skip
    # One of torch's that was seeded meanwhile is seeded for each sample by its index, one would hope.
    is_seeded_anew = type(now[0]) is int and before[0] != now[0]
    return bool(before != now) and not is_seeded_anew


def _generators_in(dataset: object) -> Iterator[tuple[GeneratorKind, Any]]:
    for each in reached({"dataset": dataset}):
        kind = kind_of_generator(each.value)
        if kind is not None and not is_global(each.value):
            yield kind, each.value


def _seed_of(generator: Any) -> int | None:
    return generator.initial_seed() if isinstance(generator, torch.Generator) else None


def _states() -> tuple[Any, ...]:
    name, keys, place, has_gauss, gauss = np.random.get_state()
    return (
        ("", random.getstate()),
        (name, np.asarray(keys).tobytes(), place, has_gauss, gauss),
        _state_of(torch.default_generator),
    )


def _state_of(generator: torch.Generator) -> tuple[int, bytes]:
    return generator.initial_seed(), generator.get_state().numpy().tobytes()
