"""Gradients from raw data: each fault has its code, and the first one in the fixed order is the one that is told."""

import struct

import pytest
import torch

from segue._record.entries import MAX_BYTES, GradientEntry
from segue._record.gradients import GradientsRecord
from segue._record.quantized import QuantizedTensor, QuantScale, QuantScheme, QuantStore, QuantValue
from segue.errors import InvalidRecord

Q8 = QuantScheme(QuantValue.Q8S)


class Pretended(bytes):
    """Data of any length that takes no memory."""

    def __new__(cls, length):
        made = super().__new__(cls)
        made.length = length
        return made

    def __len__(self):
        return self.length


def entry(name="w", dtype=torch.float32, shape=(2,), data=None, stored=None):
    size = (stored or dtype).itemsize if data is None else 0
    return GradientEntry(name, dtype, shape, bytes(2 * size) if data is None else data, stored)


def code_of(*entries):
    with pytest.raises(InvalidRecord) as caught:
        GradientsRecord.from_entries(entries)
    return caught.value.code


def test_behaviour_44_a_duplicate_is_refused():
    assert code_of(entry("a"), entry("b"), entry("a")) == "gradients.duplicate"


@pytest.mark.parametrize(
    ("dtype", "stored"),
    [(torch.int32, torch.int32), (torch.bool, torch.bool), (torch.float32, torch.int32), (torch.float32, Q8),
     (Q8, torch.float32), (Q8, QuantScheme(QuantValue.Q8S, block=(4,))), (torch.complex64, torch.complex64),
     (QuantScheme(QuantValue.Q8S, block=(2,)), QuantScheme(QuantValue.Q8S, block=(4,)))],
)  # fmt: skip
def test_behaviour_45_dtypes_that_do_not_go_together_are_refused(dtype, stored):
    assert code_of(entry(dtype=dtype, stored=stored, data=bytes(8))) == "gradients.dtype"


