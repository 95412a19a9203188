"""In which way a `StatefulDataLoader` comes to stand where it stood.

torchdata saves much, and what it doesn't save it replaces by skipping: that is right for some samplers, for others only
with the random streams of the pass's beginning, and for others not at all. So each loader gets one of three ways.
"""

from __future__ import annotations

from typing import Any

from segue._capture.data.classes import (
    ITERABLE_DATASET,
    STREAMED_DATASET,
    has_state,
    is_a,
    is_exactly,
)
from segue._capture.data.streamed import saves_itself_whole
from segue._capture.sampler.exact_sampler import ExactSampler

STATE = "state"
"""torchdata's own state says everything."""
STATE_FROM_BEGINNING = "state_from_beginning"
"""Its sampler draws once, when it is asked for the first index: with the streams of the beginning, skipping is right."""
REPLAY = "replay"
"""The pass is run again."""

_OF_TORCHDATA = "torchdata.stateful_dataloader.sampler."
_BATCHES = f"{_OF_TORCHDATA}BatchSampler"
_PLAIN_BATCHES = "torch.utils.data.sampler.BatchSampler"
# Their order comes from nothing but their settings and their epoch.
_DETERMINED = (
    "torch.utils.data.sampler.SequentialSampler",
    "torch.utils.data.distributed.DistributedSampler",
)
# Theirs is drawn at the first index, or in turn from a generator that was drawn or given before.
_DRAWN_AT_FIRST = (
    "torch.utils.data.sampler.RandomSampler",
    "torch.utils.data.sampler.WeightedRandomSampler",
    "torch.utils.data.sampler.SubsetRandomSampler",
)
_SAVED = (f"{_OF_TORCHDATA}RandomSampler", f"{_OF_TORCHDATA}StatefulDistributedSampler")


def is_iterable(loader: Any) -> bool:
    """Tell whether a loader's dataset is iterated over, and not asked by index."""
    return is_a(loader.dataset, ITERABLE_DATASET)


def way_of(loader: Any) -> str:
    """Return the way in which a loader is placed."""
    return _way_of_iterable(loader.dataset) if is_iterable(loader) else _way_of_sampler(loader)


def _way_of_iterable(dataset: Any) -> str:
    if is_a(dataset, STREAMED_DATASET):
        return STATE if saves_itself_whole(dataset) else REPLAY
    return STATE if has_state(dataset) else REPLAY


def _way_of_sampler(loader: Any) -> str:
    batches = loader.batch_sampler
    if batches is not None and not is_exactly(batches, _BATCHES, _PLAIN_BATCHES):
        return STATE if has_state(batches) else REPLAY
    sampler = loader.sampler if batches is None else batches.sampler
    if isinstance(sampler, ExactSampler):
        return REPLAY  # what it says is what the run was given, and torchdata doesn't tell it that
    plain = is_exactly(batches, _PLAIN_BATCHES)
    if is_exactly(sampler, *_DETERMINED):
        return STATE
    if plain and not loader.num_workers:
        return REPLAY  # torchdata skips when the next index is asked for, when the streams are long restored
    if not loader.num_workers and draws_in_turn(sampler):
        return REPLAY  # its indices are drawn again, and looked at
    if is_exactly(sampler, *_DRAWN_AT_FIRST):
        return STATE_FROM_BEGINNING
    if is_exactly(sampler, *_SAVED):
        # Inside a batch sampler that saves nothing, they are only skipped over.
        return STATE_FROM_BEGINNING if plain else STATE
    return STATE if has_state(sampler) and not plain else REPLAY


def draws_in_turn(sampler: Any) -> bool:
    """Tell whether torch's `RandomSampler` draws as it goes from a generator that the program may draw from meanwhile."""
    if not is_exactly(sampler, _DRAWN_AT_FIRST[0]) or sampler.generator is None:
        return False
    return bool(sampler.replacement or sampler.num_samples > len(sampler.data_source))


def index_sampler(loader: Any) -> Any:
    """Return the sampler that the indices come from."""
    batches = loader.batch_sampler
    return loader.sampler if batches is None or not hasattr(batches, "sampler") else batches.sampler


def has_own_state(loader: Any) -> bool:
    """Tell whether the sampler keeps a state of the program's own, which goes from pass to pass."""
    sampler = index_sampler(loader)
    return has_state(sampler) and not is_exactly(sampler, *_SAVED)


def counts_samples(loader: Any) -> bool:
    """Tell whether the position is one of samples, so that batches of another size can go on there."""
    return is_exactly(loader.batch_sampler, _BATCHES) and way_of(loader) in (STATE, STATE_FROM_BEGINNING)
