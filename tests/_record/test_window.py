"""A recorded window whose sums and counters can't belong together is refused."""

import dataclasses

import pytest

from segue._record.gradients import GradientsRecord
from segue._record.window import WindowRecord, WindowState
from segue.errors import InvalidRecord
from tests._store.records import tensor

STATE = WindowState("weighted", "float32", 1.0, 4, 2, 7.5)


def test_sums_of_another_dtype_than_the_window_are_refused():
    with pytest.raises(InvalidRecord, match="dtype") as caught:
        WindowRecord(STATE, GradientsRecord({"w": tensor("float64")}))
    assert (caught.value.where, caught.value.expected, caught.value.found) == ("w", "float32", "float64")


@pytest.mark.parametrize("counters", [{"microbatches": 0, "total_weight": 0.0}, {"total_weight": 0.0}])
def test_a_window_without_weight_holds_no_sum(counters):
    with pytest.raises(InvalidRecord, match="without weight"):
        WindowRecord(dataclasses.replace(STATE, **counters), GradientsRecord({"w": tensor()}))
    WindowRecord(dataclasses.replace(STATE, **counters), GradientsRecord({}))


def test_gradients_are_sorted_by_name_whatever_order_they_came_in():
    record = GradientsRecord({"b": tensor(), "a": tensor(), "B": tensor()})
    assert list(record.tensors) == ["B", "a", "b"]
