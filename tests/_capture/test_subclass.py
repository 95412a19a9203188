"""Live tensors of admitted subclasses: in a model, in state, tied, shared, and refused."""

import pytest
import torch
from torch import nn

from segue._capture.memory import Memory
from segue._capture.module import bind_module, capture_module, check_module, contract_of, plan_module
from segue._capture.optimizer import capture_optimizer, check_optimizer, plan_optimizer
from segue._capture.plain import freeze
from segue._capture.sharing import shared_between
from segue._capture.staging import capture_tensor, capture_value, plain_parts, refuse_unsupported
from segue._capture.targets import empty_like, fill_writes, fits
from segue._record.composite import blobs
from segue._record.sections import ModuleRecord
from segue._record.tree import same, thaw
from segue.errors import InvalidRecord, UnsupportedState
from tests._record.fake_torchao import MX, Derived, KernelPreference, contents, fake_torchao, mx, state

__all__ = ["fake_torchao"]
pytestmark = pytest.mark.usefixtures("fake_torchao")
SCRATCH = torch.empty(1024, dtype=torch.uint8)


class Net(nn.Module):
    """A quantized parameter that nothing trains, a quantized buffer, and a plain parameter."""

    def __init__(self, seed=0, **changes):
        super().__init__()
        self.base = nn.Module()
        self.base.weight = nn.Parameter(mx(seed, **changes), requires_grad=False)
        self.register_buffer("table", mx(seed + 1))
        self.head = nn.Linear(2, 1)


def run(writes):
    for write in writes:
        write.run(SCRATCH)


def codes_of(record, net):
    return [finding.code for finding in check_module(record, net, "model")]


def test_a_module_is_captured_and_filled_in_place():
    source, target = Net(), Net(40)
    record = capture_module(source, "model")
    assert codes_of(record, target) == []
    parameter, table = target.base.weight, target.table
    pointers = [part.data_ptr() for _, part in plain_parts(parameter)]
    versions = [parameter._version, parameter.qdata._version, parameter.scale._version]
    run(plan_module(record, target, "model"))
    assert target.base.weight is parameter
    assert target.table is table
    assert isinstance(parameter, nn.Parameter)
    assert [part.data_ptr() for _, part in plain_parts(parameter)] == pointers
    assert [parameter._version, parameter.qdata._version, parameter.scale._version] > versions
    assert contents(parameter) == contents(source.base.weight)
    assert contents(table) == contents(source.table)
    assert same(capture_module(target, "model").tensors, record.tensors)


def test_the_copy_does_not_follow_the_parts():
    net = Net()
    record = capture_module(net, "model")
    before = [bytes(blob.source.view) for blob in blobs(dict(record.tensors))]
    net.base.weight.qdata.fill_(9)
    assert [bytes(blob.source.view) for blob in blobs(dict(record.tensors))] == before


class Plain(Net):
    def __init__(self):
        super().__init__()
        self.base.weight = nn.Parameter(torch.zeros(2, 4), requires_grad=False)


OTHERS = {
    "a plain tensor": (Plain, ["model.class.base.weight"]),
    "another class": (
        lambda: with_weight(state()), ["model.shape.base.weight", "model.dtype.base.weight", "model.class.base.weight"],
    ),
    "another block size": (
        lambda: Net(block_size=4), ["model.context.base.weight", "model.part_shape.base.weight.scale"],
    ),
    "another kernel": (lambda: Net(context={"kernel": KernelPreference.TORCH}), ["model.context.base.weight"]),
    "one part more": (lambda: Net(global_scale=torch.ones(())), ["model.part.base.weight.global_scale"]),
    "a part of another dtype": (
        lambda: Net(scale=torch.ones(4, dtype=torch.float64)), ["model.part_dtype.base.weight.scale"],
    ),
    "a part in another layout": (
        lambda: Net(qdata=torch.zeros(4, 2, dtype=torch.uint8).t()), ["model.part_strides.base.weight.qdata"],
    ),
    "a part that has parts": (lambda: Net(qdata=mx()), ["model.part_dtype.base.weight.qdata", "model.class.base.weight.qdata"]),
}  # fmt: skip


def with_weight(tensor):
    net = Net()
    del net.base.weight
    net.base.register_parameter("weight", as_parameter(tensor))
    return net


def as_parameter(tensor):
    # What `nn.Parameter(tensor)` does to a tensor of its own class, without the detach that this one lacks.
    tensor._is_param = True
    return tensor


