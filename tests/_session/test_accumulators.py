"""A window as a value: taken without closing it, put in the place of another, and refused as a whole."""

import dataclasses

import pytest
import torch
from torch import nn

from segue import GradientAccumulator, Training, WeightedAccumulator
from segue._record.gradients import GradientsRecord
from segue._record.tensors import MemoryBytes
from segue._record.window import WindowRecord
from segue.errors import (
    ContractMismatch,
    CorruptCheckpoint,
    InvalidRecord,
    NotAtBoundary,
    OptimizerMismatch,
    PendingGradientError,
    UnsupportedState,
    WindowError,
)
from tests._window.models import Pair, bits, look

KINDS = {
    "plain": (GradientAccumulator, lambda window: window.add()),
    "weighted": (WeightedAccumulator, lambda window: window.add_mean(3)),
}


@pytest.fixture(params=KINDS, ids=str)
def kind(request):
    return KINDS[request.param]


def contents(window):
    names = {id(parameter): name for name, parameter in window.model.named_parameters()}
    return window.window_state(), {names[id(p)]: (total.stride(), bits(total)) for p, total in window.sums()}


def opened(kind, dtype=torch.float32, values=((1, 2), (3, None))):
    make, add = kind
    model = Pair(dtype)
    window = make(model)
    for a, b in values:
        model.give(a, b)
        add(window)
    return model, window


def test_a_window_comes_back_bit_for_bit(kind):
    _, window = opened(kind)
    other = kind[0](Pair())
    other.load_record(window.to_record())
    assert contents(other) == contents(window)


def test_taking_a_record_changes_nothing_and_what_follows_does_not_change_the_record(kind):
    model, window = opened(kind)
    model.give(9)
    before = look(model, window)
    record = window.to_record()
    assert look(model, window) == before
    stored = {name: tensor.to_host().tolist() for name, tensor in record.sums.tensors.items()}
    kind[1](window)
    assert {name: tensor.to_host().tolist() for name, tensor in record.sums.tensors.items()} == stored


def test_a_record_replaces_and_may_be_loaded_again(kind):
    model, window = opened(kind)
    record, expected = window.to_record(), contents(window)
    for _ in range(2):
        model.give(5, 5)
        kind[1](window)
        window.load_record(record)
        assert contents(window) == expected


def test_loading_leaves_gradients_that_stand(kind):
    model, window = opened(kind)
    record = window.to_record()
    model.give(7)
    window.load_record(record)
    assert model.a.grad.tolist() == [7, 7]


def test_what_was_handed_out_is_known_after_a_load_too(kind):
    _model, window = opened(kind)
    window.finish_mean()
    record = window.to_record()
    assert record.handed_out == ("a", "b")
    window.load_record(record)
    with pytest.raises(WindowError) as caught:
        kind[1](window)
    assert caught.value.code == "window.not_consumed"
    other = Pair()
    resumed = kind[0](other)
    resumed.load_record(record)
    other.give(1)
    kind[1](resumed)  # no gradient of the old window stands here


def test_a_record_of_a_training_is_one_for_the_accumulator_and_back(kind):
    model, window = opened(kind)
    training = Training(model, torch.optim.SGD(model.parameters(), lr=0.1), accumulator=window, rng=None)
    other = kind[0](Pair())
    other.load_record(training.capture().window)
    assert contents(other) == contents(window)


def test_names_are_canonical(kind):
    make, add = kind
    model = nn.Module()
    model.z = nn.Linear(1, 1, bias=False)
    model.a = nn.Linear(1, 1, bias=False)
    model.a.weight = model.z.weight
    window = make(nn.DataParallel(model))
    model.z.weight.grad = torch.ones(1, 1)
    add(window)
    assert window.to_record().sums.names == ("a.weight",)


def test_channels_last_sums_keep_their_strides(kind):
    make, add = kind
    windows = []
    for _ in range(2):
        model = nn.Conv2d(3, 4, 3, bias=False).to(memory_format=torch.channels_last)
        windows.append(make(model))
    model.weight.grad = torch.randn_like(model.weight)
    add(windows[1])
    windows[0].load_record(windows[1].to_record())
    assert contents(windows[0]) == contents(windows[1])


