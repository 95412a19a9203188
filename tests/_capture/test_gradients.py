"""Pending gradients: absent, zero and None are three things, and what can't be put back is refused first."""

import pytest
import torch
from torch import nn

from segue import GradientAccumulator, Training, WeightedAccumulator
from segue._capture.gradients import (
    capture_gradients,
    capture_window,
    check_gradients,
    check_window,
    plan_gradients,
    plan_window,
)
from segue._record.composite import CapturedSparse
from segue._record.gradients import GradientsRecord
from segue._record.tensors import same_bits
from segue.errors import (
    ContractMismatch,
    InvalidRecord,
    PendingGradientError,
    UnsupportedState,
    WindowError,
)
from tests._store.records import tensor
from tests._window.models import Pair, bits


def parameters(model):
    return dict(model.named_parameters())


def write(plan):
    for item in plan:
        item.run(torch.empty(item.scratch_bytes, dtype=torch.uint8))


def restore(record, model):
    write(plan_gradients(record, parameters(model)))


def test_absent_and_zero_gradients_stay_what_they_are():
    model = Pair()
    model.a.grad = torch.zeros(2)
    record = capture_gradients(parameters(model))
    assert list(record.tensors) == ["a"]
    model.give(7, 7)
    restore(record, model)
    assert model.a.grad.tolist() == [0, 0]
    assert model.b.grad is None


def test_bits_layout_and_dtype_come_back():
    model = nn.Conv2d(3, 4, 3, dtype=torch.bfloat16)
    model.weight.grad_dtype = torch.float32
    payload = torch.arange(4 * 27, dtype=torch.int32).add(0x7FC00000).view(torch.float32).view(4, 3, 3, 3)
    model.weight.grad = payload.contiguous(memory_format=torch.channels_last)
    model.bias.grad = torch.tensor([-0.0, 0.0, float("inf"), float("nan")], dtype=torch.bfloat16)
    before = {name: (bits(p.grad), p.grad.stride(), p.grad.dtype) for name, p in model.named_parameters()}
    record = capture_gradients(parameters(model))
    model.zero_grad()
    restore(record, model)
    assert before == {
        name: (bits(p.grad), p.grad.stride(), p.grad.dtype) for name, p in model.named_parameters()
    }


def test_capture_copies_and_restore_never_aliases_the_record():
    model = Pair()
    model.give(1)
    record = capture_gradients(parameters(model))
    again = capture_gradients(parameters(model))
    model.a.grad.add_(1)
    restore(record, model)
    assert model.a.grad.tolist() == [1, 1]
    model.a.grad.add_(1)
    assert same_bits(record.tensors["a"], again.tensors["a"])


def test_a_gradient_of_a_frozen_parameter_is_refused_by_name():
    model = Pair()
    model.give(1)
    model.a.requires_grad_(False)
    with pytest.raises(PendingGradientError) as caught:
        capture_gradients(parameters(model))
    assert caught.value.where == "gradient of a"


def test_a_frozen_parameter_that_is_tied_to_a_trainable_one_is_one_parameter():
    model = Pair()
    model.c = model.a
    model.give(1)
    assert list(capture_gradients(parameters(model)).tensors) == ["a"]


def coo(indices, values, coalesced, size=(2,)):
    return torch.sparse_coo_tensor(indices, values, size, is_coalesced=coalesced, check_invariants=True)


SPARSE = {
    "duplicates, out of order": coo([[1, 0, 1]], [-0.0, 2.0, 3.0], False),
    "coalesced": coo([[0, 1]], [1.0, 2.0], True),
    "sorted, yet not called coalesced": coo([[0, 1]], [1.0, 2.0], False),
    "without values": coo(torch.empty(1, 0, dtype=torch.int64), torch.empty(0), False),
    "an explicit zero": coo([[0]], [0.0], True),
}


def sparse_bits(tensor):
    return tensor.is_coalesced(), bits(tensor._indices()), bits(tensor._values()), tensor._values().stride()


@pytest.mark.parametrize("case", SPARSE)
def test_a_sparse_gradient_comes_back_as_it_was(case, tmp_path):
    model = Pair()
    model.a.grad = SPARSE[case]
    record = capture_gradients(parameters(model))
    model.a.grad = torch.ones(2)
    restore(record, model)
    assert model.a.grad.layout is torch.sparse_coo
    assert model.a.grad is not SPARSE[case]
    assert sparse_bits(model.a.grad) == sparse_bits(SPARSE[case])


