"""A module: every buffer, mode and tie is state or contract, and tensors are filled in place."""

import pytest
import torch
from torch import nn

from segue._capture.module import bind_module, capture_module, check_module, contract_of, plan_module
from segue._record.tensors import same_bits
from segue.errors import ContractMismatch, DeviceMismatch, UnsupportedState
from tests._capture.zoo import layouts, logical_bytes, of_dtype
from tests._window.models import bits


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.norm = nn.BatchNorm1d(2)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("cache", torch.arange(3.0), persistent=False)
        self.register_buffer("later", None)


def restore(record, module):
    for item in plan_module(record, module, "model"):
        item.run(torch.empty(item.scratch_bytes, dtype=torch.uint8))


def codes(record, module):
    return [finding.code for finding in check_module(record, module, "model")]


def test_every_buffer_is_state_and_filled_in_place():
    torch.manual_seed(0)
    one, other = Net(), Net()
    one.cache.fill_(7)
    one.norm.running_mean.fill_(3)
    pointers = [tensor.data_ptr() for tensor in (*other.parameters(), *other.buffers())]
    record = capture_module(one, "model")
    assert codes(record, other) == []
    restore(record, other)
    assert [tensor.data_ptr() for tensor in (*other.parameters(), *other.buffers())] == pointers
    assert [bits(t) for t in (*other.parameters(), *other.buffers())] == [
        bits(t) for t in (*one.parameters(), *one.buffers())
    ]


def test_the_mode_of_each_submodule_comes_back_without_calling_train():
    class Stubborn(nn.BatchNorm1d):
        def train(self, mode=True):
            raise AssertionError("called")

    def fresh():
        return nn.Sequential(nn.Linear(2, 2), Stubborn(2), nn.Dropout(0.1))

    one, other = fresh(), fresh()
    one[1].training = False
    restore(capture_module(one, "model"), other)
    assert [child.training for child in other.modules()] == [True, True, False, True]


def test_the_record_does_not_follow_the_module():
    module = Net()
    record, again = capture_module(module, "model"), capture_module(module, "model")
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.add_(1)
    assert all(item is None or same_bits(item, again.tensors[name]) for name, item in record.tensors.items())


LAYOUTS = layouts()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_buffer_of_any_layout_comes_back(layout):
    module = nn.Module()
    module.register_buffer("x", LAYOUTS[layout])
    record = capture_module(module, "model")
    before = logical_bytes(module.x)
    if not module.x.is_inference() and module.x.is_floating_point():
        module.x[..., :1].fill_(5) if module.x.ndim else module.x.fill_(5)
    assert codes(record, module) == []
    restore(record, module)
    assert logical_bytes(module.x) == before


def test_parameters_of_unusual_dtypes_come_back():
    module = nn.Module()
    for name in ("float8_e4m3fn", "float8_e8m0fnu", "complex128", "bfloat16", "float4_e2m1fn_x2", "uint8"):
        module.register_parameter(f"p_{name}", nn.Parameter(of_dtype(name), requires_grad=False))
    record = capture_module(module, "model")
    before = {name: logical_bytes(p) for name, p in module.named_parameters()}
    for parameter in module.parameters():
        parameter.data.view(torch.uint8).zero_()
    restore(record, module)
    assert {name: logical_bytes(p) for name, p in module.named_parameters()} == before


def changed(change):
    module = Net()
    change(module)
    return module


def reshaped(module):
    module.linear.weight = nn.Parameter(torch.zeros(2, 4))


def renamed(module):
    module.other = module.linear.weight
    del module.linear.weight


def restrided(module):
    module.linear.weight = nn.Parameter(torch.zeros(3, 2).t())


def untracked(module):
    module.norm.running_mean = None


MISMATCHES = {
    "missing": (lambda m: m.linear.register_parameter("bias", None), ["model.missing.linear.bias"]),
    "extra": (lambda m: m.register_parameter("scale", nn.Parameter(torch.ones(1))), ["model.extra.scale"]),
    "renamed": (renamed, ["model.missing.linear.weight", "model.extra.other"]),
    "reshaped": (reshaped, ["model.shape.linear.weight"]),
    "of another dtype": (lambda m: m.linear.to(torch.bfloat16), ["model.dtype.linear.bias", "model.dtype.linear.weight"]),
    "of other strides": (restrided, ["model.strides.linear.weight"]),
    "frozen": (lambda m: m.linear.bias.requires_grad_(False), ["model.requires_grad.linear.bias"]),
    "of another gradient dtype": (
        lambda m: setattr(m.linear.bias, "grad_dtype", torch.float64), ["model.grad_dtype.linear.bias"],
    ),
    "a buffer gone": (untracked, ["model.none.norm.running_mean"]),
    "a buffer come": (lambda m: setattr(m, "later", torch.ones(1)), ["model.none.later"]),
    "persistent": (lambda m: m.register_buffer("cache", m.cache), ["model.kind.cache"]),
    "tied": (
        lambda m: setattr(m.norm, "bias", m.linear.bias), ["model.missing.norm.bias", "model.tied.linear.bias"],
    ),
    "a submodule more": (lambda m: m.add_module("act", nn.ReLU()), ["model.module.act"]),
    "a submodule less": (lambda m: delattr(m, "drop"), ["model.module.drop"]),
}  # fmt: skip


