"""Behaviours 59 to 75 of the seeds, each by number; 68 and 75 also in the files on walks and on losses."""

import dataclasses
import math

import pytest
import torch
from torch import nn

from segue import GradientAccumulator, WeightedAccumulator
from segue._record.gradients import GradientsRecord
from segue._record.window import WindowRecord
from segue._window.window import MAX_MICROBATCHES
from segue.errors import InvalidRecord, MismatchError, WindowError
from tests._window.models import Pair, look


def give_all(model, window, values):
    for value in values:
        model.give(value)
        window.add()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("cut", range(10))
def test_behaviour_59_small_terms_beside_a_large_sum_survive_also_a_restore_in_mid_window(dtype, cut):
    values = [1024.0, *[0.125] * 8]
    stalled = torch.tensor(values[0], dtype=dtype)
    for value in values[1:]:
        stalled += torch.tensor(value, dtype=dtype)
    assert stalled.item() == 1024
    model = Pair(dtype)
    window = GradientAccumulator(model)
    give_all(model, window, values[:cut])
    other = Pair(dtype)
    resumed = GradientAccumulator(other)
    resumed.load_record(window.to_record())
    give_all(other, resumed, values[cut:])
    [(_, total)] = resumed.sums()
    assert total.dtype is torch.float32
    assert total.tolist() == [1025, 1025]


def test_behaviour_60_a_tied_parameter_is_added_once_per_microbatch():
    model = Pair()
    model.c = model.a
    model.inner = nn.Module()
    model.inner.again = model.a
    window = GradientAccumulator(model)
    give_all(model, window, [1, 1])
    assert window.to_record().sums.names == ("a",)
    window.finish_sums()
    assert model.taken() == [[2, 2], None]


def test_behaviour_61_finishing_resets_a_record_does_not_and_a_late_gradient_is_kept_alone():
    model = Pair()
    window = GradientAccumulator(model)
    model.give(a=1)
    window.add()
    model.give(b=5)
    window.add()
    before = look(model, window)
    window.to_record()
    assert look(model, window) == before
    window.finish_sums()
    assert model.taken() == [[1, 1], [5, 5]]
    assert window.sums() == []
    assert window.microbatches == 0


def classifier():
    torch.manual_seed(0)
    model = nn.Linear(4, 6, dtype=torch.float64)
    x, y = torch.randn(8, 4, dtype=torch.float64), torch.randint(0, 6, (8,))

    def gradient(window, reduction, parts, act):
        for part, tokens in parts:
            nn.functional.cross_entropy(model(x[part]), y[part], reduction=reduction).backward()
            act(window, tokens)
        window.finish_mean()
        found = model.weight.grad
        model.zero_grad()
        return found

    return model, gradient


PARTS = [(slice(0, 3), 3), (slice(3, 8), 5)]
# Eight terms of size one at most are added in another order: a few units in the last place of doubles near one.
ROUNDING = 8 * 2 * 2.0**-53


def test_behaviour_62_batches_of_3_and_5_by_mean_are_one_batch_of_8_and_no_plain_average():
    model, gradient = classifier()
    one = gradient(
        GradientAccumulator(model, torch.float64), "mean", [(slice(0, 8), 8)], lambda w, _: w.add()
    )
    weighted = WeightedAccumulator(model, torch.float64)
    by_mean = gradient(weighted, "mean", PARTS, lambda window, tokens: window.add_mean(tokens))
    plain = gradient(GradientAccumulator(model, torch.float64), "mean", PARTS, lambda window, _: window.add())
    assert (by_mean - one).abs().max() <= ROUNDING
    assert (plain - one).abs().max() > 1e-3


def test_behaviour_63_sums_and_means_tell_the_same():
    model, gradient = classifier()
    window = WeightedAccumulator(model, torch.float64)
    by_mean = gradient(window, "mean", PARTS, lambda window, tokens: window.add_mean(tokens))
    by_sum = gradient(window, "sum", PARTS, lambda window, tokens: window.add_sum(tokens))
    assert (by_mean - by_sum).abs().max() <= ROUNDING


def test_behaviour_64_weight_0_is_counted_and_checked_and_contributes_nothing():
    model = Pair()
    window = WeightedAccumulator(model)
    for value, weight in ((2, 4), (math.nan, 0), (6, 4), (1, -0.0)):
        model.give(value, b=1 if weight == 0 else None)
        window.add_sum(weight)
    assert (window.microbatches, window.total_weight) == (4, 8.0)
    model.give(b=1)
    model.b.requires_grad_(False)
    before = look(model, window)
    with pytest.raises(WindowError) as caught:
        window.add_sum(0)
    assert caught.value.code == "window.frozen"
    assert look(model, window) == before
    model.b.grad = None
    window.finish_mean()
    assert model.taken() == [[1, 1], None]


