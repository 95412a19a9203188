"""One order for the whole run: what each rank takes of it, where it stands, and what is refused."""

import copy
import random
import time

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset

from segue import ExactSampler
from segue.errors import ComponentMismatch


@pytest.fixture(autouse=True)
def _no_ranks(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)


def ranks(length, world_size, **options):
    return [ExactSampler(length, rank=rank, world_size=world_size, **options) for rank in range(world_size)]


def batches(sampler, batch_size):
    return list(BatchSampler(sampler, batch_size, False))


def test_one_rank_has_every_sample_once_and_each_epoch_in_another_order():
    sampler, orders = ExactSampler(100, seed=3), []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        orders.append(list(sampler))
        assert sorted(orders[-1]) == list(range(100))
        assert sampler.global_order() == orders[-1]
    assert orders[0] != orders[1] != orders[2] != orders[0]
    assert len(sampler) == 100


def test_the_order_of_a_seed_and_an_epoch_never_changes():
    sampler = ExactSampler(12, seed=3)
    sampler.set_epoch(2)
    assert list(sampler) == [3, 2, 10, 9, 11, 4, 8, 5, 1, 6, 0, 7]


def test_another_seed_is_another_order():
    assert list(ExactSampler(50, seed=0)) != list(ExactSampler(50, seed=1))


def test_without_shuffling_samples_come_as_they_are_numbered_in_each_epoch():
    sampler = ExactSampler(5, shuffle=False)
    sampler.set_epoch(9)
    assert list(sampler) == [0, 1, 2, 3, 4]


def test_ranks_take_blocks_of_each_global_batch():
    order = ExactSampler(22, seed=1).global_order()
    parts = [batches(sampler, 3) for sampler in ranks(22, 2, batch_size=3, seed=1)]
    for step in range(3):
        together = parts[0][step] + parts[1][step]
        assert together == order[6 * step : 6 * step + 6]
    # Four are left: two for each.
    assert parts[0][3] + parts[1][3] == order[18:]
    assert [len(sampler) for sampler in ranks(22, 2, batch_size=3)] == [11, 11]


def test_a_last_batch_with_fewer_samples_than_ranks_leaves_some_ranks_without_one():
    order = ExactSampler(10, seed=1).global_order()
    parts = [list(sampler) for sampler in ranks(10, 4, batch_size=2, seed=1)]
    assert [len(part) for part in parts] == [3, 3, 2, 2]
    assert [parts[0][2], parts[1][2]] == order[8:]
    assert [len(sampler) for sampler in ranks(10, 4, batch_size=2)] == [3, 3, 2, 2]


def test_a_dropped_end_is_in_no_rank_s_part():
    order = ExactSampler(22, seed=1).global_order()
    parts = [list(sampler) for sampler in ranks(22, 2, batch_size=3, seed=1, drop_last=True)]
    assert sorted(parts[0] + parts[1]) == sorted(order[:18])
    assert [len(sampler) for sampler in ranks(22, 2, batch_size=3, drop_last=True)] == [9, 9]


def test_a_placed_sampler_goes_on_behind_what_was_committed():
    for start in range(31):
        parts = ranks(30, 3, batch_size=2, seed=4)
        for part in parts:
            part.place(1, start)
        order = parts[0].global_order()
        steps = [batches(part, 2) for part in parts]
        found = [
            index
            for number in range(max(map(len, steps)))
            for step in steps
            for index in (step[number] if number < len(step) else [])
        ]
        assert found == order[start:]


def test_what_was_handed_out_is_not_committed():
    sampler = ExactSampler(20, seed=1)
    ahead = iter(sampler)
    first = [next(ahead) for _ in range(7)]
    assert sampler.committed == 0
    assert [next(iter(sampler)) for _ in range(2)] == [first[0]] * 2
    sampler.commit(4)
    assert list(sampler) == sampler.global_order()[4:]
    assert next(ahead) == sampler.global_order()[7], "an iterator that began earlier goes its own way"


def test_more_than_the_epoch_has_cannot_be_committed():
    sampler = ExactSampler(10, batch_size=4, drop_last=True)
    sampler.commit(8)
    with pytest.raises(ValueError, match="samples must be at least 0 and below 1, not 1"):
        sampler.commit(1)
    assert sampler.committed == 8
    whole = ExactSampler(10, batch_size=4)
    whole.commit(10)
    assert list(whole) == []


