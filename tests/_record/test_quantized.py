"""The bytes of a quantized tensor are counted exactly, and refused in one order, before anything is made of them.

Numbers in parentheses are those of the behaviours that a test shows.
"""

import itertools
import math
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from segue._record.digest import tree_digest
from segue._record.quantized import (
    QuantizedTensor,
    QuantScale,
    QuantScheme,
    QuantStore,
    QuantValue,
    byte_counts,
    check_quantized,
    num_elements,
    packed_shape,
    scale_shape,
)
from segue._record.tensors import CapturedTensor, MemoryBytes, read_bytes
from segue._record.tree import decode, encode, same, thaw
from segue.errors import InvalidRecord, SegueWarning, StoreError, shown
from tests._store.records import raw, tensor

F32, F16, BF16, UE8M0, UE4M3 = QuantScale
Q8F, Q8S, Q4F, Q4S, Q2F, Q2S, E4M3, E5M2, E2M1 = QuantValue
NATIVE = (QuantStore.NATIVE, 0)


def word(dim):
    return QuantStore.PACKED_U32, dim


def byte(dim):
    return QuantStore.PACKED_NATIVE, dim


def scheme(value=Q8S, store=NATIVE, block=None, scale=F32):
    return QuantScheme(value, scale, *store, block)


def flat(num_bytes, seed=0):
    return CapturedTensor(torch.uint8, (num_bytes,), (1,), "cpu", MemoryBytes(raw(num_bytes, seed)))


def quantized(of=None, shape=(3, 5), num_bytes=None):
    of = of or scheme()
    counts = byte_counts(of, shape)
    return QuantizedTensor(of, shape, flat(counts.required_bytes if num_bytes is None else num_bytes))


def refusal(call, *args):
    with pytest.raises(InvalidRecord) as caught:
        call(*args)
    return caught.value.code


# Shape, value kind, store, block, scale kind; value bytes, scales, bytes of scales, whether exact.
WORKED = [
    ((3, 5), Q8S, NATIVE, None, F32, 15, 1, 4, True),
    ((3, 5), Q4S, NATIVE, None, F32, 15, 1, 4, True),
    ((3, 5), Q2F, NATIVE, None, F32, 15, 1, 4, True),
    ((3, 5), Q8F, word(0), None, F32, 24, 1, 4, True),
    ((3, 5), Q8F, word(1), None, F32, 20, 1, 4, True),
    ((3, 5), Q4F, word(0), None, F32, 12, 1, 4, True),
    ((3, 5), Q2S, word(0), None, F32, 12, 1, 4, True),
    ((4, 32), Q8S, word(0), None, F32, 128, 1, 4, True),
    ((4, 32), Q4S, word(0), (32,), F32, 64, 4, 16, True),
    ((4, 32), Q4S, word(0), (32,), F16, 64, 4, 8, False),
    ((4, 32), Q4S, word(0), (2, 16), BF16, 64, 4, 8, False),
    ((4, 32), E4M3, NATIVE, (32,), UE8M0, 128, 4, 4, False),
    ((4, 32), E5M2, word(0), None, F16, 128, 1, 2, False),
    ((4, 32), E2M1, byte(0), (16,), UE4M3, 64, 8, 8, False),
    ((4, 32), E2M1, word(0), (32,), UE8M0, 64, 4, 4, False),
    ((4, 32), E2M1, NATIVE, (32,), UE8M0, 128, 4, 4, False),
    ((3, 5), E2M1, byte(0), None, F32, 9, 1, 4, True),
    ((3, 5), E2M1, byte(1), None, F32, 10, 1, 4, True),
    ((2, 3, 7), Q8S, word(1), (2, 4), F32, 56, 8, 32, True),
    ((7, 10), Q8S, NATIVE, (4, 4), F32, 70, 6, 24, True),
    ((6,), Q8S, NATIVE, (2, 3), F32, 6, 3, 12, True),
    ((), Q8S, NATIVE, None, F32, 1, 1, 4, True),
    ((), Q8S, NATIVE, (4,), F32, 1, 1, 4, True),
    ((0, 8), Q8S, word(0), None, F32, 0, 1, 4, True),
    ((0, 8), Q8S, NATIVE, (4,), F32, 0, 0, 0, True),
    ((1,), Q2S, word(0), None, F32, 4, 1, 4, True),
]
REFUSED = [
    ((3, 5), Q8F, word(2), None, F32, "pack_dim"),
    ((3, 5), Q4F, byte(0), None, F32, "native_pack"),
    ((3, 5), Q4F, byte(5), None, F32, "pack_dim"),
    ((7, 10), Q8S, NATIVE, (0, 4), F32, "block_zero"),
    ((), Q8S, word(0), None, F32, "pack_dim"),
]


