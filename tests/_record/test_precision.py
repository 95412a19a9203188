"""A record in another precision: the table of the seeds row by row, what is left alone, and that nothing lossy hides."""

import dataclasses
from collections import OrderedDict, deque

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from segue._record.composite import ConvertedTensor
from segue._record.conversion import PRECISIONS, converted, refuse_inexact, same_tensor_bits
from segue._record.converted_bytes import ConvertedBytes, Workspace
from segue._record.diff import diff
from segue._record.digest import digests
from segue._record.gradients import GradientsRecord
from segue._record.precision import converted_tensors, in_own_dtypes, refuse_inexact_record
from segue._record.quantized import QuantizedTensor, QuantScheme, QuantValue
from segue._record.rank_local import RankLocal
from segue._record.sections import ComponentRecord, GroupRecord, OptimizerRecord
from segue._record.structure import needed_version
from segue._record.tensors import CapturedTensor, read_bytes
from segue._record.tree import same
from segue.errors import InvalidRecord
from tests._store.records import captured, module, record, second_version, sparse, subclass, tensor

F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
I64, I32, I16 = torch.int64, torch.int32, torch.int16
SETTINGS = ("half", "full", "double")
FLOATS = (F64, F32, F16, BF16)
RAW = {8: I64, 4: I32, 2: I16}


def stored(dtype, precision, value):
    """Return what a tensor is stored in, whether its bits come back, and what the record says of that."""
    live = torch.tensor([value, value], dtype=dtype)
    item = converted(captured(live), precision)
    if isinstance(item, CapturedTensor):
        assert item.dtype is dtype
        return None
    back = item.to_host()
    assert back.dtype is dtype
    assert item.exact == same_tensor_bits(back, live)
    return item.stored.dtype, "exact" if item.exact else "lossy"


# The table of 3.25, with a value that tells: each row in half, full and double; None is as it is.
@pytest.mark.parametrize(
    ("dtype", "value", "half", "full", "double"),
    [
        (F64, 0.1, (F16, "lossy"), (F32, "lossy"), None),
        (F32, 0.1, (F16, "lossy"), None, (F64, "exact")),
        (F16, 0.1, None, (F32, "exact"), (F64, "exact")),
        (BF16, 1e30, (F16, "lossy"), (F32, "exact"), (F64, "exact")),
        (BF16, 1e-30, (F16, "lossy"), (F32, "exact"), (F64, "exact")),
        (I64, 2**40, (I16, "lossy"), (I32, "lossy"), None),
        (I32, 2**20, (I16, "lossy"), None, (I64, "exact")),
        (I16, 7, None, None, None), (torch.int8, 7, None, None, None), (torch.uint8, 7, None, None, None),
        (torch.bool, True, None, None, None), (torch.complex64, 0.1, None, None, None),
        (torch.float8_e4m3fn, 1.0, None, None, None),
    ],
)  # fmt: skip
def test_behaviour_47_the_table_of_precisions(dtype, value, half, full, double):
    assert [stored(dtype, setting, value) for setting in SETTINGS] == [half, full, double]
    assert stored(dtype, "native", value) is None


@pytest.mark.parametrize(
    ("dtype", "value", "precision"),
    [
        (F64, 0.5, "half"), (F64, 0.5, "full"), (F32, -0.0, "half"), (F32, float("inf"), "half"), (BF16, 0.5, "half"),
        (F64, float("-inf"), "full"), (F64, 2.0**-149, "full"), (F32, 2.0**-24, "half"), (I64, 2**31 - 1, "full"),
        (I64, -(2**31), "full"), (I64, -(2**15), "half"), (I32, 2**15 - 1, "half"), (F32, 2.0**-149, "double"),
    ],
)  # fmt: skip
def test_values_that_fit_are_exact_whatever_the_dtypes(dtype, value, precision):
    assert stored(dtype, precision, value)[1] == "exact"


@pytest.mark.parametrize(
    ("dtype", "value", "precision"),
    [
        (F64, 1e-320, "full"), (F32, 65520.0, "half"), (F32, 2.0**-25, "half"), (I64, 2**31, "full"),
        (I64, -(2**31) - 1, "full"), (I32, 2**15, "half"), (I64, -(2**15) - 1, "half"),
        *((dtype, float("nan"), "double") for dtype in (F32, F16, BF16)), (F64, float("nan"), "full"),
    ],
)  # fmt: skip
def test_values_that_do_not_fit_are_lossy(dtype, value, precision):
    live = torch.tensor([1, value], dtype=dtype)
    assert not converted(captured(live), precision).exact


@pytest.mark.parametrize("precision", SETTINGS)
def test_what_has_no_dimension_counts_or_scales_and_is_never_converted(precision):
    for dtype in (*FLOATS, I64, I32):
        one = captured(torch.tensor(3, dtype=dtype))
        assert converted(one, precision) is one


