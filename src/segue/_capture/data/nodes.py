"""torchdata's nodes: a `Loader` over them, or the last node itself.

A node saves where it stands, except the epoch of a sampler that only has a `set_epoch`: torchdata 0.11 doesn't set it
when it resumes, so such a sampler goes on in the order of epoch 0. It is set here before. A `Loader` that resumes at the
end of a pass begins the next one at once; here it stands at the end, as it did.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from segue._capture.data import beginning, carried
from segue._capture.data.classes import (
    COUNTING_SAMPLER,
    ITERABLE_NODE,
    NODE,
    NODES_LOADER,
    SAMPLER_NODE,
    STREAMED_DATASET,
    has_ended,
    has_state,
    is_a,
)
from segue._capture.data.identity import dataset_entries, sampler_entries
from segue._capture.data.replayed import refuse_mixed, wrong_beginning
from segue._capture.data.source import Progress
from segue._capture.data.streamed import saves_itself_whole
from segue._capture.data.watch import Watch
from segue._capture.plain import freeze
from segue._capture.staging import type_name
from segue._record.tree import same, thaw
from segue.errors import ComponentMismatch, Finding, UnsupportedState

_SETTINGS = (
    "batch_size", "drop_last", "num_workers", "in_order", "method", "prebatch", "seed", "stop_criteria", "rank",
    "world_size", "prefetch_factor", "snapshot_frequency",
)  # fmt: skip


_IN_ORDER = "torch.utils.data.sampler.SequentialSampler"
_FIELDS = {"state", "epochs", "started", "ended", "beginning"}


class Nodes:
    """A graph of nodes."""

    kind = "nodes"

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self._watch = Watch(self.loader)
        self._beginning: Any = None
        self._is_resumed = False
        self._fresh: dict[str, Any] = {}  # the states of iterables before their first pass
        for path, node in _nodes(loader):
            _refuse_node(path, node)
        _refuse_draws_in_threads(loader)

    @property
    def keeps_place(self) -> bool:
        return False

    def contract(self) -> Mapping[str, Any]:
        found: dict[str, Any] = {"class": type_name(self.loader), "nodes": []}
        for path, node in _nodes(self.loader):
            settings = {
                name: value
                for name in _SETTINGS
                if type(value := getattr(node, name, None)) in (bool, int, float, str)
            }
            found["nodes"].append([path, type(node).__name__, settings])
            sampler, iterable = vars(node).get("sampler"), vars(node).get("iterable")
            if sampler is not None:
                found |= sampler_entries(sampler)
            if iterable is not None:
                found |= dataset_entries(iterable)
        return found

    def begin(self, epoch: int) -> Iterator[Any]:
        self._remember_fresh()
        resumed, self._is_resumed = self._is_resumed, False
        self._beginning = beginning.take(self.loader)
        return self._watched(self._first_after() if resumed else self._anew())

    def _anew(self) -> Iterator[Any]:
        if is_a(self.loader, NODES_LOADER):
            return iter(self.loader)
        self.loader.reset()
        return iter(self.loader)

    def _first_after(self) -> Iterator[Any]:
        """Begin the first pass after a restore: iterables that were loaded must not go on where they resumed."""
        begin = self._anew
        for path, iterable in _stateful(self.loader):
            begin = functools.partial(carried.prepare, iterable, self._fresh[path], begin)
        return begin()

    def _remember_fresh(self) -> None:
        for path, iterable in _stateful(self.loader):
            if path not in self._fresh:
                self._fresh[path] = freeze(iterable.state_dict(), "data")

    def position(self, progress: Progress) -> Any:
        root = self._root
        if progress.is_inside and not self._is_saved:
            refuse_mixed(self._watch)
        if root is None:
            return {"state": None, "epochs": {}, "started": {}, "ended": [], "beginning": None}
        return {
            "state": freeze(root.state_dict(), "data"),
            "epochs": {path: node.epoch for path, node in _samplers(self.loader)},
            "started": {path: node._started for path, node in _counting(self.loader)},
            "ended": self._ended(progress),
            "beginning": self._beginning if progress.is_inside and not self._is_saved else None,
        }

    def _ended(self, progress: Progress) -> list[str]:
        """Return the nodes whose iterator has come to its end already, as behind a last short batch.

        Raises:
            UnsupportedState: If one can't tell, and its state is that of a new pass.
        """
        if any(_fetches_ahead(node) for _, node in _nodes(self.loader)):
            return []  # what has ended there was fetched; the state is of what was delivered
        found = [path for path, node in _reading(self.loader) if has_ended(node._it)]
        for path, iterable in _stateful(self.loader):
            state = freeze(iterable.state_dict(), "data")
            is_trusted = path in found or is_a(iterable, COUNTING_SAMPLER, STREAMED_DATASET)
            if progress.delivered and not is_trusted and same(state, self._fresh.get(path)):
                raise _says_new(path, iterable)
        return found

    @property
    def _root(self) -> Any:
        """What has a state by now; asking it earlier would begin a pass."""
        if is_a(self.loader, NODES_LOADER):
            return self.loader._it
        return self.loader if getattr(self.loader, "_BaseNode__initialized", False) else None

    @property
    def _is_saved(self) -> bool:
        """Whether no sampler is skipped over."""
        return all(
            has_state(node.sampler) or hasattr(node.sampler, "set_epoch")
            for _, node in _samplers(self.loader)
        )

    def check(
        self, position: Any, progress: Progress, contract: Mapping[str, Any], scope: str
    ) -> Iterable[Finding]:
        is_whole = type(position) is dict and set(position) == _FIELDS
        if not is_whole or not all(type(position[name]) is dict for name in ("epochs", "started")):
            yield Finding(
                ComponentMismatch, f"{scope}.position", "the record holds no position of nodes", scope
            )
        elif position["state"] is None and progress.is_inside:
            yield Finding(ComponentMismatch, f"{scope}.position", "the record holds no state of nodes", scope)
        elif position["beginning"] is not None:
            yield from wrong_beginning(position, self.loader, scope)

    def place(self, position: Any, progress: Progress, contract: Mapping[str, Any]) -> Iterator[Any] | None:
        self._remember_fresh()
        self._beginning = position["beginning"]
        if position["state"] is None:
            return None
        self._is_resumed = True
        for path, node in _samplers(self.loader):
            if path in position["epochs"] and hasattr(node.sampler, "set_epoch"):
                node.sampler.set_epoch(position["epochs"][path])
        if self._beginning is not None:
            beginning.put(self._beginning, self.loader)
        iterator = self._loaded(thaw(position["state"]))
        for path, node in _counting(self.loader):
            node._started = position["started"].get(
                path, False
            )  # they count the next pass only if this one had begun
        for path, node in _reading(self.loader):
            if path in position["ended"]:
                if not has_state(_read(node)):
                    for _ in node._it:  # it was skipped to its last item; at its end it may draw
                        break
                node._it = iter(())
        return self._watched(iterator) if progress.is_inside else None

    def _loaded(self, state: Any) -> Iterator[Any]:
        loader = self.loader
        if not is_a(loader, NODES_LOADER):
            loader.reset(state)
            return iter(loader)
        restarts, loader.restart_on_stop_iteration = loader.restart_on_stop_iteration, False
        loader._iter_for_state_dict = False
        try:
            loader.load_state_dict(state)
            return iter(loader)
        finally:
            loader.restart_on_stop_iteration = restarts

    def may_differ(self, name: str, position: Any, progress: Progress) -> str | None:
        return None

    def __len__(self) -> int:
        return len(self.loader)

    def _watched(self, iterator: Iterator[Any]) -> Iterator[Any]:
        self._watch = Watch(self.loader)
        return iterator if self._is_saved else self._watch.over(iterator)


def _nodes(loader: Any) -> Iterator[tuple[str, Any]]:
    """Yield every node by its path from the loader."""
    seen: set[int] = set()
    found = [("root", loader.root)] if is_a(loader, NODES_LOADER) else [("root", loader)]
    while found:
        path, node = found.pop(0)
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield path, node
        for name, value in sorted(vars(node).items()):
            if is_a(value, NODE) and not name.startswith("_it"):
                found.append((f"{path}.{name}", value))
            elif isinstance(value, dict):
                found += [(f"{path}.{name}.{key}", each) for key, each in value.items() if is_a(each, NODE)]


def _samplers(loader: Any) -> Iterator[tuple[str, Any]]:
    return ((path, node) for path, node in _nodes(loader) if is_a(node, SAMPLER_NODE))


def _counting(loader: Any) -> Iterator[tuple[str, Any]]:
    return ((path, node) for path, node in _nodes(loader) if type(vars(node).get("_started")) is bool)


def _reading(loader: Any) -> Iterator[tuple[str, Any]]:
    """Yield the nodes that read a sampler or an iterable."""
    return ((path, node) for path, node in _nodes(loader) if is_a(node, SAMPLER_NODE, ITERABLE_NODE))


def _fetches_ahead(node: Any) -> bool:
    """Tell whether a node fetches in a thread of its own, as `Prefetcher` and `ParallelMapper` do."""
    return hasattr(node, "snapshot_frequency")


def _refuse_draws_in_threads(loader: Any) -> None:
    if not any(_fetches_ahead(node) for _, node in _nodes(loader)):
        return
    for path, node in _samplers(loader):
        if not (
            has_state(node.sampler) or hasattr(node.sampler, "set_epoch") or is_a(node.sampler, _IN_ORDER)
        ):
            raise UnsupportedState(
                "a thread fetches ahead from a sampler without a state, which may draw at any time, also after a restore",
                code="capture.data.threads", where=f"data.{path}.sampler", found=type_name(node.sampler),
                hint="use `StatefulDistributedSampler(dataset, 1, 0)` of torchdata, or no node that fetches in a thread",
            )  # fmt: skip


def _read(node: Any) -> Any:
    return vars(node).get("iterable", vars(node).get("sampler"))


def _says_new(path: str, iterable: Any) -> UnsupportedState:
    return UnsupportedState(
        "what a node iterates over says that it is new, though batches were delivered: it would begin anew",
        code="capture.data.behind", where=f"data.{path}", found=type_name(iterable),
        hint="let its `__iter__` be a generator that counts before it yields",
    )  # fmt: skip


def _stateful(loader: Any) -> Iterator[tuple[str, Any]]:
    for path, node in _reading(loader):
        iterable = _read(node)
        if iterable is not None and has_state(iterable):
            yield path, iterable


def _refuse_node(path: str, node: Any) -> None:
    iterable = vars(node).get("iterable")
    if is_a(iterable, STREAMED_DATASET) and not saves_itself_whole(iterable):
        raise UnsupportedState(
            "a streamed dataset inside a node can't say what is in its shuffle buffer", code="capture.data.buffer",
            where=f"data.{path}.iterable", found=type_name(iterable),
            hint="shuffle without a buffer, or build the position with `DataPosition(loader, replay=True)`",
        )  # fmt: skip
    if getattr(node, "in_order", True) is False:
        raise UnsupportedState(
            "items come in the order in which workers happen to finish, which nothing repeats",
            code="capture.data.order", where=f"data.{path}", found="in_order=False", hint="build the node with `in_order=True`",
        )  # fmt: skip
