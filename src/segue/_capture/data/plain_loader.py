"""torch's own `DataLoader`, over samplers whose order can be found again: which they are, and what replaces the others.

A `DataLoader` has no position. So the indices it gets are handed to it one pass at a time, by a copy of it whose
sampler is ours: a pass then begins behind what was delivered, and nothing that was is loaded again.
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from segue._capture.data.classes import has_state, is_exactly
from segue._capture.data.exact_loader import ExactLoader
from segue._capture.data.loader_ways import is_iterable
from segue._capture.data.redrawn_loader import RedrawnLoader
from segue._capture.data.source import Source
from segue._capture.sampler.exact_sampler import ExactSampler
from segue._capture.staging import type_name
from segue.errors import UnsupportedState

_DETERMINED = "torch.utils.data.distributed.DistributedSampler"


def plain_source(loader: DataLoader[Any]) -> Source:
    """Return what places a plain `DataLoader`.

    Raises:
        UnsupportedState: If its order could not be found again, or nothing says how its samples are parted; the hint
            says what to write instead.
    """
    _refuse_iterable(loader)
    if type(loader).__iter__ is not DataLoader.__iter__:
        raise _refused("a DataLoader that iterates in its own way may fetch ahead, and begin at another time than others",
                       "capture.data.loader", type_name(loader),
                       "hand in a plain DataLoader, and do in the loop what this one does")  # fmt: skip
    if loader.num_workers and not getattr(loader, "in_order", True):
        raise _refused("batches come in the order in which workers happen to finish, which nothing repeats",
                       "capture.data.order", "in_order=False", "build the loader with `in_order=True`")  # fmt: skip
    batches = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    sampler = batches.sampler if type(batches) is BatchSampler else batches
    if isinstance(sampler, ExactSampler):
        return ExactLoader(loader, batches, sampler)
    if type(sampler) is SequentialSampler:
        return _in_order(loader, batches, sampler)
    if has_state(sampler) or is_exactly(sampler, _DETERMINED):
        return RedrawnLoader(loader, batches, sampler)
    raise _no_order(loader, sampler)


def _in_order(loader: DataLoader[Any], batches: Any, sampler: SequentialSampler) -> Source:
    """Place a sequential sampler by one that hands out the same numbers, and can begin in their middle."""
    placed = ExactSampler(len(sampler), shuffle=False, rank=0, world_size=1)
    if type(batches) is BatchSampler:
        return ExactLoader(loader, BatchSampler(placed, batches.batch_size, batches.drop_last), placed)
    return ExactLoader(loader, placed, placed)


def _refuse_iterable(loader: DataLoader[Any]) -> None:
    if is_iterable(loader):
        raise _refused(
            "a plain DataLoader over a dataset that is only iterated knows no position",
            "capture.data.iterable", type_name(loader.dataset),
            "build it as `torchdata.stateful_dataloader.StatefulDataLoader`, with the same arguments, and give the "
            "dataset `state_dict` and `load_state_dict`",
        )  # fmt: skip


def _no_order(loader: DataLoader[Any], sampler: object) -> UnsupportedState:
    if isinstance(sampler, RandomSampler):
        what = "a plain DataLoader that shuffles draws its order anew at each start, and knows no position"
    else:
        what = "nothing says how this sampler finds its order again"
    own = "give the sampler `state_dict` and `load_state_dict`"
    lines = " and ".join(f"`{line}`" for line in replacing_lines(loader))
    shuffles = f"replace it by two lines: {lines}{about_workers(loader)}"
    return _refused(what, "capture.data.sampler", type_name(sampler),
                    shuffles if isinstance(sampler, RandomSampler) else f"{own}; or {shuffles}")  # fmt: skip


def replacing_lines(loader: DataLoader[Any], name: str = "loader") -> tuple[str, str]:
    """Return the two lines that replace a plain shuffling loader of this name."""
    options = f"batch_size={loader.batch_size}" if loader.batch_size else "batch_size=..."
    options += ", drop_last=True" if loader.drop_last else ""
    workers = f", num_workers={loader.num_workers}" if loader.num_workers else ""
    return (
        f"sampler = segue.ExactSampler(dataset, {options})",
        f"{name} = DataLoader(dataset, {options}{workers}, sampler=sampler)",
    )


def about_workers(loader: DataLoader[Any]) -> str:
    """Say, of a loader with workers, what random draws in them need."""
    if not loader.num_workers:
        return ""
    return "; random draws in workers need `segue.SeededSamples(dataset, seed=0)` or `replay=True`"


def _refused(what: str, code: str, found: str, hint: str) -> UnsupportedState:
    return UnsupportedState(what, code=code, where="data", found=found, hint=hint)
