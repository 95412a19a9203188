"""A sample's randomness follows from seed, epoch and index: in any process, in any order, in any batch."""

import copy
import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from segue import SeededSamples, per_sample_seed


class Noisy(Dataset):
    """Draws from all three global streams, a Gaussian of each that keeps a second one back included."""

    def __init__(self, length=12):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if index >= self.length:
            raise IndexError(index)
        numbers = [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn()]
        drawn = torch.cat([torch.rand(2, dtype=torch.float64), torch.randn(2, dtype=torch.float64)])
        return torch.cat([torch.tensor([index, *numbers], dtype=torch.float64), drawn])


class InBatches(Dataset):
    """Is asked for batches only, and says which."""

    def __init__(self):
        self.asked = []

    def __len__(self):
        return 8

    def __getitems__(self, indices):
        self.asked.append(list(indices))
        return [(index, random.random()) for index in indices]


class Both(InBatches):
    def __getitem__(self, index):
        return "one", index, random.random()


class Epochal(Noisy):
    epoch = None

    def set_epoch(self, epoch):
        self.epoch = epoch


def bits(samples):
    return torch.stack(list(samples)).view(torch.int64).tolist()


def streams():
    return random.getstate(), repr(np.random.get_state()), torch.get_rng_state().tolist()


def stir():
    """Bring the streams to an odd place: each keeps a Gaussian back."""
    random.seed(3), np.random.seed(3), torch.manual_seed(3)
    random.gauss(0, 1), np.random.randn(), torch.randn(1)


def test_a_sample_is_the_same_whenever_it_is_read_and_another_in_another_epoch_or_with_another_seed():
    samples = SeededSamples(Noisy(), seed=1)
    first = bits(samples[index] for index in range(12))
    assert bits(samples[index] for index in reversed(range(12))) == first[::-1]
    samples.set_epoch(1)
    second = bits(samples[index] for index in range(12))
    samples.set_epoch(0)
    assert bits(samples[index] for index in range(12)) == first
    other = bits(SeededSamples(Noisy(), seed=2)[index] for index in range(12))
    # All but the first number of each sample, its index.
    drawn = {number for rows in (first, second, other) for row in rows for number in row[1:]}
    assert len(drawn) == 3 * 12 * 8


def test_the_streams_stand_where_they_stood_with_their_kept_back_gaussians():
    stir()
    before = streams()
    samples = SeededSamples(Noisy())
    samples[3]
    samples.__getitems__([1, 2, -1])
    samples.set_epoch(4)
    assert streams() == before


def test_the_streams_stand_where_they_stood_after_an_error_too():
    class Broken(Noisy):
        def __getitem__(self, index):
            super().__getitem__(index)
            raise OSError("unreadable")

    stir()
    before = streams()
    with pytest.raises(OSError, match="unreadable"):
        SeededSamples(Broken())[0]
    with pytest.raises(OSError, match="unreadable"):
        SeededSamples(Broken()).__getitems__([0])
    assert streams() == before


def test_torch_s_stream_is_seeded_by_the_seed_of_the_sample():
    class Torch(Noisy):
        def __getitem__(self, index):
            return torch.rand(4)

    expected = torch.rand(4, generator=torch.Generator().manual_seed(per_sample_seed(7, 2, 5)))
    samples = SeededSamples(Torch(), seed=7)
    samples.set_epoch(2)
    assert torch.equal(samples[5].view(torch.int32), expected.view(torch.int32))


def test_what_python_and_numpy_draw_for_a_sample_never_changes():
    samples = SeededSamples(Noisy(), seed=7)
    samples.set_epoch(2)
    # Torch's own numbers may change with torch.
    assert samples[5].tolist()[:5] == [
        5.0,
        0.25073591806781004,
        0.30114458994601945,
        0.8050211240870466,
        -0.6910281762095423,
    ]


def test_the_three_streams_give_different_numbers():
    sample = SeededSamples(Noisy())[0].tolist()
    assert len(set(sample[1:])) == 8


def test_an_accelerator_s_seed_is_not_kept_for_later():
    waiting = len(torch.cuda._queued_calls)
    SeededSamples(Noisy())[0]
    assert len(torch.cuda._queued_calls) == waiting


def test_an_index_from_the_end_means_the_same_sample():
    samples = SeededSamples(Noisy())
    assert bits([samples[-1], samples[-12]]) == bits([samples[11], samples[0]])
    assert bits(samples.__getitems__([-2])) == bits([samples[10]])


def test_whole_numbers_of_other_libraries_are_indices():
    samples = SeededSamples(Noisy())
    assert bits([samples[torch.tensor(3)], samples[np.int64(3)]]) == bits([samples[3]] * 2)


@pytest.mark.parametrize("index", [12, -13])
def test_an_index_outside_is_an_index_error(index):
    with pytest.raises(IndexError):
        SeededSamples(Noisy())[index]


def test_it_can_be_iterated_over_as_any_sequence():
    assert len(list(SeededSamples(Noisy()))) == 12