@pytest.mark.parametrize("own", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("stored", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_any_two_floats_go_together(own, stored):
    record = GradientsRecord.from_entries([entry(dtype=own, stored=stored)])
    assert record.dtype("w") is own
    assert record.to_tensors()["w"].dtype is own


@pytest.mark.parametrize("length", [7, 9, 0])
def test_behaviour_49_a_byte_too_few_or_too_many_is_refused(length):
    with pytest.raises(InvalidRecord) as caught:
        GradientsRecord.from_entries([entry(data=bytes(length))])
    assert (caught.value.code, caught.value.where) == ("gradients.bytes", "gradient of w")
    assert (caught.value.expected, caught.value.found) == (8, length)


def test_behaviour_51_a_shape_that_cannot_be_counted_is_refused():
    assert code_of(entry(shape=(2**32, 2**32), data=b"")) == "gradients.shape_overflow"
    assert code_of(entry(shape=(2**32, 2**32, 0), data=b"")) == "gradients.shape_overflow"
    assert GradientsRecord.from_entries([entry(shape=(0, 2**32, 2**32), data=b"")]).shape("w") == (
        0,
        2**32,
        2**32,
    )


@pytest.mark.parametrize("stored", [None, torch.float16, torch.float64])
@pytest.mark.parametrize("shape", [(0, 2**32, 2**32), (0, 2**63)])
def test_of_a_shape_that_torch_has_no_tensor_of_there_is_a_record_and_no_tensor(shape, stored):
    record = GradientsRecord.from_entries([entry(shape=shape, data=b"", stored=stored)])
    assert record.lossy == (("w",) if stored is torch.float16 else ())
    for held in (record, record.converted("half").converted("full")):
        assert held.shape("w") == shape
        with pytest.raises(InvalidRecord, match="no tensor of this shape"):
            held.to_tensors()


def test_behaviour_52_what_could_not_be_addressed_is_refused():
    count = MAX_BYTES // 8 + 1
    halves = Pretended(2 * count)
    assert (
        code_of(entry(dtype=torch.float64, shape=(count,), stored=torch.float16, data=halves))
        == "gradients.too_large"
    )
    assert code_of(entry(dtype=torch.float64, shape=(2**61,), stored=torch.float16, data=Pretended(2**62))) == "gradients.restored_overflow"  # fmt: skip
    assert code_of(entry(dtype=torch.float64, shape=(2**61,), data=b"")) == "gradients.stored_overflow"


def test_behaviour_53_a_scalar_has_one_element_and_a_length_of_zero_none():
    record = GradientsRecord.from_entries(
        [entry("a", shape=(), data=struct.pack("<f", 2.5)), entry("b", shape=(3, 0), data=b"")]
    )
    live = record.to_tensors()
    assert (live["a"].shape, live["a"].item()) == ((), 2.5)
    assert live["b"].shape == (3, 0)


def test_the_first_fault_in_the_order_of_the_checks_is_told():
    short, unequal = entry("a", data=b"x"), entry("a", dtype=torch.int32, data=b"x")
    assert (
        code_of(short, unequal) == "gradients.bytes"
    )  # the first entry's last check before the second's first
    assert code_of(entry("a"), unequal) == "gradients.duplicate"
    assert code_of(entry(dtype=torch.int32, shape=(2**40, 2**40), data=b"")) == "gradients.dtype"
    assert code_of(entry(shape=(2**40, 2**40), data=b"x")) == "gradients.shape_overflow"


def test_a_quantized_entry_is_checked_by_its_arithmetic():
    assert code_of(entry(dtype=Q8, data=bytes(5))) == "gradients.quantized.bytes"
    packed = QuantScheme(QuantValue.Q4F, QuantScale.F32, QuantStore.PACKED_NATIVE, 5)
    assert code_of(entry(dtype=packed, data=bytes(5))) == "gradients.quantized.pack_dim"
    record = GradientsRecord.from_entries([entry(dtype=Q8, data=b"\x01\xff\x00\x00\x80\x3f")])
    quantized = record.to_tensors()["w"]
    assert isinstance(quantized, QuantizedTensor)
    assert record.dtype("w") == Q8
    assert bytes(quantized.data.source.view) == b"\x01\xff\x00\x00\x80\x3f"


def test_entries_are_copied_and_sorted():
    data = bytearray(struct.pack("<2f", 1, 2))
    record = GradientsRecord.from_entries(iter([entry("b", data=data), entry("a")]))
    data[:] = bytes(8)
    assert record.names == ("a", "b")
    assert record.to_tensors()["b"].tolist() == [1, 2]


def test_widened_data_is_exact_where_every_value_is_one_of_its_own_dtype():
    def exact(value, own=torch.float16, code="<f", stored=torch.float32):
        return not GradientsRecord.from_entries(
            [entry(dtype=own, shape=(1,), stored=stored, data=struct.pack(code, value))]
        ).lossy

    assert exact(1.5)
    assert exact(float("inf"))
    assert not exact(0.1)
    assert not exact(1.5, torch.float32, "<e", torch.float16)  # narrowed: what it was before can't be told
    assert not exact(1.5, torch.bfloat16, "<e", torch.float16)


@pytest.mark.parametrize(
    ("entry_or_data", "code"),
    [(("w", torch.float32), "gradients.entry"), (None, "gradients.entry"), (entry(name=3), "gradients.entry"),
     (entry(data=[1.0, 2.0]), "gradients.data"), (entry(data="ab"), "gradients.data")],
)  # fmt: skip
def test_what_is_no_entry_is_refused_by_what_it_is(entry_or_data, code):
    assert code_of(entry_or_data) == code


def test_a_dtype_that_is_none_is_told_from_one_that_does_not_fit():
    with pytest.raises(InvalidRecord) as caught:
        GradientsRecord.from_entries([entry(dtype=torch.int32)])
    assert caught.value.expected == "torch.int32, which is no floating torch.dtype"
    with pytest.raises(InvalidRecord) as caught:
        GradientsRecord.from_entries(
            [entry(dtype=Q8, stored=QuantScheme(QuantValue.Q8S, block=(4,)), data=b"")]
        )
    assert "block None" in caught.value.expected
    assert "block (4,)" in caught.value.found
