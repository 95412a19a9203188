"""Numbers are rounded as an exact reference rounds them, and codes decode as tables and torch's own dtypes have them."""

import itertools
import math
import struct
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from segue._record.quantized import scale_shape
from segue._record.tensors import MemoryBytes, read_bytes
from segue.errors import InvalidRecord
from segue.quant import (
    QuantScale,
    QuantScheme,
    QuantStore,
    QuantValue,
    assemble,
    dequantize,
    quantize,
    take_apart,
)
from tests.quant import reference
from tests.quant.schemes import INTEGERS, lists_for, shapes_and_schemes

FLOATS = [kind for kind in QuantValue if kind not in INTEGERS]
ONE = torch.tensor(1.0)


def refusal(call, *args):
    with pytest.raises(InvalidRecord) as caught:
        call(*args)
    return caught.value


def bits(numbers):
    return numbers.contiguous().view(torch.int32).reshape(-1).tolist()


def bytes_of(tensor):
    return tensor.reshape(-1).view(torch.uint8).tolist()


def codes(quantized):
    values, _ = take_apart(quantized)
    return values.view(torch.uint8).reshape(-1).tolist()


# What codes stand for.


@pytest.mark.parametrize(("kind", "dtype"), [("E4M3", torch.float8_e4m3fn), ("E5M2", torch.float8_e5m2)])
def test_every_code_of_eight_bits_decodes_as_its_table_and_torch_s_dtype_do(kind, dtype):
    every = torch.arange(256, dtype=torch.uint8)
    decoded = dequantize(assemble(QuantScheme(QuantValue[kind]), every, ONE))
    own = every.view(dtype).to(torch.float32)
    expected = [float(reference.value_of(kind.lower(), code)) for code in range(256)]
    assert torch.equal(decoded.nan_to_num(nan=9e9), own.nan_to_num(nan=9e9))
    assert [repr(number) for number in decoded.abs().tolist()] == [repr(abs(number)) for number in expected]
    assert [code for code in range(256) if not math.isnan(expected[code]) and decoded[code].signbit()] == [
        code for code in range(128, 256) if not math.isnan(expected[code])
    ]


def test_every_code_of_e2m1_decodes_as_its_table_does():
    every = torch.arange(16, dtype=torch.uint8)
    for store in QuantStore:
        decoded = dequantize(assemble(QuantScheme(QuantValue.E2M1, store=store), every, ONE))
        assert decoded.tolist() == [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]
        assert decoded.tolist() == [float(reference.value_of("e2m1", code)) for code in range(16)]
        assert decoded.signbit().tolist() == [False] * 8 + [True] * 8


@pytest.mark.parametrize("kind", INTEGERS)
def test_an_integer_is_multiplied_by_its_scale(kind):
    low, high = reference.RANGES[kind.value]
    every = torch.arange(low, high + 1)
    assert (
        dequantize(assemble(QuantScheme(kind), every, torch.tensor(0.25))).tolist() == (every * 0.25).tolist()
    )


@pytest.mark.parametrize("kind", [kind for kind in INTEGERS if kind.value.endswith("s")])
def test_an_integer_outside_of_its_range_but_within_its_bits_is_what_it_is(kind):
    low = -(2 ** (kind.bits - 1))
    for store in (QuantStore.NATIVE, QuantStore.PACKED_U32):
        assert dequantize(assemble(QuantScheme(kind, store=store), torch.tensor([low]), ONE)).tolist() == [
            low
        ]


@pytest.mark.parametrize(
    ("scale", "dtype"),
    [
        ("UE8M0", torch.float8_e8m0fnu),
        ("UE4M3", torch.float8_e4m3fn),
        ("F16", torch.float16),
        ("BF16", torch.bfloat16),
    ],
)
def test_every_scale_that_is_a_number_decodes_as_its_table_and_torch_s_dtype_do(scale, dtype):
    count = reference.SCALE_CODES[scale.lower()]
    raw = b"".join(code.to_bytes(dtype.itemsize, "little") for code in range(count))
    scales = torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(dtype)
    quantized = assemble(
        QuantScheme(QuantValue.Q8S, QuantScale[scale], block=(1,)),
        torch.ones(count, dtype=torch.int8),
        scales,
    )
    decoded = dequantize(quantized)
    assert torch.equal(decoded, scales.to(torch.float32))
    assert decoded.tolist() == [float(reference.scale_of(scale.lower(), code)) for code in range(count)]