def test_a_restored_sparse_gradient_adds_up_as_the_first_one_did():
    def backward(weight):
        nn.functional.embedding(torch.tensor([2, 0, 2]), weight, sparse=True).pow(2).sum().backward()

    model = nn.Embedding(4, 3, sparse=True)
    backward(model.weight)
    record = capture_gradients(parameters(model))
    twin = nn.Embedding(4, 3, sparse=True)
    twin.load_state_dict(model.state_dict())
    restore(record, twin)
    for each in (model, twin):
        backward(each.weight)
    assert sparse_bits(model.weight.grad) == sparse_bits(twin.weight.grad)


def test_a_compressed_gradient_which_no_parameter_takes_is_a_finding():
    compressed = CapturedSparse("sparse_csr", (2,), False, {"values": tensor(shape=(2,))})
    assert findings(GradientsRecord({"a": compressed}), Pair()) == [
        (ContractMismatch, "gradient.a", "sparse_csr")
    ]


def test_gradients_that_are_part_of_a_graph_are_refused():
    model = Pair()
    model.a.grad = torch.ones(2, requires_grad=True)
    with pytest.raises(UnsupportedState, match="graph"):
        capture_gradients(parameters(model))


def findings(record, model):
    return [(item.error, item.code, item.found) for item in check_gradients(record, parameters(model))]


class Summed(nn.Module):
    """Two embeddings whose gradients autograd lets share their values, and their indices too."""

    def __init__(self):
        super().__init__()
        self.a = nn.Embedding(4, 2, sparse=True)
        self.b = nn.Embedding(4, 2, sparse=True)

    def backward(self):
        ids = torch.tensor([3, 1, 3])
        (self.a(ids) + self.b(ids)).pow(2).sum().backward()
        return self


def values(model):
    return [parameter.grad._values() for parameter in model.parameters()]


def test_sparse_gradients_that_share_their_values_share_them_again():
    """Scaling one in place scales the other, in the first run as in the resumed one (torch 2.13)."""
    model = Summed().backward()
    record = capture_gradients(parameters(model))
    assert record.shared == (("a.weight/indices", "b.weight/indices"), ("a.weight/values", "b.weight/values"))
    again = Summed()
    again.load_state_dict(model.state_dict())
    restore(record, again)
    assert capture_gradients(parameters(again)).shared == record.shared
    for each in (model, again):
        for parameter in each.parameters():
            parameter.grad.mul_(0.5)
    assert [bits(item) for item in values(again)] == [bits(item) for item in values(model)]
    assert bits(values(again)[0]) == bits(values(again)[1])


class Reshaped(nn.Module):
    """Parameters that are summed in other shapes than their own: each keeps a view of one gradient as its `.grad`."""

    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.arange(4.0))
        self.b = nn.Parameter(torch.arange(4.0).view(1, 4))
        self.table = nn.Embedding(3, 2, sparse=True)

    def backward(self):
        rows = self.a.view(2, 2) + self.b.view(2, 2)
        (rows + self.table(torch.tensor([2, 0]))).pow(2).sum().backward()
        return self


def scaled_and_added_to(model):
    """What in-place writes make of the gradients: clipping, and the next backward."""
    for gradient in (model.a.grad, model.b.grad, model.table.weight.grad._values()):
        gradient.mul_(0.5)
    model.backward()
    return [bits(model.a.grad), bits(model.b.grad), *sparse_bits(model.table.weight.grad)]


def test_strided_gradients_that_are_one_memory_are_one_again():
    """Scaling one scales all of them, and the next backward adds to one memory twice (torch 2.13)."""
    model = Reshaped().backward()
    record = capture_gradients(parameters(model))
    assert record.shared == (("a/", "b/", "table.weight/values"),)
    again = Reshaped().backward()
    again.load_state_dict(model.state_dict())
    restore(record, again)
    assert capture_gradients(parameters(again)).shared == record.shared
    assert not again.b.grad._is_view()
    assert scaled_and_added_to(again) == scaled_and_added_to(model)


def test_strided_gradients_that_are_one_memory_are_one_in_another_precision_too():
    record = capture_gradients(parameters(Reshaped().backward())).select(["a", "b"])
    again = Reshaped()
    restore(record.converted("double"), again)
    assert capture_gradients(parameters(again)).shared == (("a/", "b/"),)


