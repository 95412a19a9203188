"""Which kind of loader an object is, and what to write instead where it is none that can be placed."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader, Dataset, Sampler

from segue._capture.data.classes import (
    NODE,
    NODES_LOADER,
    PREPARED_LOADER,
    STATEFUL_LOADER,
    STREAMED_DATASET,
    TABLE_DATASET,
    has_state,
    is_a,
    iterates_itself,
)
from segue._capture.data.nodes import Nodes
from segue._capture.data.plain_loader import plain_source
from segue._capture.data.replayed import ReplayedSource
from segue._capture.data.source import Source
from segue._capture.data.stateful_iterable import StatefulIterable
from segue._capture.data.stateful_loader import StatefulLoader
from segue._capture.data.streamed import saves_itself_whole
from segue._capture.staging import type_name
from segue.errors import UnsupportedState


def source_of(loader: Any, *, replay: bool) -> Source:
    """Return what places this kind of loader.

    Raises:
        UnsupportedState: If nothing does; the hint is what to write.
    """
    if is_a(loader, PREPARED_LOADER):
        # It counts passes of its own and tells them to samplers, so it can't be run again from a beginning either.
        raise UnsupportedState(
            "a loader that accelerate has prepared fetches a batch ahead, and counts passes in a place of its own",
            code="capture.data.loader", where="data", found=type_name(loader),
            hint="hand in the loader as it was before `accelerator.prepare`, and move each batch in the loop: "
                 "`batch = send_to_device(batch, accelerator.device)`",
        )  # fmt: skip
    if is_a(loader, STATEFUL_LOADER) and iterates_itself(loader, STATEFUL_LOADER):
        if replay:
            return _replayed(loader)
        raise UnsupportedState(
            "a StatefulDataLoader that iterates in its own way may fetch ahead, and begin at another time than others",
            code="capture.data.loader", where="data", found=type_name(loader),
            hint="hand in a plain StatefulDataLoader, and do in the loop what this one does; or let it be run again from "
                 "the beginning of the pass: `segue.DataPosition(loader, replay=True)`",
        )  # fmt: skip
    if is_a(loader, STATEFUL_LOADER):
        return StatefulLoader(loader, replay=replay)
    if isinstance(loader, Sampler | Dataset) and not is_a(loader, STREAMED_DATASET):
        raise _no_loader(loader, "hand in the loader over it: `segue.DataPosition(loader)`")
    if is_a(loader, TABLE_DATASET):
        raise _no_loader(
            loader, "hand in a loader over it: `segue.DataPosition(StatefulDataLoader(dataset, ...))`"
        )
    if replay:
        return _replayed(loader)
    if isinstance(loader, DataLoader):
        return plain_source(loader)
    if is_a(loader, NODE, NODES_LOADER):
        return Nodes(loader)
    if is_a(loader, STREAMED_DATASET):
        return StatefulIterable(loader) if saves_itself_whole(loader) else ReplayedSource(loader)
    if hasattr(loader, "__iter__") and has_state(loader):
        return StatefulIterable(loader)
    raise _no_loader(
        loader,
        "give it `state_dict` and `load_state_dict`, or let it be run again from the beginning of the pass: "
        "`segue.DataPosition(loader, replay=True)`",
    )


def loses_draws(source: Source) -> bool:
    """Tell whether what workers draw is lost: no pass is run again, and the dataset doesn't save streams of its own."""
    loader = source.loader
    if isinstance(source, ReplayedSource) or (isinstance(source, StatefulLoader) and source.runs_again):
        return False
    return isinstance(loader, DataLoader) and bool(loader.num_workers) and not has_state(loader.dataset)


def _replayed(loader: Any) -> Source:
    if not hasattr(loader, "__iter__") or hasattr(loader, "__next__"):
        raise _no_loader(loader, "hand in what can be iterated over again and again, not an iterator")
    return ReplayedSource(loader)


def _no_loader(loader: Any, hint: str) -> UnsupportedState:
    return UnsupportedState(
        "this object can't be stood in again where a run stood in it", code="capture.data.loader", where="data",
        found=type_name(loader), hint=hint,
    )  # fmt: skip
