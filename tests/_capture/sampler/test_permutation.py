"""The order is a permutation for every length, spread evenly over all of them, and the same for ever."""

import hashlib
import math
import tracemalloc
from collections import Counter

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from segue._capture.sampler.permutation import Permutation

seeds = st.integers(0, 2**64 - 1)


def whole(length, seed=0, epoch=0):
    return Permutation(length, seed, epoch).at(np.arange(length, dtype=np.uint64)).tolist()


@settings(max_examples=150, deadline=None, database=None)
@given(length=st.integers(1, 3000), seed=seeds, epoch=st.integers(0, 2**63 - 1))
def test_every_place_comes_once(length, seed, epoch):
    assert sorted(whole(length, seed, epoch)) == list(range(length))


def test_every_place_comes_once_at_every_small_length():
    for length in range(1, 700):
        assert sorted(whole(length)) == list(range(length))


@settings(max_examples=100, deadline=None, database=None)
@given(length=st.integers(2**20, 2**63 - 1), seed=seeds, places=st.data())
def test_different_places_of_a_huge_order_are_different_and_inside(length, seed, places):
    chosen = places.draw(st.lists(st.integers(0, length - 1), min_size=2, max_size=40, unique=True))
    found = Permutation(length, seed, 0).at(np.array(chosen, dtype=np.uint64)).tolist()
    assert len(set(found)) == len(chosen)
    assert all(0 <= place < length for place in found)


@settings(max_examples=60, deadline=None, database=None)
@given(length=st.integers(1, 2**40), seed=seeds, epoch=st.integers(0, 1000), place=st.data())
def test_it_is_what_its_description_says(length, seed, epoch, place):
    """Against a second writing of it, in plain integers, one place at a time."""
    chosen = place.draw(st.integers(0, length - 1))
    found = Permutation(length, seed, epoch).at(np.array([chosen], dtype=np.uint64)).tolist()
    assert found == [slowly(length, seed, epoch, chosen)]


def slowly(length, seed, epoch, place):
    rows = max(16, math.isqrt(length - 1) + 1)
    columns = max(16, (length + rows - 1) // rows)
    columns += columns % 2
    keys = []
    for number in range(12):
        message = b"segue.order" + b"".join(n.to_bytes(8, "little") for n in (length, seed, epoch, number))
        keys.append(int.from_bytes(hashlib.sha256(message).digest()[:8], "little"))
    while True:
        left, right = divmod(place, columns)
        for number, key in enumerate(keys):
            if number % 2 == 0:
                left = (left + (mixed(right ^ key) >> 32) * rows // 2**32) % rows
            else:
                right = (right + (mixed(left ^ key) >> 32) * columns // 2**32) % columns
        place = left * columns + right
        if place < length:
            return place


def mixed(value):
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    value = (value ^ value >> 27) * 0x94D049BB133111EB % 2**64
    return value ^ value >> 31


def test_the_order_of_a_seed_never_changes():
    assert whole(1) == [0]
    assert whole(10) == [5, 6, 9, 3, 7, 0, 2, 4, 1, 8]
    assert whole(10, seed=2**64 - 1, epoch=3) == [3, 5, 6, 0, 7, 2, 1, 8, 9, 4]
    assert Permutation(10**8, 7, 2).at(np.arange(5, dtype=np.uint64)).tolist() == [
        70746166,
        97353529,
        99793364,
        40736183,
        30094743,
    ]
    digest = hashlib.sha256(np.array(whole(5000, seed=1), dtype="<u8").tobytes()).hexdigest()
    assert digest == "82f682657e4f5fd6d2aa04b0d0f8be140c675d4e1003e7fb8c7f54f6f91daa0c"


@pytest.mark.parametrize("length", [2, 3, 4, pytest.param(5, marks=pytest.mark.exact)])
def test_all_orders_of_a_few_samples_are_equally_likely(length):
    orders = math.factorial(length)
    times = 60 * orders
    counts = Counter(tuple(whole(length, seed, epoch)) for seed in range(times // 10) for epoch in range(10))
    expected = times / orders
    distance = sum((count - expected) ** 2 / expected for count in counts.values())
    # Chi-square of `orders - 1` degrees: six deviations, and never a missing order.
    assert len(counts) == orders
    assert distance < orders - 1 + 6 * math.sqrt(2 * (orders - 1))


@pytest.mark.parametrize("length", [9, 16, 100, 1000])
def test_no_place_prefers_a_sample_and_no_neighbours_stay_together(length):
    epochs = 300
    orders = np.array([whole(length, 5, epoch) for epoch in range(epochs)])
    cells = np.zeros((8, 8))
    eighths = np.arange(length) * 8 // length
    for order in orders:
        np.add.at(cells, (eighths, eighths[order]), 1)
    sizes = np.bincount(eighths, minlength=8)
    expected = np.outer(sizes, sizes) * epochs / length
    assert ((cells - expected) ** 2 / expected).sum() < 49 + 6 * math.sqrt(2 * 49)
    together = (np.abs(np.diff(orders, axis=1)) == 1).sum()
    usual = epochs * 2 * (length - 1) / length
    assert abs(together - usual) < 6 * math.sqrt(2 * usual)
    fixed = (orders == np.arange(length)).sum()
    assert abs(fixed - epochs) < 6 * math.sqrt(epochs)


def test_orders_of_neighbouring_epochs_seeds_and_lengths_are_unrelated():
    one = np.array(whole(1000, 0, 0))
    for other in (whole(1000, 0, 1), whole(1000, 1, 0), whole(1001, 0, 0)[:1000]):
        assert (one == np.array(other)).sum() < 12


def test_a_part_of_a_huge_order_takes_no_memory_of_its_length():
    tracemalloc.start()
    Permutation(10**11, 0, 0).at(np.arange(10**10, 10**10 + 4096, dtype=np.uint64))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**21
