"""The gradients record as a value: sorted, selected, looked at, turned into tensors."""

import pytest
import torch

from segue._record.composite import CapturedSparse
from segue._record.gradients import GradientsRecord
from segue._record.quantized import QuantizedTensor, QuantScheme, QuantValue
from segue._record.tensors import CapturedTensor
from segue.errors import CorruptCheckpoint, InvalidRecord
from tests._store.records import captured, tensor

Q8 = QuantScheme(QuantValue.Q8S)


def mixed():
    return GradientsRecord({
        "s": CapturedSparse("sparse_coo", (2,), False, {"indices": captured(torch.tensor([[1, 1]])), "values": tensor(shape=(2,))}),
        "q": QuantizedTensor(Q8, (2,), tensor("uint8", (6,))),
        "d": tensor("bfloat16", (2, 3)),
        "c": captured(torch.zeros(2, dtype=torch.float64)),
    })  # fmt: skip


def test_behaviour_43_names_are_sorted_whatever_order_they_came_in():
    record = mixed()
    assert record.names == ("c", "d", "q", "s")
    assert list(record.tensors) == ["c", "d", "q", "s"]
    assert GradientsRecord({"b": tensor(), "a": tensor(), "B": tensor()}).names == ("B", "a", "b")


def test_dtype_and_shape_are_those_of_the_gradient_and_none_where_there_is_none():
    record = mixed().converted("full")
    assert [record.dtype(name) for name in ("c", "d", "q", "s", "x")] == [
        torch.float64, torch.bfloat16, Q8, torch.float32, None,
    ]  # fmt: skip
    assert [record.shape(name) for name in ("c", "d", "q", "s", "x")] == [(2,), (2, 3), (2,), (2,), None]


def test_behaviour_58_a_selection_keeps_order_and_bits():
    record = mixed()
    selected = record.select(["s", "unknown", "c"])
    assert selected.names == ("c", "s")
    assert all(selected.tensors[name] is record.tensors[name] for name in selected.names)
    assert record.select([]).names == ()
    with pytest.raises(InvalidRecord) as caught:
        record.select(iter(["c", "d", "c"]))
    assert (caught.value.code, caught.value.where) == ("gradients.selection", "gradient of c")


class Counted:
    """Bytes that count their readers, and may turn out to be wrong."""

    def __init__(self, num_bytes, intact=True):
        self.num_bytes, self.intact, self.reads = num_bytes, intact, 0

    def read_into(self, target):
        self.reads += 1
        target[:] = bytes(self.num_bytes)

    def verify(self):
        if not self.intact:
            raise CorruptCheckpoint("wrong bytes")


def test_behaviour_50_nothing_is_made_of_the_first_gradient_if_the_second_is_wrong():
    good, bad = Counted(8), Counted(8, intact=False)
    record = GradientsRecord({
        name: CapturedTensor(torch.float32, (2,), (1,), "cpu", source) for name, source in (("a", good), ("b", bad))
    })  # fmt: skip
    with pytest.raises(CorruptCheckpoint):
        record.to_tensors()
    assert good.reads == bad.reads == 0
    bad.intact = True
    assert record.to_tensors()["a"].tolist() == [0, 0]


def test_tensors_share_nothing_with_the_record():
    record = mixed()
    live = record.to_tensors()
    live["c"].fill_(7)
    live["s"]._values().fill_(7)
    again = record.to_tensors()
    assert again["c"].tolist() == [0, 0]
    assert not torch.equal(again["s"]._values(), live["s"]._values())
    assert isinstance(again["q"], QuantizedTensor)
    assert again["q"].data.source is not record.tensors["q"].data.source


@pytest.mark.parametrize("value", [None, torch.ones(2), 3, {"a": 1}])
def test_what_is_no_captured_gradient_is_refused(value):
    with pytest.raises(InvalidRecord) as caught:
        GradientsRecord({"w": value})
    assert (caught.value.code, caught.value.where) == ("gradients.kind", "gradient of w")


def test_two_gradients_never_get_one_name():
    with pytest.raises(InvalidRecord) as caught:
        mixed().renamed({"c": "d"})
    assert (caught.value.code, caught.value.found) == ("gradients.rename", ["c", "d"])
    assert mixed().renamed({"c": "d", "d": "c"}).names == ("c", "d", "q", "s")


def test_a_name_alone_is_not_taken_for_several():
    with pytest.raises(InvalidRecord) as caught:
        mixed().select("cd")
    assert caught.value.hint == '`select(["cd"])`'
