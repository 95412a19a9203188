"""Capture in the form of the seeds: what the caller made is kept as given; what is pending is checked first; nothing changes."""

import asyncio
import random

import numpy as np
import pytest
import torch
from torch import nn

import segue
from segue._record.digest import digests
from segue._record.quantized import QuantizedTensor, QuantScheme, QuantValue
from segue._record.window import WindowState
from segue.errors import (
    NotAtBoundary,
    PendingGradientError,
    TiedParameterConflict,
    UnsupportedState,
)
from tests._session.callers import CALLBACKS, Loop, Net, bits, everything, scheduler_of
from tests._store.records import tensor


class Sums:
    """An accumulator of the caller's own, which holds whatever it was given."""

    def __init__(self, *sums):
        self._sums = sums

    def window_state(self):
        return WindowState("plain", "float32", 1.0, None, 1, 1.0)

    def parameters(self):
        return [parameter for parameter, _ in self._sums]

    def sums(self):
        return self._sums

    def handed_out(self):
        return []

    def check_window(self, state):
        raise AssertionError("a capture checks no window")

    def replace_window(self, state, sums, handed_out):
        raise AssertionError("a capture replaces no window")


def half_finished(**options):
    loop = Loop(**options)
    for index in range(2):
        loop.microbatch(index)
    loop.update()
    loop.microbatch(2)
    return loop


def refused(error, model, **given):
    with pytest.raises(error) as caught:
        segue.TrainingRecord.capture(model, model_state=None, **given)
    return caught.value


def test_behaviour_1_a_half_finished_window_goes_on_as_if_nobody_had_captured():
    loop, other = half_finished(), half_finished()
    before = everything(loop.model, loop.optimizers), [bits(total) for _, total in loop.window.sums()]
    loop.capture()
    assert before == (
        everything(loop.model, loop.optimizers), [bits(total) for _, total in loop.window.sums()]
    )  # fmt: skip
    for each in (loop, other):
        each.microbatch(3)
        each.update()
    assert everything(loop.model, loop.optimizers) == everything(other.model, other.optimizers)


def test_behaviour_2_the_scheduler_stays_where_it_is():
    loop = half_finished()
    before = dict(vars(loop.scheduler))
    loop.capture()
    assert vars(loop.scheduler) == before


def test_behaviour_3_a_gradient_of_a_frozen_parameter_is_refused():
    loop = half_finished()
    loop.model.first.bias.requires_grad_(False)
    error = refused(PendingGradientError, loop.model, accumulator=loop.window)
    assert "first.bias" in error.where
    assert "frozen" in error.what


def test_behaviour_3_so_is_one_that_stands_in_grad():
    model = Net()
    model.first.bias.grad = torch.ones(4)
    model.first.bias.requires_grad_(False)
    assert refused(PendingGradientError, model).where == "gradient of first.bias"


def test_behaviour_4_a_frozen_alias_beside_the_trainable_parameter_is_no_obstacle():
    model = Net()
    model.alias = nn.Parameter(model.first.weight.detach(), requires_grad=False)
    assert model.alias.data_ptr() == model.first.weight.data_ptr()
    model.first.weight.grad = torch.ones(4, 3)
    record = segue.TrainingRecord.capture(model, model_state=None)
    assert record.gradients.names == ("first.weight",)
    assert "alias" not in record.model.contract.tensors


def test_behaviour_5_a_gradient_of_a_parameter_that_the_model_does_not_have_is_refused():
    loop = half_finished()
    error = refused(PendingGradientError, Net(), accumulator=loop.window)
    assert "not in the model" in error.what


def test_behaviour_6_a_gradient_of_another_shape_is_refused_by_name():
    loop = half_finished()
    weight = loop.model.second.weight
    weight.data = weight.data.reshape(4, 2)
    error = refused(PendingGradientError, loop.model, accumulator=loop.window)
    assert (error.where, error.expected, error.found) == ("gradient of second.weight", (4, 2), (2, 4))


def test_behaviour_6_so_is_one_on_another_device():
    model = Net()
    elsewhere = Sums((model.first.bias, torch.empty(4, device="meta")))
    error = refused(PendingGradientError, model, accumulator=elsewhere)
    assert (error.where, error.expected, error.found) == ("gradient of first.bias", "cpu", "meta")


def test_behaviour_7_a_quantized_gradient_is_refused_and_stays_what_it_is():
    model = Net()
    quantized = QuantizedTensor(QuantScheme(QuantValue.Q8S), (4,), tensor("uint8", (8,)))
    before = bits(quantized.data.to_host())
    error = refused(PendingGradientError, model, accumulator=Sums((model.first.bias, quantized)))
    assert "quantized" in error.what
    assert bits(quantized.data.to_host()) == before