@pytest.mark.parametrize("kind", MISMATCHES)
def test_each_difference_has_its_code_and_the_module_is_not_touched(kind):
    change, expected = MISMATCHES[kind]
    record = capture_module(Net(), "model")
    module = changed(change)
    before = capture_module(module, "model")
    found = list(check_module(record, module, "model"))
    assert [item.code for item in found] == expected
    assert {item.error for item in found} == {ContractMismatch}
    after = capture_module(module, "model")
    assert all(v is None or same_bits(v, after.tensors[k]) for k, v in before.tensors.items())


def test_tied_and_untied_are_told_in_both_directions():
    tied = changed(lambda m: setattr(m.norm, "bias", m.linear.bias))
    assert codes(capture_module(tied, "model"), Net()) == ["model.extra.norm.bias", "model.tied.linear.bias"]
    assert codes(capture_module(tied, "model"), tied) == []


def test_overlapping_parameters_are_a_view_relation_and_not_a_tie():
    def fresh(apart=False):
        flat = torch.zeros(6)
        module = nn.Module()
        module.a, module.b = nn.Parameter(flat[:4]), nn.Parameter(flat.clone()[3:] if apart else flat[3:])
        return module

    record = capture_module(fresh(), "model")
    [sharing] = record.contract.sharing
    assert (dict(sharing.members), sharing.tied) == ({"a": 0, "b": 12}, False)
    assert codes(record, fresh()) == []
    assert codes(record, fresh(apart=True)) == ["model.tied.a"]
    target = fresh()
    restore(record, target)
    assert target.a.untyped_storage().data_ptr() == target.b.untyped_storage().data_ptr()


def test_neighbours_in_one_storage_do_not_share():
    flat = torch.zeros(6)
    module = nn.Module()
    module.a, module.b = nn.Parameter(flat[:3]), nn.Parameter(flat[3:])
    assert capture_module(module, "model").contract.sharing == ()


def bound(module):
    bind_module(module, "model")
    return module


def test_a_buffer_that_a_forward_replaced_comes_back_in_an_unchanged_program():
    def fresh():
        module = nn.Module()
        module.register_buffer("cache", None)
        module.register_buffer("grown", torch.zeros(1))
        module.register_buffer("gone", torch.zeros(2))
        return bound(module)

    live = fresh()
    live.cache, live.grown, live.gone = torch.arange(3.0), torch.ones(2, 3).t(), None
    record = capture_module(live, "model")
    target = fresh()
    assert codes(record, target) == []
    restore(record, target)
    assert target.cache.tolist() == [0, 1, 2]
    assert (target.grown.shape, target.grown.stride()) == (live.grown.shape, live.grown.stride())
    assert target.gone is None
    assert "cache" in target.state_dict()


def test_a_buffer_that_the_program_builds_otherwise_is_refused():
    def fresh(size):
        module = nn.Module()
        module.register_buffer("grown", torch.zeros(size))
        return bound(module)

    live = fresh(1)
    live.grown = torch.ones(3)
    record = capture_module(live, "model")
    assert codes(record, fresh(2)) == ["model.shape.grown"]
    assert codes(record, fresh(3)) == []


def test_a_parameter_that_was_frozen_as_it_trained_is_so_again():
    live = bound(nn.Linear(2, 2))
    live.weight.requires_grad_(False)
    record = capture_module(live, "model")
    target = bound(nn.Linear(2, 2))
    assert codes(record, target) == []
    restore(record, target)
    assert not target.weight.requires_grad
    assert target.bias.requires_grad


def by_columns():
    module = nn.Module()
    module.weight = nn.Parameter(torch.arange(6.0).reshape(3, 2).t())
    return bound(module)