@pytest.mark.parametrize("index", ["name", [1, 2], slice(2), 1.5, True, None])
def test_what_is_no_index_is_refused(index):
    with pytest.raises(TypeError, match="the index of a sample must be a whole number"):
        SeededSamples(Noisy())[index]


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("batch_size", [1, 4, 5])
def test_workers_and_batches_change_no_bit(workers, batch_size):
    samples = SeededSamples(Noisy(), seed=5)
    samples.set_epoch(3)
    expected = bits(samples[index] for index in range(12))
    loader = DataLoader(samples, batch_size=batch_size, num_workers=workers)
    assert bits(torch.cat(list(loader))) == expected


def epochs_of(loader, samples):
    """Return the bits of three epochs; the second is broken off after a batch, while workers have fetched ahead."""
    found = []
    for epoch in range(3):
        samples.set_epoch(epoch)
        batches = []
        for batch in loader:
            batches.append(batch)
            if epoch == 1:
                break
        found.append(bits(torch.cat(batches)))
    return found


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_that_live_on_see_the_epoch_however_they_were_started(method):
    samples = SeededSamples(Noisy(), seed=5)
    expected = epochs_of(DataLoader(samples, batch_size=4), samples)
    loader = DataLoader(
        samples, batch_size=4, num_workers=2, persistent_workers=True, multiprocessing_context=method
    )
    assert epochs_of(loader, samples) == expected
    del loader


def test_in_another_the_inner_seed_counts_and_the_outer_goes_on_behind_it():
    class Between(Noisy):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def __getitem__(self, index):
            before = torch.rand(1)
            inner = self.inner[index]
            return before, inner, torch.rand(1)

    class Alone(Noisy):
        def __getitem__(self, index):
            return torch.rand(1), torch.rand(1)

    nested = SeededSamples(Between(SeededSamples(Noisy(), seed=1)), seed=2)[4]
    alone = SeededSamples(Alone(), seed=2)[4]
    assert bits([nested[1]]) == bits([SeededSamples(Noisy(), seed=1)[4]])
    assert (nested[0].item(), nested[2].item()) == (alone[0].item(), alone[1].item())


def test_a_dataset_that_reads_batches_is_asked_for_one_sample_at_a_time():
    dataset = InBatches()
    samples = SeededSamples(dataset, seed=1)
    together = samples.__getitems__([4, 1, 7])
    assert dataset.asked == [[4], [1], [7]]
    assert [samples[index] for index in (4, 1, 7)] == together
    assert next(iter(DataLoader(samples, batch_size=8, collate_fn=list)))[4] == together[0]


def test_a_dataset_that_reads_both_ways_is_asked_as_a_loader_would_ask_it():
    samples = SeededSamples(Both(), seed=1)
    assert samples[2] == ("one", 2, samples.__getitems__([2])[0][1])
    assert samples.dataset.asked == [[2]]
    (batch,) = DataLoader(samples, batch_size=8, collate_fn=list)
    assert [index for index, _ in batch] == list(range(8))


def test_parts_of_a_dataset_are_seeded_by_the_index_in_the_part():
    samples = SeededSamples(Subset(Noisy(), [9, 3]), seed=1)
    assert samples[1][0].item() == 3
    assert bits(samples.__getitems__([0, 1])) == bits([samples[0], samples[1]])


def test_the_epoch_is_told_to_the_dataset_too():
    dataset = Epochal()
    samples = SeededSamples(SeededSamples(dataset))
    samples.set_epoch(6)
    assert (samples.epoch, samples.dataset.epoch, dataset.epoch) == (6, 6, 6)


def test_a_copy_has_an_epoch_of_its_own_that_workers_share():
    samples = SeededSamples(Noisy(), seed=5)
    samples.set_epoch(2)
    twin = copy.deepcopy(samples)
    twin.set_epoch(3)
    assert (samples.epoch, twin.epoch) == (2, 3)
    assert twin._shared_epoch.is_shared()
    assert bits([twin[1]]) != bits([samples[1]])


class Stream(IterableDataset):
    def __iter__(self):
        yield 1


@pytest.mark.parametrize("dataset", [Stream(), iter([1]), 5])
def test_what_has_no_index_is_refused(dataset):
    with pytest.raises(TypeError, match="samples are seeded by their index"):
        SeededSamples(dataset)


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_out_of_range_is_refused(seed):
    with pytest.raises(ValueError, match="seed must be at least 0"):
        SeededSamples(Noisy(), seed=seed)


def test_an_epoch_that_is_none_is_refused_and_changes_nothing():
    dataset = Epochal()
    samples = SeededSamples(dataset)
    samples.set_epoch(3)
    for epoch, error in ((-1, ValueError), (1.5, TypeError)):
        with pytest.raises(error):
            samples.set_epoch(epoch)
    assert (samples.epoch, dataset.epoch) == (3, 3)


def test_it_says_what_it_is():
    assert repr(SeededSamples([1, 2], seed=4)) == "SeededSamples([1, 2], seed=4)"
