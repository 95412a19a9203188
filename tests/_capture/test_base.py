"""The identity of a frozen base."""

import pytest
import torch
from torch import nn

import segue
from segue._capture.base import base_identity, blocks, tensor_digest
from segue._capture.sampling import positions
from segue.errors import BaseWarning, UnsupportedState
from tests._session.adapted import BASE, Adapted


def frozen(**tensors):
    module = nn.Module()
    for name, tensor in tensors.items():
        module.register_buffer(name, tensor)
    return module


def test_it_is_of_names_dtypes_shapes_and_bytes():
    values = torch.arange(6, dtype=torch.float32)
    same = base_identity(frozen(a=values, b=values.clone())).digest
    assert base_identity(frozen(b=values.clone(), a=values.clone())).digest == same
    others = [
        frozen(a=values, c=values.clone()),
        frozen(a=values, b=values.view(torch.int32)),
        frozen(a=values, b=values.view(2, 3)),
        frozen(a=values),
        frozen(a=values, b=values.flip(0)),
    ]
    digests = {base_identity(other).digest for other in others}
    assert len(digests) == len(others)
    assert same not in digests


def test_both_zeros_and_the_bits_of_nan_count():
    nan = torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32).view(torch.float32)
    tensors = [torch.tensor([0.0]), torch.tensor([-0.0]), nan[:1], nan[1:]]
    assert len({base_identity(frozen(a=tensor.clone())).digest for tensor in tensors}) == 4


@pytest.mark.parametrize(
    "layout",
    [
        lambda values: values.t().contiguous().t(),
        lambda values: torch.stack([values, values], -1)[..., 0],
        lambda values: torch.cat([values, values])[: len(values)],
    ],
)
def test_layout_in_memory_does_not_count(layout):
    values = torch.randn(30, 7)
    assert tensor_digest(layout(values), "x") == tensor_digest(values, "x")


@pytest.mark.parametrize("block_bytes", [4, 28, 200, 10_000])
def test_what_is_larger_than_a_block_is_read_in_pieces(block_bytes):
    values = torch.randn(5, 6, 7)
    turned = values.transpose(0, 2).contiguous().transpose(0, 2)
    pieces = [bytes(block) for block in blocks(turned, block_bytes)]
    assert b"".join(pieces) == b"".join(blocks(values)) == values.numpy().tobytes()
    assert max(map(len, pieces)) <= max(block_bytes, values.element_size())


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(3.0),
        torch.empty(0, 4),
        torch.zeros(1, 3).expand(5, 3),
        torch.ones(2, dtype=torch.complex128).conj(),
    ],
)
def test_scalars_empty_expanded_and_conjugate_ones_are_read(tensor):
    assert tensor_digest(tensor, "x") == tensor_digest(tensor.clone().resolve_conj(), "x")


def test_trainable_parameters_and_running_statistics_are_no_part_of_it():
    model = Adapted()
    identity = base_identity(model)
    assert sorted(identity.tensors) == sorted(BASE)
    model.train()(torch.randn(4, 8))
    with torch.no_grad():
        model.first.A.add_(1)
    assert base_identity(model) == identity
    assert str(identity) == identity.digest


def write_untold(tensor, elements=slice(None)):
    """Write where no version counter sees it."""
    before, version = tensor.clone(), tensor._version
    tensor.detach().numpy()[elements] += 1
    assert not torch.equal(tensor, before)
    assert tensor._version == version


def unsampled(tensor):
    """Return the index of an element that is not among those looked at, so that it shows whether all are read."""
    looked_at = set(positions(tensor.numel(), 1024).tolist())
    return next(index for index in range(tensor.numel()) if index not in looked_at)


class Large(Adapted):
    """With a buffer of which a sample is a part."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.randn(300_000))


def test_it_is_remembered_until_a_tensor_is_written_to():
    model = Large()
    first = base_identity(model)
    write_untold(model.table, unsampled(model.table))
    assert base_identity(model) == first
    model.table.add_(0)
    assert base_identity(model) != first


def test_a_write_that_no_version_shows_is_seen_by_the_sample_and_all_is_read_again():
    model = Large()
    first = base_identity(model)
    write_untold(model.table, unsampled(model.table))
    write_untold(model.second.base.weight)
    again = base_identity(model)
    changed = {name for name, digest in again.tensors.items() if digest != first.tensors[name]}
    assert changed == {"table", "second.base.weight"}


def test_a_replaced_data_is_seen():
    model = Adapted()
    first = base_identity(model)
    model.first.base.weight.data = model.first.base.weight.data * 2
    assert base_identity(model) != first


def test_capture_and_check_read_no_base_again():
    model = Large()
    state = segue.TrainableOnly(base=base_identity(model))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    training = segue.Training(model, torch.optim.SGD(trained, lr=0.1), model_state=state)
    write_untold(model.table, unsampled(model.table))
    record = training.capture()
    assert "table" in record.model.base.omitted
    training.check(record)


@pytest.mark.parametrize("base", ["by content", "llama@1"])
def test_a_base_written_where_no_version_shows_it_is_state_from_then_on(base):
    model = Large()
    state = segue.TrainableOnly(base=base_identity(model) if base == "by content" else base)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    training = segue.Training(model, torch.optim.SGD(trained, lr=0.1), model_state=state)
    write_untold(model.table, unsampled(model.table))
    write_untold(model.first.base.weight)
    kept = {"table", "first.base.weight"}
    with pytest.warns(BaseWarning, match="no longer the base's"):
        omitted = set(training.capture().model.base.omitted)
    # One that nobody has read can't be told from what it was: then all is kept.
    assert omitted == ({*BASE, "table"} - kept if base == "by content" else set())


def test_a_model_with_nothing_frozen_has_no_base():
    with pytest.raises(UnsupportedState, match="nothing of this model is frozen") as caught:
        base_identity(nn.Linear(2, 2))
    assert caught.value.code == "base.nothing_frozen"


@pytest.mark.filterwarnings("ignore:.*quantized tensor creation functions:UserWarning")
@pytest.mark.parametrize(
    ("tensor", "found"),
    [
        (lambda: torch.empty(3, device="meta"), "meta"),
        (lambda: torch.eye(3).to_sparse(), "torch.sparse_coo"),
        (lambda: torch.randn(3).to_mkldnn(), "torch._mkldnn"),
        (lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8), "torch.quint8"),
    ],
)
def test_what_can_not_be_read_bit_by_bit_is_refused(tensor, found):
    with pytest.raises(UnsupportedState, match="bit by bit") as caught:
        base_identity(frozen(a=tensor()))
    assert (caught.value.code, caught.value.found) == ("base.unreadable", found)


def test_in_inference_mode_it_is_read_each_time():
    with torch.inference_mode():
        model = frozen(a=torch.randn(3))
        first = base_identity(model)
        model.a.add_(1)
        assert base_identity(model) != first


def test_a_model_that_was_rounded_and_came_back_to_its_address_is_another_base():
    model = nn.Linear(3000, 3000).requires_grad_(False)
    first, address, version = base_identity(model), model.weight.data_ptr(), model.weight._version
    for _ in range(10):
        model.bfloat16().float()
        if (model.weight.data_ptr(), model.weight._version) == (address, version):
            break
    assert base_identity(model) != first
