"""Gradients stored in another precision: what is lost is known, value by value, and what is not comes back."""

import pytest
import torch

from segue._record.composite import CapturedSparse, ConvertedTensor
from segue._record.conversion import same_tensor_bits
from segue._record.gradients import GradientsRecord
from segue._record.quantized import QuantizedTensor, QuantScheme, QuantValue
from segue._record.tensors import CapturedTensor
from segue._record.tree import same
from segue.errors import InvalidRecord
from tests._store.records import captured, tensor


def record(live):
    return GradientsRecord({"w": captured(live)})


def every_half(dtype):
    return torch.arange(2**16, dtype=torch.int32).to(torch.uint16).view(dtype)


def test_behaviour_46_fp16_stored_in_fp32_has_its_dtype_beside_it_and_comes_back():
    live = torch.tensor([1.5, -0.0, 65504.0, 6e-8], dtype=torch.float16)
    stored = record(live).converted("full")
    assert stored.dtype("w") is torch.float16
    assert stored.tensors["w"].stored.dtype is torch.float32
    assert stored.lossy == ()
    assert same_tensor_bits(stored.to_tensors()["w"], live)


@pytest.mark.parametrize(
    ("value", "dtype", "precision", "lossy"),
    [
        (0.1, torch.float64, "full", True), (0.5, torch.float64, "full", False), (0.1, torch.float64, "double", False),
        (0.1, torch.float32, "half", True), (0.5, torch.float32, "half", False), (1e30, torch.float32, "half", True),
        (1e30, torch.bfloat16, "half", True), (0.5, torch.bfloat16, "half", False),
        (0.1, torch.bfloat16, "full", False), (0.1, torch.float16, torch.bfloat16, True),
    ],
)  # fmt: skip
def test_behaviour_47_what_a_narrower_dtype_does_not_hold_is_lossy(value, dtype, precision, lossy):
    live = torch.tensor([value], dtype=dtype)
    stored = record(live).converted(precision)
    assert stored.lossy == (("w",) if lossy else ())
    assert same_tensor_bits(stored.to_tensors()["w"], live) != lossy
    assert stored.to_tensors()["w"].dtype is dtype


def test_behaviour_48_quantized_bytes_are_the_same_in_every_precision():
    quantized = QuantizedTensor(QuantScheme(QuantValue.Q8S), (2,), tensor("uint8", (6,)))
    sparse = CapturedSparse(
        "sparse_coo", (2,), False, {"indices": tensor("int64", (1, 1)), "values": tensor(shape=(1,))}
    )
    mixed = GradientsRecord({"q": quantized, "s": sparse, "i": tensor("int8"), "c": tensor("complex64")})
    for precision in ("native", "double", "full", "half"):
        assert same(dict(mixed.converted(precision).tensors), dict(mixed.tensors))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_number_survives_a_wider_dtype_and_no_nan_is_trusted_to(dtype):
    """What a conversion makes of a NaN depends on the CPU, the threads, and where it stands (torch 2.13)."""
    live = every_half(dtype)
    for precision in ("full", "double"):
        assert record(live[~live.isnan()]).converted(precision).lossy == ()
        for one in live[live.isnan()].split(1)[::37]:
            assert record(one).converted(precision).lossy == ("w",)
    assert record(live).converted(dtype).lossy == ()  # that is no conversion


def test_native_and_the_own_dtype_change_nothing():
    before = record(torch.ones(2))
    for precision in ("native", "full", torch.float32):
        assert before.converted(precision).tensors["w"] is before.tensors["w"]


def test_what_is_converted_again_starts_from_its_own_dtype():
    live = torch.tensor([0.1, 0.5], dtype=torch.float32)
    wide = record(live).converted("double")
    assert isinstance(wide.converted("full").tensors["w"], CapturedTensor)
    assert same(dict(wide.converted("full").tensors), dict(record(live).tensors))
    narrow = record(live).converted("half")
    assert isinstance(narrow.converted("full").tensors["w"], ConvertedTensor)
    assert narrow.converted("full").lossy == narrow.converted("double").lossy == ("w",)
    assert narrow.converted("half").tensors["w"] is narrow.tensors["w"]


def test_strides_and_placement_are_kept():
    live = torch.empty_strided((2, 3), (1, 5), dtype=torch.float32).fill_(0.5)
    stored = GradientsRecord({"w": captured(live).with_device("cuda:0")}).converted("half")
    assert stored.tensors["w"].device == "cuda:0"
    assert stored.to_tensors()["w"].stride() == (1, 5)
    assert stored.lossy == ()


def test_expanded_memory_is_not_converted():
    live = torch.ones(1).expand(3)
    before = GradientsRecord({"w": captured(live)})
    assert before.converted("half").tensors["w"] is before.tensors["w"]


@pytest.mark.parametrize("precision", ["quarter", torch.int8, torch.float8_e4m3fn, None])
def test_another_precision_is_refused(precision):
    with pytest.raises(InvalidRecord, match="precision"):
        record(torch.ones(1)).converted(precision)