def test_the_same_epoch_keeps_the_position_and_another_begins_anew():
    sampler = ExactSampler(10)
    sampler.commit(3)
    sampler.set_epoch(0)
    assert (sampler.epoch, sampler.committed) == (0, 3)
    sampler.set_epoch(1)
    assert (sampler.epoch, sampler.committed) == (1, 0)


def test_the_state_is_that_of_the_run_and_the_same_on_every_rank():
    states = []
    for sampler in ranks(50, 5, batch_size=2, seed=9):
        sampler.set_epoch(4)
        sampler.commit(10)
        states.append(sampler.state_dict())
    assert all(state == states[0] for state in states)
    assert states[0] == {"order": "feistel-1", "length": 50, "seed": 9, "epoch": 4, "committed": 10}


def test_a_state_goes_on_with_another_number_of_ranks():
    before = ranks(50, 5, batch_size=2, seed=9)[3]
    before.set_epoch(4)
    before.commit(20)
    after = ranks(50, 2, batch_size=5, seed=9)
    for sampler in after:
        sampler.load_state_dict(before.state_dict())
    order = after[0].global_order()
    assert batches(after[0], 5)[0] + batches(after[1], 5)[0] == order[20:30]


@pytest.mark.parametrize(
    ("other", "code"),
    [
        (ExactSampler(51, seed=9), "sampler.length"),
        (ExactSampler(50, seed=8), "sampler.seed"),
        (ExactSampler(50, seed=9, shuffle=False), "sampler.order"),
    ],
)
def test_the_state_of_another_order_is_refused_and_changes_nothing(other, code):
    sampler = ExactSampler(50, seed=9)
    sampler.commit(5)
    before = sampler.state_dict()
    with pytest.raises(ComponentMismatch) as caught:
        sampler.load_state_dict(other.state_dict())
    assert caught.value.code == code
    assert sampler.state_dict() == before


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": -1}, {"epoch": 2**63}, {"epoch": 1.0}, {"epoch": None}, {"epoch": True}, {"committed": -1},
        {"committed": 51}, {"committed": "7"}, {"committed": 2**64}, {"committed": torch.tensor([1, 2])},
    ],
)  # fmt: skip
def test_a_state_that_is_none_is_refused_and_changes_nothing(change):
    sampler = ExactSampler(50)
    sampler.set_epoch(2)
    sampler.commit(5)
    before = sampler.state_dict()
    with pytest.raises(ComponentMismatch) as caught:
        sampler.load_state_dict({**before, **change})
    assert caught.value.code == "sampler.position"
    assert sampler.state_dict() == before


@pytest.mark.parametrize("state", [None, {}, [], {"epoch": 0, "committed": 0}, "state"])
def test_what_is_no_state_is_refused(state):
    with pytest.raises(ComponentMismatch) as caught:
        ExactSampler(50).load_state_dict(state)
    assert caught.value.code == "sampler.order"


@pytest.mark.parametrize("missing", ["epoch", "committed"])
def test_a_state_without_a_position_is_refused(missing):
    state = ExactSampler(50).state_dict()
    del state[missing]
    with pytest.raises(ComponentMismatch):
        ExactSampler(50).load_state_dict(state)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_it_drives_a_loader_with_any_number_of_workers(workers):
    sampler = ExactSampler(list(range(10)), seed=5)
    loader = DataLoader(list(range(10)), batch_size=4, sampler=sampler, num_workers=workers)
    found = [index for batch in loader for index in batch.tolist()]
    assert found == sampler.global_order()
    assert len(loader) == 3


def test_persistent_workers_get_the_order_of_each_epoch():
    sampler = ExactSampler(range(9), seed=5)
    loader = DataLoader(list(range(9)), batch_size=4, sampler=sampler, num_workers=2, persistent_workers=True)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        assert [index for batch in loader for index in batch.tolist()] == sampler.global_order()


def test_it_can_be_wrapped_into_a_batch_sampler():
    sampler = ExactSampler(range(9), seed=5)
    loader = DataLoader(list(range(9)), batch_sampler=BatchSampler(sampler, 4, True))
    assert [index for batch in loader for index in batch.tolist()] == sampler.global_order(0, 8)


def test_ranks_come_from_the_variables_of_torchrun_and_what_is_told_goes_first(monkeypatch):
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    found = ExactSampler(40, batch_size=2)
    assert (found.rank, found.world_size) == (2, 4)
    told = ExactSampler(40, batch_size=2, rank=0, world_size=1)
    assert (told.rank, told.world_size) == (0, 1)


