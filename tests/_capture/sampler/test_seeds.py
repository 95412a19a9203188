"""Seeds of samples never change, differ from each other, and look like random bits."""

import hashlib
import random

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from segue import per_sample_seed

seeds, counts = st.integers(0, 2**64 - 1), st.integers(0, 2**63 - 1)


def test_seeds_never_change():
    assert per_sample_seed(0, 0, 0) == 4904205829843248868
    assert per_sample_seed(1, 2, 3) == 8087384351256756093
    assert per_sample_seed(2**64 - 1, 2**63 - 1, 2**63 - 1) == 3410485484169916439


@given(seeds, counts, counts)
def test_a_seed_is_what_its_description_says(seed, epoch, index):
    message = b"segue.sample" + b"".join(number.to_bytes(8, "little") for number in (seed, epoch, index))
    assert per_sample_seed(seed, epoch, index) == int.from_bytes(
        hashlib.sha256(message).digest()[:8], "little"
    ) & (2**63 - 1)


def test_a_seed_fits_everything_that_is_seeded():
    seed = per_sample_seed(0, 0, 0)
    assert torch.tensor(seed, dtype=torch.int64).item() == seed
    torch.Generator().manual_seed(seed)
    random.Random(seed)
    np.random.default_rng(seed)


def test_whole_numbers_of_other_libraries_are_numbers():
    assert per_sample_seed(np.int64(1), torch.tensor(2), np.uint8(3)) == per_sample_seed(1, 2, 3)


def test_no_two_samples_of_many_share_a_seed():
    many = {
        per_sample_seed(seed, epoch, index)
        for seed in range(4)
        for epoch in range(4)
        for index in range(4000)
    }
    assert len(many) == 64_000


def test_swapped_numbers_are_other_numbers():
    assert len({per_sample_seed(*numbers) for numbers in ((1, 2, 3), (2, 1, 3), (1, 3, 2), (3, 2, 1))}) == 4


@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_bit_of_a_number_changes_half_the_bits_of_the_seed(place):
    flipped = []
    for bit in range(62):
        numbers = [5, 6, 7]
        numbers[place] ^= 1 << bit
        flipped.append((per_sample_seed(5, 6, 7) ^ per_sample_seed(*numbers)).bit_count())
    assert 28 < sum(flipped) / len(flipped) < 35
    assert min(flipped) > 12


@pytest.mark.parametrize(
    ("numbers", "error", "text"),
    [
        ((-1, 0, 0), ValueError, "seed must be at least 0 and below 18446744073709551616, not -1"),
        ((2**64, 0, 0), ValueError, "seed must be"),
        ((0, -1, 0), ValueError, "epoch must be"),
        ((0, 0, -1), ValueError, "index must be"),
        ((0, 0, 2**63), ValueError, "index must be"),
        ((0.0, 0, 0), TypeError, "seed must be a whole number, not 0.0"),
        ((0, True, 0), TypeError, "epoch must be a whole number, not True"),
        ((0, 0, "7"), TypeError, "index must be a whole number, not '7'"),
        ((0, 0, torch.tensor([1, 2])), TypeError, "index must be a whole number"),
    ],
)
def test_what_is_no_number_in_range_is_refused(numbers, error, text):
    with pytest.raises(error, match=text):
        per_sample_seed(*numbers)
