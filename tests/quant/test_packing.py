"""Integers and codes go into words and bytes and come back bit by bit, as a slow packer in plain Python does it."""

import itertools
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from segue._record.quantized import packed_shape
from segue.errors import InvalidRecord
from segue.quant import QuantScale, QuantScheme, QuantStore, QuantValue, pack, unpack
from tests.quant import reference
from tests.quant.schemes import INTEGERS, field_range, lists_for, shapes_and_schemes


def words(value, dim=0):
    return QuantScheme(value, store=QuantStore.PACKED_U32, packed_dim=dim)


def pairs(dim=0):
    return QuantScheme(QuantValue.E2M1, store=QuantStore.PACKED_NATIVE, packed_dim=dim)


def native(value):
    return QuantScheme(value)


def refusal(call, *args):
    with pytest.raises(InvalidRecord) as caught:
        call(*args)
    return caught.value


def test_the_check_values_of_the_seeds():
    assert pack(torch.tensor([-128, 2, -3, 127]), words(QuantValue.Q8F)).tolist() == [2147287680]
    assert pack(torch.tensor([-128, 2, -3, 127, 55]), words(QuantValue.Q8F)).tolist() == [2147287680, 55]
    packed = torch.tensor([2147287680, 55], dtype=torch.uint32)
    assert unpack(packed, words(QuantValue.Q8F), (5,)).tolist() == [-128, 2, -3, 127, 55]


def test_the_first_value_stands_in_the_lowest_bits():
    assert pack(torch.tensor([1, 0, 0, 0, 0, 0, 0, -8]), words(QuantValue.Q4F)).tolist() == [0x80000001]
    assert pack(torch.tensor([1, -1, -2]), words(QuantValue.Q2F)).tolist() == [0b10_11_01]
    assert pack(torch.tensor([1, 0, 255]), words(QuantValue.E4M3)).tolist() == [0x00FF0001]


def test_the_first_of_two_codes_is_the_lower_half_of_a_byte():
    assert pack(torch.tensor([1, 15, 7]), pairs()).tolist() == [0xF1, 0x07]
    assert unpack(torch.tensor([0xF1, 0x07], dtype=torch.uint8), pairs(), (3,)).tolist() == [1, 15, 7]


def test_each_row_along_the_packed_dimension_is_packed_by_itself():
    # (56) Fifteen values in one go would be four words.
    values = torch.arange(15).reshape(3, 5)
    assert pack(values, words(QuantValue.Q8F)).tolist() == [
        [0x03020100, 0x04], [0x08070605, 0x09], [0x0D0C0B0A, 0x0E],
    ]  # fmt: skip
    assert pack(values, words(QuantValue.Q8F, 1)).tolist() == [
        [0x0A0500, 0x0B0601, 0x0C0702, 0x0D0803, 0x0E0904],
    ]  # fmt: skip
    assert pack(values, pairs(1)).tolist() == [[0x50, 0x61, 0x72, 0x83, 0x94], [0xA, 0xB, 0xC, 0xD, 0xE]]


@pytest.mark.parametrize("value", QuantValue)
def test_a_native_store_gives_every_kind_one_byte_per_value(value):
    # (56)
    packed = pack(torch.tensor([[1, 0, 1]]), native(value))
    assert (packed.dtype, packed.tolist()) == (torch.uint8, [[1, 0, 1]])


def test_native_integers_are_in_two_s_complement_of_a_whole_byte():
    assert pack(torch.tensor([-1, -2]), native(QuantValue.Q2F)).tolist() == [255, 254]
    assert unpack(torch.tensor([255, 254], dtype=torch.uint8), native(QuantValue.Q2F), (2,)).tolist() == [
        -1,
        -2,
    ]


@pytest.mark.parametrize("value", INTEGERS)
def test_every_code_of_an_integer_comes_back_with_its_sign(value):
    low, high = field_range(words(value))
    every = list(range(low, high + 1))
    for scheme in (words(value), native(value)):
        back = unpack(pack(torch.tensor(every), scheme), scheme, (len(every),))
        assert (back.dtype, back.tolist()) == (torch.int8, every)