def test_half_of_the_topology_is_refused(monkeypatch):
    with pytest.raises(TypeError, match="world_size is missing"):
        ExactSampler(4, rank=0)
    with pytest.raises(TypeError, match="rank is missing"):
        ExactSampler(4, world_size=2, batch_size=1)
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(TypeError, match="world_size is missing"):
        ExactSampler(4)


def test_a_variable_that_is_no_number_is_refused(monkeypatch):
    monkeypatch.setenv("RANK", "first")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ValueError, match="the environment variable RANK is 'first'"):
        ExactSampler(4, batch_size=1)


@pytest.mark.parametrize("options", [{"rank": 0, "world_size": 2}, {"drop_last": True}])
def test_the_batch_size_is_asked_for_where_it_matters(options):
    with pytest.raises(TypeError, match="must know the batch size"):
        ExactSampler(10, **options)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"rank": 2, "world_size": 2, "batch_size": 1}, ValueError, "rank must be at least 0 and below 2"),
        ({"rank": -1, "world_size": 2, "batch_size": 1}, ValueError, "rank must be"),
        ({"rank": 0, "world_size": 0, "batch_size": 1}, ValueError, "world_size must be at least 1"),
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1"),
        ({"batch_size": 2.0}, TypeError, "batch_size must be a whole number"),
        ({"seed": -1}, ValueError, "seed must be at least 0"),
        ({"seed": "0"}, TypeError, "seed must be a whole number"),
    ],
)
def test_options_out_of_range_are_refused(options, error, text):
    with pytest.raises(error, match=text):
        ExactSampler(10, **options)


class Stream(IterableDataset):
    def __iter__(self):
        yield 1


@pytest.mark.parametrize("dataset", [Stream(), iter([1]), None, 2.5])
def test_what_has_no_length_is_refused(dataset):
    with pytest.raises(TypeError, match="the order needs the number of samples"):
        ExactSampler(dataset)


class Table(Dataset):
    def __len__(self):
        return 7

    def __getitem__(self, index):
        return index


@pytest.mark.parametrize("dataset", [Table(), range(7), [0] * 7, 7, np.int64(7)])
def test_a_dataset_or_its_length_say_the_same(dataset):
    assert list(ExactSampler(dataset, seed=1)) == list(ExactSampler(7, seed=1))


def test_a_single_sample_and_none_are_orders_too():
    assert list(ExactSampler(1)) == [0]
    assert list(ExactSampler(0)) == []
    assert len(ExactSampler(0)) == 0


def test_nothing_is_drawn_from_any_stream():
    before = random.getstate(), repr(np.random.get_state()), torch.get_rng_state().tolist()
    sampler = ExactSampler(1000, seed=2)
    list(sampler)
    sampler.set_epoch(1)
    list(sampler)
    assert (random.getstate(), repr(np.random.get_state()), torch.get_rng_state().tolist()) == before


def test_a_hundred_million_samples_begin_at_once_anywhere():
    began = time.perf_counter()
    sampler = ExactSampler(10**8, batch_size=16, rank=1, world_size=3)
    sampler.place(5, 48 * 10**6)
    first = next(iter(sampler))
    assert time.perf_counter() - began < 1
    assert first == sampler.global_order(48 * 10**6 + 16, 48 * 10**6 + 17)[0]


def test_an_order_longer_than_a_chunk_is_the_same_order():
    sampler = ExactSampler(10_000, seed=1)
    assert list(sampler) == sampler.global_order()
    assert sorted(sampler) == list(range(10_000))


def test_it_says_what_it_is():
    assert repr(ExactSampler(10, batch_size=2, seed=3, rank=1, world_size=2)) == (
        "ExactSampler(10, batch_size=2, seed=3, shuffle=True, drop_last=False, rank=1, world_size=2)"
    )
    sampler = ExactSampler(10, batch_size=2, seed=3, shuffle=False, drop_last=True)
    assert (sampler.length, sampler.batch_size, sampler.seed, sampler.shuffle) == (10, 2, 3, False)
    assert (sampler.drop_last, sampler.order) == (True, "in order")


def test_a_copy_stands_where_the_first_one_stood_and_goes_alone():
    sampler = ExactSampler(10, seed=3)
    sampler.commit(4)
    twin = copy.deepcopy(sampler)
    twin.commit(2)
    assert (sampler.committed, twin.committed) == (4, 6)
    assert list(twin) == sampler.global_order()[6:]
