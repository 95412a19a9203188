"""A plain `DataLoader` goes on behind what was delivered: every form of it, cut at every boundary."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import segue
from segue.errors import ComponentMismatch, MismatchError, UnsupportedState
from tests._capture.sampler.loaders import (
    FORMS,
    LENGTH,
    READ,
    WORKERS,
    Counted,
    FromTheGlobalStream,
    Run,
    Shuffled,
    _exact,
)
from tests.cases.state import raw


def cut_everywhere(form, workers, cuts):
    whole = Run(FORMS[form], **workers)
    whole.save()
    total = len(whole.data) + 4
    expected = whole.go(total, saves=True)
    for record in whole.records[cuts]:
        assert Run(FORMS[form], record, **workers).go(total) == expected


@pytest.mark.parametrize("form", FORMS)
def test_some_cuts_go_on_with_the_same_samples_and_streams(form):
    cut_everywhere(form, {}, slice(1, None, 6))


@pytest.mark.exact
@pytest.mark.parametrize("form", FORMS)
def test_every_cut_goes_on_with_the_same_samples_and_streams(form):
    cut_everywhere(form, {}, slice(None))


@pytest.mark.exact
@pytest.mark.parametrize("form", ["exact", "stateful_global", "own_generator"])
@pytest.mark.parametrize("workers", WORKERS)
def test_workers_are_in_nobody_s_way(form, workers):
    # Early and late in a pass, between two, and in the next.
    cut_everywhere(form, WORKERS[workers], slice(2, None, 5 if workers == "two_workers" else 4))


@pytest.mark.exact
@pytest.mark.parametrize("form", FORMS)
def test_several_cuts_in_one_pass_and_a_save_right_after_a_resume(form):
    expected = Run(FORMS[form]).go(20)
    run = Run(FORMS[form])
    run.save()
    for total in (1, 2, 4, 7, 20):
        run = Run(FORMS[form], run.records[-1])
        run.save()
        run = Run(FORMS[form], run.records[-1])
        found = run.go(total, saves=True)
    assert found == expected


@pytest.mark.parametrize(
    "form", ["exact", "exact_drop_last", "exact_batches_as_samples", "distributed", "stateful"]
)
def test_each_pass_has_an_order_of_its_own(form):
    run = Run(FORMS[form])
    run.go(3 * len(run.data))
    assert len({str(seen[1]) for seen in run.seen}) == 3 * len(run.data)


@pytest.mark.parametrize("form", [form for form in FORMS if form != "exact_batches_as_samples"])
def test_what_was_delivered_is_not_loaded_again(form):
    run = Run(FORMS[form])
    run.go(3, saves=True)
    resumed = Run(FORMS[form], run.records[-1])
    READ.clear()
    resumed.go(4)
    assert resumed.seen[-1][1] == READ


def test_the_loader_that_was_handed_in_is_left_alone():
    run = Run(FORMS["exact"])
    before = dict(vars(run.loader))
    run.go(3)
    assert vars(run.loader) == before
    sampler = copy.deepcopy(run.loader.sampler)
    sampler.place(0)
    run.loader.sampler.place(0)
    assert [index for batch in run.loader for index in batch.tolist()] == list(sampler)


def test_the_sampler_says_what_was_delivered_and_not_what_workers_fetched():
    run = Run(FORMS["exact"], num_workers=2)
    run.go(2)
    assert run.loader.sampler.committed == 8


def test_the_last_batch_commits_what_is_left():
    run = Run(FORMS["exact"])
    run.go(6)
    assert run.loader.sampler.committed == LENGTH


def test_a_training_that_goes_back_in_the_same_process_draws_as_the_first_time():
    for workers in WORKERS.values():
        run = Run(FORMS["exact"], **workers)
        run.save()
        first, record = run.go(9, saves=True), run.records
        for cut in (0, 3, 7):
            run.seen = list(run.training.restore(record[cut])["seen"])
            assert run.go(9) == first


# What is refused at construction.


class Stream(IterableDataset):
    def __iter__(self):
        yield from range(4)


class OwnIteration(DataLoader):
    def __iter__(self):
        yield from super().__iter__()


def refusal(loader):
    with pytest.raises(UnsupportedState) as caught:
        segue.DataPosition(loader)
    return caught.value


def test_a_shuffling_loader_is_refused_with_the_two_lines_that_replace_it():
    dataset = list(range(10))
    error = refusal(DataLoader(dataset, batch_size=4, shuffle=True, drop_last=True))
    assert error.code == "capture.data.sampler"
    first, second = (
        "sampler = segue.ExactSampler(dataset, batch_size=4, drop_last=True)",
        "loader = DataLoader(dataset, batch_size=4, drop_last=True, sampler=sampler)",
    )
    assert error.hint == f"replace it by two lines: `{first}` and `{second}`"
    names = {"segue": segue, "DataLoader": DataLoader, "dataset": dataset}
    exec(f"{first}\n{second}", names)
    assert len(list(segue.DataPosition(names["loader"]))) == 2


@pytest.mark.parametrize(
    "sampler",
    [
        RandomSampler(range(10), generator=torch.Generator()),
        SubsetRandomSampler(range(10)),
        WeightedRandomSampler([1.0] * 10, 10),
        [3, 1, 2],
    ],
)
def test_other_samplers_without_a_state_are_refused(sampler):
    for loader in (
        DataLoader(range(10), batch_size=2, sampler=sampler),
        DataLoader(range(10), batch_sampler=BatchSampler(sampler, 2, False)),
        DataLoader(range(10), batch_size=None, sampler=sampler),
    ):
        error = refusal(loader)
        assert error.code == "capture.data.sampler"
        assert "segue.ExactSampler(dataset, batch_size=" in error.hint


def test_a_batch_sampler_of_ones_own_is_not_taken_for_the_sequential_one_that_stands_beside_it():
    loader = DataLoader(range(4), batch_sampler=[[3, 1], [0, 2]])
    assert type(loader.sampler).__name__ == "SequentialSampler"
    assert refusal(loader).found == "builtins.list"


def test_a_dataset_that_is_only_iterated_is_refused_with_what_to_write():
    error = refusal(DataLoader(Stream(), batch_size=2))
    assert error.code == "capture.data.iterable"
    assert "torchdata.stateful_dataloader.StatefulDataLoader" in error.hint


def test_batches_in_the_order_in_which_workers_finish_are_refused():
    error = refusal(DataLoader(range(9), sampler=_exact(), num_workers=2, in_order=False))
    assert (error.code, error.hint) == ("capture.data.order", "build the loader with `in_order=True`")


def test_a_loader_that_iterates_in_its_own_way_is_refused():
    assert refusal(OwnIteration(range(9), sampler=_exact())).code == "capture.data.loader"


@pytest.mark.parametrize(
    ("sampler", "options", "code"),
    [
        ({"batch_size": 4}, {"batch_size": 8}, "capture.data.batch_size"),
        ({"batch_size": 4, "rank": 0, "world_size": 2}, {"batch_size": None}, "capture.data.batch_size"),
        (
            {"batch_size": 4, "rank": 0, "world_size": 2}, {"batch_size": 4, "drop_last": True},
            "capture.data.drop_last",
        ),
    ],
)  # fmt: skip
def test_sampler_and_loader_must_agree_on_the_parts(sampler, options, code):
    loader = DataLoader(range(40), sampler=segue.ExactSampler(40, **sampler), **options)
    assert refusal(loader).code == code


def test_a_sampler_for_more_samples_than_there_are_is_refused():
    error = refusal(DataLoader(range(9), sampler=segue.ExactSampler(10)))
    assert error.code == "capture.data.dataset_length"


# What is refused at restore.


def training(loader):
    model = nn.Linear(1, 1)
    data = segue.DataPosition(loader)
    return segue.Training(model, torch.optim.SGD(model.parameters(), lr=0.1), components={"data": data}), data


def plain(length=24, batch_size=4, dataset=None, sampler=None, **options):
    dataset = Counted(length) if dataset is None else dataset
    given = segue.ExactSampler(length, seed=2) if sampler is None else sampler
    return DataLoader(dataset, batch_size=batch_size, sampler=given, **options)


def after(batches, loader):
    live, data = training(loader)
    iterator = iter(data)
    for _ in range(batches):
        next(iterator)
    return live.capture()


class Other(Counted):
    """Another class of dataset."""


INSIDE = {
    "component.data.global_batch_size": (lambda: plain(batch_size=6), True),
    "component.data.drop_last": (lambda: plain(drop_last=True), True),
    "component.data.num_workers": (lambda: plain(num_workers=1), True),
    "component.data.persistent_workers": (lambda: plain(num_workers=1, persistent_workers=True), True),
    "component.data.dataset": (lambda: plain(dataset=Other(24)), True),
    "component.data.dataset_length": (lambda: plain(dataset=Counted(25)), False),
    "component.data.sampler.length": (lambda: plain(dataset=Counted(24), length=23), False),
    "component.data.sampler.seed": (lambda: plain(sampler=segue.ExactSampler(24, seed=3)), False),
    "component.data.sampler.order": (lambda: plain(sampler=segue.ExactSampler(24, shuffle=False)), False),
    "component.data.batch_sampler": (
        lambda: DataLoader(Counted(24), batch_sampler=BatchSampler(segue.ExactSampler(24, seed=2), 4, False)),
        False,
    ),
    "component.data.kind": (lambda: plain(sampler=Shuffled(24)), False),
}


@pytest.mark.parametrize("code", INSIDE)
def test_a_change_inside_a_pass_is_refused_before_anything_is_touched(code):
    build, admissible = INSIDE[code]
    record = after(3, plain())
    live, data = training(build())
    before = data.capture(), torch.get_rng_state().tolist(), copy.deepcopy(data.loader.sampler.__dict__)
    with pytest.raises(MismatchError) as caught:
        live.restore(record)
    findings = {finding.code: finding for finding in caught.value.findings}
    assert code in findings
    assert findings[code].admissible is admissible
    assert (data.capture(), torch.get_rng_state().tolist()) == before[:2]
    if isinstance(data.loader.sampler, segue.ExactSampler):
        assert vars(data.loader.sampler) == before[2]


def test_another_global_batch_size_goes_on_behind_the_samples_if_that_is_accepted():
    order = segue.ExactSampler(24, seed=2).global_order()
    live, data = training(plain(batch_size=6))
    live.restore(after(3, plain()), accept=["component.data.global_batch_size"])
    record = live.capture()
    found = [batch.tolist() for batch in data]
    assert found == [order[12:18], order[18:24]]
    again, data = training(plain(batch_size=6))
    again.restore(record)
    assert [batch.tolist() for batch in data] == found


def test_another_number_of_workers_goes_on_behind_the_samples_if_that_is_accepted():
    order = segue.ExactSampler(24, seed=2).global_order()
    live, data = training(plain(num_workers=2, persistent_workers=True))
    accepted = ["component.data.num_workers", "component.data.persistent_workers"]
    live.restore(after(4, plain()), accept=accepted)
    assert [batch.tolist() for batch in data] == [order[16:20], order[20:24]]


def test_between_two_passes_all_may_be_changed_if_that_is_accepted():
    live, data = training(plain())
    list(data)
    record = live.capture()
    live, data = training(plain(length=30, sampler=segue.ExactSampler(30, seed=9), batch_size=5))
    with pytest.raises(MismatchError) as caught:
        live.restore(record)
    live.restore(record, accept=[finding.code for finding in caught.value.findings])
    expected = segue.ExactSampler(30, seed=9)
    expected.set_epoch(1)
    assert [index for batch in data for index in batch.tolist()] == list(expected)


def test_a_sampler_that_hands_out_other_samples_is_refused_and_the_training_put_back():
    record = after(3, plain(sampler=Forgetful(3)))
    live, data = training(plain(sampler=Forgetful(4)))
    before = raw(data.capture())
    with pytest.raises(ComponentMismatch, match="other samples than those that were delivered"):
        live.restore(record)
    assert raw(data.capture()) == before


class Forgetful(Shuffled):
    """Says nothing of what its order follows from."""

    def __init__(self, seed):
        super().__init__(24)
        self.hidden = seed

    def __iter__(self):
        yield from (index * (5 if self.hidden == 3 else 7) % 24 for index in range(24))


def test_a_sampler_that_draws_between_the_training_s_draws_is_refused_at_capture():
    class Lazy(FromTheGlobalStream):
        def __iter__(self):
            for _ in range(LENGTH):
                yield int(torch.randint(LENGTH, ()))

    run = Run(lambda ds, **w: DataLoader(ds, batch_size=4, sampler=Lazy(), **w))
    with pytest.raises(UnsupportedState) as caught:
        run.go(3, saves=True)
    assert caught.value.code == "capture.data.mixed"


def test_a_sampler_that_is_moved_inside_a_pass_is_refused_at_capture():
    run = Run(FORMS["exact"])
    iterator = iter(run.data)
    next(iterator)
    run.loader.sampler.set_epoch(5)
    with pytest.raises(UnsupportedState) as caught:
        run.save()
    assert caught.value.code == "capture.data.moved"
    next(iterator)


HOSTILE = [
    None, {}, [], 7, {"epoch": 0}, {"epoch": -1}, {"epoch": 2**63}, {"epoch": True}, {"epoch": "0"}, {"committed": -1},
    {"committed": 25}, {"committed": 0}, {"committed": 2**70}, {"committed": 1.0}, {"committed": None},
    {"has_workers": None}, {"has_workers": 1}, {"more": 1},
]  # fmt: skip


@pytest.mark.parametrize("change", HOSTILE, ids=repr)
def test_a_position_that_is_none_is_refused_before_anything_is_touched(change):
    _, data = training(plain())
    iterator = iter(data)
    next(iterator)
    next(iterator)
    state = data.capture()
    whole = type(change) is dict and change and set(change) != {"epoch"}
    state["position"] = {**state["position"], **change} if whole or change == {"epoch": -1} else change
    before = data.capture()
    assert list(data.check(state))
    with pytest.raises(MismatchError):
        data.restore(state)
    assert data.capture() == before


@pytest.mark.parametrize("name", ["state", "beginning", "digest", "draws_seed", "has_workers"])
@pytest.mark.parametrize("value", [None, 0, "x", {}, {"streams": {}, "generators": {}}], ids=repr)
def test_a_position_of_a_sampler_with_state_that_is_none_is_refused(name, value):
    _, data = training(plain(sampler=Shuffled(24)))
    iterator = iter(data)
    next(iterator)
    state = data.capture()
    state["position"][name] = value
    before = raw(data.capture())
    if (name == "state" and value is not None) or (name == "digest" and value == "x"):
        pytest.skip("the sampler itself, or the digest, tells when it is asked")
    with pytest.raises(MismatchError):
        data.restore(state)
    assert raw(data.capture()) == before


def test_the_epoch_of_a_distributed_sampler_goes_with_the_position():
    def build():
        return plain(sampler=DistributedSampler(range(24), num_replicas=2, rank=0, seed=3))

    live, data = training(build())
    epochs = [[index for batch in data for index in batch.tolist()] for _ in range(3)]
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    live, data = training(build())
    for epoch in range(2):
        assert [index for batch in data for index in batch.tolist()] == epochs[epoch]
    record = live.capture()
    live, data = training(build())
    live.restore(record)
    assert [index for batch in data for index in batch.tolist()] == epochs[2]


def test_no_warning_comes_of_it():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Run(FORMS["exact"], num_workers=2).go(8, saves=True)