@pytest.mark.parametrize(
    ("value", "dtype"), [(QuantValue.E4M3, torch.float8_e4m3fn), (QuantValue.E5M2, torch.float8_e5m2)]
)
def test_every_bit_pattern_of_an_eight_bit_float_comes_back(value, dtype):
    codes = torch.arange(256, dtype=torch.uint8)
    for scheme in (words(value), native(value)):
        for values in (codes, codes.view(dtype), codes.to(torch.int64)):
            back = unpack(pack(values, scheme), scheme, (256,))
            assert back.dtype is dtype
            assert back.view(torch.uint8).tolist() == list(range(256))


def test_codes_of_four_bits_are_given_back_as_codes():
    codes = torch.arange(16, dtype=torch.uint8)
    for scheme in (words(QuantValue.E2M1), pairs(), native(QuantValue.E2M1)):
        back = unpack(pack(codes, scheme), scheme, (16,))
        assert (back.dtype, back.tolist()) == (torch.uint8, list(range(16)))


@st.composite
def packings(draw):
    shape, scheme = draw(shapes_and_schemes(0, 9))
    return shape, scheme, draw(lists_for(shape, st.integers(*field_range(scheme))))


@settings(max_examples=100, deadline=None, database=None)
@given(packings())
def test_units_are_those_of_a_slow_packer_and_give_the_values_again(case):
    shape, scheme, numbers = case
    units = pack(torch.tensor(numbers, dtype=torch.int64).reshape(shape), scheme)
    expected = reference.value_bytes(
        scheme.value.value, shape, scheme.store.value, scheme.packed_dim,
        dict(zip(reference.indices(shape), numbers, strict=True)),
    )  # fmt: skip
    assert tuple(units.shape) == packed_shape(scheme, shape)
    assert units.is_contiguous()
    flat = units.reshape(-1).tolist()
    assert struct.pack(f"<{len(flat)}{'I' if units.dtype is torch.uint32 else 'B'}", *flat) == expected
    back = unpack(units, scheme, shape)
    assert tuple(back.shape) == shape
    codes = back if back.dtype is torch.int8 else back.view(torch.uint8)
    assert codes.reshape(-1).tolist() == numbers


@settings(max_examples=100, deadline=None, database=None)
@given(shapes_and_schemes(), st.data())
def test_any_bits_are_unpacked_and_those_that_fill_up_rows_do_not_count(case, data):
    shape, scheme = case
    packed = packed_shape(scheme, shape)
    wide = scheme.store is QuantStore.PACKED_U32
    numbers = data.draw(lists_for(packed, st.integers(0, 2**32 - 1 if wide else 255)))
    units = torch.tensor(numbers, dtype=torch.int64).to(torch.uint32 if wide else torch.uint8).reshape(packed)
    again = pack(unpack(units, scheme, shape), scheme)
    if scheme.store is QuantStore.NATIVE:
        assert again.tolist() == units.tolist()
        return
    axis, per_unit = len(shape) - 1 - scheme.packed_dim, scheme.values_per_unit
    for index in itertools.product(*map(range, packed)):
        used = min(shape[axis] - index[axis] * per_unit, per_unit) * scheme.value.bits
        assert again[index].item() == units[index].item() % (1 << used)


@pytest.mark.parametrize("value", QuantValue)
def test_a_value_that_does_not_fit_its_bits_is_refused_and_not_cut_off(value):
    for scheme in (words(value), native(value)):
        low, high = field_range(scheme)
        for wrong in (low - 1, high + 1):
            error = refusal(pack, torch.tensor([[low, wrong], [wrong, high]]), scheme)
            assert (error.code, error.where, error.found) == ("quant.value", "index (0, 1)", wrong)
            assert error.expected == f"{low} to {high}"


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8])
def test_integers_of_any_width_are_packed(dtype):
    assert pack(torch.tensor([1, 2, 3], dtype=dtype), words(QuantValue.Q4S)).tolist() == [0x321]


