"""Loaders that no record could place again are refused, saying what to write."""

import random

import pytest
import torch
import torchdata.nodes as tn
from torch import nn
from torch.optim import SGD
from torch.utils.data import DataLoader, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

import segue
from segue.errors import UnsupportedState
from tests.exactness.data_kinds import Counting, Drawn, Eager, Numbers, Stream, streamed


def training(**components):
    model = nn.Linear(1, 1)
    return segue.Training(model, SGD(model.parameters(), lr=0.1), components=components)


@pytest.mark.parametrize(
    "bare",
    [
        StatefulDataLoader(Numbers(), 3),
        tn.Loader(tn.IterableWrapper(range(3))),
        tn.IterableWrapper(range(3)),
        streamed(),
        DataLoader(Numbers(), 3),
    ],
    ids=["stateful", "nodes", "node", "datasets", "in order"],
)
def test_a_bare_loader_is_refused_with_the_line_that_wraps_it(bare):
    with pytest.raises(UnsupportedState) as caught:
        training(data=bare)
    assert "segue.DataPosition(loader)" in caught.value.hint


def test_a_bare_shuffling_loader_is_refused_with_the_two_lines_that_replace_it():
    with pytest.raises(UnsupportedState) as caught:
        training(data=DataLoader(Numbers(), 3, shuffle=True))
    assert "segue.ExactSampler" in caught.value.hint
    assert "segue.DataPosition" in caught.value.hint


@pytest.mark.parametrize(
    "loader", [range(3), Numbers(), Eager(), iter([1]), 5, None], ids=lambda loader: type(loader).__name__
)
def test_what_is_no_loader_is_refused(loader):
    with pytest.raises(UnsupportedState) as caught:
        segue.DataPosition(loader)
    assert caught.value.code == "capture.data.loader"
    assert caught.value.hint


def test_an_iterator_can_not_be_run_again():
    with pytest.raises(UnsupportedState) as caught:
        segue.DataPosition(iter([1]), replay=True)
    assert "iterated over again" in caught.value.hint


def test_an_order_that_depends_on_who_finishes_first_is_refused():
    with pytest.raises(UnsupportedState) as caught:
        segue.DataPosition(StatefulDataLoader(Numbers(), 3, num_workers=2, in_order=False))
    assert caught.value.code == "capture.data.order"


def test_workers_that_live_on_over_a_dataset_without_a_state_are_refused():
    with pytest.raises(UnsupportedState) as caught:
        segue.DataPosition(StatefulDataLoader(Drawn(), 3, num_workers=1, persistent_workers=True))
    assert caught.value.code == "capture.data.workers"


class Late(Counting):
    def __iter__(self):
        while self.position < 6:
            yield torch.tensor([self.position])
            self.position += 1
        self.position = 0


def test_b51_a_counter_that_moves_behind_the_yield_is_refused():
    data = segue.DataPosition(Late())
    for _ in data:
        with pytest.raises(UnsupportedState) as caught:
            data.capture()
        break
    assert caught.value.code == "capture.data.behind"
    assert "yield" in caught.value.hint


def test_a_pass_that_was_left_over_a_dataset_with_its_own_place_is_refused_until_the_next_has_begun():
    data = segue.DataPosition(StatefulDataLoader(Stream(), 3))
    for _ in data:
        break
    with pytest.raises(UnsupportedState) as caught:
        data.capture()
    assert caught.value.code == "capture.data.left"
    for _ in data:
        data.capture()


class AsItGoes(IterableDataset):
    """A shuffle buffer on the global stream, without a state."""

    def __iter__(self):
        buffer = []
        for number in range(17):
            buffer.append(number)
            if len(buffer) > 4:
                yield buffer.pop(random.randrange(len(buffer)))


def test_draws_between_those_of_the_training_are_refused_and_others_are_not():
    data = segue.DataPosition(StatefulDataLoader(AsItGoes(), 3))
    batches = iter(data)
    for _ in range(3):
        next(batches)
    data.capture()  # nobody else has drawn from Python's stream
    random.random()
    data.capture()
    next(batches)
    with pytest.raises(UnsupportedState) as caught:
        data.capture()
    assert caught.value.code == "capture.data.mixed"
    assert "python" in caught.value.found


def test_draws_of_samples_are_not_those_of_the_sampler():
    class Noisy(Numbers):
        def __getitem__(self, index):
            return index + torch.rand(1)

    data = segue.DataPosition(StatefulDataLoader(Noisy(), 3, sampler=Eager()))
    for _ in data:
        torch.rand(1)
        data.capture()


def test_a_shuffle_buffer_inside_a_node_is_refused():
    node = tn.IterableWrapper(streamed().shuffle(seed=1, buffer_size=5))
    with pytest.raises(UnsupportedState) as caught:
        segue.DataPosition(tn.Loader(node))
    assert caught.value.code == "capture.data.buffer"
