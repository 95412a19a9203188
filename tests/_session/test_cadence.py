import pytest

from segue._session.cadence import Cadence


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_without_an_interval_every_moment_is_due():
    assert Cadence(None, None, None, Clock()).is_due(1, None)


def test_microbatches_count_from_the_last_save():
    cadence = Cadence(3, None, None, Clock())
    assert [cadence.is_due(number, None) for number in (1, 2, 3, 4)] == [False, False, True, True]
    cadence.reset(4, None)
    assert [cadence.is_due(number, None) for number in (5, 6, 7)] == [False, False, True]


def test_steps_count_from_the_last_save_and_must_be_told():
    cadence = Cadence(None, 2, None, Clock())
    assert not cadence.is_due(1, 1)
    assert cadence.is_due(2, 2)
    cadence.reset(2, 3)
    assert not cadence.is_due(3, 4)
    with pytest.raises(ValueError, match="tell the step"):
        cadence.is_due(4, None)


def test_seconds_count_on_the_clock():
    clock = Clock()
    cadence = Cadence(None, None, 60, clock)
    clock.now += 59
    assert not cadence.is_due(1, None)
    clock.now += 1
    assert cadence.is_due(1, None)
    cadence.reset(1, None)
    assert not cadence.is_due(2, None)


def test_any_interval_is_enough():
    clock = Clock()
    cadence = Cadence(10, None, 60, clock)
    assert cadence.is_due(10, None)
    clock.now += 60
    assert cadence.is_due(1, None)


@pytest.mark.parametrize("intervals", [(0, None, None), (None, -1, None), (None, None, 0.0)])
def test_an_interval_must_be_positive(intervals):
    with pytest.raises(ValueError, match="must be positive"):
        Cadence(*intervals, Clock())
