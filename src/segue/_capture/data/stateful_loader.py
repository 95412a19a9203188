"""torchdata's `StatefulDataLoader`, made exact: what it doesn't save is found again, and nothing is left to an assertion.

What torchdata 0.11 leaves open, each tried: a state between two passes, loaded, may begin the next pass at its end
(`StatefulDistributedSampler`) or in its middle for ever (datasets that keep where they resumed, in workers that live
on); samplers without state are skipped over in an order that was drawn anew; a new iterator draws a seed for workers
from the global stream, where one with workers that live on drew none; and a sampler's epoch is in no state.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from segue._capture.data import beginning, carried, loader_state, loader_ways
from segue._capture.data.classes import STREAMED_DATASET, has_ended, has_state, is_a
from segue._capture.data.identity import dataset_entries, sampler_entries
from segue._capture.data.loader_ways import REPLAY, STATE
from segue._capture.data.replayed import refuse_mixed, skip, wrong_beginning
from segue._capture.data.source import Progress
from segue._capture.data.stateful_iterable import left_in_the_middle
from segue._capture.data.watch import Watch
from segue._capture.plain import freeze
from segue._capture.staging import type_name
from segue._record.tree import same, thaw
from segue.errors import ComponentMismatch, Finding, UnsupportedState

_ORDER_ALONE = "goes on at the same batch, with what the program has now"
_NEXT_PASS = "begins the next pass with what the program has now"


class StatefulLoader:
    """A `StatefulDataLoader`."""

    kind = "stateful_loader"

    def __init__(self, loader: Any, *, replay: bool) -> None:
        self.loader = loader
        self._replay = replay
        _refuse_no_order(loader)
        _refuse_workers_that_live_on(loader, self._way)
        self._beginning: Any = None
        self._dataset_at_beginning: Any = None
        self._has_drawn_seed = True
        self._carried = False
        self._watch: Watch | None = None
        self._is_inside = self._was_left = False
        self._before: Any = None  # the position before the pass under way, if that is what to go back to
        self._fresh: Any = None  # the state of a dataset in this process, before its first pass
        self._resumed: Mapping[str, Any] | None = (
            None  # the position that the last restore placed, until the next pass
        )

    @property
    def runs_again(self) -> bool:
        """Whether a restore fetches again what was delivered, so that workers draw again what they drew."""
        return self._way == REPLAY

    @property
    def keeps_place(self) -> bool:
        return self._way == STATE and not self.loader.num_workers

    def contract(self) -> Mapping[str, Any]:
        loader = self.loader
        found: dict[str, Any] = {
            "batch_size": loader.batch_size,
            "drop_last": loader.drop_last,
            "num_workers": loader.num_workers,
            "persistent_workers": loader.persistent_workers,
            "replay": self._replay,
            **dataset_entries(loader.dataset),
        }
        if loader.num_workers:
            found["prefetch_factor"] = loader.prefetch_factor
        if not loader_ways.is_iterable(loader):
            sampler = loader_ways.index_sampler(loader)
            found |= sampler_entries(sampler)
            if loader.batch_sampler is not None:
                batches = sampler_entries(loader.batch_sampler, "batch_sampler")
                found |= {"batch_sampler": batches["batch_sampler"]} if loader.batch_size else batches
        return found

    def begin(self, epoch: int) -> Iterator[Any]:
        self._remember_fresh()
        self._before = self._before_pass(epoch)
        self._was_left, self._is_inside = self._is_inside, True
        resumed, self._resumed = self._resumed, None
        self._has_drawn_seed = not (resumed["has_workers"] if resumed else self._has_living_workers)
        self._take_beginning()
        batches = self._first_after(resumed) if resumed else iter(self.loader)
        self._carried = self._carries()
        return self._delivered(batches)

    def _carries(self) -> bool:
        """Tell whether datasets in workers begin this pass with another state than new ones would."""
        if not self._may_begin_anew or self._has_drawn_seed:
            return False
        new = freeze(self.loader.dataset.state_dict(), "data")
        state = freeze(self.loader.state_dict(), "data")
        return any(not same(new, part) for part in loader_state.states_of_datasets(state))

    def _before_pass(self, epoch: int) -> Any:
        """Return the position before this pass, where the sampler keeps a state.

        Until it is asked for its first index, torchdata's distributed sampler says the end of the pass before, and with
        workers it has been asked for more than was delivered: a pass of which nothing was delivered is begun again.
        """
        if loader_ways.is_iterable(self.loader) or not has_state(loader_ways.index_sampler(self.loader)):
            return None
        return self._between(Progress(epoch, 0, False))

    def position(self, progress: Progress) -> Any:
        if not progress.is_inside or (not progress.delivered and self._asks_datasets):
            return self._between(progress)
        if not progress.delivered and self._before is not None:
            return self._before
        if self._watch is not None:
            refuse_mixed(self._watch)
        return {
            "state": self._state(),
            "beginning": self._beginning,
            "dataset": self._dataset_at_beginning,
            "has_drawn_seed": self._has_drawn_seed,
            "has_ended": not self.loader.num_workers and has_ended(_indices(self.loader._iterator)),
            "has_workers": self._has_workers,
        }

    def _state(self) -> Any:
        if self._way == REPLAY:
            return None
        state = freeze(self.loader.state_dict(), "data")
        if not self._may_begin_anew or not loader_state.has_ended_workers(state):
            return state
        if not self._has_drawn_seed and self._carried:
            raise UnsupportedState(
                "a worker has come to its end, and its dataset, which carries a state on from pass to pass, would begin anew",
                code="capture.data.carried", where="data", found=type_name(self.loader.dataset),
                hint="build the loader with `persistent_workers=False`, or save at another batch",
            )  # fmt: skip
        return None  # the pass is run again

    @property
    def _may_begin_anew(self) -> bool:
        """Whether a worker that has come to its end would hand out its part again, since torchdata lets it go on there."""
        loader = self.loader
        return self._asks_datasets and bool(loader.num_workers) and not is_a(loader.dataset, STREAMED_DATASET)

    def _between(self, progress: Progress) -> Any:
        loader, has_workers = self.loader, self._has_workers
        was_left = self._was_left if progress.is_inside else self._is_inside
        if was_left and self._asks_datasets and (has_workers or not loader.num_workers):
            raise left_in_the_middle()
        in_process = not loader.num_workers and has_state(loader.dataset)
        has_sampler = not loader_ways.is_iterable(loader) and loader_ways.has_own_state(loader)
        return {
            "has_workers": has_workers,
            "dataset": freeze(loader.dataset.state_dict(), "data") if in_process else None,
            "workers": self._end_of_workers() if self._has_living_workers else None,
            "sampler": freeze(loader_ways.index_sampler(loader).state_dict(), "data")
            if has_sampler
            else None,
        }

    def check(
        self, position: Any, progress: Progress, contract: Mapping[str, Any], scope: str
    ) -> Iterable[Finding]:
        workers, clause = contract.get("num_workers"), _wrong_shape(position)
        if not isinstance(workers, int) or workers < 0:
            workers, clause = 0, "the record does not say how many workers there were"
        if clause is None and "state" in position and position["state"] is not None:
            clause = loader_state.wrong(position["state"], workers)
        if clause is not None:
            yield Finding(ComponentMismatch, f"{scope}.position", clause, scope)
        elif position.get("beginning") is not None:
            yield from wrong_beginning(position, self.loader, scope)

    def place(self, position: Any, progress: Progress, contract: Mapping[str, Any]) -> Iterator[Any] | None:
        self._remember_fresh()
        self._is_inside = self._was_left = False
        self._resumed = position
        if "state" in position:
            self._is_inside = True
            return self._delivered(self._rest(position, progress))
        loader = self.loader
        loader.load_state_dict({})  # drops the iterator, and workers that wait
        if position["sampler"] is not None:
            loader_ways.index_sampler(loader).load_state_dict(thaw(position["sampler"]))
        if position["dataset"] is not None and not self._asks_datasets:
            loader.dataset.load_state_dict(thaw(position["dataset"]))
        return self.begin(progress.epoch) if progress.is_inside else None

    def may_differ(self, name: str, position: Any, progress: Progress) -> str | None:
        if not progress.is_inside:
            is_asked = name == "num_workers" and position is not None and position.get("workers") is not None
            return None if name == "replay" or is_asked else _NEXT_PASS
        is_indexed = not loader_ways.is_iterable(self.loader)
        state = position.get("state")
        if state is None or not is_indexed:
            return _ORDER_ALONE if name == "drop_last" and is_indexed else None
        in_batches = loader_ways.counts_samples(self.loader) and not loader_state.is_between_snapshots(state)
        if name == "batch_size":
            return "goes on at the same sample, in batches of the new size" if in_batches else None
        if name in ("num_workers", "prefetch_factor"):
            saves_nothing = all(part is None for part in _parts(state))
            return (
                _ORDER_ALONE if in_batches and saves_nothing and not has_state(self.loader.dataset) else None
            )
        kept = ("drop_last", "persistent_workers", "dataset", "dataset_identity", "batch_sampler.drop_last")
        return _ORDER_ALONE if name in kept else None

    def __len__(self) -> int:
        return len(self.loader)

    @property
    def _way(self) -> str:
        return REPLAY if self._replay else loader_ways.way_of(self.loader)

    @property
    def _asks_datasets(self) -> bool:
        """Whether the position is what datasets say of themselves: those that are iterated over."""
        return self._way == STATE and loader_ways.is_iterable(self.loader)

    @property
    def _has_workers(self) -> bool:
        """Whether workers wait for the next pass, or would if this loader had not been restored."""
        return self._has_living_workers or bool(self._resumed and self._resumed["has_workers"])

    @property
    def _has_living_workers(self) -> bool:
        """Whether workers wait for the next pass, so that it draws no seed for new ones."""
        loader = self.loader
        return bool(loader.num_workers and loader.persistent_workers) and loader._iterator is not None

    def _remember_fresh(self) -> None:
        dataset = self.loader.dataset
        if self._fresh is None and not self.loader.num_workers and has_state(dataset):
            self._fresh = freeze(dataset.state_dict(), "data")

    def _take_beginning(self) -> None:
        way, dataset = self._way, self.loader.dataset
        is_needed = way != STATE or self._may_begin_anew
        self._beginning = beginning.take(self.loader) if is_needed else None
        is_asked = way == REPLAY and not self.loader.num_workers and has_state(dataset)
        self._dataset_at_beginning = freeze(dataset.state_dict(), "data") if is_asked else None

    def _rest(self, position: Mapping[str, Any], progress: Progress) -> Iterator[Any]:
        """Build the iterator behind what was delivered."""
        loader = self.loader
        self._beginning, self._dataset_at_beginning = position["beginning"], position["dataset"]
        self._has_drawn_seed = position["has_drawn_seed"]
        if position["state"] is None:
            return self._replayed(progress.delivered)
        loader.load_state_dict(self._fitting(thaw(position["state"])))
        if self._beginning is not None:
            beginning.put(self._beginning, loader)
        with contextlib.nullcontext() if self._has_drawn_seed else _without_seed(loader):
            iterator: Iterator[Any] = iter(loader)
        if position["has_ended"] and not loader.num_workers:
            for _ in _indices(
                iterator
            ):  # the sampler came to its end in the last short batch, and may draw there
                break
        return iterator

    def _fitting(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return the state for as many workers as there are; others were accepted."""
        snapshot, workers = state.get("_snapshot"), self.loader.num_workers
        recorded = 0 if snapshot is None else len(snapshot["_worker_snapshots"])
        return state if recorded == workers else loader_state.for_workers(state, workers)

    def _replayed(self, delivered: int) -> Iterator[Any]:
        loader = self.loader
        loader.load_state_dict({})
        if not self._has_drawn_seed and self._asks_datasets:
            beginning.put(self._beginning, loader)
            new = self._anew()
            skip(new, delivered)
            return new
        if not self._has_drawn_seed:
            with _without_seed(loader):
                iter(loader)  # workers that have lived through a pass, as there were
        if self._dataset_at_beginning is not None:
            loader.dataset.load_state_dict(thaw(self._dataset_at_beginning))
        beginning.put(self._beginning, loader)
        iterator: Iterator[Any] = iter(loader)
        if self._skips_indices:
            _skip_indices(iterator, delivered)
        else:
            skip(iterator, delivered)
        return iterator

    @property
    def _skips_indices(self) -> bool:
        loader = self.loader
        return not (loader.num_workers or loader_ways.is_iterable(loader) or has_state(loader.dataset))

    def _first_after(self, resumed: Mapping[str, Any]) -> Iterator[Any]:
        """Begin the first pass after a restore, as the uninterrupted run begins it."""
        loader = self.loader
        has_workers = resumed["has_workers"] and loader.persistent_workers and loader.num_workers
        if self._asks_datasets:
            if not loader.num_workers:
                end = resumed["dataset"]
                return carried.prepare(loader.dataset, self._fresh, lambda: iter(loader), end, self._anew)
            if has_workers:
                return self._with_new_workers(resumed.get("workers"))
            return iter(loader)
        if has_workers and loader._iterator is None:
            if resumed["workers"] is not None and has_state(loader.dataset):
                loader.load_state_dict(loader_state.finished(thaw(resumed["workers"])))
                with _without_seed(loader):
                    return iter(loader)
            with beginning.left_alone(loader), _without_seed(loader):
                iter(loader)
        return iter(loader)

    def _with_new_workers(self, end: Any) -> Iterator[Any]:
        """Begin a pass with workers that have not resumed in the middle of one, where the uninterrupted run's lived on.

        A dataset that keeps where it resumed would begin there for ever.
        """
        loader = self.loader
        if end is None:
            end = self._end_of_workers()
        first = self._anew()
        if is_a(loader.dataset, STREAMED_DATASET):
            return first
        if same(_parts(end), _parts(freeze(loader.state_dict(), "data"))):
            return first
        loader.load_state_dict(loader_state.finished(thaw(end)))
        with _without_seed(loader):
            return carried.OrAnew(iter(loader), self._anew)

    def _end_of_workers(self) -> Any:
        return freeze(loader_state.with_latest(self.loader.state_dict(), self.loader._iterator), "data")

    def _anew(self) -> Iterator[Any]:
        self.loader.load_state_dict({})
        with _without_seed(self.loader):
            return iter(self.loader)

    def _delivered(self, iterator: Iterator[Any]) -> Iterator[Any]:
        """Return the iterator, looked at where the pass would be run again."""
        self._watch = None
        if self._way == REPLAY or self._fetches_in_turn:
            self._watch = Watch(self.loader)
            if self._skips_indices:
                _watch_indices(iterator, self._watch)
            else:
                iterator = self._watch.over(iterator)
        return _Noticed(iterator, self)

    @property
    def _fetches_in_turn(self) -> bool:
        """Whether indices for workers are drawn as the pass goes, from a generator that others may have."""
        loader = self.loader
        is_indexed = bool(loader.num_workers) and not loader_ways.is_iterable(loader)
        return is_indexed and loader_ways.draws_in_turn(loader_ways.index_sampler(loader))

    def ended(self) -> None:
        """Take notice that the pass has come to its end."""
        self._is_inside = False