@pytest.mark.parametrize("what", OTHERS)
def test_another_tensor_is_refused_and_named_and_nothing_is_touched(what):
    make, codes = OTHERS[what]
    record, net = capture_module(Net(), "model"), make()
    before = capture_module(net, "model")
    findings = list(check_module(record, net, "model"))
    assert [finding.code for finding in findings] == codes
    assert all(finding.where.startswith("model base.weight") for finding in findings)
    assert same(capture_module(net, "model").tensors, before.tensors)
    # And the other way round.
    assert {finding.code for finding in check_module(before, Net(), "model")} == set(codes)


def test_the_finding_shows_what_differs_of_a_context():
    [finding, _] = check_module(capture_module(Net(), "model"), Net(block_size=4), "model")
    assert finding.expected == {"block_size.1": 2, "kwargs.block_size": 2}
    assert finding.found == {"block_size.1": 4, "kwargs.block_size": 4}


def test_a_record_whose_contract_tells_of_other_parts_is_refused():
    record, other = capture_module(Net(), "model"), capture_module(Net(block_size=4), "model")
    with pytest.raises(InvalidRecord, match="not what the contract says"):
        ModuleRecord(other.tensors, record.training, record.contract)
    with pytest.raises(InvalidRecord, match="not what the contract says"):
        ModuleRecord(
            {**record.tensors, "base.weight": capture_tensor(torch.zeros(2, 4), "w")},
            record.training,
            record.contract,
        )


def test_a_tied_parameter_is_one_object():
    net = Net()
    net.other = nn.Module()
    net.other.weight = net.base.weight
    [sharing] = contract_of(net, "model").sharing
    assert (dict(sharing.members), sharing.tied) == ({"base.weight": 0, "other.weight": 0}, True)
    assert codes_of(capture_module(net, "model"), Net()) == ["model.tied.base.weight", "model.module.other"]


def test_parts_that_share_memory_are_seen():
    scale = torch.ones(4)
    net = Net(scale=scale)
    net.other = nn.Module()
    net.other.weight = nn.Parameter(mx(scale=scale), requires_grad=False)
    net.register_buffer("view", scale[1:])
    [sharing] = contract_of(net, "model").sharing
    assert dict(sharing.members) == {"base.weight.scale": 0, "other.weight.scale": 0, "view": 4}
    assert not sharing.tied
    apart = Net()
    apart.other = nn.Module()
    apart.other.weight = nn.Parameter(mx(), requires_grad=False)
    apart.register_buffer("view", torch.ones(3))
    assert codes_of(capture_module(net, "model"), apart) == ["model.tied.base.weight.scale"]


def test_two_quantized_parameters_share_nothing_although_both_pointers_are_null():
    net = Net()
    net.other = nn.Module()
    net.other.weight = nn.Parameter(mx(), requires_grad=False)
    assert net.base.weight.data_ptr() == net.other.weight.data_ptr() == 0
    assert contract_of(net, "model").sharing == ()


def test_modules_share_a_quantized_parameter_or_a_part_of_it():
    net, head = Net(), nn.Module()
    head.weight = net.base.weight
    assert shared_between({"model": net, "component.head": head})["component.head"] == {
        "shares": {"weight": {"with": ("model", "base.weight"), "offset": 0, "same": True}}
    }
    head.weight = nn.Parameter(mx(scale=net.base.weight.scale), requires_grad=False)
    assert shared_between({"model": net, "component.head": head})["component.head"] == {
        "shares": {"weight.scale": {"with": ("model", "base.weight.scale"), "offset": 0, "same": False}}
    }


def test_a_buffer_that_was_quantized_as_it_trained_is_made_again():
    source, target = Net(), Net()
    for net in (source, target):
        net.register_buffer("later", torch.zeros(3))
        bind_module(net, "model")
    source.later = mx(7)
    record = capture_module(source, "model")
    assert codes_of(record, target) == []
    run(plan_module(record, target, "model"))
    assert contents(target.later) == contents(source.later)


class Local(torch.Tensor):
    pass


def refused(tensor):
    with pytest.raises(UnsupportedState) as caught:
        refuse_unsupported(tensor, "model w")
    with pytest.raises(UnsupportedState):
        capture_value(tensor, "model w")
    return caught.value


def test_any_other_subclass_is_refused_by_path_and_type():
    error = refused(torch.ones(2).as_subclass(Local))
    assert error.where == "model w"
    assert error.found.endswith("test_subclass.Local")


def test_a_subclass_of_an_admitted_class_is_refused():
    plain = mx()
    error = refused(Derived(plain.qdata, plain.scale, None))
    assert error.found.endswith(".Derived")


def test_a_class_of_the_same_name_is_refused():
    twin = type("MXTensor", (Local,), {"__module__": MX})
    error = refused(torch.ones(2).as_subclass(twin))
    assert error.found == f"{MX}.MXTensor"