def test_behaviour_64_a_window_of_nothing_but_weight_0_can_be_recorded():
    model = Pair()
    window = WeightedAccumulator(model)
    window.add_sum(0)
    other = WeightedAccumulator(Pair())
    other.load_record(window.to_record())
    assert (other.microbatches, other.total_weight) == (1, 0.0)


@pytest.mark.parametrize("weight", [-1, -1e-300, math.nan, math.inf, -math.inf, 1e39, 1e-46, 10**400])
@pytest.mark.parametrize("add", ["add_sum", "add_mean"])
def test_behaviour_65_a_bad_weight_is_refused_and_every_bit_stays(add, weight):
    model = Pair()
    window = WeightedAccumulator(model)
    model.give(1, 2)
    window.add_sum(3)
    model.give(5)
    before = look(model, window)
    with pytest.raises(WindowError) as caught:
        getattr(window, add)(weight)
    assert caught.value.code == "window.weight"
    assert "float32" in caught.value.expected
    assert look(model, window) == before


@pytest.mark.parametrize(("work", "half"), [(torch.float32, 3e38), (torch.float64, 1.5e308)])
def test_behaviour_66_a_total_that_overflows_is_refused_and_the_first_part_stays(work, half):
    model = Pair()
    window = WeightedAccumulator(model, work)
    model.give(1)
    window.add_sum(half)
    model.give(1)
    before = look(model, window)
    with pytest.raises(WindowError) as caught:
        window.add_sum(half)
    assert caught.value.code == "window.overflow"
    assert look(model, window) == before


@pytest.mark.parametrize("make", [GradientAccumulator, WeightedAccumulator])
def test_behaviour_67_the_count_of_microbatches_ends_at_2_to_the_64_minus_1(make):
    model = Pair()
    window = make(model)
    total = float(MAX_MICROBATCHES - 1)
    state = dataclasses.replace(window.window_state(), microbatches=MAX_MICROBATCHES - 1, total_weight=total)
    window.load_record(WindowRecord(state, GradientsRecord({})))
    add = window.add if make is GradientAccumulator else lambda: window.add_sum(1)
    model.give(1)
    add()
    assert window.microbatches == MAX_MICROBATCHES == 2**64 - 1
    model.give(1)
    before = look(model, window)
    with pytest.raises(WindowError) as caught:
        add()
    assert caught.value.code == "window.counter"
    assert look(model, window) == before


def test_behaviour_67_the_order_of_refusals_is_weight_total_counter_size_gradient():
    model = Pair()
    window = WeightedAccumulator(model, microbatches=1)
    model.give(1)
    window.add_sum(3e38)
    model.a.grad_dtype = torch.int32
    model.a.grad = torch.ones(2, dtype=torch.int32)
    codes = []
    for weight in (-1, 3e38, 1):
        with pytest.raises(WindowError) as caught:
            window.add_sum(weight)
        codes.append(caught.value.code)
    state = dataclasses.replace(window.window_state(), window_microbatches=None)
    window = WeightedAccumulator(model)
    window.replace_window(dataclasses.replace(state, microbatches=MAX_MICROBATCHES), [])
    with pytest.raises(WindowError) as caught:
        window.add_sum(1)
    codes.append(caught.value.code)
    window.replace_window(dataclasses.replace(state, microbatches=1), [])
    with pytest.raises(WindowError) as caught:
        window.add_sum(1)
    codes.append(caught.value.code)
    assert codes == ["window.weight", "window.overflow", "window.full", "window.counter", "window.gradient"]


@pytest.mark.parametrize("make", [GradientAccumulator, WeightedAccumulator])
def test_behaviour_68_a_recorded_sum_of_an_unknown_name_is_refused(make):
    model = Pair()
    model.c = nn.Parameter(torch.zeros(2))
    window = make(model)
    model.c.grad = torch.ones(2)
    window.add() if make is GradientAccumulator else window.add_sum(1)
    record = window.to_record()
    other = Pair()
    target = make(other)
    other.give(1)
    target.add() if make is GradientAccumulator else target.add_sum(1)
    before = look(other, target)
    with pytest.raises(MismatchError) as caught:
        target.load_record(record)
    assert [finding.code for finding in caught.value.findings] == ["window.c"]
    assert look(other, target) == before


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
@pytest.mark.parametrize("make", [GradientAccumulator, WeightedAccumulator])
def test_behaviour_69_a_quantized_gradient_is_refused(make):
    model = Pair()
    window = make(model)
    model.b.grad_dtype = None
    model.b.grad = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)
    with pytest.raises(WindowError) as caught:
        window.add() if make is GradientAccumulator else window.add_sum(1)
    assert (caught.value.code, caught.value.where) == ("window.gradient", "gradient of b")
    assert window.microbatches == 0
    assert model.b.grad is not None