class _Noticed(Iterator[Any]):
    """The batches of a pass; tells when they have ended."""

    def __init__(self, iterator: Iterator[Any], source: StatefulLoader) -> None:
        self._iterator = iterator
        self._source = source

    def __next__(self) -> Any:
        try:
            return next(self._iterator)
        except StopIteration:
            self._source.ended()
            raise


@contextlib.contextmanager
def _without_seed(loader: Any) -> Iterator[None]:
    """Let a new iterator draw the seed of its workers from a generator that nobody has, instead of the global one."""
    own = loader.generator
    loader.generator = torch.Generator()
    try:
        yield
    finally:
        loader.generator = own


def _indices(iterator: Any) -> Any:
    """Return what an iterator of a loader takes its indices from, below what makes batches of them."""
    batches = getattr(iterator, "_sampler_iter", None)
    return getattr(batches, "sampler_iter", batches)


def _skip_indices(iterator: Any, number: int) -> None:
    skip(iterator._sampler_iter, number)
    iterator._sampler_iter_yielded += number
    iterator._num_yielded += number


def _watch_indices(iterator: Any, watch: Watch) -> None:
    """Look at what the sampler draws, and not at what samples draw."""
    indices = iterator._sampler_iter
    if hasattr(indices, "sampler_iter"):
        indices.sampler_iter = watch.over(indices.sampler_iter)
    else:
        iterator._sampler_iter = watch.over(indices)