@pytest.mark.parametrize(
    ("scale", "number"),
    [
        (QuantScale.UE8M0, torch.tensor(255, dtype=torch.uint8).view(torch.float8_e8m0fnu)),
        *(
            (QuantScale.UE4M3, torch.tensor(code, dtype=torch.uint8).view(torch.float8_e4m3fn))
            for code in (127, 128, 129, 255)
        ),
        *((QuantScale.F32, torch.tensor(number)) for number in (math.inf, -math.inf, math.nan, -1.0, -0.0)),
        *(
            (QuantScale.F16, torch.tensor(number, dtype=torch.float16))
            for number in (math.inf, math.nan, -1.0)
        ),
        *(
            (QuantScale.BF16, torch.tensor(number, dtype=torch.bfloat16))
            for number in (math.inf, math.nan, -1.0)
        ),
        (QuantScale.F16, torch.tensor(math.nan)),
    ],
)
def test_a_scale_that_is_no_number_or_has_a_sign_is_refused_in_computing_and_kept_as_bits(scale, number):
    quantized = assemble(QuantScheme(QuantValue.Q8S, scale), torch.tensor([1, 2]), number)
    assert bytes_of(take_apart(quantized)[1]) == bytes_of(number)
    error = refusal(dequantize, quantized)
    assert (error.code, error.where) == ("quant.scale", "index ()")
    assert refusal(quantize, torch.ones(2), QuantScheme(QuantValue.Q8S, scale), number).code == "quant.scale"


@pytest.mark.parametrize(
    ("kind", "byte"),
    [("Q4F", 8), ("Q4S", 0x55), ("Q4F", -9), ("Q2F", 2), ("Q2S", -3), ("E2M1", 16), ("E2M1", 0xF3)],
)
def test_a_native_byte_that_holds_no_value_of_its_kind_is_refused_in_computing_and_kept_as_bits(kind, byte):
    quantized = assemble(QuantScheme(QuantValue[kind]), torch.tensor([[0, 1], [0, byte]]), ONE)
    assert take_apart(quantized)[0].tolist() == [[0, 1], [0, byte]]
    error = refusal(dequantize, quantized)
    assert (error.code, error.where, error.found) == ("quant.value", "index (1, 1)", byte)


def test_a_product_beyond_float32_is_infinite_and_one_below_is_rounded_once():
    largest, least = torch.tensor(3.4e38), torch.tensor(2.0**-149)
    scheme = QuantScheme(QuantValue.E4M3)
    three_halves = torch.tensor([0x3C, 0xBC], dtype=torch.uint8)
    assert dequantize(assemble(scheme, three_halves, largest)).tolist() == [math.inf, -math.inf]
    assert dequantize(assemble(scheme, three_halves, least)).tolist() == [2.0**-148, -(2.0**-148)]


# To the nearest, halves to even.


@pytest.mark.parametrize("kind", FLOATS)
def test_numbers_between_two_codes_go_to_the_nearer_and_halves_to_the_even_one(kind):
    name = kind.value
    table = [(code, reference.value_of(name, code)) for code in range(1 << (kind.bits - 1))]
    table = [(code, value) for code, value in table if isinstance(value, Fraction)]
    for (low, below), (high, above) in itertools.pairwise(table):
        half = float((below + above) / 2)
        even = low if low % 2 == 0 else high
        numbers = [float(below), math.nextafter(half, 0), half, math.nextafter(half, math.inf), float(above)]
        tensor = torch.tensor([*numbers, *(-number for number in numbers)], dtype=torch.float64)
        expected = [low, low, even, high, high]
        minus = 1 << (kind.bits - 1)
        assert codes(quantize(tensor, QuantScheme(kind), ONE)) == expected + [
            code + minus for code in expected
        ]


