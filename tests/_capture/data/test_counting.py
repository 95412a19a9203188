"""What counts as delivered, when a pass ends, and what capturing must not do."""

import random

import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

import segue
from segue.errors import StaleIterator
from tests.exactness.data_kinds import Counting, Eager, Numbers


def position(**options):
    return segue.DataPosition(StatefulDataLoader(Numbers(), 3, shuffle=True, **options))


def progress(data):
    return tuple(data.capture()["progress"].values())


def test_the_batch_in_whose_body_one_stands_counts_as_delivered():
    data = position()
    seen = [(data.epoch, data.delivered) for _ in data]
    assert seen == [(0, number) for number in range(1, 7)]
    assert (data.epoch, data.delivered) == (1, 0)
    assert len(data) == 6


def test_before_the_first_iter_a_capture_builds_nothing_and_draws_nothing():
    data = position()
    before = torch.get_rng_state(), random.getstate(), data.loader.sampler.generator.get_state()
    assert progress(data) == (0, 0, False)
    assert data.loader._iterator is None
    after = torch.get_rng_state(), random.getstate(), data.loader.sampler.generator.get_state()
    assert torch.equal(before[0], after[0])
    assert before[1] == after[1]
    assert torch.equal(before[2], after[2])


def test_between_passes_a_capture_builds_nothing_either():
    data = position()
    list(data)
    iterator, before = data.loader._iterator, torch.get_rng_state()
    assert progress(data) == (1, 0, False)
    assert data.loader._iterator is iterator
    assert torch.equal(before, torch.get_rng_state())


def test_a_pass_that_was_left_by_break_has_ended():
    data = position()
    for _ in data:
        break
    assert progress(data) == (1, 0, False)
    assert len(list(data)) == 6
    assert progress(data) == (2, 0, False)


def test_an_iterator_is_stale_once_another_has_begun():
    data = position()
    old = iter(data)
    next(old)
    new = iter(data)
    with pytest.raises(StaleIterator) as caught:
        next(old)
    assert caught.value.code == "data.stale"
    assert next(new) is not None
    assert progress(data) == (1, 1, True)


def test_an_iterator_is_stale_after_a_restore():
    data = position()
    old = iter(data)
    next(old)
    data.restore(data.capture())
    with pytest.raises(StaleIterator):
        next(old)
    assert data.delivered == 1
    assert sum(1 for _ in data) == 5


def test_an_iterator_that_has_ended_stays_ended():
    data = position()
    batches = iter(data)
    assert sum(1 for _ in batches) == 6
    assert next(batches, None) is None
    assert progress(data) == (1, 0, False)


def test_what_was_restored_is_what_a_capture_says_until_something_is_delivered():
    data = position()
    batches = iter(data)
    for _ in range(2):
        next(batches)
    state, other = data.capture(), position()
    other.restore(state)
    assert repr(other.capture()) == repr(state)
    rest = iter(other)
    assert repr(other.capture()) == repr(state)
    next(rest)
    assert progress(other) == (0, 3, True)


def test_a_sampler_is_told_the_pass_unless_the_program_tells_it_something_else():
    class Told(Eager):
        epoch = 0

        def set_epoch(self, epoch):
            self.epoch = epoch

    sampler = Told()
    data = segue.DataPosition(StatefulDataLoader(Numbers(), 3, sampler=sampler))
    told = []
    for _ in range(3):
        list(data)
        told.append(sampler.epoch)
    assert told == [0, 1, 2]
    sampler.set_epoch(10)
    list(data)
    assert sampler.epoch == 10
    sampler.set_epoch(20)
    state = data.capture()
    again = Told()
    other = segue.DataPosition(StatefulDataLoader(Numbers(), 3, sampler=again))
    other.restore(state)
    assert again.epoch == 20
    list(other)
    assert again.epoch == 20  # as the uninterrupted run leaves it


def test_epochs_of_a_dataset_in_torchs_shared_memory_are_read_as_numbers():
    class Told(Numbers):
        def __init__(self):
            self.epoch = torch.zeros((), dtype=torch.int64).share_memory_()

        def set_epoch(self, epoch):
            self.epoch.fill_(epoch)

    data = segue.DataPosition(StatefulDataLoader(Told(), 3))
    list(data)
    list(data)
    assert data.capture()["epochs"]["values"] == {"loader.dataset": 1}


def test_an_iterable_of_no_library_is_counted_too():
    data = segue.DataPosition(Counting())
    assert [int(batch) for batch in data] == [1, 2, 3, 4, 5, 6]
    assert data.epoch == 1