def _parts(state: Any) -> list[Any]:
    return list(loader_state.parts_of_datasets(state))


_SHAPES = (
    {"state", "beginning", "dataset", "has_drawn_seed", "has_ended", "has_workers"},
    {"has_workers", "dataset", "workers", "sampler"},
)


def _wrong_shape(position: Any) -> str | None:
    if (
        type(position) is not dict
        or set(position) not in _SHAPES
        or type(position["has_workers"]) is not bool
    ):
        return "the record holds no position of a StatefulDataLoader"
    if "state" in position and position["state"] is None and position["beginning"] is None:
        return "the record holds neither a state nor the beginning of the pass"
    return None


def _refuse_workers_that_live_on(loader: Any, way: str) -> None:
    """Raise where the order follows from streams of workers that go on from pass to pass, which nothing can put back."""
    dataset = loader.dataset
    if not (way == REPLAY and loader.num_workers and loader.persistent_workers):
        return
    if loader_ways.is_iterable(loader) and not is_a(dataset, STREAMED_DATASET):
        raise UnsupportedState(
            "workers live on from pass to pass, and the dataset does not say where it and its random streams stand in them",
            code="capture.data.workers", where="data", found=f"persistent_workers=True over {type_name(dataset)}",
            hint="build the loader with `persistent_workers=False`, or give the dataset `state_dict` and `load_state_dict`",
        )  # fmt: skip


def _refuse_no_order(loader: Any) -> None:
    if loader.num_workers and not loader.in_order:
        raise UnsupportedState(
            "batches come in the order in which workers happen to finish, which nothing repeats",
            code="capture.data.order", where="data", found="in_order=False", hint="build the loader with `in_order=True`",
        )  # fmt: skip