@pytest.mark.parametrize("kind", FLOATS)
def test_beyond_the_largest_code_numbers_saturate_and_never_become_infinite(kind):
    largest = float(reference.LARGEST[kind.value])
    numbers = [largest * factor for factor in (1, 1.01, 1.5, 2, 1e9)] + [3.4e38]
    quantized = quantize(torch.tensor([*numbers, *(-number for number in numbers)]), QuantScheme(kind), ONE)
    assert dequantize(quantized).tolist() == [largest] * 6 + [-largest] * 6


@pytest.mark.parametrize("kind", INTEGERS)
def test_integers_are_rounded_to_even_and_kept_in_the_range_of_their_kind(kind):
    low, high = reference.RANGES[kind.value]
    numbers = [number / 4 for number in range(4 * low - 10, 4 * high + 11)] + [1e30, -1e30]
    values, _ = take_apart(quantize(torch.tensor(numbers), QuantScheme(kind), ONE))
    assert values.tolist() == [min(max(round(number), low), high) for number in numbers]


def test_the_sign_of_a_zero_is_kept_where_the_kind_has_one():
    numbers = torch.tensor([0.0, -0.0, 1e-9, -1e-9])
    assert codes(quantize(numbers, QuantScheme(QuantValue.E4M3), ONE)) == [0, 128, 0, 128]
    assert codes(quantize(numbers, QuantScheme(QuantValue.E2M1), ONE)) == [0, 8, 0, 8]
    assert codes(quantize(numbers, QuantScheme(QuantValue.Q8S), ONE)) == [0, 0, 0, 0]


def expected_bytes(numbers, shape, scheme, scales):
    """The bytes that the reference makes of numbers and of scales, both by index."""
    values = {}
    for index, number in zip(reference.indices(shape), numbers, strict=True):
        quotient = Fraction(number) / scales[reference.block_of(scheme.block, index)]
        values[index] = reference.rounded(scheme.value.value, quotient, math.copysign(1, number))
    return reference.value_bytes(scheme.value.value, shape, scheme.store.value, scheme.packed_dim, values)


@st.composite
def numbers_to_quantize(draw):
    shape, scheme = draw(shapes_and_schemes(0, 5))
    width = draw(st.sampled_from([16, 32]))
    limit = draw(st.sampled_from([1.0, 60000.0, None if width == 16 else 2.0**100]))
    least = None if limit is None else -limit
    finite = st.floats(least, limit, width=width, allow_nan=False, allow_infinity=False)
    return shape, scheme, width, draw(lists_for(shape, finite))


@settings(max_examples=100, deadline=None, database=None)
@given(numbers_to_quantize())
def test_scales_and_values_are_those_of_an_exact_reference(case):
    shape, scheme, width, numbers = case
    kind, scale = scheme.value.value, scheme.scale.value
    maxima = dict.fromkeys(reference.scale_positions(shape, scheme.block), 0.0)
    for index, number in zip(reference.indices(shape), numbers, strict=True):
        block = reference.block_of(scheme.block, index)
        maxima[block] = max(maxima[block], abs(number))
    fitting = {block: reference.fitting_scale(scale, kind, maximum) for block, maximum in maxima.items()}
    tensor = torch.tensor(numbers, dtype=torch.float16 if width == 16 else torch.float32).reshape(shape)
    if None in fitting.values():
        assert refusal(quantize, tensor, scheme).code == "quant.scale_range"
        return
    scales = {block: reference.scale_of(scale, code) for block, code in fitting.items()}
    raw = b"".join(
        code.to_bytes(reference.SCALE_BYTES[scale], "little") for _, code in sorted(fitting.items())
    )
    quantized = quantize(tensor, scheme)
    assert bytes(read_bytes(quantized.data.source)) == expected_bytes(numbers, shape, scheme, scales) + raw


@st.composite
def numbers_and_scales(draw):
    shape, scheme = draw(shapes_and_schemes(1, 5))
    numbers = draw(lists_for(shape, st.floats(width=32, allow_nan=False, allow_infinity=False)))
    grid = scale_shape(scheme, shape)
    positive = st.floats(2.0**-149, width=32, allow_nan=False, allow_infinity=False)
    return shape, scheme, numbers, draw(lists_for(grid, positive | st.floats(0.125, 8, width=32)))


