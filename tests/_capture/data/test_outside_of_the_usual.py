"""What programs do around their data: hidden epochs, shared generators, fetches that fail, loaders of their own making."""

import random
import time

import datasets
import pytest
import torch
import torchdata.nodes as tn
from torch import nn
from torch.optim import SGD
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

import segue
from segue.errors import UnsupportedState
from tests.exactness.data_kinds import SIZE, Eager, Numbers

pytestmark = pytest.mark.filterwarnings("ignore::segue.errors.UncoveredStateWarning")


def training(data):
    model = nn.Linear(1, 1)
    return segue.Training(model, SGD(model.parameters(), lr=0.1), components={"data": data})


class Told(Eager):
    """Keeps its epoch where nobody can read it."""

    hidden = 0

    def set_epoch(self, epoch):
        self.hidden = epoch

    def __iter__(self):
        return iter(torch.randperm(SIZE, generator=torch.Generator().manual_seed(self.hidden)).tolist())


def test_an_epoch_that_only_the_sampler_knows_is_told_again():
    def data():
        return segue.DataPosition(StatefulDataLoader(Numbers(), 3, sampler=Told()))

    run, resumed = data(), data()
    list(run)
    batches = iter(run)
    next(batches)
    record = training(run).capture()
    training(resumed).restore(record)
    assert [batch.tolist() for batch in resumed] == [batch.tolist() for batch in batches]


def test_an_epoch_that_the_program_sets_behind_a_restore_is_in_the_next_record():
    def data():
        sampler = DistributedSampler(Numbers(), 2, 0)
        return sampler, segue.DataPosition(StatefulDataLoader(Numbers(), 3, sampler=sampler))

    _, run = data()
    list(run)
    sampler, resumed = data()
    resumed.restore(run.capture())
    sampler.set_epoch(9)
    again, third = data()
    third.restore(resumed.capture())
    assert again.epoch == 9
    list(third)
    assert again.epoch == 9


class Lazy(Eager):
    """Draws each index when it is asked for it."""

    def __init__(self, generator):
        self.generator = generator

    def __iter__(self):
        return (int(torch.randint(SIZE, (), generator=self.generator)) for _ in range(SIZE))


def in_turn(generator):
    return RandomSampler(Numbers(), replacement=True, num_samples=99, generator=generator)


@pytest.mark.parametrize(("make", "workers"), [(Lazy, 0), (in_turn, 0), (in_turn, 1)])
@pytest.mark.parametrize("is_shared", [True, False])
def test_a_generator_that_sampler_and_training_draw_from_in_turn_is_refused(make, workers, is_shared):
    def data(generator):
        return segue.DataPosition(
            StatefulDataLoader(Numbers(), 8, sampler=make(generator), num_workers=workers)
        )

    generator = torch.Generator().manual_seed(1)
    run = data(generator)
    batches = iter(run)
    for _ in range(6 if make is in_turn else 2):
        next(batches)
        torch.rand(3, generator=generator if is_shared else None)
    if is_shared:
        with pytest.raises(UnsupportedState) as caught:
            run.capture()
        assert caught.value.code == "capture.data.mixed"
        assert "generator" in str(caught.value.found)
        return
    record = training(run).capture()
    whole = [batch.tolist() for batch in batches]
    resumed = data(torch.Generator())
    training(resumed).restore(record)
    assert [batch.tolist() for batch in resumed] == whole


class Damaged(Numbers):
    def __getitem__(self, index):
        if index == 4:
            raise ValueError("this one can't be read")
        return index


@pytest.mark.parametrize(
    "loader",
    [
        lambda: DataLoader(Damaged(), 3),
        lambda: DataLoader(Damaged(), 3, sampler=segue.ExactSampler(SIZE, batch_size=3, shuffle=False)),
        lambda: DataLoader(Damaged(), 3, sampler=DistributedSampler(Numbers(), 1, 0, shuffle=False)),
        lambda: StatefulDataLoader(Damaged(), 3, num_workers=1),
    ],
)
def test_a_pass_that_goes_on_behind_a_failed_fetch_is_refused_until_it_ends(loader):
    data = segue.DataPosition(loader())
    batches = iter(data)
    next(batches)
    with pytest.raises(ValueError, match="can't be read"):
        next(batches)
    next(batches)
    with pytest.raises(UnsupportedState) as caught:
        data.capture()
    assert caught.value.code == "capture.data.failed"
    list(batches)
    assert data.capture()["progress"]["epoch"] == 1


def test_a_loader_that_says_itself_where_it_stands_goes_on_behind_a_failed_fetch():
    def data():
        return segue.DataPosition(StatefulDataLoader(Damaged(), 3))

    run, resumed = data(), data()
    batches = iter(run)
    next(batches)
    with pytest.raises(ValueError, match="can't be read"):
        next(batches)
    next(batches)
    resumed.restore(run.capture())
    assert [batch.tolist() for batch in resumed] == [batch.tolist() for batch in batches]


class Doubling(StatefulDataLoader):
    def __iter__(self):
        for batch in super().__iter__():
            yield 2 * batch


def test_a_stateful_loader_that_iterates_in_its_own_way_is_refused_or_run_again():
    with pytest.raises(UnsupportedState) as caught:
        segue.DataPosition(Doubling(Numbers(), 3))
    assert caught.value.code == "capture.data.loader"
    run, resumed = (segue.DataPosition(Doubling(Numbers(), 3, shuffle=True), replay=True) for _ in range(2))
    batches = iter(run)
    next(batches)
    record = training(run).capture()
    training(resumed).restore(record)
    assert [batch.tolist() for batch in resumed] == [batch.tolist() for batch in batches]


def prefetched(sampler):
    node = tn.Batcher(tn.Mapper(tn.SamplerWrapper(sampler), int), 3, drop_last=False)
    return segue.DataPosition(tn.Loader(tn.Prefetcher(node, 8)))


def test_nodes_whose_source_has_ended_in_a_thread_lose_no_batch():
    def data():
        return prefetched(StatefulDistributedSampler(Numbers(), 1, 0))

    run = data()
    batches = iter(run)
    next(batches)
    time.sleep(0.5)  # by now everything was fetched
    record = training(run).capture()
    whole, following = list(batches), list(run)
    assert len(whole) == 5
    resumed = data()
    training(resumed).restore(record)
    assert list(resumed) == whole
    assert list(resumed) == following


def test_a_sampler_that_draws_in_a_thread_of_nodes_is_refused():
    with pytest.raises(UnsupportedState) as caught:
        prefetched(RandomSampler(Numbers(), generator=torch.Generator()))
    assert caught.value.code == "capture.data.threads"


def rows():
    for number in range(7):
        yield {"x": number + random.random()}


def test_a_generator_of_examples_that_draws_in_turn_with_the_training_is_refused():
    data = segue.DataPosition(datasets.IterableDataset.from_generator(rows))
    batches = iter(data)
    for _ in range(3):
        next(batches)
        random.random()
    with pytest.raises(UnsupportedState) as caught:
        data.capture()
    assert caught.value.code == "capture.data.mixed"
