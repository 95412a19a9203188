"""What decides the order is compared entry by entry, before anything is touched; what can be accepted goes on exactly."""

from itertools import chain

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.utils.data import Subset, TensorDataset, WeightedRandomSampler
from torchdata.stateful_dataloader import StatefulDataLoader

import segue
from segue.errors import ComponentMismatch, MismatchError
from tests.cases.state import live, raw
from tests.exactness.data_kinds import SIZE, Counting, Eager, Numbers, Stream, streamed

# Several trainings stand in one frame here, and each warns of the others' data.
pytestmark = pytest.mark.filterwarnings("ignore::segue.errors.UncoveredStateWarning")


class Run:
    def __init__(self, loader, **options):
        self.model = nn.Linear(1, 1)
        self.optimizer = SGD(self.model.parameters(), lr=0.1)
        self.loader = loader
        self.data = segue.DataPosition(loader, **options)
        self.training = segue.Training(self.model, self.optimizer, components={"data": self.data})

    def look(self):
        streams = torch.get_rng_state()
        sampler = getattr(getattr(self.loader, "sampler", None), "generator", None)
        own = None if sampler is None else sampler.get_state()
        iterator = getattr(self.loader, "_iterator", None)
        return (
            live(self.model, self.optimizer),
            raw(streams),
            raw(own),
            id(iterator),
            repr(self.data.capture()),
        )


def loader(dataset=None, batch_size=3, **options):
    return StatefulDataLoader(Numbers() if dataset is None else dataset, batch_size, **options)


def after(run, batches):
    """A record in the body of a batch."""
    run.batches = iter(run.data)
    for _ in range(batches):
        next(run.batches)
    return run.training.capture()


def refused(record, run, *codes):
    before = run.look()
    with pytest.raises(MismatchError) as caught:
        run.training.restore(record)
    assert run.look() == before
    assert [finding.code for finding in caught.value.findings] == [f"component.data.{code}" for code in codes]
    assert all(isinstance(caught.value, ComponentMismatch) for _ in codes)
    return caught.value.findings


class Longer(Numbers):
    def __len__(self):
        return SIZE + 1


@pytest.mark.parametrize(
    ("made", "now", "codes"),
    [
        (loader(), loader(batch_size=4), ["batch_size"]),
        (loader(), loader(drop_last=True), ["drop_last"]),
        (loader(), loader(num_workers=1), ["num_workers", "prefetch_factor"]),
        (loader(), loader(shuffle=True), ["sampler", "sampler.num_samples", "sampler.replacement"]),
        (loader(), loader(Longer()), ["dataset", "dataset_length"]),
        (loader(Subset(range(20), range(9))), loader(Subset(range(20), range(1, 10))), ["dataset_identity"]),
        (
            loader(TensorDataset(torch.ones(5, 2))),
            loader(TensorDataset(torch.ones(5, 3))),
            ["dataset_identity"],
        ),
        (
            loader(sampler=WeightedRandomSampler([1.0, 2.0], 9)),
            loader(sampler=WeightedRandomSampler([1.0, 3.0], 9)),
            ["sampler.weights"],
        ),
        (loader(sampler=Eager()), loader(), ["sampler"]),
        (loader(Stream()), loader(Stream(), batch_size=4), ["batch_size"]),
    ],
)
def test_a_difference_is_refused_with_a_code_of_its_own_and_nothing_changes(made, now, codes):
    record = after(Run(made), 2)
    for finding in refused(record, Run(now), *codes):
        assert finding.hint
        assert repr(finding.expected) != repr(finding.found)


def test_another_kind_of_loader_is_refused():
    refused(after(Run(loader()), 2), Run(Counting()), "kind")


def test_a_streamed_dataset_that_is_shuffled_otherwise_is_refused():
    record = after(Run(streamed().shuffle(seed=1, buffer_size=5)), 2)
    for other in (
        streamed().shuffle(seed=2, buffer_size=5),
        streamed().shuffle(seed=1, buffer_size=6),
    ):
        refused(record, Run(other), "dataset_identity")


