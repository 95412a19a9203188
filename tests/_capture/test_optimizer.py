"""Optimizers by name: every class of torch, groups matched by members, options as asked and as they are."""

import inspect
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from segue import Training
from segue._capture.optimizer import capture_optimizer, check_optimizer
from segue._capture.options import bind_optimizer
from segue._record.diff import diff
from segue._record.tensors import CapturedTensor
from segue.errors import OptimizerMismatch, UnsupportedState

# SparseAdam takes sparse gradients only and has a test of its own.
CLASSES = sorted(
    (
        value
        for value in vars(torch.optim).values()
        if inspect.isclass(value) and issubclass(value, Optimizer) and value is not Optimizer
    ),
    key=lambda cls: cls.__name__,
)
VARIANTS = ({}, {"fused": True}, {"foreach": True}, {"foreach": False}, {"maximize": True}, {"momentum": 0.9})


def model(order=("first", "second"), dtype=torch.float32):
    torch.manual_seed(0)
    made = nn.Module()
    layers = {name: nn.Linear(4, 4, bias=False, dtype=dtype) for name in ("first", "second")}
    for name in order:
        made.add_module(name, layers[name])
    return made


def train(module, optimizer, steps=3):
    def closure():
        optimizer.zero_grad()
        x = torch.ones(2, 4, dtype=module.first.weight.dtype)
        loss = module.second(module.first(x)).float().pow(2).mean()
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)


def names_of(module):
    return {id(parameter): name for name, parameter in module.named_parameters()}


def configurations():
    for cls in CLASSES:
        for options in VARIANTS:
            if cls.__name__ != "SparseAdam" and options.keys() <= inspect.signature(cls).parameters.keys():
                yield pytest.param(cls, options, id=f"{cls.__name__}-{'-'.join(options) or 'default'}")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(("cls", "options"), list(configurations()))
def test_every_optimizer_of_torch_goes_on_with_the_same_bits(cls, options, dtype):
    def fresh():
        module = model(dtype=dtype)
        optimizer = cls(module.parameters(), **{"lr": 0.1, **options})
        return module, optimizer, Training(module, optimizer, rng=None)

    module, optimizer, training = fresh()
    train(module, optimizer)
    record = training.capture()
    module_2, optimizer_2, training_2 = fresh()
    training_2.restore(record)
    assert diff(record, training_2.capture()).identical
    train(module, optimizer)
    train(module_2, optimizer_2)
    assert diff(training.capture(), training_2.capture()).identical