def test_sparse_sums_come_back_as_they_were(kind):
    make, add = kind
    windows = []
    for _ in range(2):
        torch.manual_seed(0)
        model = nn.Embedding(5, 2, sparse=True, dtype=torch.bfloat16)
        windows.append(make(model))
    for rows in ([1, 1, 3], [0]):
        model(torch.tensor(rows)).pow(2).sum().backward()
        add(windows[1])
    windows[0].load_record(windows[1].to_record())
    for _ in range(2):  # and go on alike
        found = [total for window in windows for _, total in window.sums()]
        assert not any(total.is_coalesced() for total in found)
        assert found[0]._indices().tolist() == found[1]._indices().tolist()
        assert bits(found[0]._values()) == bits(found[1]._values())
        for window in windows:
            window.model(torch.tensor([2, 2])).sum().backward()
            add(window)


def test_a_load_in_inference_mode_can_be_added_to_outside_of_it(kind):
    _, window = opened(kind)
    other = Pair()
    resumed = kind[0](other)
    with torch.inference_mode():
        resumed.load_record(window.to_record())
    other.give(1)
    kind[1](resumed)
    assert resumed.microbatches == 3


def test_all_that_does_not_fit_the_model_is_told_at_once(kind):
    _model, window = opened(kind, values=((1, 2),))
    record = window.to_record()
    other = Pair()
    other.a.data = torch.zeros(3)
    other.b.requires_grad_(False)
    target = kind[0](other)
    before = look(other, target)
    with pytest.raises(ContractMismatch) as caught:
        target.load_record(record)
    assert [finding.code for finding in caught.value.findings] == ["window.a", "window.frozen.b"]
    assert look(other, target) == before
    del other.b
    with pytest.raises(ContractMismatch) as caught:
        target.load_record(record)
    assert [finding.code for finding in caught.value.findings] == ["window.a", "window.b"]


class Lying(MemoryBytes):
    """Stored bytes that don't match their checksum."""

    def verify(self):
        raise CorruptCheckpoint("damaged")


def test_damaged_bytes_are_found_before_anything_changes(kind):
    model, window = opened(kind)
    record = window.to_record()
    name, tensor = next(iter(record.sums.tensors.items()))
    broken = GradientsRecord(
        {**record.sums.tensors, name: dataclasses.replace(tensor, source=Lying(tensor.source._data))}
    )
    kind[1](window)
    before = look(model, window)
    with pytest.raises(CorruptCheckpoint):
        window.load_record(WindowRecord(record.state, broken))
    assert look(model, window) == before


def test_a_sparse_sum_that_points_nowhere_is_found_before_anything_changes(kind):
    make, add = kind
    model = nn.Embedding(5, 2, sparse=True)
    window = make(model)
    model(torch.tensor([4])).sum().backward()
    add(window)
    record = window.to_record()
    sparse = record.sums.tensors["weight"]
    indices = dataclasses.replace(
        sparse.tensors["indices"], source=MemoryBytes(torch.tensor([99]).view(torch.uint8))
    )
    broken = dataclasses.replace(sparse, tensors={**sparse.tensors, "indices": indices})
    before = window.window_state()
    with pytest.raises(InvalidRecord):
        window.load_record(WindowRecord(record.state, GradientsRecord({"weight": broken})))
    assert window.window_state() == before


def test_no_record_is_taken_of_a_sum_whose_parameter_left_the_model(kind):
    model, window = opened(kind)
    model.a = nn.Parameter(torch.zeros(2))
    with pytest.raises(PendingGradientError):
        window.to_record()


def test_no_record_is_taken_inside_a_backward(kind):
    model, window = opened(kind)
    caught = []

    def look_inside(_):
        with pytest.raises(NotAtBoundary) as error:
            window.to_record()
        caught.append(error.value.code)

    loss = model.a.sum()
    loss.register_hook(look_inside)
    loss.backward()
    assert caught == ["capture.boundary"]


