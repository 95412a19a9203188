"""Tensors made of tensors: what goes in comes out in every bit, and what contradicts itself does not come in."""

import pytest
import torch

from segue._record.composite import CapturedSparse, CapturedSubclass, ConvertedTensor, blobs
from segue._record.tensors import DTYPES
from segue._record.tree import decode, encode, leaves, same, thaw
from segue.errors import InvalidRecord
from tests._store.records import captured, tensor


def sparse(indices=((1, 0, 1),), values=(1.0, -0.0, 3.0), shape=(2,), coalesced=False):
    tensors = {"indices": captured(torch.tensor(indices)), "values": captured(torch.tensor(values))}
    return CapturedSparse("sparse_coo", shape, coalesced, tensors)


def subclass(**changes):
    fields = {
        "class_name": "some.library.Packed", "dtype": torch.bfloat16, "shape": (2, 4), "strides": (4, 1),
        "context": {"block_size": 32},
        "tensors": {"codes": tensor("uint8", (2, 2)), "inner": sparse()}, **changes,
    }  # fmt: skip
    return CapturedSubclass(**fields)


CONVERTED = ConvertedTensor(torch.float64, captured(torch.tensor([1.0, 2.0])), True)
ALL = {"sparse": sparse(), "subclass": subclass(), "converted": CONVERTED}


def through_json(value):
    found = {}

    def name(path, blob):
        found["/".join(map(str, path))] = blob
        return "/".join(map(str, path))

    return decode(encode(value, name, ("x",)), found.__getitem__, ("x",))


@pytest.mark.parametrize("kind", ALL)
def test_a_composite_goes_through_its_encoding(kind):
    again = through_json(ALL[kind])
    assert type(again) is type(ALL[kind])
    assert same(again, ALL[kind])


@pytest.mark.parametrize("kind", ALL)
def test_a_composite_is_placed_with_all_its_parts(kind):
    placed = ALL[kind].with_device("cuda:1")
    assert {blob.device for blob in blobs([placed])} == {"cuda:1"}
    assert placed.num_bytes == ALL[kind].num_bytes == sum(blob.num_bytes for blob in blobs([ALL[kind]]))
    assert placed.device == "cuda:1"
    assert same(placed, ALL[kind])


def test_composites_differ_in_class_description_and_every_part():
    assert not same(sparse(), CONVERTED)
    assert not same(sparse(), tensor())
    assert not same(tensor(), sparse())
    assert not same(sparse(), sparse(coalesced=True))
    assert not same(sparse(), sparse(values=(1.0, 0.0, 3.0)))
    assert not same(sparse(), sparse(shape=(3,)))
    assert same(sparse(), sparse())
    assert not same(CONVERTED, ConvertedTensor(torch.float64, CONVERTED.stored, False))


def test_a_difference_is_found_in_the_part_where_it_is():
    paths = ["/".join(map(str, path)) for path, _ in leaves({"w": sparse()})]
    assert paths == ["w/layout", "w/shape/0", "w/coalesced", "w/indices", "w/values"]


def test_a_sparse_tensor_comes_to_the_host_as_it_was():
    live = thaw({"g": sparse()})["g"]
    assert live.layout is torch.sparse_coo
    assert not live.is_coalesced()
    assert live._indices().tolist() == [[1, 0, 1]]
    assert live._values().tolist() == [1.0, -0.0, 3.0]
    assert torch.signbit(live._values()).tolist() == [False, True, False]
    assert (sparse().dtype, sparse().device) == (torch.float32, "cpu")


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", ["sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc"])
def test_a_compressed_tensor_comes_to_the_host_as_it_was(layout):
    dense = torch.tensor([[0.0, 1, 0, 0], [2, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 3]])
    live = dense.to_sparse(layout=getattr(torch, layout), blocksize=(2, 2) if "b" in layout else None)
    rows, columns = ("crow", "col") if layout in ("sparse_csr", "sparse_bsr") else ("ccol", "row")
    parts = {
        f"{rows}_indices": captured(getattr(live, f"{rows}_indices")()),
        f"{columns}_indices": captured(getattr(live, f"{columns}_indices")()),
        "values": captured(live.values()),
    }
    again = through_json(CapturedSparse(layout, (4, 4), False, parts)).to_host()
    assert again.layout is live.layout
    assert torch.equal(again.to_dense(), dense)


@pytest.mark.parametrize(
    "lie",
    [sparse(indices=((0, 2, 1),)), sparse(indices=((0, -1, 1),)), sparse(values=(1.0, 2.0)),
     sparse(coalesced=True), sparse(indices=((0, 1, 1), (0, 0, 0)))],
)  # fmt: skip
def test_indices_that_point_nowhere_are_refused_before_anything_reads_there(lie):
    with pytest.raises(InvalidRecord, match="not a sparse tensor"):
        lie.to_host()