@pytest.mark.parametrize("precision", SETTINGS)
def test_behaviour_48_what_consists_of_parts_is_never_converted(precision):
    quantized = QuantizedTensor(QuantScheme(QuantValue.Q8S), (2,), tensor("uint8", (6,)))
    for whole in (sparse(), subclass(), quantized):
        assert converted(whole, precision) is whole


@pytest.mark.parametrize("precision", [F64, F32, F16, BF16])
def test_a_dtype_is_for_floats_alone(precision):
    for dtype in (I64, I32):
        assert stored(dtype, precision, 7) is None
    assert [stored(dtype, precision, 0.5) for dtype in FLOATS if dtype is not precision] == [
        (precision, "exact")
    ] * 3


def bits(dtype):
    size = 8 * dtype.itemsize
    values = st.integers(-(2 ** (size - 1)), 2 ** (size - 1) - 1)
    return st.lists(values, min_size=1, max_size=40).map(
        lambda raw: torch.tensor(raw, dtype=RAW[dtype.itemsize])
    )


@given(st.data(), st.sampled_from(FLOATS), st.sampled_from([*SETTINGS, *FLOATS]))
@settings(max_examples=150, deadline=None)
def test_exact_is_what_comes_back_bit_for_bit_and_lossy_stays_lossy(data, dtype, precision):
    live = data.draw(bits(dtype)).view(dtype)
    once = converted(captured(live), precision)
    if isinstance(once, CapturedTensor) or once.exact:
        assert same_tensor_bits(once.to_host(), live)
        for other in (*SETTINGS, dtype):
            again = converted(once, other)
            assert (
                not isinstance(again, ConvertedTensor)
                or again.exact == converted(captured(live), other).exact
            )
        assert same(converted(once, dtype), captured(live))  # there and back is nothing
    else:
        assert bool(live.isnan().any()) or not same_tensor_bits(once.to_host(), live)
        for other in (*SETTINGS, dtype):
            assert not converted(once, other).exact
    assert same(converted(once, precision), once)  # twice is once


def test_strides_and_placement_are_kept_and_expanded_memory_is_left_alone():
    live = torch.empty_strided((2, 3), (1, 5), dtype=F32).fill_(0.5)
    item = converted(captured(live).with_device("cuda:0"), "half")
    assert (item.strides, item.device, item.to_host().stride()) == ((1, 5), "cuda:0", (1, 5))
    expanded = captured(torch.ones(1).expand(3))
    assert converted(expanded, "half") is expanded


def fitting(seed=0):
    """A record that half precision holds: every float and integer of it is a small whole number."""

    def small(item):
        if isinstance(item, CapturedTensor) and item.dtype.is_floating_point:
            return captured(torch.arange(item.num_elements).reshape(item.shape).to(item.dtype))
        return item

    made = record(seed, gradients=GradientsRecord({"weight": captured(torch.arange(12.0).reshape(4, 3))}))
    tensors = {name: small(item) for name, item in made.model.tensors.items()}
    moments = {
        "weight": {"step": captured(torch.tensor(3.0)), "exp_avg": captured(torch.arange(12.0).view(4, 3))}
    }
    return dataclasses.replace(
        made,
        model=dataclasses.replace(made.model, tensors=tensors),
        optimizers={"adamw": dataclasses.replace(made.optimizers["optimizer"], state=moments)},
        components={
            **made.components,
            "ema": ComponentRecord("module", "E", module({"w": captured(torch.ones(2))}), None),
        },
    )


def test_parameters_buffers_moments_gradients_and_modules_are_converted_and_nothing_else_is():
    before = fitting()
    after = before.converted("half")
    assert [place for place, _ in converted_tensors(after)] == [
        "model/bias", "model/cache", "model/weight", "optimizers/adamw/weight/exp_avg", "gradients/weight", "components/ema/w",
    ]  # fmt: skip
    assert after.lossy == ()
    assert (before.precision, after.precision) == ("native", "half")
    assert after.window.sums is before.window.sums
    for name in ("schedulers", "streams", "caller_state", "environment", "lineage"):
        assert getattr(after, name) is getattr(before, name)
    assert after.components["data"] is before.components["data"]
    assert after.model.contract is before.model.contract  # behaviour 76: the contract tells own dtypes
    step = after.optimizers["adamw"].state["weight"]["step"]
    assert step is before.optimizers["adamw"].state["weight"]["step"]
    assert after.optimizers["adamw"].groups == before.optimizers["adamw"].groups


