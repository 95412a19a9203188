"""B44 and B46: the order of a pass under way, and the epoch that it belongs to, with every loader that shuffles."""

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler, Sampler
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

import segue
from segue.errors import UnsupportedState


def started(loader, seed):
    """A program in a new process: seeded otherwise, built anew."""
    torch.manual_seed(seed)
    model = nn.Linear(1, 1)
    data = segue.DataPosition(loader())
    return segue.Training(model, torch.optim.SGD(model.parameters(), lr=0.1), components={"data": data}), data


def ids(batches):
    return [int(index) for batch in batches for index in torch.as_tensor(batch).flatten()]


class Bits(Sampler):
    """A shuffle of its own, from a generator of its own that it saves."""

    def __init__(self, length):
        self.length, self.generator = length, torch.Generator().manual_seed(1)

    def __len__(self):
        return self.length

    def __iter__(self):
        yield from torch.randperm(self.length, generator=self.generator).tolist()

    def state_dict(self):
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state):
        self.generator.set_state(state["generator"])


TWENTY = list(range(20))
SHUFFLED = {
    "exact": lambda **w: DataLoader(TWENTY, sampler=segue.ExactSampler(TWENTY), **w),
    "exact in batches": lambda **w: DataLoader(
        TWENTY, batch_sampler=BatchSampler(segue.ExactSampler(TWENTY), 3, False), **w
    ),
    "exact, stateful loader": lambda **w: StatefulDataLoader(TWENTY, sampler=segue.ExactSampler(TWENTY), **w),
    "own state": lambda **w: DataLoader(TWENTY, sampler=Bits(20), **w),
    "distributed": lambda **w: DataLoader(
        TWENTY, sampler=DistributedSampler(TWENTY, num_replicas=1, rank=0), **w
    ),
    "stateful loader": lambda **w: StatefulDataLoader(TWENTY, shuffle=True, **w),
    "stateful loader with a generator": lambda **w: StatefulDataLoader(
        TWENTY, shuffle=True, generator=torch.Generator().manual_seed(4), **w
    ),
    "sampler with a generator": lambda **w: StatefulDataLoader(
        TWENTY, sampler=RandomSampler(TWENTY, generator=torch.Generator().manual_seed(4)), **w
    ),
}


@pytest.mark.parametrize("form", SHUFFLED)
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.exact)])
def test_b44_a_pass_that_was_cut_goes_on_in_its_own_order(form, workers):
    def loader():
        return SHUFFLED[form](num_workers=workers)

    training, data = started(loader, 0)
    passes = iter(data)
    taken = 3 if form == "exact in batches" else 8
    before = ids(next(passes) for _ in range(taken))
    record = training.capture()
    rest = ids(passes)
    assert sorted(before + rest) == TWENTY, "none twice, none never"
    following = ids(data)
    resumed, data = started(loader, 1)
    resumed.restore(record)
    assert ids(data) == rest
    assert ids(data) == following


def test_b44_the_loader_that_can_t_is_refused_when_it_is_built_and_says_what_replaces_it():
    with pytest.raises(UnsupportedState) as caught:
        segue.DataPosition(DataLoader(TWENTY, shuffle=True))
    assert "sampler = segue.ExactSampler(dataset, batch_size=1)" in caught.value.hint


TWELVE = list(range(12))


def distributed(rank):
    return DistributedSampler(TWELVE, num_replicas=2, rank=rank, shuffle=True, seed=3)


def exact(rank):
    return segue.ExactSampler(TWELVE, batch_size=2, rank=rank, world_size=2, seed=3)


EPOCHS = {
    "plain": lambda rank, **w: DataLoader(TWELVE, batch_size=2, sampler=distributed(rank), **w),
    "stateful loader": lambda rank, **w: StatefulDataLoader(
        TWELVE, batch_size=2, sampler=distributed(rank), **w
    ),
    "stateful sampler": lambda rank, **w: StatefulDataLoader(
        TWELVE, batch_size=2, sampler=StatefulDistributedSampler(TWELVE, 2, rank, seed=3), **w
    ),
    "exact": lambda rank, **w: DataLoader(TWELVE, batch_size=2, sampler=exact(rank), **w),
    "exact, stateful loader": lambda rank, **w: StatefulDataLoader(
        TWELVE, batch_size=2, sampler=exact(rank), **w
    ),
}


def expected_orders(form, rank):
    sampler = exact(rank) if "exact" in form else distributed(rank)
    orders = []
    for epoch in range(4):
        sampler.set_epoch(epoch)
        orders.append(list(sampler))
    return orders


def test_b46_the_order_of_the_case_is_that_of_the_case():
    assert expected_orders("plain", 0)[2][2:] == [10, 4, 8, 1]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("form", EPOCHS)
@pytest.mark.parametrize("cut", [0, 1, 2, 3])
def test_b46_a_pass_is_of_the_epoch_it_was_begun_in_and_the_next_is_of_the_next(form, rank, cut):
    def loader():
        return EPOCHS[form](rank)

    orders = expected_orders(form, rank)
    training, data = started(loader, 0)
    assert [ids(data), ids(data)] == orders[:2]
    passes = iter(data)
    for _ in range(cut):
        next(passes)
    record = training.capture()
    resumed, data = started(loader, 1)
    resumed.restore(record)
    assert data.epoch == 2
    assert [ids(data), ids(data)] == [orders[2][2 * cut :], orders[3]]


@pytest.mark.exact
@pytest.mark.parametrize("form", EPOCHS)
def test_b46_workers_that_live_on_change_nothing(form):
    def loader():
        return EPOCHS[form](0, num_workers=1, persistent_workers=True)

    orders = expected_orders(form, 0)
    training, data = started(loader, 0)
    list(data)
    record = training.capture()
    resumed, data = started(loader, 1)
    resumed.restore(record)
    assert [ids(data), ids(data)] == orders[1:3]


@pytest.mark.parametrize("form", EPOCHS)
def test_b46_epochs_that_the_program_counts_itself_are_its_own(form):
    def begin(data, epoch):
        data.loader.sampler.set_epoch(epoch)

    orders = expected_orders(form, 1)
    training, data = started(lambda: EPOCHS[form](1), 0)
    begin(data, 3)
    passes = iter(data)
    next(passes)
    record = training.capture()
    resumed, data = started(lambda: EPOCHS[form](1), 1)
    resumed.restore(record)
    assert ids(data) == orders[3][2:]
    begin(data, 1)
    assert ids(data) == orders[1]