def test_a_shuffle_without_a_seed_is_refused_in_the_next_process():
    record = after(Run(streamed().shuffle(buffer_size=5)), 2)
    refused(record, Run(streamed().shuffle(buffer_size=5)), "dataset_identity")


def rest(run):
    return [batch.tolist() for batch in run.data]


def test_an_accepted_batch_size_goes_on_at_the_same_sample():
    for sampler in (None, WeightedRandomSampler([1.0] * SIZE, SIZE)):
        made = Run(loader(sampler=sampler))
        record = after(made, 2)
        whole = list(chain(*rest_of_pass(made)))
        now = Run(loader(batch_size=4, sampler=sampler))
        now.training.restore(record, accept=["component.data.batch_size"])
        assert list(chain(*rest(now))) == whole
        assert [len(batch) for batch in rest(now)] == [4, 4, 4, 4, 1]


def rest_of_pass(run):
    """The batches that the pass under way still has."""
    return [batch.tolist() for batch in run.batches]


@pytest.mark.parametrize(("made_with", "now_with"), [(0, 2), (2, 0), (2, 1)])
def test_an_accepted_number_of_workers_goes_on_at_the_same_batch(made_with, now_with):
    torch.manual_seed(1)
    made = Run(loader(shuffle=True, num_workers=made_with))
    record = after(made, 2)
    whole = rest_of_pass(made)
    now = Run(loader(shuffle=True, num_workers=now_with))
    codes = ["num_workers"] if made_with and now_with else ["num_workers", "prefetch_factor"]
    refused(record, now, *codes)
    now.training.restore(record, accept=[f"component.data.{code}" for code in codes])
    assert rest(now) == whole
    assert now.data.epoch == 1


def test_other_data_is_accepted_between_passes_and_not_inside():
    made = Run(loader())
    inside = after(made, 2)
    rest_of_pass(made)
    between = made.training.capture()
    now = Run(loader(Longer()))
    assert [finding.admissible for finding in refused(inside, now, "dataset", "dataset_length")] == [
        True,
        False,
    ]
    now.training.restore(between, accept=["component.data.dataset", "component.data.dataset_length"])
    assert sum(len(batch) for batch in rest(now)) == SIZE + 1
    assert now.data.epoch == 2


def test_a_restore_that_is_refused_later_puts_the_position_back():
    class Refusing:
        def capture(self):
            return 1

        def check(self, state):
            return []

        def restore(self, state):
            if self.refuses:
                self.refuses = False
                raise RuntimeError("no")

        refuses = False

    class Rewriting:
        """Unfreezes the model while it is restored: the contract is checked again behind all components."""

        def __init__(self, model):
            self.model = model
            self.is_armed = False

        def state_dict(self):
            return {"requires_grad": [p.requires_grad for p in self.model.parameters()]}

        def load_state_dict(self, state):
            for p, flag in zip(self.model.parameters(), state["requires_grad"], strict=True):
                p.requires_grad_(flag and not self.is_armed)
            self.is_armed = False

    made = Run(loader(shuffle=True))
    model = nn.Linear(1, 1)
    rewriting = Rewriting(model)
    data = segue.DataPosition(loader(shuffle=True))
    training = segue.Training(
        model, SGD(model.parameters(), lr=0.1), components={"data": data, "rewriting": rewriting}
    )
    source = nn.Linear(1, 1)
    record = segue.Training(
        source,
        SGD(source.parameters(), lr=0.1),
        components={"data": made.data, "rewriting": Rewriting(source)},
    )
    iterator = iter(made.data)
    next(iterator)
    record = record.capture()
    before, streams = repr(data.capture()), torch.get_rng_state()
    rewriting.is_armed = True
    with pytest.raises(MismatchError):
        training.restore(record)
    assert repr(data.capture()) == before
    assert torch.equal(torch.get_rng_state(), streams)
    training.restore(record)
    assert data.delivered == 1