def test_a_capture_refuses_an_open_window_that_was_not_handed_in():
    model, other = Pair(), Pair()
    window, unseen = GradientAccumulator(model), WeightedAccumulator(model)
    elsewhere = GradientAccumulator(other)
    training = Training(model, torch.optim.SGD(model.parameters(), lr=0.1), accumulator=window)
    for accumulator, owner, add in ((elsewhere, other, elsewhere.add), (window, model, window.add)):
        owner.give(1, 2)
        add()
        assert accumulator.microbatches == 1
    training.capture()
    model.give(1, 2)
    unseen.add_sum(3)
    with pytest.raises(UnsupportedState) as caught:
        training.capture()
    assert caught.value.code == "capture.unregistered_window"
    assert "WeightedAccumulator with 1 microbatches" in caught.value.found
    unseen.finish_sums()
    training.capture()


def test_a_sum_of_a_parameter_that_the_accumulator_is_not_over_is_refused_before_anything_changes():
    model = Pair()
    window = GradientAccumulator(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.give(1, 2)
    window.add()
    record = Training(model, optimizer, accumulator=window).capture()
    window.finish_sums()
    model.zero_grad()
    part = nn.Module()
    part.b = model.b
    narrow = Training(model, optimizer, accumulator=GradientAccumulator(part))
    with pytest.raises(ContractMismatch) as caught:
        narrow.restore(record)
    assert [finding.code for finding in caught.value.findings] == ["window.unknown.a"]


def test_a_mean_that_still_stands_is_not_added_after_a_record_was_loaded():
    model = Pair()
    window = GradientAccumulator(model)
    model.give(1, 2)
    window.add()
    record = window.to_record()
    window.finish_mean()
    window.load_record(record)
    with pytest.raises(WindowError) as caught:
        window.add()
    assert caught.value.code == "window.not_consumed"
    model.zero_grad()
    model.give(1, 2)
    window.add()
    assert window.microbatches == 2


def test_new_gradients_are_not_taken_for_those_that_were_handed_out_when_the_record_was_taken():
    model = Pair()
    window = GradientAccumulator(model)
    model.give(1, 2)
    window.add()
    window.finish_mean()
    record = window.to_record()
    assert record.handed_out == ("a", "b")
    fresh = Pair()
    other = GradientAccumulator(fresh)
    fresh.give(3, 4)
    other.load_record(record)
    other.add()
    assert other.microbatches == 1


@pytest.mark.parametrize("record", [None, GradientsRecord({}), "window"])
def test_what_is_no_record_of_a_window_is_refused(record):
    with pytest.raises(InvalidRecord) as caught:
        GradientAccumulator(Pair()).load_record(record)
    assert "record.window" in caught.value.hint


def test_an_accumulator_over_a_copy_of_the_model_is_refused_at_capture():
    model = Pair()
    training = Training(
        model, torch.optim.SGD(model.parameters(), lr=0.1), accumulator=GradientAccumulator(Pair())
    )
    with pytest.raises(PendingGradientError) as caught:
        training.capture()
    assert "not over a copy" in caught.value.hint


def test_all_terms_that_differ_are_told_at_once():
    model = Pair()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def training(**terms):
        return Training(model, optimizer, accumulator=WeightedAccumulator(model, **terms))

    record = training(microbatches=2).capture()
    with pytest.raises(ContractMismatch) as caught:
        training(microbatches=3, loss_scale=4.0, dtype=torch.float64).restore(record)
    codes = [finding.code for finding in caught.value.findings]
    assert codes == ["window.dtype", "window.loss_scale", "window.window_microbatches"]
    with pytest.raises(WindowError) as alone:
        WeightedAccumulator(model, microbatches=3, loss_scale=4.0).load_record(record.window)
    assert [finding.code for finding in alone.value.also] == ["window.window_microbatches"]


def test_an_entry_of_accept_that_names_nothing_is_told_with_the_refusal():
    model = Pair()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    record = Training(model, optimizer).capture()
    other = Training(model, torch.optim.SGD(model.parameters(), lr=0.2))
    with pytest.raises(OptimizerMismatch) as caught:
        other.restore(record, accept=["optimizer.lr"])
    assert caught.value.__notes__ == ["accept: no difference has the code 'optimizer.lr'"]
