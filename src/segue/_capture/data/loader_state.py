"""The state dictionary of a `StatefulDataLoader` (torchdata 0.11): whether it is one, and what is in it.

torchdata looks at what it loads only when the iterator is built, by assertions; here it is looked at before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_MAIN = (
    "_sampler_iter_state",
    "_index_sampler_state",
    "_sampler_iter_yielded",
    "_IterableDataset_len_called",
    "_shared_seed",
)
_SINGLE = (*_MAIN, "_num_yielded", "fetcher_state", "dataset_state", "_iterator_finished")
_SEVERAL = ("_snapshot", "_steps_since_snapshot", "_iterator_finished")
_SNAPSHOT = ("_snapshot_step", "_last_yielded_worker_id", "_main_snapshot", "_worker_snapshots")
_WORKER = ("worker_id", "fetcher_state", "dataset_state")


def wrong(state: Any, num_workers: int) -> str | None:
    """Tell what is wrong with a state for a loader with so many workers, as a clause; `None` if nothing is."""
    if num_workers == 0:
        return _lacks(state, _SINGLE) or _not_counts(state, "_num_yielded", "_sampler_iter_yielded")
    found = _lacks(state, _SEVERAL) or _lacks(state["_snapshot"], _SNAPSHOT)
    if found is not None:
        return found
    snapshot = state["_snapshot"]
    main, workers = snapshot["_main_snapshot"], snapshot["_worker_snapshots"]
    found = _lacks(main, (*_MAIN, "_num_workers", "_base_seed"))
    found = found or _not_counts(state, "_steps_since_snapshot") or _not_counts(main, "_sampler_iter_yielded")
    found = found or _not_counts(snapshot, "_snapshot_step", "_last_yielded_worker_id")
    if found is not None:
        return found
    if type(workers) is not dict or set(workers) != {f"worker_{index}" for index in range(num_workers)}:
        return "it is not of so many workers"
    return next((found for each in workers.values() if (found := _lacks(each, _WORKER))), None)


def _lacks(state: Any, names: tuple[str, ...]) -> str | None:
    if type(state) is not dict:
        return "it is no state of a StatefulDataLoader"
    missing = [name for name in names if name not in state]
    return f"it lacks {missing[0]!r}" if missing else None


def _not_counts(state: Mapping[str, Any], *names: str) -> str | None:
    bad = [name for name in names if type(state[name]) is not int or state[name] < 0]
    return f"{bad[0]!r} is no count" if bad else None


def is_between_snapshots(state: Any) -> bool:
    """Tell whether batches were delivered since the state that workers have reported (`snapshot_every_n_steps`)."""
    return type(state) is dict and bool(state.get("_steps_since_snapshot"))


def with_latest(state: dict[str, Any], iterator: Any) -> dict[str, Any]:
    """Return the state with what each worker has said last: torchdata's is of the last batch, before they came to their end."""
    latest = {name: kept.get_state() for name, kept in iterator._worker_snapshots.items()}
    return {**state, "_snapshot": {**state["_snapshot"], "_worker_snapshots": latest}}


def finished(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state as at the end of its pass."""
    return {**state, "_iterator_finished": True}


def has_ended_workers(state: Mapping[str, Any]) -> bool:
    """Tell whether a worker's dataset has come to its end, though the pass may go on."""
    fetchers = [each.get("fetcher_state") for each in state["_snapshot"]["_worker_snapshots"].values()]
    return any(fetcher is not None and fetcher.get("fetcher_ended") for fetcher in fetchers)


def states_of_datasets(state: Mapping[str, Any]) -> list[Any]:
    """Return what the dataset of each worker has saved."""
    return [each.get("dataset_state") for each in state["_snapshot"]["_worker_snapshots"].values()]


def parts_of_datasets(state: Any) -> Iterator[Any]:
    """Yield what datasets and their iterators have saved in a state, those of every worker."""
    snapshot = state.get("_snapshot")
    for each in (state,) if snapshot is None else snapshot["_worker_snapshots"].values():
        yield each.get("dataset_state")
        fetcher = each.get("fetcher_state")
        yield None if fetcher is None else fetcher.get("dataset_iter_state")


def for_workers(state: Mapping[str, Any], num_workers: int) -> dict[str, Any]:
    """Return the state of a map dataset that saves nothing, at the same place, for another number of workers."""
    snapshot = state.get("_snapshot")
    main = state if snapshot is None else snapshot["_main_snapshot"]
    done = state["_num_yielded"] if snapshot is None else snapshot["_snapshot_step"]
    kept = {name: main[name] for name in _MAIN}
    if num_workers == 0:
        return {
            **kept, "_num_yielded": done, "fetcher_state": None, "dataset_state": None,
            "_iterator_finished": state["_iterator_finished"],
        }  # fmt: skip
    workers = {
        f"worker_{index}": {"worker_id": index, "fetcher_state": None, "dataset_state": None}
        for index in range(num_workers)
    }
    base_seed = 0 if snapshot is None else main["_base_seed"]
    return {
        "_snapshot": {
            "_snapshot_step": done,
            "_last_yielded_worker_id": num_workers - 1,
            "_main_snapshot": {**kept, "_num_workers": num_workers, "_base_seed": base_seed},
            "_worker_snapshots": workers,
        },
        "_steps_since_snapshot": 0,
        "_iterator_finished": state["_iterator_finished"],
    }