def test_an_exact_record_is_the_same_state():
    before = fitting()
    after = before.converted("half")
    assert digests(after) == digests(before)
    assert diff(before, after).identical
    assert same(in_own_dtypes(after).sections(), {**before.sections(), "precision": "half"})
    back = after.converted("full")
    assert (back.precision, converted_tensors(back)) == ("full", [("model/bias", back.model.tensors["bias"])])
    assert same(after.converted("half").sections(), after.sections())
    refuse_inexact_record(after)


def test_a_lossy_record_says_where_and_differs_there():
    before = fitting()
    tensors = {**before.model.tensors, "weight": captured(torch.full((4, 3), 0.1))}
    before = dataclasses.replace(before, model=dataclasses.replace(before.model, tensors=tensors))
    after = before.converted("half")
    assert after.lossy == ("model/weight",)
    assert [item.path for item in diff(before, after).differences] == ["tensors/weight"]
    assert {name for name, digest in digests(after).items() if digest != digests(before)[name]} == {"model"}
    assert after.converted("double").lossy == ("model/weight",)
    assert after.converted("double").precision == "double"


@pytest.mark.parametrize("precision", ["quarter", torch.int8, torch.complex64, None, 16, ("half",)])
def test_another_precision_is_refused(precision):
    with pytest.raises(InvalidRecord) as caught:
        record().converted(precision)
    assert caught.value.code == "record.precision"


def test_a_record_of_an_unknown_precision_is_refused():
    assert all(record(precision=name).precision == name for name in PRECISIONS)
    with pytest.raises(InvalidRecord, match="precision"):
        record(precision="quarter")


@pytest.mark.parametrize("section", ["model", "optimizers", "components"])
def test_a_record_that_holds_converted_state_says_so(section):
    narrow = fitting().converted("half")
    with pytest.raises(InvalidRecord, match="doesn't say so"):
        record(**{section: getattr(narrow, section)})
    assert record(**{section: getattr(narrow, section)}, precision="half").lossy == ()
    assert (
        record(gradients=narrow.gradients).lossy == ()
    )  # they had that before there were precisions of records


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_dtype_gives_a_record_its_name(dtype):
    assert fitting().converted(dtype).precision == str(dtype).removeprefix("torch.")


def test_native_is_the_record_itself():
    before = record()
    assert before.converted("native") is before
    assert before.converted("half").converted("native").precision == "half"


@pytest.mark.parametrize("precision", SETTINGS)
def test_quantized_state_keeps_its_codes_scales_and_tables(precision):
    """As of bitsandbytes: a moment in bytes, its scales and a lookup table, all plain tensors."""
    codes = {
        "step": 3,
        "state1": tensor("uint8", (64,)),
        "qmap1": tensor(shape=(256,)),
        "absmax1": tensor(shape=(2,)),
    }
    plain = {"step": 3, "state1": tensor(shape=(2,))}
    state = {"large": codes, "small": plain}
    optimizer = OptimizerRecord(
        "O", (GroupRecord(("large", "small"), {}, {}),), state, {}, (), {"name2qmap": {"d": tensor()}}
    )
    after = record(optimizers={"o": optimizer}).converted(precision).optimizers["o"]
    assert after.state["large"] is codes
    assert (after.state["small"]["state1"] is plain["state1"]) == (precision == "full")
    assert after.attributes is optimizer.attributes


def test_everything_of_version_2_that_has_parts_is_left_alone():
    before = second_version()
    after = before.converted("half")
    for name in ("base.weight", "nested", "table"):
        assert after.model.tensors[name] is before.model.tensors[name]
    for name in ("rows", "more rows", "packed"):
        assert after.gradients.tensors[name] is before.gradients.tensors[name]


def test_trees_of_the_caller_are_converted_where_tensors_stand():
    made = {
        "a": [captured(torch.ones(2))],
        1: OrderedDict(b=(captured(torch.ones(3, dtype=F64)), "text", 1.5, None)),
    }
    groups = (
        {"rows": deque([captured(torch.ones(2, dtype=I64))], 4), "scale": captured(torch.tensor(0.5))},
        {1, 2},
    )
    after = record(kind="groups", model_state=made, groups=groups).converted("half")
    places = [place for place, _ in converted_tensors(after)]
    assert places[-3:] == ["model_state/a/0", "model_state/1/b/0", "groups/0/rows/0"]
    assert after.groups[0]["rows"].maxlen == 4
    assert after.groups[0]["scale"] is groups[0]["scale"]
    assert after.groups[1] == {1, 2}
    assert type(after.model_state[1]) is OrderedDict
    own = in_own_dtypes(after)
    assert same(own.model_state, made)
    assert same(own.groups, groups)