def test_behaviour_70_an_empty_window_has_no_mean_but_sums_and_keeps_its_scale():
    model = Pair()
    window = WeightedAccumulator(model, loss_scale=8.0)
    window.add_sum(0)
    before = look(model, window)
    with pytest.raises(WindowError) as caught:
        window.finish_mean()
    assert caught.value.code == "window.empty"
    assert look(model, window) == before
    assert window.finish_sums() == before[0]
    assert window.window_state() == dataclasses.replace(before[0], microbatches=0)
    assert window.window_state().loss_scale == 8.0


def test_behaviour_71_scale_and_total_are_divided_out_one_after_the_other():
    # Their product, 1e60, is infinite in single precision.
    model = Pair()
    window = WeightedAccumulator(model, loss_scale=1e30)
    model.give(1e30)
    window.add_sum(1e30)
    window.finish_mean()
    expected = torch.tensor(1e30) / torch.tensor(1e30) / torch.tensor(1e30)
    assert model.taken()[0] == [expected.item()] * 2
    assert expected > 0


@pytest.mark.parametrize("scale", [0, -1.0, math.nan, math.inf, 1e-46, 1e39])
def test_behaviour_72_a_loss_scale_that_cannot_be_divided_out_is_refused(scale):
    with pytest.raises(WindowError) as caught:
        WeightedAccumulator(Pair(), loss_scale=scale)
    assert caught.value.code == "window.loss_scale"


def test_behaviour_72_sums_in_half_precision_are_refused():
    with pytest.raises(WindowError) as caught:
        WeightedAccumulator(Pair(), torch.float16)
    assert (caught.value.code, caught.value.found) == ("window.dtype", torch.float16)


def recorded(**changes):
    model = Pair()
    window = WeightedAccumulator(model, loss_scale=2.0)
    model.give(1, 2)
    window.add_sum(3)
    record = window.to_record()
    state = dataclasses.replace(record.state, **{k: v for k, v in changes.items() if k != "sums"})
    return WindowRecord(state, changes.get("sums", record.sums))


def in_double(record):
    return GradientsRecord(
        {
            name: dataclasses.replace(
                tensor,
                dtype=torch.float64,
                shape=(1,),
                strides=(1,),
            )
            for name, tensor in record.sums.tensors.items()
        }
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: recorded(total_weight=0.0),
        lambda: recorded(microbatches=0, total_weight=0.0),
        lambda: recorded(sums=in_double(recorded())),
    ],
    ids=["total 0 with sums", "microbatches 0 with sums", "sums of another dtype"],
)
def test_behaviour_73_a_record_whose_sums_no_window_can_hold_cannot_be_made(make):
    with pytest.raises(InvalidRecord):
        make()


@pytest.mark.parametrize(
    ("changes", "code"),
    [({"microbatches": 0, "sums": GradientsRecord({})}, "window.state"), ({"total_weight": math.nan}, "window.state"),
     ({"total_weight": 1e39}, "window.state"), ({"microbatches": 2**64}, "window.state"),
     ({"loss_scale": 4.0}, "window.loss_scale"), ({"kind": "plain"}, "window.kind"),
     ({"window_microbatches": 3}, "window.window_microbatches")],
)  # fmt: skip
def test_behaviour_73_a_record_that_is_refused_leaves_the_window(changes, code):
    model = Pair()
    window = WeightedAccumulator(model, loss_scale=2.0)
    model.give(7)
    window.add_sum(1)
    before = look(model, window)
    with pytest.raises(WindowError) as caught:
        window.load_record(recorded(**changes))
    assert caught.value.code == code
    assert look(model, window) == before


@pytest.mark.parametrize("change", [{"dtype": torch.float64}, {"loss_scale": 1.0}])
def test_behaviour_74_an_accumulator_refuses_a_record_of_another_dtype_or_scale(change):
    # The seeds adopt both silently; a scale that the loop does not put into its losses is a wrong gradient.
    model = Pair()
    window = WeightedAccumulator(model, **{"loss_scale": 2.0, **change})
    before = look(model, window)
    with pytest.raises(WindowError) as caught:
        window.load_record(recorded())
    assert caught.value.code == f"window.{next(iter(change))}"
    assert look(model, window) == before