def test_a_window_adds_up_gradients_that_are_one_memory_each_by_itself():
    model, apart = Reshaped().backward(), Reshaped()
    apart.load_state_dict(model.state_dict())
    for name, parameter in apart.named_parameters():
        parameter.grad = model.get_parameter(name).grad.clone()
    sums = []
    for each in (model, apart):
        window = GradientAccumulator(each)
        window.add()
        each.backward()
        window.add()
        sums.append([bits(total.to_dense()) for _, total in window.sums()])
    assert sums[0] == sums[1]


def test_gradients_in_one_memory_that_read_it_otherwise_are_refused():
    model = nn.ParameterDict({name: torch.zeros(2, 2, dtype=torch.complex64) for name in "ab"})
    values = torch.ones(2, 2, dtype=torch.complex64)
    for other in (values.conj(), values.t()):
        model["a"].grad, model["b"].grad = values, other
        with pytest.raises(UnsupportedState, match="share memory"):
            capture_gradients(parameters(model))


def test_indices_that_only_overlap_come_back_apart():
    """Skip-grams: torch takes the ids of a batch for indices without a copy, and writes to none of them (2.13)."""
    model, again = Summed(), Summed()
    again.load_state_dict(model.state_dict())
    ids = torch.tensor([3, 1, 3, 0])
    (model.a(ids[:-1]) * model.b(ids[1:])).sum().backward()
    record = capture_gradients(parameters(model))
    assert record.shared == ()
    restore(record, again)
    for name in ("a.weight", "b.weight"):
        first, second = (each.get_parameter(name).grad for each in (model, again))
        assert sparse_bits(first) == sparse_bits(second)


def test_what_is_shared_follows_selection_and_names():
    record = capture_gradients(parameters(Summed().backward()))
    assert record.select(["a.weight"]).shared == ()
    assert record.select(["a.weight", "b.weight"]).shared == record.shared
    renamed = record.renamed({"a.weight": "x/y"})
    assert renamed.names == ("b.weight", "x/y")
    assert renamed.shared[1] == ("x/y/values", "b.weight/values")
    assert record.converted("half").shared == record.shared


def test_gradients_that_overlap_otherwise_are_refused():
    model = Pair()
    memory = torch.zeros(3)
    model.a.grad, model.b.grad = memory[:2], memory[1:]
    with pytest.raises(UnsupportedState, match="share memory"):
        capture_gradients(parameters(model))
    model.a.grad = coo([[0]], memory[:1], True)
    model.b.grad = memory[:2]
    with pytest.raises(UnsupportedState, match="share memory"):
        capture_gradients(parameters(model))
    model.a.grad, model.b.grad = coo([[0, 1]], memory[:2], True), coo([[0, 1]], memory[1:], True)
    with pytest.raises(UnsupportedState, match="share memory"):
        capture_gradients(parameters(model))


def test_parts_that_are_said_to_be_one_and_differ_are_refused():
    record = capture_gradients(parameters(Summed().backward()))
    lie = GradientsRecord(record.tensors, (("a.weight/indices", "b.weight/values"),))
    with pytest.raises(InvalidRecord, match="differ"):
        restore(lie, Summed())
    for place in ("c.weight/values", "a.weight/codes", "values", "a.weight/", "a.weight/values"):
        with pytest.raises(InvalidRecord, match="no place"):
            GradientsRecord(record.tensors, ((place, "a.weight/values"),))
    for group in ((), ("a.weight/values",)):
        with pytest.raises(InvalidRecord, match="with none"):
            GradientsRecord(record.tensors, (group,))


@pytest.mark.parametrize("other", [tensor(shape=(2,), seed=1), tensor("float64", (2,)), tensor(shape=(3,))])
def test_strided_gradients_that_are_said_to_be_one_and_differ_are_refused(other):
    record = GradientsRecord({"a": tensor(shape=(2,)), "b": other}, (("a/", "b/"),))
    model = nn.ParameterDict({"a": torch.zeros(2), "b": torch.zeros(other.shape, dtype=other.dtype)})
    with pytest.raises(InvalidRecord, match="differ"):
        restore(record, model)
    assert model["a"].grad is None


def test_a_gradient_needs_a_parameter_of_its_shape_and_dtype():
    model = Pair()
    record = GradientsRecord({"a": tensor(shape=(2,)), "b": tensor(shape=(1, 2)), "c": tensor(shape=(2,))})
    assert findings(record, model) == [
        (ContractMismatch, "gradient.b", (2,)), (ContractMismatch, "gradient.c", "absent"),
    ]  # fmt: skip