@pytest.mark.parametrize(
    "other",
    [lambda weight: weight.detach().view(torch.bfloat16), lambda weight: weight.detach().view(2, 6)],
    ids=["dtype", "shape"],
)
def test_behaviour_8_one_memory_as_two_different_parameters_is_refused(other):
    model = Net()
    model.twin = nn.Parameter(other(model.first.weight))
    error = refused(TiedParameterConflict, model)
    assert "first.weight" in error.where
    assert "twin" in error.expected


def test_a_parameter_tied_under_two_names_is_one():
    model = Net()
    model.twin = model.first.weight
    record = segue.TrainingRecord.capture(model, model_state=None)
    assert [sharing.members for sharing in record.model.contract.sharing] == [{"first.weight": 0, "twin": 0}]
    assert "twin" not in record.model.contract.tensors


def test_behaviour_9_of_several_violations_what_is_pending_comes_first():
    model = Net()
    model.first.bias.grad = torch.ones(4)
    model.first.bias.requires_grad_(False)
    graph = torch.ones(4, 3, requires_grad=True) * 2
    model.first.weight.grad = graph  # part of a graph: can't be read into a record
    error = refused(PendingGradientError, model, scheduler=object())
    assert error.where == "gradient of first.bias"
    model.first.bias.grad = None
    assert "graph" in refused(UnsupportedState, model, scheduler=object()).what
    model.first.weight.grad = None
    assert refused(UnsupportedState, model, scheduler=object()).code == "capture.component"


def test_behaviour_9_what_no_parameter_takes_comes_before_a_tie_and_that_before_what_is_frozen():
    model = Net()
    model.twin = nn.Parameter(model.first.weight.detach().view(2, 6))
    model.second.bias.grad = torch.ones(2)
    model.second.bias.requires_grad_(False)
    unfit = Sums((model.first.bias, torch.ones(2, 2)))
    assert "another shape" in refused(PendingGradientError, model, accumulator=unfit).what
    refused(TiedParameterConflict, model)
    del model.twin
    assert "frozen" in refused(PendingGradientError, model).what


def test_behaviour_10_a_failed_capture_has_changed_nothing():
    loop = half_finished()
    before = everything(loop.model, loop.optimizers), dict(vars(loop.scheduler)), loop.window.window_state()
    sums = [bits(total) for _, total in loop.window.sums()]
    with pytest.raises(UnsupportedState):
        loop.capture(state=object())
    assert before == (
        everything(loop.model, loop.optimizers), dict(vars(loop.scheduler)), loop.window.window_state(),
    )  # fmt: skip
    assert sums == [bits(total) for _, total in loop.window.sums()]


def test_behaviour_11_an_empty_accumulator_is_captured_and_restored_empty():
    loop = Loop()
    record = loop.capture()
    assert record.window.sums.names == ()
    restored = record.restore(Net(1), scheduler_of, **CALLBACKS)
    assert restored.accumulator.sums() == []
    assert restored.accumulator.microbatches == 0


def test_behaviour_12_groups_and_model_state_are_kept_as_the_very_objects():
    class Untouchable:
        def __getattribute__(self, name):
            raise AssertionError(f"looked at: {name}")

    groups, state = (Untouchable(), [Untouchable()]), {"a": object()}
    record = segue.TrainingRecord.capture(Net(), model_state=state, groups=groups)
    assert record.groups is groups
    assert record.model_state is state
    seen = []
    restored = record.restore(
        Net(),
        restore_model=lambda given, model: seen.append(given),
        restore_groups=lambda model, given: (model, seen.append(given)),
    )
    assert seen[0] is state
    assert seen[1] is groups
    assert restored.state is None


def test_behaviour_13_an_adapters_record_holds_no_byte_of_the_base(tmp_path):
    model = nn.Sequential(nn.Linear(64, 64).requires_grad_(False), nn.Linear(64, 1))
    adapter = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    record = segue.TrainingRecord.capture(model, model_state=adapter)
    segue.save(record, tmp_path / "one")
    files = b"".join(path.read_bytes() for path in sorted((tmp_path / "one").iterdir()))
    assert record.num_bytes == 65 * 4
    assert model[0].weight.detach().numpy().tobytes()[:64] not in files
    assert b"0.weight" not in files
    assert model[1].weight.detach().numpy().tobytes() in files


def test_behaviour_14_no_random_stream_is_touched_or_kept():
    def streams():
        return torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()

    loop = half_finished()
    model = Net(1)
    before = streams()
    record = loop.capture()
    assert record.streams is None
    record.restore(model, scheduler_of, **CALLBACKS)
    assert streams() == before


