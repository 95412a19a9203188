"""The shares of all ranks are the order, cut up: nothing twice, nothing lost, in blocks of whole batches."""

import hypothesis.strategies as st
from hypothesis import given, settings

from segue._capture.sampler.share import Share

cases = st.tuples(
    st.integers(0, 200), st.integers(0, 200), st.integers(1, 7), st.integers(1, 9), st.booleans()
).map(lambda case: (min(case[:2]), max(case[:2]), *case[2:]))


def shares(world_size, batch_size, drop_last):
    return [Share(rank, world_size, batch_size, drop_last) for rank in range(world_size)]


def places(share, start, length):
    return share.places(start, length, 0, share.count(start, length)).tolist()


@settings(max_examples=400, deadline=None, database=None)
@given(cases)
def test_all_shares_together_are_the_rest_of_the_order(case):
    start, length, world_size, batch_size, drop_last = case
    ranks = shares(world_size, batch_size, drop_last)
    together = sorted(place for share in ranks for place in places(share, start, length))
    assert together == list(range(start, ranks[0].end(start, length)))


@settings(max_examples=200, deadline=None, database=None)
@given(cases)
def test_the_batches_of_all_ranks_one_behind_the_other_are_the_order_itself(case):
    start, length, world_size, batch_size, drop_last = case
    parts = [places(share, start, length) for share in shares(world_size, batch_size, drop_last)]
    order = []
    for first in range(0, max(map(len, parts)), batch_size):
        for part in parts:
            order += part[first : first + batch_size]
    assert order == list(range(start, start + len(order)))


@settings(max_examples=200, deadline=None, database=None)
@given(cases)
def test_an_incomplete_batch_is_parted_evenly_or_dropped(case):
    start, length, world_size, batch_size, drop_last = case
    counts = [share.count(start, length) for share in shares(world_size, batch_size, drop_last)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] - counts[-1] <= (0 if drop_last else 1)
    assert not drop_last or all(count % batch_size == 0 for count in counts)


@settings(max_examples=200, deadline=None, database=None)
@given(cases, st.integers(1, 50))
def test_places_don_t_depend_on_how_many_are_asked_for_at_a_time(case, chunk):
    start, length, world_size, batch_size, drop_last = case
    for share in shares(world_size, batch_size, drop_last):
        count = share.count(start, length)
        found = [
            place
            for first in range(0, count, chunk)
            for place in share.places(start, length, first, min(first + chunk, count)).tolist()
        ]
        assert found == places(share, start, length)


def test_four_ranks_have_blocks_of_each_global_batch():
    found = [places(share, 0, 11) for share in shares(4, 2, False)]
    assert found == [[0, 1, 8], [2, 3, 9], [4, 5, 10], [6, 7]]
    assert [places(share, 0, 11) for share in shares(4, 2, True)] == [[0, 1], [2, 3], [4, 5], [6, 7]]
