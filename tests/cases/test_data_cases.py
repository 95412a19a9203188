"""B45, B48 to B53: where the data is, in passes after a resume too; ids and loss bits equal the uninterrupted run's."""

import random

import pytest
import torch
import torchdata.nodes as tn
from torch.utils.data import DistributedSampler, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

import segue
from segue.errors import UnsupportedState
from tests.cases.data_programs import Program, continued, lengths
from tests.exactness.data_kinds import Counting, LookAhead, Numbers, Stream, streamed

# Several programs stand in one frame here, and each could be told of the others' data.
pytestmark = pytest.mark.filterwarnings("ignore::segue.errors.UncoveredStateWarning")


def joined(first, second):
    """What both saw, by pass: the second went on in the pass in which the first stopped."""
    return {number: first.get(number, []) + second.get(number, []) for number in sorted({*first, *second})}


def shuffled(**options):
    return lambda: StatefulDataLoader(Numbers(), 3, shuffle=True, **options)


def test_b45_a_resume_shortens_its_own_pass_and_no_later_one():
    whole, first, second = continued(shuffled(), stop=3)
    assert lengths(second) == [3, 6, 6]
    assert joined(first, second) == whole


def test_b45_nor_does_one_that_skips_what_was_delivered_by_running_it_again():
    whole, first, second = continued(shuffled(), stop=3, replay=True)
    assert lengths(second) == [3, 6, 6]
    assert joined(first, second) == whole


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.exact)])
@pytest.mark.parametrize("sampler", ["shuffle", "stateful distributed", "distributed"])
def test_b48_after_two_whole_passes_come_a_third_and_a_fourth(workers, sampler):
    def make():
        made = {
            "shuffle": None,
            "stateful distributed": StatefulDistributedSampler(Numbers(), 2, 0, seed=3),
            "distributed": DistributedSampler(Numbers(), 2, 0, seed=3),
        }[sampler]
        return StatefulDataLoader(Numbers(), 3, shuffle=made is None, sampler=made, num_workers=workers)

    whole = Program(make)
    whole.run(4)
    record = Program(make).run(2)
    second = Program(make, seed=99)
    torch.rand(7)  # somebody else draws in between
    second.training.restore(record)
    second.run(4)
    assert second.passes == {number: whole.passes[number] for number in (2, 3)}
    assert all(second.passes.values())


@pytest.mark.parametrize("stop", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("sampler", [StatefulDistributedSampler, DistributedSampler])
def test_b49_a_sampler_inside_a_node_goes_on_in_its_epoch(sampler, stop):
    def make():
        return tn.Loader(tn.Batcher(tn.SamplerWrapper(sampler(Numbers(), 2, 0, seed=42)), 3, drop_last=False))

    whole, first, second = continued(make, stop)
    assert joined(first, second) == whole
    assert whole[0] != whole[1]


@pytest.mark.parametrize("living", [False, pytest.param(True, marks=pytest.mark.exact)])
@pytest.mark.parametrize("ends_at", ["beginning", "end"])
def test_b50_passes_after_a_resume_are_whole_also_where_workers_live_on(living, ends_at):
    def make():
        return StatefulDataLoader(Stream(ends_at=ends_at), 3, num_workers=2, persistent_workers=living)

    whole, first, second = continued(make, stop=5)
    assert lengths(second) == [1, 6, 6]
    assert joined(first, second) == whole


@pytest.mark.parametrize("ends_at", ["beginning", "end"])
def test_b50_and_in_one_process(ends_at):
    whole, first, second = continued(lambda: StatefulDataLoader(Stream(ends_at=ends_at), 3), stop=4)
    assert lengths(second) == [2, 6, 6]
    assert joined(first, second) == whole


def test_b51_the_batch_in_whose_body_one_saves_is_not_trained_twice():
    for make in (shuffled(), Counting, streamed):
        whole, first, second = continued(make, stop=2)
        assert joined(first, second) == whole


def test_b51_an_iterable_that_counts_behind_its_yield_is_refused():
    class Late(Counting):
        def __iter__(self):
            while self.position < 6:
                yield torch.tensor([self.position])
                self.position += 1

    with pytest.raises(UnsupportedState) as caught:
        Program(Late).run(1, stop=2)
    assert caught.value.code == "capture.data.behind"


def buffered():
    return streamed().shuffle(seed=3, buffer_size=8)


@pytest.mark.parametrize("workers", [None, 0, pytest.param(2, marks=pytest.mark.exact)])
def test_b52_what_is_in_a_shuffle_buffer_is_not_lost(workers):
    make = buffered if workers is None else lambda: StatefulDataLoader(buffered(), 3, num_workers=workers)
    whole, first, second = continued(make, stop=4)
    assert joined(first, second) == whole
    assert sorted(number for batch in joined(first, second)[0] for number in batch) == list(range(17))


def test_b52_a_buffer_that_draws_from_a_stream_of_the_training_too_is_refused():
    class Buffer(IterableDataset):
        def __iter__(self):
            held = []
            for number in range(17):
                held.append(number)
                if len(held) > 4:
                    yield held.pop(random.randrange(len(held)))

    program = Program(lambda: StatefulDataLoader(Buffer(), 2))
    batches = iter(program.data)
    for _ in range(3):
        next(batches)
        random.random()
    with pytest.raises(UnsupportedState) as caught:
        program.training.capture()
    assert caught.value.code == "capture.data.mixed"
    assert "generator of its own" in caught.value.hint


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.exact)])
def test_b53_a_look_ahead_fetches_a_batch_that_was_not_delivered(workers):
    def make():
        return LookAhead(StatefulDataLoader(Numbers(), 3, shuffle=True, num_workers=workers))

    with pytest.raises(UnsupportedState):
        segue.DataPosition(make())  # it has no state of its own, and is not taken for what it wraps
    whole, first, second = continued(make, stop=3, replay=True)
    assert joined(first, second) == whole


def test_b53_what_workers_have_fetched_ahead_is_not_delivered():
    whole, first, second = continued(shuffled(num_workers=2, prefetch_factor=3), stop=3)
    assert joined(first, second) == whole
