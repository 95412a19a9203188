"""The elements that are looked at, where no version counter shows a write."""

import pytest
import torch

from segue._capture.sampling import positions, sample


def test_of_few_elements_all_are_looked_at():
    values = torch.randn(7, 3)
    assert torch.equal(sample(values, 21), values.flatten().view(torch.int32))


def test_no_write_to_a_part_of_the_columns_is_missed():
    values = torch.zeros(512, 512)
    for columns in (slice(0, 1), slice(1, None), slice(0, None, 2), slice(256, None)):
        before = sample(values, 1024)
        values.data[:, columns] += 1
        assert not torch.equal(sample(values, 1024), before)


def test_the_same_elements_each_time_and_no_stream_moves():
    before = torch.get_rng_state()
    positions.cache_clear()
    first = positions(100_003, 256)
    positions.cache_clear()
    assert torch.equal(positions(100_003, 256), first)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(40, 50).t(),
        torch.randn(40, 50)[::2, 1::3],
        torch.randn(50).expand(40, 50),
        torch.randn(40, 50, dtype=torch.complex64).conj(),
        torch.randn(40, 50, dtype=torch.complex64).conj().imag,
        torch.randn(40, 50, dtype=torch.complex128),
        torch.tensor(3.0),
        torch.empty(0, 4),
    ],
)
def test_strided_tensors_of_any_kind(tensor):
    taken = sample(tensor, 100)
    assert taken.numel() == min(100, tensor.numel() * (2 if tensor.dtype is torch.complex128 else 1))
    assert torch.equal(sample(tensor, 100), taken)


def test_under_another_default_device_it_is_the_same():
    values = torch.randn(3000)
    before = sample(values, 100)
    positions.cache_clear()
    with torch.device("meta"):
        assert torch.equal(sample(values, 100), before)