def test_a_parameter_that_its_optimizer_laid_out_otherwise_is_so_again():
    live = by_columns()
    before = capture_module(live, "model")
    live.weight.data = live.weight.data.contiguous()
    after = capture_module(live, "model")
    target = by_columns()
    held = target.weight
    # Back and forth, as one process that returns to older records does.
    for record, strides in ((after, (3, 1)), (after, (3, 1)), (before, (1, 2)), (after, (3, 1))):
        assert codes(record, target) == []
        with torch.no_grad():
            held.zero_()
        restore(record, target)
        assert target.weight is held
        assert held.stride() == strides
        assert torch.equal(held, live.weight)
        assert held.requires_grad


def test_a_parameter_that_the_program_lays_out_otherwise_is_refused():
    live = by_columns()
    live.weight.data = live.weight.data.contiguous()
    record = capture_module(live, "model")
    other = nn.Module()
    other.weight = nn.Parameter(torch.zeros(2, 6)[:, ::2])
    assert codes(record, bound(other)) == ["model.strides.weight"]


@pytest.mark.parametrize("graph", [False, True])
def test_a_buffer_that_requires_grad_is_refused(graph):
    module = nn.Module()
    leaf = torch.zeros(2, requires_grad=True)
    module.register_buffer("b", leaf * 2 if graph else leaf)
    with pytest.raises(UnsupportedState, match="a buffer that requires grad"):
        capture_module(module, "model")


class OwnEntries(nn.Linear):
    def __init__(self, how):
        super().__init__(2, 2)
        self.how, self.count = how, 3

    def state_dict(self, *args, **kwargs):
        state = super().state_dict(*args, **kwargs)
        if self.how == "state_dict":
            state[f"{kwargs.get('prefix', '')}count"] = self.count
        return state

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.how == "_save_to_state_dict":
            destination[f"{prefix}count"] = self.count


@pytest.mark.parametrize("how", ["state_dict", "_save_to_state_dict"])
def test_a_module_with_entries_of_its_own_in_its_state_dict_is_refused(how):
    with pytest.raises(UnsupportedState, match="count"):
        capture_module(nn.Sequential(OwnEntries(how)), "model")


def test_a_module_that_overrides_its_state_dict_and_adds_nothing_is_not():
    assert capture_module(nn.Sequential(OwnEntries("not at all")), "model").tensors


def test_a_mode_that_is_no_bool_is_kept_as_one():
    module = nn.Linear(1, 1)
    module.training = 0
    assert capture_module(module, "model").training == {"": False}


def test_empty_tensors_share_nothing():
    module = nn.Module()
    module.a, module.b = nn.Parameter(torch.empty(0)), nn.Parameter(torch.empty(0))
    assert contract_of(module, "model").sharing == ()


def test_the_order_of_declaration_is_told_and_can_be_accepted():
    one, other = nn.Module(), nn.Module()
    one.a, one.b = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(2))
    other.b, other.a = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(1))
    [finding] = check_module(capture_module(one, "model"), other, "model")
    assert finding.code == "model.order"
    assert finding.admissible


def test_another_device_is_told_before_everything_else():
    record = capture_module(Net(), "model")
    placed = type(record)(
        {name: item and item.with_device("cuda:0") for name, item in record.tensors.items()},
        record.training,
        type(record.contract)(
            {
                name: spec and type(spec)(spec.kind, spec.dtype, spec.shape, spec.strides, "cuda:0", spec.requires_grad, None)
                for name, spec in record.contract.tensors.items()
            },
            record.contract.sharing,
            record.contract.order,
        ),
    )  # fmt: skip
    found = list(check_module(placed, changed(reshaped), "model"))
    assert found[0].error is DeviceMismatch
    assert 'segue.load(url, device="cpu")' in found[0].hint
    assert found[-1].code == "model.shape.linear.weight"


class Extra(nn.Module):
    def get_extra_state(self):
        return {"a": 1}


REFUSED = {
    "extra state": (lambda: Extra(), "get_extra_state"),
    "lazy": (lambda: nn.LazyLinear(2), "lazy"),
    "meta": (lambda: nn.Linear(2, 2, device="meta"), "meta"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_kept_is_refused_by_its_place(kind):
    make, what = REFUSED[kind]
    module = nn.Sequential(nn.Linear(1, 1), make())
    with pytest.raises(UnsupportedState, match=what) as caught:
        capture_module(module, "model")
    assert caught.value.where.startswith("model 1")


def test_reading_a_contract_reads_no_values():
    module = Net()
    versions = [tensor._version for tensor in (*module.parameters(), *module.buffers())]
    contract = contract_of(module, "model")
    assert contract.trainable == ["linear.bias", "linear.weight", "norm.bias", "norm.weight"]
    assert [tensor._version for tensor in (*module.parameters(), *module.buffers())] == versions