def test_a_gradient_of_a_dtype_that_torch_would_not_assign_is_a_finding():
    model = Pair(torch.bfloat16)
    record = GradientsRecord({"a": tensor(shape=(2,))})
    assert findings(record, model) == [(ContractMismatch, "gradient.a", torch.bfloat16)]
    model.a.grad_dtype = torch.float32
    assert findings(record, model) == []
    model.a.grad_dtype = None
    assert findings(record, model) == []


def test_a_parameter_cast_under_its_gradient_is_refused_before_anything_is_written():
    model = nn.Linear(2, 2)
    model.weight.grad = torch.ones(2, 2)
    model.weight.data = model.weight.data.to(torch.bfloat16)
    training = Training(model, torch.optim.SGD(model.parameters(), lr=0.1), rng=None)
    with pytest.raises(ContractMismatch, match="does not take"):
        training.restore(training.capture())


def test_an_accumulators_sums_are_named_by_parameter():
    model = Pair(torch.bfloat16)
    window = WeightedAccumulator(model, microbatches=3, loss_scale=2.0)
    model.give(1, 2)
    window.add_sum(5)
    record = capture_window(window, parameters(model))
    assert record.state == window.window_state()
    assert list(record.sums.tensors) == ["a", "b"]
    assert record.sums.tensors["a"].dtype is torch.float32
    window.add_sum(1)
    other = WeightedAccumulator(model, microbatches=3, loss_scale=2.0)
    assert list(check_window(record, other, parameters(model))) == []
    write(plan_window(record, other, parameters(model)))
    assert other.window_state() == record.state
    assert [total.tolist() for _, total in other.sums()] == [[1, 1], [2, 2]]


def test_an_accumulator_over_another_model_is_refused():
    model, other = Pair(), Pair()
    window = GradientAccumulator(other)
    other.give(1)
    window.add()
    with pytest.raises(PendingGradientError, match="no registered module"):
        capture_window(window, parameters(model))


def test_a_window_of_other_terms_and_sums_that_do_not_fit_are_all_reported():
    model = Pair()
    window = WeightedAccumulator(model)
    model.give(1, 2)
    window.add_sum(5)
    record = capture_window(window, parameters(model))
    smaller = {"a": nn.Parameter(torch.zeros(3))}
    codes = [item.code for item in check_window(record, GradientAccumulator(model), smaller)]
    assert codes == ["window.kind", "window.a", "window.b"]


def test_gradients_that_are_views_of_a_flat_buffer_stay_so():
    model = Pair()
    flat = torch.arange(4.0)
    model.a.grad, model.b.grad = flat[:2], flat[2:]
    record = capture_gradients(parameters(model))
    flat.zero_()
    write(plan_gradients(record, parameters(model)))
    assert flat.tolist() == [0, 1, 2, 3]
    assert model.a.grad.data_ptr() == flat.data_ptr()


def test_one_tensor_as_two_gradients_comes_back_as_one_memory():
    model = Pair()
    model.a.grad = model.b.grad = torch.ones(2)
    record = capture_gradients(parameters(model))
    model.give(5, 5)
    restore(record, model)
    model.a.grad.mul_(2)
    assert model.b.grad.tolist() == [2, 2]


def test_live_gradients_that_overlap_are_replaced():
    model = Pair()
    model.give(1, 2)
    record = capture_gradients(parameters(model))
    model.a.grad = model.b.grad = torch.zeros(2)
    write(plan_gradients(record, parameters(model)))
    assert (model.a.grad.tolist(), model.b.grad.tolist()) == ([1, 1], [2, 2])


def test_a_gradient_that_was_handed_out_is_still_known_after_a_restore():
    model = Pair()
    window = GradientAccumulator(model)
    model.give(1, 2)
    window.add()
    window.finish_mean()
    gradients, record = capture_gradients(parameters(model)), capture_window(window, parameters(model))
    assert record.handed_out == ("a", "b")
    model.give(5, 5)
    other = GradientAccumulator(model)
    write([*plan_gradients(gradients, parameters(model)), *plan_window(record, other, parameters(model))])
    with pytest.raises(WindowError, match="still there"):
        other.add()
    model.give(3, 3)
    other.add()