def test_sparse_adam_keeps_its_integer_step():
    def fresh():
        torch.manual_seed(0)
        module = nn.Embedding(5, 2, sparse=True)
        optimizer = torch.optim.SparseAdam(module.parameters())
        return module, optimizer, Training(module, optimizer, rng=None)

    def step(module, optimizer):
        module(torch.tensor([1, 3])).pow(2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    module, optimizer, training = fresh()
    step(module, optimizer)
    module_2, optimizer_2, training_2 = fresh()
    training_2.restore(training.capture())
    assert type(optimizer_2.state[module_2.weight]["step"]) is int
    step(module, optimizer)
    step(module_2, optimizer_2)
    assert diff(training.capture(), training_2.capture()).identical


def capture(module, optimizer):
    return capture_optimizer(optimizer, names_of(module), "optimizer.o")


def findings(record, module, optimizer):
    return list(check_optimizer(record, optimizer, names_of(module), "optimizer.o"))


def codes(record, module, optimizer):
    return [finding.code for finding in findings(record, module, optimizer)]


def test_state_that_does_not_exist_stays_absent():
    module = model()
    optimizer = AdamW(module.parameters())
    before = dict(optimizer.state)
    assert capture(module, optimizer).state == {}
    assert dict(optimizer.state) == before == {}


def test_an_empty_slot_dictionary_is_not_an_absent_one():
    module = model()
    optimizer = SGD(module.parameters(), lr=0.1)
    optimizer.state[module.first.weight] = {}
    assert capture(module, optimizer).state == {"first.weight": {}}


def test_any_plain_value_is_state_of_a_slot():
    module = model()
    optimizer = SGD(module.parameters(), lr=0.1)
    slots = {"text": "abc", "list": [1, None, torch.ones(2)], "mask": torch.tensor([True]), "index": torch.tensor([2**40]),
             "block": torch.tensor([7], dtype=torch.uint8), "step": 16_777_217, "nested": {"a": {3: (0.5, None)}}}  # fmt: skip
    optimizer.state[module.first.weight] = slots
    training = Training(module, optimizer, rng=None)
    record = training.capture()
    optimizer.state.clear()
    training.restore(record)
    restored = optimizer.state[module.first.weight]
    assert restored["text"] == "abc"
    assert restored["nested"] == {"a": {3: (0.5, None)}}
    assert type(restored["step"]) is int
    assert restored["mask"].dtype is torch.bool
    assert restored["index"].dtype is torch.int64
    assert restored["block"].dtype is torch.uint8
    assert diff(record, training.capture()).identical


def test_a_restored_record_shares_no_memory_with_the_optimizer():
    module = model()
    optimizer = AdamW(module.parameters(), lr=0.1)
    train(module, optimizer)
    training = Training(module, optimizer, rng=None)
    record, again = training.capture(), training.capture()
    training.restore(record)
    train(module, optimizer)
    assert diff(record, again).identical


def test_state_of_the_same_layout_is_filled_in_place():
    module = model()
    optimizer = AdamW(module.parameters(), lr=0.1)
    train(module, optimizer)
    training = Training(module, optimizer, rng=None)
    record = training.capture()
    moment = optimizer.state[module.first.weight]["exp_avg"]
    train(module, optimizer)
    training.restore(record)
    assert optimizer.state[module.first.weight]["exp_avg"] is moment


def overlapping(module):
    shared = torch.zeros(4)
    return {
        "two slots": ({"a": shared, "b": shared}, "shared with optimizer.o state first.weight a"),
        "overlapping views": (
            {"a": shared[:3], "b": [shared[2:]]},
            "shared with optimizer.o state first.weight a",
        ),
        "a parameter": ({"a": module.first.weight.detach()[1:]}, "shared with first.weight"),
        "another parameter": ({"a": {"x": (module.second.weight.detach(),)}}, "shared with second.weight"),
    }


@pytest.mark.parametrize("kind", overlapping(model()))
def test_slots_that_share_memory_are_refused(kind):
    module = model()
    optimizer = SGD(module.parameters(), lr=0.1)
    slots, found = overlapping(module)[kind]
    optimizer.state[module.first.weight] = slots
    with pytest.raises(UnsupportedState, match="shares memory") as caught:
        capture(module, optimizer)
    assert caught.value.found == found


def test_one_counter_for_two_parameters_is_refused():
    module = model()
    optimizer = SGD(module.parameters(), lr=0.1)
    step = torch.tensor(1.0)
    for parameter in module.parameters():
        optimizer.state[parameter] = {"step": step}
    with pytest.raises(UnsupportedState, match="shares memory"):
        capture(module, optimizer)


def test_slots_side_by_side_in_one_buffer_are_kept():
    module = model()
    optimizer = SGD(module.parameters(), lr=0.1)
    flat = torch.arange(4.0)
    optimizer.state[module.first.weight] = {"a": flat[:2], "b": flat[2:], "none": torch.empty(0)}
    training = Training(module, optimizer, rng=None)
    training.restore(training.capture())
    assert [optimizer.state[module.first.weight][key].tolist() for key in ("a", "b")] == [[0, 1], [2, 3]]


def test_slots_that_are_views_of_one_buffer_are_not_filled_through_each_other():
    module = model()
    optimizer = SGD(module.parameters(), lr=0.1)
    shared = torch.zeros(4)
    optimizer.state[module.first.weight] = {"a": torch.zeros(2), "b": torch.ones(2)}
    training = Training(module, optimizer, rng=None)
    record = training.capture()
    optimizer.state[module.first.weight] = {"a": shared[:2], "b": shared[1:3]}
    training.restore(record)
    slots = optimizer.state[module.first.weight]
    assert slots["a"].tolist() == [0, 0]
    assert slots["b"].tolist() == [1, 1]
    assert shared.tolist() == [0, 0, 0, 0]


def test_tensor_options_are_filled_in_place_and_float_options_stay_floats():
    module = model()
    optimizer = AdamW(module.parameters(), lr=torch.tensor(0.1))
    rate, group = optimizer.param_groups[0]["lr"], optimizer.param_groups[0]
    training = Training(module, optimizer, rng=None)
    rate.fill_(0.025)
    record = training.capture()
    rate.fill_(0.1)
    training.restore(record)
    assert optimizer.param_groups[0] is group
    assert group["lr"] is rate
    assert rate.item() == torch.tensor(0.025).item()
    assert type(group["betas"]) is tuple
    assert type(group["weight_decay"]) is float


def test_two_options_that_are_one_tensor_come_back_as_two_values():
    module = model()
    optimizer = SGD(module.parameters(), lr=torch.tensor(0.1))
    group = optimizer.param_groups[0]
    training = Training(module, optimizer, rng=None)
    group["initial"] = torch.tensor(0.5)
    record = training.capture()
    group["initial"] = group["lr"]
    training.restore(record)
    assert (group["lr"].item(), group["initial"].item()) == (torch.tensor(0.1).item(), 0.5)


def test_an_option_that_was_added_on_the_way_comes_back_and_a_newer_one_goes():
    module = model()
    optimizer = SGD(module.parameters(), lr=0.1)
    training = Training(module, optimizer, rng=None)
    optimizer.param_groups[0]["tag"] = {"warm": (1, 2)}
    record = training.capture()
    del optimizer.param_groups[0]["tag"]
    optimizer.param_groups[0]["other"] = 1
    training.restore(record)
    assert optimizer.param_groups[0]["tag"] == {"warm": (1, 2)}
    assert "other" not in optimizer.param_groups[0]


def test_another_class_is_refused_and_nothing_else_is_compared():
    module = model()
    record = capture(module, AdamW(module.parameters()))
    assert codes(record, module, torch.optim.Adam(module.parameters())) == ["optimizer.o.class"]


def test_every_changed_option_has_its_own_code_and_can_be_accepted():
    module = model()
    record = capture(module, AdamW(module.parameters(), lr=0.1, betas=(0.9, 0.99), foreach=True))
    found = findings(record, module, AdamW(module.parameters(), lr=0.2, betas=(0.8, 0.99), foreach=None))
    assert [item.code for item in found] == ["optimizer.o.lr", "optimizer.o.betas", "optimizer.o.foreach"]
    assert all(item.admissible for item in found)
    assert (found[0].expected, found[0].found) == (0.1, 0.2)


def test_a_float_and_a_tensor_rate_are_different_requests():
    module = model()
    record = capture(module, SGD(module.parameters(), lr=1.0))
    assert codes(record, module, SGD(module.parameters(), lr=torch.tensor(1.0))) == ["optimizer.o.lr"]


def test_the_option_that_a_run_has_arrived_at_may_be_asked_for():
    module = model()
    optimizer = SGD(module.parameters(), lr=0.1)
    bind_optimizer(optimizer, "optimizer.o")
    optimizer.param_groups[0]["lr"] = 0.01
    record = capture(module, optimizer)
    assert codes(record, module, SGD(module.parameters(), lr=0.01)) == []
    assert codes(record, module, SGD(module.parameters(), lr=0.1)) == []
    assert codes(record, module, SGD(module.parameters(), lr=0.05)) == ["optimizer.o.lr"]


def test_a_group_that_is_added_later_asks_for_what_it_has_at_the_next_step():
    module = model()
    weight, bias = module.parameters()
    optimizer = SGD([weight], lr=0.1)
    bind_optimizer(optimizer, "optimizer.o")
    bind_optimizer(optimizer, "optimizer.o")
    assert len(optimizer._optimizer_step_pre_hooks) == 1
    optimizer.add_param_group({"params": [bias], "lr": 0.2})
    optimizer.step()
    optimizer.param_groups[1]["lr"] = 0.05
    assert [group.configured["lr"] for group in capture(module, optimizer).groups] == [0.1, 0.2]
    # Another one takes its place.
    del optimizer.param_groups[1]
    optimizer.step()
    optimizer.add_param_group({"params": [bias], "lr": 0.3})
    optimizer.step()
    assert [group.configured["lr"] for group in capture(module, optimizer).groups] == [0.1, 0.3]
    optimizer.add_param_group({"params": [], "tag": object()})
    optimizer.step()  # capture tells
    with pytest.raises(UnsupportedState, match="tag"):
        capture(module, optimizer)


def test_an_option_on_one_side_only_is_refused_and_can_be_accepted():
    module = model()
    plain, tagged = SGD(module.parameters(), lr=0.1), SGD(module.parameters(), lr=0.1)
    tagged.param_groups[0]["tag"] = 1
    for record, live in ((capture(module, plain), tagged), (capture(module, tagged), plain)):
        [finding] = findings(record, module, live)
        assert finding.code == "optimizer.o.tag"
        assert finding.admissible


def test_parameters_in_another_order_are_named_and_can_be_accepted():
    module = model()
    record = capture(module, AdamW([module.first.weight, module.second.weight]))
    [finding] = findings(record, module, AdamW([module.second.weight, module.first.weight]))
    assert finding.code == "optimizer.o.order"
    assert finding.admissible
    assert "second.weight, first.weight" in finding.where


def test_another_order_under_lbfgs_is_refused_for_good():
    # Its vectors are flat over all parameters and lie under the first of them.
    module = model()
    record = capture(module, torch.optim.LBFGS([module.first.weight, module.second.weight]))
    [finding] = findings(record, module, torch.optim.LBFGS([module.second.weight, module.first.weight]))
    assert finding.code == "optimizer.o.order"
    assert not finding.admissible


@pytest.mark.parametrize(
    ("lying", "expected", "found"),
    [
        ([("first.weight", "second.weight"), ("second.weight",)], [0, 1], 1),
        ([("first.weight",), ("second.weight", "second.weight")], [1, 1], 1),
    ],
    ids=["in two groups", "twice in one"],
)
def test_a_parameter_that_stands_twice_is_found_wherever_it_stands_last(lying, expected, found):
    module = model()
    live = SGD([{"params": [module.first.weight]}, {"params": [module.second.weight]}], lr=0.1)
    honest = capture(module, live)
    groups = tuple(
        replace(group, parameters=members) for group, members in zip(honest.groups, lying, strict=True)
    )
    [finding] = check_optimizer(replace(honest, groups=groups), live, names_of(module), "optimizer.o")
    assert (finding.code, finding.expected, finding.found) == (
        "optimizer.o.group.second.weight", expected, found,
    )  # fmt: skip


def test_groups_in_another_order_keep_their_own_options():
    module = model()
    first, second = (
        {"params": [module.first.weight], "lr": 0.1},
        {"params": [module.second.weight], "lr": 0.2},
    )
    record = capture(module, SGD([dict(first), dict(second)]))
    assert codes(record, module, SGD([dict(second), dict(first)])) == ["optimizer.o.group_order"]


def test_each_parameter_whose_membership_changed_is_named():
    module = model()
    one = capture(module, SGD(module.parameters(), lr=0.1))
    two = SGD([{"params": [module.first.weight]}, {"params": [module.second.weight]}], lr=0.1)
    assert codes(one, module, two) == ["optimizer.o.groups", "optimizer.o.group.second.weight"]
    assert codes(one, module, SGD([module.first.weight], lr=0.1)) == ["optimizer.o.missing.second.weight"]
    less = capture(module, SGD([module.first.weight], lr=0.1))
    assert codes(less, module, SGD(module.parameters(), lr=0.1)) == ["optimizer.o.extra.second.weight"]


def test_a_record_with_state_of_a_stranger_is_refused():
    module = model()
    optimizer = SGD(module.parameters(), lr=0.1)
    record = capture(module, optimizer)
    odd = replace(record, state={"ghost": {}})
    assert codes(odd, module, optimizer) == ["optimizer.o.state.ghost"]


def test_a_parameter_of_no_registered_module_is_refused_by_group_and_position():
    module = model()
    stray = nn.Parameter(torch.zeros(3))
    optimizer = SGD([*module.parameters(), stray], lr=0.1)
    with pytest.raises(UnsupportedState, match="no registered module") as caught:
        capture(module, optimizer)
    assert caught.value.where == "optimizer.o group 0 parameter 2"
    assert "(3,)" in caught.value.found


class Remembering(SGD):
    def __init__(self, parameters):
        super().__init__(parameters, lr=0.1)
        self.distance = 1.0


class OwnWay(SGD):
    def state_dict(self):
        return super().state_dict()


def test_an_attribute_that_has_moved_is_refused_by_name():
    module = model()
    optimizer = Remembering(module.parameters())
    assert capture(module, optimizer).attributes == {"distance": 1.0}
    optimizer.distance = 2.0
    with pytest.raises(UnsupportedState, match=r"distance \(1.0 -> 2.0\)") as caught:
        capture(module, optimizer)
    assert caught.value.code == "capture.hidden_state"


def hooked(kind):
    def make(parameters, lr):
        optimizer = SGD(parameters, lr=lr)
        getattr(optimizer, f"register_{kind}_hook")(lambda *values: None)
        return optimizer

    return make


@pytest.mark.parametrize(
    "make",
    [OwnWay, *map(hooked, ("state_dict_pre", "state_dict_post", "load_state_dict_pre", "load_state_dict_post"))],
)  # fmt: skip
def test_one_with_its_own_way_of_saving_can_not_be_read(make):
    module = model()
    optimizer = make(module.parameters(), lr=0.1)
    with pytest.raises(UnsupportedState, match="own `state_dict`") as caught:
        capture(module, optimizer)
    assert caught.value.code == "capture.own_saving"
    assert "Training(model, optimizer)" in caught.value.hint


def test_state_under_something_else_than_a_parameter_of_a_group_is_refused():
    module = model()
    optimizer = SGD([module.first.weight], lr=0.1)
    optimizer.state["global"] = {"step": 1}
    with pytest.raises(UnsupportedState, match="belongs to no parameter"):
        capture(module, optimizer)
    optimizer.state.clear()
    optimizer.state[module.second.weight] = {}
    with pytest.raises(UnsupportedState, match="in no group"):
        capture(module, optimizer)


def test_a_slot_without_an_exact_encoding_is_refused_by_its_path():
    module = model()
    optimizer = SGD(module.parameters(), lr=0.1)
    optimizer.state[module.first.weight] = {"hook": lambda: None}
    with pytest.raises(UnsupportedState) as caught:
        capture(module, optimizer)
    assert caught.value.where == "optimizer.o state first.weight['hook']"
    assert caught.value.found == "builtins.function"


def test_a_group_that_was_added_later_counts_as_configured_as_it_is():
    module = model()
    optimizer = SGD([module.first.weight], lr=0.1)
    bind_optimizer(optimizer, "optimizer.o")
    optimizer.add_param_group({"params": [module.second.weight], "lr": 0.3})
    record = capture(module, optimizer)
    assert [group.configured["lr"] for group in record.groups] == [0.1, 0.3]


def test_the_names_a_program_gave_its_parameters_are_no_option():
    module = model()
    record = capture(module, AdamW(module.named_parameters()))
    assert "param_names" not in record.groups[0].options
    assert codes(record, module, AdamW(module.parameters())) == []


def test_a_mismatch_is_raised_with_the_class_of_optimizers():
    module = model()
    training = Training(module, AdamW(module.parameters(), lr=0.1), rng=None)
    other = Training(module, AdamW(module.parameters(), lr=0.2), rng=None)
    with pytest.raises(OptimizerMismatch):
        other.restore(training.capture())


def test_the_dtype_of_state_is_its_own_not_that_of_the_parameter():
    module = model(dtype=torch.bfloat16)
    optimizer = torch.optim.NAdam(module.parameters(), lr=0.1, foreach=True)
    train(module, optimizer, 1)
    slots = capture(module, optimizer).state["first.weight"]
    assert isinstance(slots["mu_product"], CapturedTensor)
    assert slots["mu_product"].dtype is torch.float32
    assert slots["exp_avg"].dtype is torch.bfloat16


def test_a_sparse_slot_comes_back_as_it_was():
    module = model()
    optimizer, fresh = (SGD(module.parameters(), lr=0.1) for _ in range(2))
    indices = torch.tensor([[2, 0, 2]])
    rows = torch.sparse_coo_tensor(indices, torch.arange(3.0), (4,), check_invariants=True)
    optimizer.state[module.first.weight] = {"rows": rows}
    training = Training(module, fresh, rng=None)
    record = Training(module, optimizer, rng=None).capture()
    training.restore(record)
    again = fresh.state[module.first.weight]["rows"]
    assert not again.is_coalesced()
    assert torch.equal(again._indices(), indices)
    assert diff(record, training.capture()).identical
