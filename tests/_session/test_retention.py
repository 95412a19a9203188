from hypothesis import given
from hypothesis import strategies as st

from segue._session.retention import expired

SEQS = st.lists(st.integers(1, 10**9), unique=True, max_size=30)


def test_all_stay_by_default():
    assert expired([1, 2, 3], None, []) == []


def test_the_newest_stay_and_the_oldest_go_first():
    assert expired([5, 1, 9, 3], 2, [9]) == [1, 3]


@given(SEQS, st.integers(1, 10), st.data())
def test_never_one_of_the_newest_nor_a_protected_one(seqs, keep_last, data):
    protected = data.draw(st.sets(st.sampled_from(seqs))) if seqs else set()
    gone = expired(seqs, keep_last, protected)
    newest = sorted(seqs)[-keep_last:]
    assert not set(gone) & (protected | set(newest))
    assert set(gone) | protected | set(newest) == set(seqs) | protected


@given(SEQS, st.integers(1, 10))
def test_what_is_left_is_as_many_as_asked(seqs, keep_last):
    assert len(seqs) - len(expired(seqs, keep_last, [])) == min(len(seqs), keep_last)