def test_records_in_trees_of_the_caller_are_converted_as_anywhere():
    made = fitting()
    groups = (made.optimizers["adamw"], made.gradients, made.components["ema"], made.window)
    after = dataclasses.replace(made, groups=groups).converted("half")
    places = [place for place, _ in converted_tensors(after) if place.startswith("groups/")]
    assert places == ["groups/0/weight/exp_avg", "groups/1/weight", "groups/2/w"]
    assert after.groups[3] is made.window
    assert same(in_own_dtypes(after).groups, groups)


def test_what_is_rank_local_goes_through_its_own_converter_once_or_stays_native():
    calls = []

    def convert(inner, precision):
        calls.append((inner, precision))
        return [*inner, precision]

    held = [captured(torch.ones(2))]
    after = record(groups=[RankLocal(held, convert), RankLocal(held)]).converted("half")
    assert calls == [(held, "half")]
    assert after.groups[0].inner == [*held, "half"]
    assert after.groups[1].inner is held


def test_gradients_that_are_one_memory_are_converted_all_or_not_at_all():
    values = sparse()
    dense = dataclasses.replace(values.tensors["values"])
    alone = captured(torch.ones(2))
    before = GradientsRecord(
        {"a": alone, "b": alone, "c": dense, "rows": values, "one": captured(torch.ones(())), "line": captured(torch.ones(1))},
        (("a/", "b/"), ("c/", "rows/values"), ("line/", "one/")),
    )  # fmt: skip
    after = before.converted("half")
    assert {name for name, item in after.tensors.items() if isinstance(item, ConvertedTensor)} == {"a", "b"}
    assert after.shared == before.shared


def test_integers_need_version_3_and_floats_what_holds_them():
    assert needed_version(converted(captured(torch.ones(2)), "half")) == 2
    assert needed_version(converted(captured(torch.ones(2, dtype=I64)), "half")) == 3
    assert needed_version(record().converted("full")) == 3


def test_what_is_said_to_be_exact_and_is_not_is_refused_before_it_is_used():
    lie = ConvertedTensor(F16, captured(torch.tensor([0.1])), True)
    with pytest.raises(InvalidRecord) as caught:
        refuse_inexact(lie, "model/w", Workspace())
    assert (caught.value.code, caught.value.where) == ("record.inexact", "model/w")
    refuse_inexact(dataclasses.replace(lie, exact=False), "model/w", Workspace())
    with pytest.raises(InvalidRecord, match="does not come back exactly"):
        GradientsRecord({"w": lie}).in_own_dtypes()
    with pytest.raises(InvalidRecord, match="does not come back exactly"):
        refuse_inexact_record(record(gradients=GradientsRecord({"w": lie})))


def test_one_workspace_serves_tensors_of_any_size_and_is_made_before_anything_is_read():
    large, small = captured(torch.arange(100.0)), captured(torch.arange(3, dtype=I16))
    workspace = Workspace()
    sources = [ConvertedBytes(large, F64, workspace), ConvertedBytes(small, I64, workspace)]
    pointers = {workspace.read(item).data_ptr() for item in (large, small, large)}
    assert len(pointers) == 1
    assert read_bytes(sources[0]) == torch.arange(100, dtype=F64).numpy().tobytes()
    assert read_bytes(sources[1]) == torch.arange(3).numpy().tobytes()
    assert ConvertedBytes(captured(torch.ones(0)), F64, Workspace()).num_bytes == 0


def test_a_module_in_a_tree_of_the_caller_is_converted_and_comes_back():
    own = module({"own": captured(torch.tensor([1.0, 2.5])), "gone": None})
    local = RankLocal(captured(torch.tensor([3.0])))
    native = record(model_state=[own, local])
    wide = native.converted("double")
    assert wide.model_state[0].tensors["own"].stored.dtype is torch.float64
    back = in_own_dtypes(wide)
    assert back.model_state[1] is local
    assert same(back.model_state[0].tensors["own"], own.tensors["own"])


def test_converted_bytes_of_nothing_are_none_and_are_verified_as_they_are_stored():
    empty = converted(captured(torch.empty(0, 3)), "double")
    restored = empty.restored(Workspace())
    assert restored.num_bytes == 0
    assert restored.to_host().shape == (0, 3)
    restored.source.read_into(memoryview(bytearray()))
    restored.source.verify()


def test_gradients_come_back_in_their_own_dtypes():
    gradients = GradientsRecord({"a": captured(torch.tensor([0.1, -0.0]))})
    back = gradients.converted("double").in_own_dtypes()
    assert same(back.tensors["a"], gradients.tensors["a"])


def test_what_is_stored_in_its_own_dtype_is_not_called_converted():
    with pytest.raises(InvalidRecord, match="own dtype"):
        ConvertedTensor.from_parts({"dtype": torch.float32, "exact": True}, {"stored": tensor()})