@settings(max_examples=100, deadline=None, database=None)
@given(numbers_and_scales())
def test_with_given_scales_values_are_the_exact_quotients_rounded_once(case):
    shape, scheme, numbers, given_scales = case
    scales = torch.tensor(given_scales).reshape(scale_shape(scheme, shape))
    quantized = quantize(torch.tensor(numbers).reshape(shape), scheme, scales)
    positions = reference.scale_positions(shape, scheme.block)
    by_block = {block: Fraction(number) for block, number in zip(positions, given_scales, strict=True)}
    raw = b"".join(struct.pack("<f", number) for number in given_scales)
    assert bytes(read_bytes(quantized.data.source)) == expected_bytes(numbers, shape, scheme, by_block) + raw


@settings(max_examples=100, deadline=None, database=None)
@given(shapes_and_schemes(1, 5), st.data())
def test_float64_is_divided_in_float64_and_then_rounded(case, data):
    shape, drawn = case
    scheme = QuantScheme(drawn.value, QuantScale.F32, drawn.store, drawn.packed_dim)
    numbers = data.draw(lists_for(shape, st.floats(-1e3, 1e3)))
    divisor = data.draw(st.floats(0.0625, 64, width=32))
    quantized = quantize(
        torch.tensor(numbers, dtype=torch.float64).reshape(shape), scheme, torch.tensor(divisor)
    )
    quotients = [number / divisor for number in numbers]
    expected = expected_bytes(quotients, shape, scheme, {(): Fraction(1)})
    assert bytes(read_bytes(quantized.data.source)) == expected + struct.pack("<f", divisor)


@settings(max_examples=100, deadline=None, database=None)
@given(numbers_and_scales(), st.randoms(use_true_random=False))
def test_numbers_are_exact_products_rounded_once_to_float32(case, random):
    shape, scheme, _, given_scales = case
    kind, (low, high) = (
        scheme.value.value,
        (-(2 ** (scheme.value.bits - 1)), 2 ** (scheme.value.bits - 1) - 1),
    )
    shift = 0 if scheme.value in INTEGERS else -low
    values = {index: random.randint(low, high) + shift for index in reference.indices(shape)}
    quantized = assemble(
        scheme,
        torch.tensor(list(values.values()), dtype=torch.int64).reshape(shape),
        torch.tensor(given_scales).reshape(scale_shape(scheme, shape)),
    )
    by_block = dict(zip(reference.scale_positions(shape, scheme.block), given_scales, strict=True))
    decoded = dequantize(quantized)
    assert (decoded.dtype, tuple(decoded.shape)) == (torch.float32, shape)
    for (index, code), found in zip(values.items(), decoded.reshape(-1).tolist(), strict=True):
        number = code if scheme.value in INTEGERS else reference.value_of(kind, code)
        scale = by_block[reference.block_of(scheme.block, index)]
        if not isinstance(number, Fraction | int):
            assert repr(found) == repr(number * scale)
        else:
            sign = -1.0 if scheme.value not in INTEGERS and code >> (scheme.value.bits - 1) else 1.0
            exact = Fraction(number) * Fraction(scale)
            expected = reference.float32(exact) if exact else struct.pack("<f", 0.0 * sign)
            assert struct.pack("<f", found) == expected


@settings(max_examples=100, deadline=None, database=None)
@given(shapes_and_schemes(0, 5), st.data())
def test_what_was_rounded_once_is_not_changed_by_rounding_again_with_the_same_scales(case, data):
    shape, scheme = case
    numbers = data.draw(lists_for(shape, st.floats(-1000, 1000, width=32)))
    once = quantize(
        torch.tensor(numbers).reshape(shape),
        QuantScheme(scheme.value, QuantScale.F32, scheme.store, scheme.packed_dim, scheme.block),
    )
    _, scales = take_apart(once)
    if scales.numel() and scales.min() < 1e-30:
        return
    again = quantize(dequantize(once), once.scheme, scales)
    assert read_bytes(again.data.source) == read_bytes(once.data.source)


# Scales.


@pytest.mark.parametrize("scale", QuantScale)
@pytest.mark.parametrize("kind", QuantValue)
def test_a_block_of_zeros_has_a_scale_of_one(kind, scale):
    quantized = quantize(torch.zeros(4), QuantScheme(kind, scale, block=(2,)))
    assert take_apart(quantized)[1].to(torch.float32).tolist() == [1.0, 1.0]
    assert dequantize(quantized).tolist() == [0.0] * 4
    assert take_apart(quantize(torch.zeros(0), QuantScheme(kind, scale)))[1].to(torch.float32).item() == 1.0