def row_name(row):
    shape, value, (store, dim), block, scale, *_ = row
    store = store.value if store is QuantStore.NATIVE else f"{store.value}({dim})"
    level = "tensor" if block is None else f"block{list(block)}"
    return f"{list(shape)}-{value.value}-{store}-{level}-{scale.value}".replace(" ", "")


def named(rows):
    return [pytest.param(row, id=row_name(row)) for row in rows]


def scheme_of(row):
    _, value, store, block, scale, *_ = row
    return scheme(value, store, block, scale)


@pytest.mark.parametrize("row", named(WORKED))
def test_the_worked_values_are_counted_so(row):
    shape, *_, value_bytes, num_scales, scale_bytes, exact = row
    counts = byte_counts(scheme_of(row), shape)
    assert (counts.value_bytes, counts.num_scales, counts.scale_bytes) == (
        value_bytes, num_scales, scale_bytes,
    )  # fmt: skip
    assert counts.required_bytes == value_bytes + scale_bytes
    assert counts.exact is exact
    assert math.prod(scale_shape(scheme_of(row), shape)) == num_scales


@pytest.mark.filterwarnings("ignore:.*only its leading sizes count")
@pytest.mark.parametrize("row", named(WORKED))
def test_the_number_of_bytes_is_exact_for_f32_scales_and_the_least_for_narrow_ones(row):
    # (55)
    shape, *_, value_bytes, _, scale_bytes, exact = row
    of, required = scheme_of(row), value_bytes + scale_bytes
    check_quantized(of, shape, required)
    assert QuantizedTensor(of, shape, flat(required)).num_bytes == required
    if required:
        assert refusal(check_quantized, of, shape, required - 1) == "gradients.quantized.bytes"
        assert refusal(QuantizedTensor, of, shape, flat(required - 1)) == "gradients.quantized.bytes"
    if exact:
        assert refusal(check_quantized, of, shape, required + 1) == "gradients.quantized.bytes"
        assert refusal(QuantizedTensor, of, shape, flat(required + 1)) == "gradients.quantized.bytes"
    else:
        check_quantized(of, shape, required + 1)
        assert QuantizedTensor(of, shape, flat(required + 1)).num_bytes == required + 1


@pytest.mark.parametrize("row", named(REFUSED))
def test_the_worked_refusals_are_these(row):
    shape, code = row[0], row[-1]
    assert refusal(check_quantized, scheme_of(row), shape, 100) == f"gradients.quantized.{code}"
    assert refusal(QuantizedTensor, scheme_of(row), shape, flat(100)) == f"gradients.quantized.{code}"


def test_the_message_says_where_and_exactly_how_many_bytes_there_must_be():
    with pytest.raises(InvalidRecord) as caught:
        check_quantized(scheme(), (3, 5), 18, "layer.weight")
    error = caught.value
    assert (error.where, error.expected, error.found) == ("layer.weight", "exactly 19", 18)
    assert "exactly 19" in str(error)


def test_the_message_says_where_and_at_least_how_many_bytes_there_must_be():
    with pytest.raises(InvalidRecord) as caught:
        check_quantized(scheme(scale=F16), (3, 5), 16, "layer.weight")
    error = caught.value
    assert (error.where, error.expected, error.found) == ("layer.weight", "at least 17", 16)


