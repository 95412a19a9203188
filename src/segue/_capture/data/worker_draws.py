"""Whether workers of a loader draw from the global random streams: those end with their process, and nobody restores them.

Wish: a random augmentation in workers, whose draws are others after a resume, is told and not silently trained on.
torchdata doesn't save the streams of workers (0.11), and which numbers a sample gets depends on who fetches it.

A collate function sees each batch in its worker, behind all samples of it. So it is handed to new workers inside of one
that compares the streams with what they were behind the batch before, and sets marks in memory that the training shares.
It draws nothing and changes no batch. What it still loses: what is drawn from Python's or NumPy's stream before the first
batch of a worker that has a `worker_init_fn`, and generators that a dataset holds itself.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data import get_worker_info

_STREAMS: Final = ("python", "numpy", "torch")


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

    def __call__(self, samples: Any) -> Any:
        if get_worker_info() is None or self._marks.all():
            return self._collate(samples)
        before = self._at_beginning() if self._before is None else self._before
        batch = self._collate(samples)
        self._before = _states()
        for index, (then, now) in enumerate(zip(before, self._before, strict=True)):
            if then is not None and then != now and not _is_seeded_anew(then, now):
                self._marks[index] = 1
        return batch

    def _at_beginning(self) -> tuple[Any, ...]:
        """Return what the streams were before the first sample, as far as the seeds tell."""
        info = get_worker_info()
        assert info is not None, "asked in a worker"
        own = _state_of(torch.Generator().manual_seed(info.seed))
        python = random.Random(info.seed).getstate() if self._is_seeded else None
        return python, None, own


def _is_seeded_anew(before: Any, now: Any) -> bool:
    """Tell whether somebody has seeded torch's stream: for each sample by its index, one would hope."""
    return type(now[0]) is int and len(now) == 2 and before[0] != now[0]


def _states() -> tuple[Any, ...]:
    name, keys, place, has_gauss, gauss = np.random.get_state()
    return (
        random.getstate(),
        (name, np.asarray(keys).tobytes(), place, has_gauss, gauss),
        _state_of(torch.default_generator),
    )


def _state_of(generator: torch.Generator) -> tuple[int, bytes]:
    return generator.initial_seed(), generator.get_state().numpy().tobytes()
