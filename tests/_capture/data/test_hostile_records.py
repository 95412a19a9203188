"""A record that lies about the position is refused in the check, whatever it says."""

import copy

import pytest
from torchdata.stateful_dataloader import StatefulDataLoader

import segue
from tests.exactness.data_kinds import Drawn, Eager, Numbers, Stream


def at_second_batch(make):
    data = segue.DataPosition(make())
    batches = iter(data)
    next(batches)
    next(batches)
    return data.capture()


MAKERS = {
    "saved": lambda: StatefulDataLoader(Numbers(), 3, shuffle=True),
    "saved by workers": lambda: StatefulDataLoader(Numbers(), 3, shuffle=True, num_workers=1),
    "stream": lambda: StatefulDataLoader(Stream(), 3),
    "run again": lambda: StatefulDataLoader(Numbers(), 3, sampler=Eager()),
    "iterable, run again": lambda: StatefulDataLoader(Drawn(), 3),
}


def spoilt(value, path=()):
    """Yield copies of a tree in which one part is missing, or is something else."""
    if isinstance(value, dict):
        for key in value:
            yield {other: item for other, item in value.items() if other != key}, (*path, key)
            for bad in (None, -1, "x", [], {}):
                if type(value[key]) is not type(bad):
                    yield {**value, key: bad}, (*path, key, bad)
            for inner, where in spoilt(value[key], (*path, key)):
                yield {**value, key: inner}, where


# Says nothing that the position depends on, or what any value is right for.
_FREE = {
    "_IterableDataset_len_called", "_shared_seed", "_index_sampler_state", "_base_seed", "accepted", "dataset", "has_workers",
    "has_ended", "has_drawn_seed", "fetcher_state", "dataset_state", "_sampler_iter_state", "_iterator_finished", "worker_id",
    "_num_workers", "gauss", "has_gauss", "pos", "version",
}  # fmt: skip


@pytest.mark.parametrize("name", MAKERS)
def test_a_spoilt_part_is_a_finding_and_no_other_error(name):
    state, fresh = at_second_batch(MAKERS[name]), segue.DataPosition(MAKERS[name]())
    assert list(fresh.check(copy.deepcopy(state))) == []
    before = repr(fresh.capture())
    silent = []
    for lie, where in spoilt(state):
        if not list(fresh.check(lie)) and not _FREE.intersection(map(str, where)):
            silent.append(where)
    assert silent == []
    assert repr(fresh.capture()) == before