@pytest.mark.parametrize(
    ("values", "value"),
    [
        (torch.ones(2), QuantValue.Q8S),
        (torch.ones(2, dtype=torch.bool), QuantValue.Q8S),
        (torch.ones(2, dtype=torch.float8_e4m3fn), QuantValue.Q8S),
        (torch.ones(2, dtype=torch.float8_e4m3fn), QuantValue.E5M2),
        (torch.ones(2, dtype=torch.float8_e5m2), QuantValue.E4M3),
        (torch.ones(2, dtype=torch.int64, device="meta"), QuantValue.Q8S),
        (torch.ones(2, dtype=torch.int64).to_sparse(), QuantValue.Q8S),
    ],
)
def test_other_tensors_than_integers_or_codes_of_the_kind_are_refused(values, value):
    assert refusal(pack, values, native(value)).code == "quant.dtype"


def test_a_packed_dimension_that_does_not_exist_is_refused_before_the_kind():
    # (56)
    wrong = QuantScheme(QuantValue.Q4F, QuantScale.F32, QuantStore.PACKED_NATIVE, 5)
    units = torch.zeros(3, 3, dtype=torch.uint8)
    for call in (
        lambda: pack(torch.zeros(3, 5, dtype=torch.int64), wrong),
        lambda: unpack(units, wrong, (3, 5)),
    ):
        assert refusal(call).code == "gradients.quantized.pack_dim"
    kind = QuantScheme(QuantValue.Q4F, QuantScale.F32, QuantStore.PACKED_NATIVE, 0)
    assert refusal(pack, torch.zeros(3, 5, dtype=torch.int64), kind).code == "gradients.quantized.native_pack"
    assert refusal(pack, torch.tensor(1), words(QuantValue.Q8S)).code == "gradients.quantized.pack_dim"


def test_units_of_another_shape_or_dtype_are_refused():
    scheme = words(QuantValue.Q8S)
    assert refusal(unpack, torch.zeros(2, dtype=torch.uint32), scheme, (4,)).code == "quant.shape"
    assert refusal(unpack, torch.zeros(1, dtype=torch.int32), scheme, (4,)).code == "quant.dtype"
    assert (
        refusal(unpack, torch.zeros(4, dtype=torch.int8), native(QuantValue.Q8S), (4,)).code == "quant.dtype"
    )


def test_a_shape_that_torch_can_t_have_is_refused():
    units = torch.zeros(0, 2**62, dtype=torch.uint8)
    assert unpack(units, native(QuantValue.Q8S), [0, 2**62]).shape == (0, 2**62)
    wrong = torch.zeros(0, 2**62, 1, dtype=torch.uint32)
    assert refusal(unpack, wrong, words(QuantValue.Q8S), (0, 2**62, 4)).code == "quant.shape"


def test_neither_strides_nor_many_dimensions_matter():
    values = torch.arange(-6, 6).reshape(3, 4)
    for scheme in (words(QuantValue.Q4F), words(QuantValue.Q4F, 1), native(QuantValue.Q4F)):
        assert pack(values.t(), scheme).tolist() == pack(values.t().contiguous(), scheme).tolist()
        units = pack(values, scheme)
        spread = torch.stack([units.to(torch.int64)] * 2, -1).to(units.dtype)[..., 0]
        assert not spread.is_contiguous()
        assert unpack(spread, scheme, (3, 4)).tolist() == values.tolist()
    deep = values.reshape(*[1] * 68, 12)
    packed = pack(deep, words(QuantValue.Q4F))
    assert packed.shape == (*[1] * 68, 2)
    assert unpack(packed, words(QuantValue.Q4F), deep.shape).flatten().tolist() == list(range(-6, 6))


def test_the_values_are_left_as_they_were():
    values = torch.tensor([1, 2, 3], dtype=torch.uint8)
    packed = pack(values, native(QuantValue.E2M1))
    packed.fill_(9)
    assert values.tolist() == [1, 2, 3]
    unpack(packed, native(QuantValue.E2M1), (3,)).fill_(1)
    assert packed.tolist() == [9, 9, 9]