@settings(max_examples=100, deadline=None, database=None)
@given(
    st.lists(st.integers(0, 9), max_size=3).map(tuple),
    st.sampled_from([(value, QuantStore.PACKED_U32) for value in QuantValue] + [(E2M1, QuantStore.PACKED_NATIVE)]),
    st.integers(0, 2),
    st.none() | st.lists(st.integers(1, 5), max_size=4).map(tuple),
)  # fmt: skip
def test_counts_are_those_of_the_distinct_words_and_blocks_that_values_fall_into(shape, kind, dim, block):
    of = scheme(kind[0], (kind[1], dim), block)
    if dim >= len(shape):
        assert refusal(byte_counts, of, shape) == "gradients.quantized.pack_dim"
        return
    bits = (
        int(kind[0].value[1]) if kind[0].value[0] == "q" else {"e4m3": 8, "e5m2": 8, "e2m1": 4}[kind[0].value]
    )
    unit_bits, axis = (32 if kind[1] is QuantStore.PACKED_U32 else 8), len(shape) - 1 - dim
    units, blocks = set(), set()
    for index in itertools.product(*map(range, shape)):
        units.add((*index[:axis], index[axis] * bits // unit_bits, *index[axis + 1 :]))
        sizes = [1] * len(shape)
        for offset, size in enumerate(block or ()):
            if (place := max(len(shape) - len(block), 0) + offset) < len(shape):
                sizes[place] = size
        blocks.add(tuple(place // size for place, size in zip(index, sizes, strict=True)))
    counts = byte_counts(of, shape)
    assert counts.value_bytes == len(units) * unit_bits // 8
    assert counts.num_scales == (1 if block is None else len(blocks))


# What follows from the limits of machine words.


def test_elements_are_counted_up_to_the_largest_word():
    assert num_elements(()) == 1
    assert num_elements((3, 0, 5)) == 0
    assert num_elements((2**64 - 1,)) == 2**64 - 1
    assert refusal(num_elements, (2**64,)) == "gradients.shape_overflow"
    assert refusal(num_elements, (2**32, 2**32)) == "gradients.shape_overflow"


def test_a_product_that_overflows_on_the_way_is_refused_even_before_a_zero():
    assert refusal(num_elements, (2**40, 2**40, 0)) == "gradients.shape_overflow"
    assert num_elements((0, 2**40, 2**40)) == 0
    assert num_elements((2**40, 0, 2**40)) == 0


@pytest.mark.parametrize("shape", [[3], 3, None, (True,), (-1,), (1.0,), ("3",), torch.Size([3]), (None,)])
def test_what_is_no_shape_is_refused(shape):
    assert refusal(num_elements, shape, "w") == "gradients.shape"
    assert refusal(check_quantized, scheme(), shape, 7) == "gradients.shape"
    assert refusal(QuantizedTensor, scheme(), shape, flat(7)) == "gradients.shape"


def test_an_overflowing_shape_is_named_even_if_it_has_more_digits_than_python_writes():
    with pytest.raises(InvalidRecord) as caught:
        check_quantized(scheme(), (10**5000,), 7, "w")
    assert "too many digits" in str(caught.value)


LIMITS = [
    # The element product is larger, so that only who counts without checking that first comes here.
    ("count_overflow", scheme(Q8S, word(0)), (2**63, 2, 4)),
    ("count_overflow", scheme(Q8S, word(0)), (2**63, 2, 4, 0)),
    ("bytes_overflow", scheme(Q8S, word(0)), (2**62, 1)),
    ("scale_overflow", scheme(Q2S, word(0), (1, 1)), (2**61, 16)),
    ("scale_overflow", scheme(Q2S, word(1), (1, 1, 1)), (2**61, 16, 0)),
    ("total_overflow", scheme(Q8S, NATIVE, (1,)), (2**62,)),
    ("total_overflow", scheme(Q8S, word(0)), (2**62 - 1, 1)),
    ("too_large", scheme(Q8S, word(0), None, F16), (2**62 - 1, 1)),
    ("too_large", scheme(), (2**63 - 4,)),
    ("too_large", scheme(), (2**64 - 5,)),
    ("total_overflow", scheme(), (2**64 - 4,)),
]


@pytest.mark.parametrize(("code", "of", "shape"), LIMITS)
def test_counts_beyond_a_machine_word_are_refused_at_these_points(code, of, shape):
    assert refusal(byte_counts, of, shape) == f"gradients.quantized.{code}"


def test_as_many_bytes_as_can_be_addressed_are_not_refused_for_their_number():
    assert byte_counts(scheme(), (2**63 - 5,)).required_bytes == 2**63 - 1
    assert refusal(check_quantized, scheme(), (2**63 - 5,), 0) == "gradients.quantized.bytes"


def test_nothing_overflows_behind_a_leading_zero():
    shape = (0, 2**63, 2**63)
    for of in (scheme(), scheme(Q8S, word(0)), scheme(E2M1, byte(1))):
        assert byte_counts(of, shape).required_bytes == 4
        assert QuantizedTensor(of, shape, flat(4)).shape == shape
    assert byte_counts(scheme(block=(1, 1)), shape).required_bytes == 0


def test_a_native_store_counts_elements():
    assert refusal(byte_counts, scheme(), (2**32, 2**32)) == "gradients.shape_overflow"


# Each has two faults; the one that the code names is found first.
ORDER = [
    ("shape_overflow", scheme(Q8S, word(2)), (2**40, 2**40)),
    ("quantized.pack_dim", scheme(Q4F, byte(2)), (3, 5)),
    ("quantized.pack_dim", scheme(Q8S, word(2), (0,)), (3, 5)),
    ("quantized.native_pack", scheme(Q8S, byte(0), (0,)), (3, 5)),
    ("quantized.native_pack", scheme(Q8S, byte(0)), (2**62, 1)),
    ("quantized.bytes_overflow", scheme(Q8S, word(0), (0,)), (2**62, 1)),
    ("quantized.block_zero", scheme(block=(0,)), (2**63,)),
    ("quantized.total_overflow", scheme(block=(1,)), (2**63,)),
    ("quantized.too_large", scheme(), (2**63,)),
]


@pytest.mark.parametrize(("code", "of", "shape"), ORDER)
def test_of_two_faults_the_earlier_check_reports_its_own(code, of, shape):
    # (56) The packed dimension is looked at before the kind. Each has the wrong number of bytes, too.
    assert refusal(check_quantized, of, shape, 3) == f"gradients.{code}"
    assert refusal(QuantizedTensor, of, shape, flat(3)) == f"gradients.{code}"


def test_overflow_of_packed_counts_comes_before_the_block_and_that_of_scales_behind_it():
    shape = (2**61, 16, 0)
    assert (
        refusal(byte_counts, scheme(Q8S, word(0), (0,)), (2**63, 2, 4))
        == "gradients.quantized.count_overflow"
    )
    assert refusal(byte_counts, scheme(Q2S, word(1), (1, 1, 0)), shape) == "gradients.quantized.block_zero"
    assert (
        refusal(byte_counts, scheme(Q2S, word(1), (1, 1, 1)), shape) == "gradients.quantized.scale_overflow"
    )


def test_counting_takes_no_memory_for_what_it_counts():
    with pytest.raises(InvalidRecord) as caught:
        check_quantized(scheme(Q4S, word(0), (32,)), (2**40, 2**10), 0, "w")
    assert caught.value.expected == f"exactly {2**49 + 4 * 2**45}"


# The corners of a scheme.


def test_rows_are_padded_one_by_one():
    # (56) Fifteen bytes of values in one go would be 19 with the scale.
    assert byte_counts(scheme(Q8F, word(0)), (3, 5)).required_bytes == 28
    assert refusal(check_quantized, scheme(Q8F, word(0)), (3, 5), 19) == "gradients.quantized.bytes"


@pytest.mark.parametrize("value", QuantValue)
def test_a_native_store_has_one_byte_per_value_of_every_kind(value):
    # (56)
    assert byte_counts(scheme(value), (3, 5)).value_bytes == 15


def test_units_are_bytes_or_words_of_as_many_values_as_fit():
    assert [scheme(value, word(0)).values_per_unit for value in QuantValue] == [4, 4, 8, 8, 16, 16, 4, 4, 8]
    assert (scheme(E2M1, byte(0)).values_per_unit, scheme(E2M1).values_per_unit) == (2, 1)
    assert packed_shape(scheme(E2M1), (3, 5)) == (3, 5)
    assert packed_shape(scheme(E2M1, byte(0)), (3, 5)) == (3, 3)
    assert packed_shape(scheme(E2M1, word(1)), (3, 5)) == (1, 5)


@pytest.mark.parametrize("value", QuantValue)
def test_only_e2m1_is_packed_natively(value):
    if value is E2M1:
        assert byte_counts(scheme(value, byte(0)), (3, 5)).value_bytes == 9
    else:
        assert refusal(byte_counts, scheme(value, byte(0)), (3, 5)) == "gradients.quantized.native_pack"
        assert refusal(byte_counts, scheme(value, byte(2)), (3, 5)) == "gradients.quantized.pack_dim"


def test_a_shorter_block_is_that_of_the_last_dimensions():
    assert scale_shape(scheme(block=(4,)), (2, 3, 8)) == (2, 3, 2)
    assert scale_shape(scheme(block=()), (2, 3)) == (2, 3)


def test_of_a_longer_block_the_leading_sizes_count_and_a_warning_says_so():
    # (57)
    of = scheme(block=(2, 3))
    assert scale_shape(of, (6,)) == (3,)
    with pytest.warns(SegueWarning, match=r"leading sizes count, \(2,\) of \(2, 3\)") as caught:
        QuantizedTensor(of, (6,), flat(18))
    assert [warning.filename for warning in caught] == [__file__]
    with pytest.warns(SegueWarning, match=r"^layer\.weight has 1 dimensions") as caught:
        check_quantized(of, (6,), 18, "layer.weight")
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.filterwarnings("ignore:.*only its leading sizes count")
def test_a_zero_among_the_sizes_that_count_is_refused_and_one_beyond_them_is_not():
    # (57)
    assert refusal(check_quantized, scheme(block=(0, 3)), (6,), 18) == "gradients.quantized.block_zero"
    check_quantized(scheme(block=(2, 0)), (6,), 18)
    check_quantized(scheme(block=(0,)), (), 5)
    assert refusal(check_quantized, scheme(block=(0, 4)), (0, 8), 0) == "gradients.quantized.block_zero"
    assert refusal(check_quantized, scheme(block=(0,)), (2, 8), 0) == "gradients.quantized.block_zero"


def test_a_refused_tensor_is_not_warned_of():
    assert refusal(check_quantized, scheme(block=(2, 3)), (6,), 17) == "gradients.quantized.bytes"


@pytest.mark.parametrize(
    "other",
    [
        scheme(E4M3, word(1), (32,), F16),
        scheme(E5M2, word(1), (32,), BF16),
        scheme(E5M2, word(0), (32,), F16),
        scheme(E5M2, NATIVE, (32,), F16),
        scheme(E5M2, byte(1), (32,), F16),
        scheme(E5M2, word(1), (16,), F16),
        scheme(E5M2, word(1), (1, 32), F16),
        scheme(E5M2, word(1), None, F16),
    ],
)
def test_schemes_are_equal_only_as_a_whole_block_size_included(other):
    # (45) The check of a gradient's dtype against the stored one compares whole schemes.
    one = scheme(E5M2, word(1), (32,), F16)
    assert one == scheme(E5M2, word(1), (32,), F16)
    assert hash(one) == hash(scheme(E5M2, word(1), (32,), F16))
    assert one != other


BAD_SCHEMES = {
    "a value by its name": ("q8s", F32, QuantStore.NATIVE, 0, None),
    "no value": (None, F32, QuantStore.NATIVE, 0, None),
    "a scale by its name": (Q8S, "f32", QuantStore.NATIVE, 0, None),
    "a value for a scale": (Q8S, Q8S, QuantStore.NATIVE, 0, None),
    "a store by its name": (Q8S, F32, "native", 0, None),
    "a bool for a dimension": (Q8S, F32, QuantStore.PACKED_U32, True, None),
    "a float for a dimension": (Q8S, F32, QuantStore.PACKED_U32, 1.0, None),
    "a negative dimension": (Q8S, F32, QuantStore.PACKED_U32, -1, None),
    "a native store's dimension": (Q8S, F32, QuantStore.NATIVE, 1, None),
    "a list for a block": (Q8S, F32, QuantStore.NATIVE, 0, [32]),
    "an int for a block": (Q8S, F32, QuantStore.NATIVE, 0, 32),
    "a bool in a block": (Q8S, F32, QuantStore.NATIVE, 0, (True,)),
    "a negative block size": (Q8S, F32, QuantStore.NATIVE, 0, (-1,)),
    "a block size of more than a byte": (Q8S, F32, QuantStore.NATIVE, 0, (256,)),
    "a block of six dimensions": (Q8S, F32, QuantStore.NATIVE, 0, (1, 1, 1, 1, 1, 1)),
}


@pytest.mark.parametrize("fields", BAD_SCHEMES.values(), ids=BAD_SCHEMES)
def test_a_scheme_of_other_types_or_sizes_is_refused(fields):
    assert refusal(QuantScheme, *fields) == "gradients.quantized.scheme"


def test_a_block_has_up_to_five_dimensions_of_up_to_255():
    assert QuantScheme(Q8S, block=(0, 255, 1, 1, 1)).block == (0, 255, 1, 1, 1)


def test_what_is_no_scheme_is_refused():
    assert refusal(check_quantized, None, (3,), 7) == "gradients.quantized.scheme"
    assert refusal(QuantizedTensor, "q8s", (3,), flat(7)) == "gradients.quantized.scheme"


BAD_DATA = {
    "nothing": None,
    "bytes": b"1234567",
    "a live tensor": torch.zeros(7, dtype=torch.uint8),
    "two dimensions": tensor("uint8", (1, 7)),
    "no dimension": tensor("uint8", ()),
    "another dtype": tensor("int8", (7,)),
    "gaps": tensor("uint8", (7,), strides=(2,)),
    "a length that is not that of its bytes": CapturedTensor(
        torch.uint8, (7,), (1,), "cpu", MemoryBytes(raw(8))
    ),
}


@pytest.mark.parametrize("data", BAD_DATA.values(), ids=BAD_DATA)
def test_data_that_is_not_flat_bytes_is_refused(data):
    assert refusal(QuantizedTensor, scheme(), (3,), data) == "gradients.quantized.data"
    description = quantized(shape=(3,)).description
    assert refusal(QuantizedTensor.from_parts, description, {"data": data}) == "gradients.quantized.data"


# As a value, and on its way.


def through_the_encoding(value):
    named = {}

    def name(path, blob):
        named["/".join(map(str, path))] = blob
        return "/".join(map(str, path))

    return decode(encode(value, name), named.__getitem__)


@pytest.mark.parametrize("extra", [0, 1, 17])
@pytest.mark.parametrize("scale", [F16, BF16, UE8M0, UE4M3])
def test_every_byte_is_kept_those_behind_narrow_scales_too(scale, extra):
    # (48) The payload is never dequantized or quantized again.
    of = scheme(Q4S, word(1), (2, 4), scale)
    one = quantized(of, (3, 5), byte_counts(of, (3, 5)).required_bytes + extra)
    for other in (through_the_encoding(one), one.to_host(), one.with_device("cuda:0"), thaw([one])[0]):
        assert type(other) is QuantizedTensor
        assert other.scheme == one.scheme
        assert other.shape == one.shape
        assert read_bytes(other.data.source) == read_bytes(one.data.source)
        assert same(other, one)
        assert tree_digest(other) == tree_digest(one)


@pytest.mark.parametrize("row", named(WORKED))
def test_description_and_parts_give_the_same_tensor_again_without_a_warning(row):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one = quantized(scheme_of(row), row[0])
    other = QuantizedTensor.from_parts(one.description, dict(one.parts))
    assert same(other, one)
    assert same(through_the_encoding(one), one)


def test_two_are_the_same_only_with_the_same_scheme_shape_and_bytes():
    one = quantized()
    assert same(one, quantized())
    assert not same(one, quantized(scheme(Q8F)))
    assert not same(one, quantized(shape=(5, 3)))
    assert not same(one, QuantizedTensor(one.scheme, one.shape, flat(19, seed=1)))
    assert one != quantized()


def test_the_host_copy_is_independent():
    one = quantized()
    before = bytes(read_bytes(one.data.source))
    copy = one.to_host()
    memory = copy.data.source._data
    memory.fill_(0)
    assert bytes(read_bytes(one.data.source)) == before
    assert bytes(read_bytes(copy.data.source)) == bytes(19)


def test_a_host_copy_says_when_stored_bytes_are_wrong():
    class Broken:
        num_bytes = 19

        def read_into(self, target):
            raise StoreError("wrong bytes")

        def verify(self):
            raise StoreError("wrong bytes")

    one = QuantizedTensor(scheme(), (3, 5), CapturedTensor(torch.uint8, (19,), (1,), "cpu", Broken()))
    with pytest.raises(StoreError):
        one.to_host()


def test_it_lives_where_its_bytes_lived():
    one = quantized()
    assert (one.device, one.with_device("cuda:1").device) == ("cpu", "cuda:1")
    assert one.with_device("cuda:1").to_host().device == "cuda:1"


# Read from data that may be hostile.

GOOD = {
    "value": "q8s",
    "scale": "f16",
    "store": "packed_u32",
    "packed_dim": 1,
    "block": (2, 4),
    "shape": (3, 5),
}
BAD_FIELDS = [
    ("value", "q8x"), ("value", "Q8S"), ("value", Q8S), ("value", None), ("value", 1), ("value", "f32"),
    ("scale", "f64"), ("scale", None), ("scale", b"f32"), ("store", "packed"), ("store", None),
    ("packed_dim", True), ("packed_dim", "1"), ("packed_dim", 1.0), ("packed_dim", -1), ("packed_dim", None),
    ("packed_dim", 2), ("packed_dim", 10**5000), ("block", [2, 4]), ("block", 2), ("block", "24"),
    ("block", (2, -4)), ("block", (2, True)), ("block", (2.0,)), ("block", (256,)), ("block", (1,) * 6),
    ("block", (0, 4)), ("block", ((2,),)), ("block", False), ("shape", [3, 5]), ("shape", (3, -5)),
    ("shape", (3, True)), ("shape", (3, 5.0)), ("shape", None), ("shape", torch.Size((3, 5))), ("shape", ()),
    ("shape", (2**64,)), ("shape", (10**5000, 1)),
]  # fmt: skip


def test_the_description_that_the_hostile_ones_differ_from_is_good():
    assert QuantizedTensor.from_parts(GOOD, {"data": flat(28)}).description == GOOD


@pytest.mark.parametrize(
    ("field", "value"), [pytest.param(*row, id=f"{row[0]}={shown(row[1])}") for row in BAD_FIELDS]
)
def test_a_hostile_description_is_refused(field, value):
    with pytest.raises(InvalidRecord) as caught:
        QuantizedTensor.from_parts({**GOOD, field: value}, {"data": flat(28)})
    assert str(caught.value)


@pytest.mark.parametrize(
    "description",
    [None, [], "q8s", {}, {**GOOD, "more": 1}, {key: GOOD[key] for key in GOOD if key != "block"}],
)
def test_a_description_with_other_fields_is_refused(description):
    assert refusal(QuantizedTensor.from_parts, description, {"data": flat(28)}) == "record.composite"


@pytest.mark.parametrize(
    "parts", [None, [], {}, {"bytes": flat(28)}, {"data": flat(28), "scales": flat(1)}, {1: 2, "a": 3}]
)
def test_other_parts_than_data_are_refused(parts):
    assert refusal(QuantizedTensor.from_parts, GOOD, parts) == "record.composite"


ODD = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 300), st.integers(), st.floats(), st.text(max_size=5), st.binary(max_size=3),
    st.sampled_from([kind.value for kinds in (QuantValue, QuantScale, QuantStore) for kind in kinds]),
    st.lists(st.integers(-1, 300), max_size=7), st.lists(st.integers(0, 300), max_size=7).map(tuple),
    st.lists(st.integers(0, 2**65), max_size=3).map(tuple), st.tuples(st.booleans()),
)  # fmt: skip


@settings(max_examples=200, deadline=None, database=None)
@given(
    st.dictionaries(st.sampled_from(list(GOOD)), ODD, max_size=3),
    st.integers(0, 40) | st.just(28),
    st.sampled_from([None, "drop", "extra", "other"]),
)
def test_hostile_data_makes_a_tensor_or_invalid_record_and_nothing_else(changes, num_bytes, parts):
    given_parts = {
        None: {"data": flat(num_bytes)},
        "drop": {},
        "extra": {"data": flat(num_bytes), "more": None},
        "other": {"data": num_bytes},
    }[parts]
    try:
        made = QuantizedTensor.from_parts({**GOOD, **changes}, given_parts)
    except InvalidRecord:
        return
    assert made.description == {**GOOD, **changes}
    assert byte_counts(made.scheme, made.shape).required_bytes <= num_bytes