def test_a_scale_of_an_exponent_alone_is_the_least_power_of_two_that_fits():
    scheme = QuantScheme(QuantValue.E2M1, QuantScale.UE8M0, block=(1,))
    numbers = torch.tensor([6.0, 6.0000005, 5.9999995, 12.0, 3.0, 3.1, 2.0**-140, 1e-45])
    scales = take_apart(quantize(numbers, scheme))[1].to(torch.float32)
    assert scales.tolist() == [1.0, 2.0, 1.0, 2.0, 0.5, 1.0, 2.0**-127, 2.0**-127]


def test_a_scale_of_e4m3_is_the_least_that_fits_and_has_no_sign():
    scheme = QuantScheme(QuantValue.E2M1, QuantScale.UE4M3, block=(1,))
    numbers = torch.tensor([6.0, -6.0, -6.1, 448 * 6.0, 1e-9])
    scales = take_apart(quantize(numbers, scheme))[1]
    assert scales.to(torch.float32).tolist() == [1.0, 1.0, 1.125, 448.0, 2.0**-9]


@pytest.mark.parametrize("kind", QuantValue)
@pytest.mark.parametrize("scale", QuantScale)
def test_the_largest_magnitude_never_saturates(kind, scale):
    largest = reference.LARGEST[kind.value]
    for maximum in (1e-3, 0.1, 1.0, 3.3, 100.0, 400.0):
        quantized = quantize(torch.tensor([maximum, -maximum], dtype=torch.float64), QuantScheme(kind, scale))
        found = take_apart(quantized)[1].to(torch.float64).item()
        assert found * largest >= maximum
        code = int(
            take_apart(quantized)[1].view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[scale.num_bytes])
        )
        assert float(reference.scale_of(scale.value, code - 1)) * largest < maximum


@pytest.mark.parametrize(
    ("scale", "largest", "beyond"),
    [
        (QuantScale.F16, 65504.0, 65505.0),
        (QuantScale.BF16, 3.3895313892515355e38, 3.39e38),
        (QuantScale.UE8M0, 2.0**127, 1.71e38),
        (QuantScale.UE4M3, 448.0, 448.1),
    ],
)
def test_a_block_that_needs_too_large_a_scale_is_refused_and_named(scale, largest, beyond):
    scheme = QuantScheme(QuantValue.Q2S, scale, block=(1, 2))
    numbers = torch.tensor([[largest, 0.0, 1.0], [0.0, 0.0, -largest]])
    assert take_apart(quantize(numbers, scheme))[1].to(torch.float32).tolist() == [[largest, 1], [1, largest]]
    numbers[1, 2] = -beyond
    error = refusal(quantize, numbers, scheme)
    assert (error.code, error.where, error.expected) == ("quant.scale_range", "index (1, 1)", largest)


def test_float64_beyond_float32_has_no_scale_and_below_it_the_least():
    scheme = QuantScheme(QuantValue.Q8S)
    assert refusal(quantize, torch.tensor([1e300], dtype=torch.float64), scheme).code == "quant.scale_range"
    for tiny in (5e-324, 1e-300):
        quantized = quantize(torch.tensor([tiny], dtype=torch.float64), scheme)
        assert take_apart(quantized)[1].item() == 2.0**-149
        assert take_apart(quantized)[0].tolist() == [0]


@pytest.mark.parametrize("kind", QuantValue)
def test_a_maximum_just_beyond_what_fits_gets_the_next_scale(kind):
    following = {"F32": 1 + 2.0**-23, "F16": 1 + 2.0**-10, "BF16": 1 + 2.0**-7, "UE8M0": 2.0, "UE4M3": 1.125}
    for least, scale in (
        (math.nextafter(reference.LARGEST[kind.value], math.inf), scale) for scale in QuantScale
    ):
        quantized = quantize(torch.tensor([least], dtype=torch.float64), QuantScheme(kind, scale))
        assert take_apart(quantized)[1].to(torch.float32).item() == following[scale.name]