def test_a_class_of_the_same_name_from_elsewhere_is_refused():
    twin = type("MXTensor", (Local,), {"__module__": "mine"})
    assert refused(torch.ones(2).as_subclass(twin)).found == "mine.MXTensor"


def test_a_part_of_another_subclass_is_refused_by_its_path():
    error = refused(mx(scale=torch.ones(4).as_subclass(Local)))
    assert (error.where, error.found.rpartition(".")[2]) == ("model w scale", "Local")


def test_a_part_on_another_device_is_refused():
    assert refused(mx(scale=torch.ones(4, device="meta"))).where == "model w scale"


def test_a_tensor_without_values_is_refused():
    parts = {"qdata": torch.zeros(2, 4, device="meta"), "scale": torch.ones(4, device="meta")}
    assert refused(mx(**parts)).where == "model w qdata"


def test_a_part_that_requires_grad_is_refused():
    assert refused(mx(scale=torch.ones(4, requires_grad=True))).found == "requires_grad"


def test_a_context_that_has_no_encoding_is_refused_by_its_path():
    assert refused(mx(context={"block_size": [object()]})).where == "model w context block_size[0]"


def test_binding_a_module_that_cannot_be_captured_does_not_fail():
    net = Net(context=object())
    bind_module(net, "model")
    with pytest.raises(UnsupportedState):
        capture_module(net, "model")


def test_plain_state_may_hold_one_at_any_depth():
    tree = freeze({"a": [mx(3)], 1: (mx(4), 2)}, "state")
    again = thaw(tree)
    assert contents(again["a"][0]) == contents(mx(3))
    assert contents(again[1][0]) == contents(mx(4))


def test_memory_is_claimed_by_parts():
    memory, scale = Memory(), torch.ones(4)
    assert memory.claim(mx(scale=scale), "first") is None
    assert memory.claim(mx(), "second") is None
    assert memory.claim(mx(scale=scale), "third") == "first"


def test_parts_of_parts_are_called_by_both_names():
    assert [name for name, _ in plain_parts(mx(qdata=mx()))] == ["qdata.qdata", "qdata.scale", "scale"]


def test_new_memory_is_filled_part_by_part():
    captured = capture_value(mx(qdata=mx(2)), "w")
    target = empty_like(captured, "cpu")
    run(fill_writes("w", target, captured))
    assert same(capture_value(target, "w"), captured)


def test_a_live_tensor_fits_by_class_context_layout_and_memory_of_its_own():
    captured = capture_value(mx(), "w")
    assert fits(mx(5), captured)
    assert not fits(mx(block_size=4), captured)
    assert not fits(mx(context=None), captured)
    assert not fits(mx(scale=torch.ones(8)[:4]), captured)
    assert not fits(torch.zeros(2, 4), captured)
    assert not fits(None, captured)


def optimizer_of(net, seed=0):
    optimizer = torch.optim.SGD(net.head.parameters(), lr=0.1)
    weight, _ = net.head.parameters()
    optimizer.state[weight] = {"step": 3, "moment": state(seed), "nested": {"list": [mx(seed + 1)]}}
    return optimizer


def names_of(net):
    return {id(parameter): name for name, parameter in net.named_parameters()}


def test_optimizer_state_is_made_or_filled_in_place():
    source, target = Net(), Net()
    record = capture_optimizer(optimizer_of(source), names_of(source), "optimizer.o")
    live = optimizer_of(target, seed=20)
    fresh = torch.optim.SGD(target.head.parameters(), lr=0.1)
    moment = live.state[target.head.weight]["moment"]
    for optimizer in (live, fresh):
        names = names_of(target)
        assert list(check_optimizer(record, optimizer, names, "optimizer.o")) == []
        run(plan_optimizer(record, optimizer, names, "optimizer.o", ()))
        again = capture_optimizer(optimizer, names, "optimizer.o")
        assert same(again.state, record.state)
    assert live.state[target.head.weight]["moment"] is moment


def test_state_that_shares_a_part_is_refused():
    net = Net()
    optimizer = optimizer_of(net)
    slots = optimizer.state[net.head.weight]
    slots["second"] = mx(scale=slots["nested"]["list"][0].scale)
    with pytest.raises(UnsupportedState, match="shares memory"):
        capture_optimizer(optimizer, names_of(net), "optimizer.o")


def test_state_that_lies_is_refused_before_anything_changes():
    net = Net()
    optimizer = optimizer_of(net)
    record = capture_optimizer(optimizer, names_of(net), "optimizer.o")
    moment = record.state["head.weight"]["moment"]
    object.__setattr__(moment, "context", [{"eval": "1"}])
    with pytest.raises(InvalidRecord):
        plan_optimizer(
            record, torch.optim.SGD(net.head.parameters(), lr=0.1), names_of(net), "optimizer.o", ()
        )