def test_behaviour_15_both_ways_to_capture_give_the_same_bytes():
    loop = half_finished()
    given = {
        "model_state": segue.capture_module(loop.model), "groups": loop.groups(), "scheduler": loop.scheduler,
        "accumulator": loop.window, "state": 1,
    }  # fmt: skip
    at_once = segue.TrainingRecord.capture(loop.model, **given)
    later = segue.TrainingRecord.capture_async(loop.model, **given)

    async def awaited():
        return await later

    assert digests(at_once) == digests(later.result()) == digests(asyncio.run(awaited()))
    assert later.result().groups is given["groups"]


def test_an_error_of_capture_async_is_raised_by_the_future():
    pending = segue.TrainingRecord.capture_async(Net(), model_state=None, state=object())
    with pytest.raises(UnsupportedState):
        pending.result()


def test_behaviour_17_a_weighted_window_is_kept_exactly_beside_the_callers_state():
    loop = Loop(make_window=segue.WeightedAccumulator, dtype=torch.float64, loss_scale=0.1)
    loop.microbatch(0)
    loop.window.add_sum(weight=0.3)
    record = loop.capture(state=["mine"])
    assert record.window.state == loop.window.window_state()
    assert (record.window.state.loss_scale, record.window.state.total_weight) == (0.1, 2.3)
    assert record.state == ["mine"]


def test_behaviour_18_the_seven_positions_are_there_by_name_and_the_version_is_1():
    record = half_finished().capture()
    assert record.version == 1
    positions = (
        record.version, record.model_state, record.model.contract, record.groups, record.schedulers["scheduler"],
        record.window.sums, record.state,
    )  # fmt: skip
    assert len(positions) == 7
    sections = record.sections()
    assert {
        "version",
        "model_state",
        "model",
        "groups",
        "schedulers",
        "window",
        "gradients",
        "caller_state",
    } <= {*sections}


def test_behaviour_76_the_contract_counts_a_tie_once_sorted_and_knows_trainable_parameters_alone():
    model = Net()
    model.again = model.second.weight
    model.register_buffer("flags", torch.zeros(2, dtype=torch.bool))
    model.whole = nn.Parameter(torch.zeros(2, dtype=torch.int64), requires_grad=False)
    contract = segue.TrainingRecord.capture(model, model_state=None).model.contract
    assert [*contract.tensors] == ["again", "first.bias", "first.weight", "second.bias"]
    other = Net()
    other.again = other.second.weight
    other.frozen = nn.Linear(9, 9, dtype=torch.float64).requires_grad_(False)
    del other.seen
    assert segue.TrainingRecord.capture(other, model_state=None).model.contract == contract


def test_behaviour_76_a_precision_does_not_change_it():
    record = half_finished().capture()
    assert record.converted("half").model.contract == record.model.contract


def test_a_frozen_part_may_be_what_no_record_could_keep():
    model = Net()
    model.packed = nn.Parameter(torch.empty(3, device="meta"), requires_grad=False)
    model.lazy = nn.UninitializedParameter(requires_grad=False)
    segue.TrainingRecord.capture(model, model_state=None)
    model.packed.requires_grad_(True)
    assert refused(UnsupportedState, model).where == "model packed"


def test_the_kind_tells_whether_there_are_groups():
    assert segue.TrainingRecord.capture(Net(), model_state=1).kind == "model_state"
    assert segue.TrainingRecord.capture(Net(), model_state=1, groups=[]).kind == "groups"


def test_gradients_that_stand_in_grad_are_captured_beside_a_window():
    loop = half_finished()
    loop.window.finish_mean()
    record = loop.capture()
    assert record.gradients.names == ("first.bias", "first.weight", "second.bias", "second.weight")
    assert record.window.handed_out == record.gradients.names


def test_what_is_no_model_and_no_accumulator_is_refused():
    assert refused(UnsupportedState, object()).where == "model"
    assert refused(UnsupportedState, Net(), accumulator=object()).where == "accumulator"
    assert refused(UnsupportedState, Net(), scheduler=nn.Linear(1, 1)).where == "scheduler.scheduler"


def test_inside_a_backward_nothing_is_captured():
    model = Net()
    errors = []

    def hook(_gradient):
        try:
            segue.TrainingRecord.capture(model, model_state=None)
        except NotAtBoundary as error:
            errors.append(error)

    model.first.weight.register_hook(hook)
    model(torch.ones(1, 3)).sum().backward()
    assert len(errors) == 1


def test_behaviour_97_what_was_captured_is_a_copy():
    loop = half_finished()
    record = loop.capture()
    before = digests(record)
    loop.microbatch(3)
    loop.update()
    assert digests(record) == before
    with torch.no_grad():
        loop.model.first.weight.zero_()
    assert digests(record) == before