def test_blocks_at_the_rim_are_smaller():
    quantized = quantize(torch.tensor([127.0, 1.0, 254.0]), QuantScheme(QuantValue.Q8S, block=(2,)))
    assert take_apart(quantized)[1].tolist() == [1.0, 2.0]
    assert dequantize(quantized).tolist() == [127.0, 1.0, 254.0]


# What is refused, and what does not matter.


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("wrong", [math.inf, -math.inf, math.nan])
def test_a_number_that_is_not_finite_is_refused_naming_the_first(dtype, wrong):
    numbers = torch.zeros(2, 3, dtype=dtype)
    numbers[1, 0] = numbers[1, 2] = wrong
    error = refusal(quantize, numbers, QuantScheme(QuantValue.Q8S))
    assert (error.code, error.where, repr(error.found)) == ("quant.not_finite", "index (1, 0)", repr(wrong))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(2, dtype=torch.int64),
        torch.ones(2, dtype=torch.bool),
        torch.ones(2, dtype=torch.complex64),
        torch.ones(2, dtype=torch.float8_e4m3fn),
        torch.ones(2, device="meta"),
        torch.ones(2).to_sparse(),
    ],
)
def test_other_tensors_than_floats_are_refused(tensor):
    assert refusal(quantize, tensor, QuantScheme(QuantValue.Q8S)).code == "quant.dtype"


def test_a_scheme_that_does_not_fit_is_refused_before_the_numbers_are_looked_at():
    numbers = torch.tensor([math.nan])
    of = QuantScheme(QuantValue.Q8S, store=QuantStore.PACKED_U32, packed_dim=1)
    assert refusal(quantize, numbers, of).code == "gradients.quantized.pack_dim"
    assert (
        refusal(quantize, numbers, QuantScheme(QuantValue.Q8S, block=(0,))).code
        == "gradients.quantized.block_zero"
    )


def test_given_scales_must_have_the_shape_and_be_positive():
    numbers, scheme = torch.ones(3), QuantScheme(QuantValue.Q8S, block=(2,))
    assert refusal(quantize, numbers, scheme, torch.ones(3)).code == "quant.scales"
    assert refusal(quantize, numbers, scheme, torch.ones(2, dtype=torch.float64)).code == "quant.scales"
    error = refusal(quantize, numbers, scheme, torch.tensor([1.0, 0.0]))
    assert (error.code, error.where) == ("quant.scale", "index (1,)")


@pytest.mark.parametrize("scale", QuantScale)
def test_given_scales_are_kept_bit_by_bit(scale):
    dtypes = {
        "F32": torch.float32,
        "F16": torch.float16,
        "BF16": torch.bfloat16,
        "UE8M0": torch.float8_e8m0fnu,
    }
    own = torch.tensor([0.25, 4.0]).to(dtypes.get(scale.name, torch.float8_e4m3fn))
    for scales in (own, own.to(torch.float32)):
        quantized = quantize(
            torch.tensor([1.0, 2.0, 3.0]), QuantScheme(QuantValue.Q8S, scale, block=(2,)), scales
        )
        values, found = take_apart(quantized)
        assert values.tolist() == [4, 8, 1]
        assert found.dtype is scales.dtype
        assert found.view(torch.uint8).tolist() == scales.view(torch.uint8).tolist()


def test_the_numbers_are_left_as_they_were_whatever_their_strides_or_graph():
    scheme = QuantScheme(QuantValue.E5M2, block=(1, 2))
    numbers = torch.linspace(-3, 3, 12).reshape(3, 4).t()
    before = numbers.clone()
    expected = read_bytes(quantize(numbers.contiguous(), scheme).data.source)
    leaf = numbers.clone().requires_grad_()
    negative = torch.complex(numbers, -numbers).conj().imag
    assert negative.is_neg()
    for tensor in (numbers, leaf, torch.nn.Parameter(numbers), negative, numbers.to(torch.float64)):
        quantized = quantize(tensor, scheme)
        assert read_bytes(quantized.data.source) == expected
        assert quantized.device == "cpu"
        assert isinstance(quantized.data.source, MemoryBytes)
    assert bits(numbers) == bits(before)
    assert leaf.grad is None
    assert not dequantize(quantize(leaf, scheme)).requires_grad