@pytest.mark.parametrize(
    ("description", "parts"),
    [
        ({"layout": "sparse_coo", "shape": (2,)}, {}),
        ({"layout": "strided", "shape": (2,), "coalesced": False}, {}),
        ({"layout": 1, "shape": (2,), "coalesced": False}, {}),
        ({"layout": "sparse_coo", "shape": [2], "coalesced": False}, {}),
        ({"layout": "sparse_coo", "shape": (-2,), "coalesced": False}, {}),
        ({"layout": "sparse_coo", "shape": (True,), "coalesced": False}, {}),
        ({"layout": "sparse_coo", "shape": (2,), "coalesced": 0}, {}),
        ({"layout": "sparse_coo", "shape": (2,), "coalesced": False}, {"indices": tensor()}),
        ({"layout": "sparse_coo", "shape": (2,), "coalesced": False}, {"indices": tensor(), "values": sparse()}),
        ({"layout": "sparse_csr", "shape": (2,), "coalesced": False}, {"indices": tensor(), "values": tensor()}),
        ("sparse_coo", {}),
    ],
)  # fmt: skip
def test_a_sparse_tensor_that_contradicts_itself_is_refused(description, parts):
    with pytest.raises(InvalidRecord, match="bad"):
        CapturedSparse.from_parts(description, parts)


@pytest.mark.parametrize(
    "change",
    [{"class_name": 1}, {"dtype": "bfloat16"}, {"shape": (2.0, 4)}, {"strides": (1,)}, {"strides": [4, 1]},
     {"order": ("codes",)}, {"order": ("codes", "codes")}, {"order": ()}, {"more": 1}],
)  # fmt: skip
def test_a_subclass_that_contradicts_itself_is_refused(change):
    good = subclass()
    with pytest.raises(InvalidRecord, match="bad"):
        CapturedSubclass.from_parts({**good.description, **change}, good.parts)


@pytest.mark.parametrize("size", [2**62, 2**63, 2**70])
def test_a_sparse_tensor_of_a_size_that_torch_cannot_count_is_refused(size):
    with pytest.raises(InvalidRecord, match="not a sparse tensor"):
        sparse(shape=(size, 3), values=((1.0,) * 3,) * 3).to_host()


def test_a_subclass_has_parts():
    with pytest.raises(InvalidRecord, match="bad"):
        CapturedSubclass.from_parts({**subclass().description, "order": ()}, {})


def test_a_part_of_a_subclass_is_a_tensor():
    with pytest.raises(InvalidRecord, match="no tensor"):
        CapturedSubclass.from_parts({**subclass().description, "order": ("codes",)}, {"codes": [1]})


@pytest.mark.parametrize(
    ("description", "parts"),
    [({}, {"stored": tensor()}), ({"dtype": "float64", "exact": True}, {"stored": tensor()}),
     ({"dtype": torch.float64, "exact": 1}, {"stored": tensor()}), ({"dtype": torch.float64, "exact": True}, {}),
     ({"dtype": torch.float64, "exact": True}, {"stored": sparse()}),
     ({"dtype": torch.float64, "exact": True}, {"stored": tensor(), "more": tensor()}),
     ({"dtype": torch.int64, "exact": True}, {"stored": tensor()}),
     ({"dtype": torch.float64, "exact": True}, {"stored": tensor("uint8")}),
     ({"dtype": torch.float64, "exact": True}, {"stored": captured(torch.ones(1).expand(3))})],
)  # fmt: skip
def test_a_converted_tensor_is_a_float_stored_as_another(description, parts):
    with pytest.raises(InvalidRecord, match=r"bad|floats|expanded"):
        ConvertedTensor.from_parts(description, parts)


@pytest.mark.parametrize("body", [[], [{}], [1, {}], [{}, []], [{}, {}, {}], "sparse", None])
@pytest.mark.parametrize("tag", ["sparse", "subclass", "converted", "quantized"])
def test_an_encoding_of_another_form_is_refused(tag, body):
    with pytest.raises(InvalidRecord):
        decode({tag: body}, {}.__getitem__)


def test_a_converted_tensor_comes_back_in_its_own_dtype_and_strides():
    stored = captured(torch.arange(6, dtype=torch.float32).view(2, 3).t())
    live = ConvertedTensor(torch.float64, stored, True).to_host()
    assert (live.dtype, live.stride()) == (torch.float64, (1, 3))
    assert live.tolist() == [[0, 3], [1, 4], [2, 5]]
    assert ConvertedTensor(torch.float64, stored, True).shape == (3, 2)
    assert ConvertedTensor(torch.float64, stored, True).device == "cpu"


def test_what_is_sparse_in_every_float_dtype_keeps_its_bits():
    for name in ("float16", "bfloat16", "float32", "float64"):
        values = tensor(name, (3,), seed=5)
        parts = {"indices": captured(torch.tensor([[1, 0, 1]])), "values": values}
        again = through_json(CapturedSparse("sparse_coo", (2,), False, parts)).to_host()._values()
        assert again.dtype is DTYPES[name]
        assert bytes(again.view(torch.uint8).tolist()) == bytes(values.source.view)
