"""Masters are what is stepped and kept, by name and bit for bit; the parameters are their casts."""

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.optim import (
    SGD,
    Adadelta,
    Adafactor,
    Adagrad,
    AdamW,
    Muon,
    NAdam,
    Optimizer,
    RMSprop,
    lr_scheduler,
)

from segue import Training, WeightedAccumulator
from segue._record.diff import diff
from segue.errors import MismatchError, OptimizerMismatch, UnsupportedState
from segue.optim import FP32Master
from tests.cases.state import live, raw

pytestmark = pytest.mark.filterwarnings("ignore:state that segue can see")  # of a run that stands beside

HALVES = [torch.bfloat16, torch.float16]
INNER = {
    "sgd": (SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    "plain sgd": (SGD, {}),
    "adamw foreach": (AdamW, {"foreach": True}),
    "adamw fused": (AdamW, {"fused": True}),
    "adamw loop": (AdamW, {"foreach": False, "amsgrad": True}),
    "adamw tensor lr": (AdamW, {"lr": torch.tensor(0.01), "foreach": False}),
    "muon": (Muon, {}),
    "nadam foreach": (NAdam, {"foreach": True}),
    "adafactor": (Adafactor, {}),
    "adagrad, which makes its state when it is built": (Adagrad, {"initial_accumulator_value": 0.5}),
    "adadelta": (Adadelta, {"maximize": True}),
    "rmsprop": (RMSprop, {"centered": True, "momentum": 0.5}),
}


def matrices(dtype=torch.bfloat16):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6, bias=False), nn.Linear(6, 4, bias=False)).to(dtype)


def one(value, dtype):
    """A model of one weight."""
    model = nn.Linear(1, 1, bias=False, dtype=dtype)
    with torch.no_grad():
        model.weight.fill_(value)
    return model


def give_gradients(model, seed):
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        gradient = torch.randn(parameter.shape, generator=generator)
        parameter.grad = gradient.to(parameter.grad_dtype or parameter.dtype)


def fp32_copies(model):
    return [parameter.detach().float().clone() for parameter in model.parameters()]


def assert_equals_plain(model, optimizer, copies, plain):
    """Assert that masters and slots are the bits of the plain optimizer over fp32 copies, and parameters their casts."""
    for parameter, own in zip(model.parameters(), copies, strict=True):
        slots = dict(optimizer.state[parameter])
        assert raw(slots.pop("master")) == raw(own)
        assert raw(slots) == raw(dict(plain.state[own]))
        assert raw(parameter) == raw(own.to(parameter.dtype))


@pytest.mark.parametrize("dtype", HALVES)
def test_79_updates_below_half_precision_are_kept_over_64_steps(dtype):
    model = one(1.0, dtype)
    optimizer = FP32Master(model.parameters(), SGD, lr=1e-4)
    expected = torch.ones(1, 1)
    for _ in range(64):
        model.weight.grad = torch.full((1, 1), -1.0)
        optimizer.step()
        expected += 1e-4
    assert raw(optimizer.master(model.weight)) == raw(expected)
    assert raw(model.weight) == raw(expected.to(dtype))
    lost = one(1.0, dtype)
    plain = SGD(lost.parameters(), lr=1e-4)
    for _ in range(64):
        lost.weight.grad = torch.full((1, 1), -1.0, dtype=dtype)
        plain.step()
    assert lost.weight.item() == 1.0


@pytest.mark.parametrize("kind", INNER)
@pytest.mark.parametrize("dtype", [*HALVES, torch.float32])
def test_79_a_record_round_trip_at_every_step_stays_the_plain_optimizer_on_fp32_copies(dtype, kind):
    inner, options = INNER[kind]
    options = {"lr": 0.01, **options}
    model = matrices(dtype)
    copies, training = fp32_copies(model), None
    plain = inner(copies, **options)
    for step in range(5):
        fresh = matrices(dtype)
        optimizer = FP32Master(fresh.parameters(), inner, **options)
        again = Training(fresh, optimizer, rng=None)
        if training is not None:
            record = training.capture()
            again.restore(record)
            assert diff(record, again.capture()).identical
        training = again
        give_gradients(fresh, step)
        for own, parameter in zip(copies, fresh.parameters(), strict=True):
            own.grad = parameter.grad.clone()
        optimizer.step()
        optimizer.zero_grad()
        plain.step()
        assert_equals_plain(fresh, optimizer, copies, plain)


def test_a_record_has_masters_by_name_and_no_other_dtype():
    model = matrices()
    optimizer = FP32Master(model.parameters(), AdamW)
    training = Training(model, optimizer, rng=None)
    assert training.capture().optimizers["optimizer"].state == {}
    give_gradients(model, 0)
    optimizer.step()
    record = training.capture().optimizers["optimizer"]
    assert record.class_name == "segue.optim.FP32Master"
    assert record.attributes == {"inner": "torch.optim.adamw.AdamW", "max_norm": None}
    assert list(record.state) == ["0.weight", "1.weight"]
    assert list(record.state["0.weight"]) == ["master", "step", "exp_avg", "exp_avg_sq"]
    assert {value.dtype for value in record.state["0.weight"].values()} == {torch.float32}


@pytest.mark.parametrize(
    ("build", "code"),
    [
        (partial(FP32Master, inner=NAdam), "optimizer.optimizer.attribute.inner"),
        (partial(FP32Master, inner=AdamW, max_norm=1.0), "optimizer.optimizer.attribute.max_norm"),
        (AdamW, "optimizer.optimizer.class"),
    ],
)
def test_a_record_of_another_inner_optimizer_or_norm_is_refused(build, code):
    record = Training(model := matrices(), FP32Master(model.parameters(), AdamW, lr=1e-3)).capture()
    other = matrices()
    with pytest.raises(MismatchError) as caught:
        Training(other, build(other.parameters(), lr=1e-3)).restore(record, accept=[code])
    assert code in [finding.code for finding in caught.value.findings]


def test_an_option_that_differs_can_be_accepted():
    record = Training(model := matrices(), FP32Master(model.parameters(), AdamW, lr=1e-3)).capture()
    other = matrices()
    optimizer = FP32Master(other.parameters(), AdamW, lr=1e-4)
    Training(other, optimizer).restore(record, accept=["optimizer.optimizer.lr"])
    assert optimizer.param_groups[0]["lr"] == 1e-4


@pytest.mark.parametrize("scale", [3.0, 2.0**16, 1e-6])
def test_the_gradient_scale_is_divided_out_in_fp32_before_clipping(scale):
    model, scaled = matrices(), matrices()
    one, other = (FP32Master(m.parameters(), SGD, lr=0.1, max_norm=0.5) for m in (model, scaled))
    for step in range(3):
        give_gradients(model, step)
        exact = torch.tensor(scale)
        for parameter, its in zip(model.parameters(), scaled.parameters(), strict=True):
            its.grad = parameter.grad * exact
            parameter.grad = its.grad / exact
        one.step()
        other.step(gradient_scale=scale)
        model.zero_grad()
        scaled.zero_grad()
    assert live(model, one) == live(scaled, other)


def test_clipping_is_that_of_torch_over_all_groups_in_fp32_and_leaves_gradients_alone():
    model = matrices()
    copies = fp32_copies(model)
    plain = SGD(copies, lr=0.1)
    groups = [{"params": [parameter]} for parameter in model.parameters()]
    optimizer = FP32Master(groups, SGD, lr=0.1, max_norm=0.5)
    assert optimizer.max_norm == 0.5
    give_gradients(model, 0)
    before = [(id(p.grad), raw(p.grad)) for p in model.parameters()]
    for own, parameter in zip(copies, model.parameters(), strict=True):
        own.grad = parameter.grad.clone()
    nn.utils.clip_grad_norm_(copies, 0.5)
    optimizer.step()
    plain.step()
    assert [(id(p.grad), raw(p.grad)) for p in model.parameters()] == before
    assert_equals_plain(model, optimizer, copies, plain)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("inf"), float("nan"), 1e-39, 1e39])
def test_a_scale_that_fp32_can_not_divide_by_is_refused(scale):
    model = matrices()
    optimizer = FP32Master(model.parameters(), SGD, lr=0.1)
    give_gradients(model, 0)
    before = live(model, optimizer)
    with pytest.raises(ValueError, match="gradient scale"):
        optimizer.step(gradient_scale=scale)
    assert live(model, optimizer) == before


@pytest.mark.parametrize("dtype", HALVES)
def test_gradients_are_summed_in_fp32_and_one_in_the_own_dtype_is_cast(dtype):
    model = one(1.0, dtype)
    optimizer = FP32Master(model.parameters(), SGD, lr=1.0)
    for scale in (1.0, 2.0**-12):
        (model(torch.ones(1, 1, dtype=dtype)) * scale).sum().backward()
    assert model.weight.grad.dtype is torch.float32
    assert model.weight.grad.item() == 1 + 2.0**-12
    optimizer.zero_grad()
    model.weight.grad_dtype = dtype
    model.weight.grad = torch.full((1, 1), 0.1, dtype=dtype)
    optimizer.step()
    assert raw(optimizer.master(model.weight)) == raw(1.0 - torch.full((1, 1), 0.1, dtype=dtype).float())


def test_a_weighted_window_hands_out_its_fp32_mean_uncast():
    model = one(1.0, torch.bfloat16)
    optimizer = FP32Master(model.parameters(), SGD, lr=1.0)
    window = WeightedAccumulator(model, microbatches=2)
    for value, weight in ((1.0, 3.0), (2.0**-10, 4.0)):
        (model(torch.ones(1, 1, dtype=torch.bfloat16)) * value).sum().backward()
        window.add_sum(weight)
    window.finish_mean()
    mean = (torch.tensor(1.0) + 2.0**-10) / 7
    assert raw(model.weight.grad) == raw(mean.reshape(1, 1))
    assert raw(mean) != raw(mean.bfloat16().float())
    optimizer.step()
    assert raw(optimizer.master(model.weight)) == raw((1 - mean).reshape(1, 1))


class Nasty(nn.Module):
    """Tied, frozen and unused parameters."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.unused, self.frozen = (nn.Linear(3, 3, bias=False) for _ in range(4))
        self.second.weight = self.first.weight
        self.frozen.weight.requires_grad_(False)
        self.bfloat16()

    def forward(self, x):
        return self.frozen(self.second(self.first(x)))


def test_tied_parameters_have_one_master_and_unused_and_frozen_ones_none():
    model = Nasty()
    optimizer = FP32Master(model.parameters(), AdamW, lr=0.1, weight_decay=0.5)
    training = Training(model, optimizer, rng=None)
    untouched = raw([model.unused.weight, model.frozen.weight])
    model(torch.ones(2, 3, dtype=torch.bfloat16)).float().pow(2).sum().backward()
    optimizer.step()
    assert raw([model.unused.weight, model.frozen.weight]) == untouched
    assert list(optimizer.state) == [model.first.weight]
    assert optimizer.master(model.unused.weight) is None
    record = training.capture()
    assert list(record.optimizers["optimizer"].state) == ["first.weight"]
    again = Nasty()
    other = FP32Master(again.parameters(), AdamW, lr=0.1, weight_decay=0.5)
    Training(again, other, rng=None).restore(record)
    assert again.second.weight is again.first.weight
    assert live(again, other) == live(model, optimizer)


def test_a_step_without_any_gradient_changes_nothing():
    model = matrices()
    optimizer = FP32Master(model.parameters(), AdamW)
    before = live(model, optimizer)
    assert optimizer.step() is None
    assert live(model, optimizer) == before


def test_a_parameter_that_gets_its_first_gradient_later_begins_then():
    model = matrices()
    optimizer = FP32Master(model.parameters(), AdamW, lr=0.1)
    give_gradients(model, 0)
    model[1].weight.grad = None
    optimizer.step()
    give_gradients(model, 1)
    optimizer.step()
    assert [optimizer.state[p]["step"].item() for p in model.parameters()] == [2, 1]


def test_groups_have_options_of_their_own_and_can_be_added():
    model = matrices()
    copies = fp32_copies(model)
    plain = AdamW([copies[0]], lr=0.1)
    optimizer = FP32Master([("first", model[0].weight)], AdamW, lr=0.1)
    for step in range(3):
        if step == 1:
            added = {"lr": 0.01, "weight_decay": 0.3, "tag": "late"}
            optimizer.add_param_group({"params": [("second", model[1].weight)], **added})
            plain.add_param_group({"params": [copies[1]], **added})
            assert model[1].weight.grad_dtype is torch.float32
        give_gradients(model, step)
        if step == 0:
            model[1].weight.grad = None
        for own, parameter in zip(copies, model.parameters(), strict=True):
            own.grad = None if parameter.grad is None else parameter.grad.clone()
        optimizer.step()
        plain.step()
    assert optimizer.param_groups[1]["tag"] == "late"
    assert optimizer.param_groups[1]["param_names"] == ["second"]
    assert_equals_plain(model, optimizer, copies, plain)


@pytest.mark.parametrize("tensor_lr", [False, True])
def test_schedulers_drive_it(tensor_lr):
    model = matrices()
    copies = fp32_copies(model)
    lrs = [torch.tensor(0.1) if tensor_lr else 0.1 for _ in range(2)]
    optimizer = FP32Master(model.parameters(), AdamW, lr=lrs[0], foreach=False)
    plain = AdamW(copies, lr=lrs[1], foreach=False)
    schedules = [lr_scheduler.OneCycleLR(each, 0.2, 6) for each in (optimizer, plain)]
    training = Training(model, optimizer, schedules[0], rng=None)
    for step in range(4):
        give_gradients(model, step)
        for own, parameter in zip(copies, model.parameters(), strict=True):
            own.grad = parameter.grad.clone()
        optimizer.step()
        plain.step()
        for schedule in schedules:
            schedule.step()
        training.restore(training.capture())
    assert_equals_plain(model, optimizer, copies, plain)
    assert raw(optimizer.param_groups[0]["lr"]) == raw(plain.param_groups[0]["lr"])


@pytest.mark.parametrize("unscales", [False, True])
def test_a_grad_scaler_is_divided_out_in_fp32_and_skips_overflows(unscales):
    model, plainly = one(1.0, torch.float16), one(1.0, torch.float16)
    optimizer, other = (FP32Master(m.parameters(), SGD, lr=0.1, momentum=0.9) for m in (model, plainly))
    training = Training(model, optimizer, rng=None)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**17, growth_interval=100)
    x = torch.full((1, 1), 0.3, dtype=torch.float16)
    for _ in range(5):
        scaler.scale(model(x).float().sum()).backward()
        if unscales:
            scaler.unscale_(optimizer)
        before = live(model, optimizer)
        overflows = not model.weight.grad.isfinite().all()
        scaler.step(optimizer)
        scaler.update()
        if overflows:
            assert live(model, optimizer) == before
        else:
            plainly(x).float().sum().backward()
            other.step()
        optimizer.zero_grad()
        other.zero_grad()
        training.capture()  # it leaves no attribute behind
    assert scaler.get_scale() == 2.0**15
    assert optimizer.master(model.weight).item() < 1.0
    assert raw(dict(optimizer.state[model.weight])) == raw(dict(other.state[plainly.weight]))


def test_a_closure_is_called_once_with_gradients_enabled():
    model = one(1.0, torch.bfloat16)
    optimizer = FP32Master(model.parameters(), SGD, lr=0.5)
    calls = []

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(1, 1, dtype=torch.bfloat16)).sum()
        loss.backward()
        calls.append(loss)
        return loss

    assert optimizer.step(closure) is calls[0]
    assert len(calls) == 1
    assert model.weight.item() == 0.5


def test_hooks_see_it_as_any_optimizer():
    model = matrices()
    optimizer = FP32Master(model.parameters(), SGD, lr=0.5)
    seen = []
    optimizer.register_step_pre_hook(lambda who, *_: seen.append(("before", who)))
    optimizer.register_step_post_hook(lambda who, *_: seen.append(("after", who)))
    give_gradients(model, 0)
    optimizer.step()
    assert seen == [("before", optimizer), ("after", optimizer)]


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32])
def test_an_edit_of_the_parameter_is_followed_where_it_changes_bits(dtype):
    model = nn.Linear(4, 1, bias=False, dtype=dtype)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 2.0, -0.5, 0.25]]))
    optimizer = FP32Master(model.parameters(), SGD, lr=1e-5)

    def step():
        model.weight.grad = torch.ones(1, 4)
        optimizer.step()

    step()
    kept = optimizer.master(model.weight).clone()
    model.weight.data[0, 1] = 3.0  # which no version counter sees
    with torch.no_grad():
        model.weight.clamp_(min=0.0)
    assert raw(optimizer.master(model.weight)) == raw(kept)
    step()
    expected = torch.where(torch.tensor([[True, False, False, True]]), kept, torch.tensor([[0, 3.0, 0, 0]]))
    assert raw(optimizer.master(model.weight)) == raw(expected - 1e-5)
    assert raw(model.weight) == raw((expected - 1e-5).to(dtype))


def test_an_edit_between_a_step_and_a_save_is_followed_after_the_resume_as_without_it():
    def fresh():
        model = matrices()
        optimizer = FP32Master(model.parameters(), AdamW, lr=1e-4)
        return model, optimizer, Training(model, optimizer, rng=None)

    def step(model, optimizer, seed):
        give_gradients(model, seed)
        optimizer.step()
        optimizer.zero_grad()

    model, optimizer, training = fresh()
    step(model, optimizer, 0)
    with torch.no_grad():
        model[0].weight[2:].zero_()
    other, its, resumed = fresh()
    resumed.restore(training.capture())
    for each in ((model, optimizer), (other, its)):
        step(*each, 1)
    assert live(other, its) == live(model, optimizer)
    assert not model[0].weight[2:].eq(0).all()


def test_minus_zero_is_an_edit_and_not_a_number_stays():
    model = nn.Linear(2, 1, bias=False, dtype=torch.bfloat16)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.0, float("nan")]]))
    optimizer = FP32Master(model.parameters(), SGD, lr=0.0)
    for value in (0.0, -0.0):
        with torch.no_grad():
            model.weight[0, 0] = value
        model.weight.grad = torch.zeros(1, 2)
        optimizer.step()
        assert raw(model.weight[0, 0]) == raw(torch.tensor(value, dtype=torch.bfloat16))
        assert model.weight[0, 1].isnan()


def test_layouts_are_kept():
    model = nn.Conv2d(3, 4, 3).to(torch.bfloat16).to(memory_format=torch.channels_last)
    optimizer = FP32Master(model.parameters(), AdamW)
    give_gradients(model, 0)
    optimizer.step()
    assert optimizer.master(model.weight).stride() == model.weight.stride()
    assert optimizer.state[model.weight]["exp_avg"].stride() == model.weight.stride()


def trained(seed=0, steps=3, **options):
    model = matrices()
    optimizer = FP32Master(model.parameters(), AdamW, lr=0.01, **options)
    for step in range(steps):
        give_gradients(model, seed + step)
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


@pytest.mark.parametrize("fused", [False, True])
def test_state_dicts_of_torch_come_back_uncast(fused):
    model, optimizer = trained(fused=fused)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    other, its = trained(steps=0, fused=fused)
    called = []
    its.register_load_state_dict_pre_hook(lambda *_: called.append("before"))
    its.register_load_state_dict_post_hook(lambda who: called.append(len(who.state)))
    its.load_state_dict(optimizer.state_dict())
    other.load_state_dict(saved[0])
    assert called == ["before", 2]
    assert live(other, its) == live(model, optimizer)
    for each in ((model, optimizer), (other, its)):
        give_gradients(each[0], 9)
        each[1].step()
    assert live(other, its) == live(model, optimizer)
    assert raw(saved[1]["state"][0]["master"]) != raw(its.state_dict()["state"][0]["master"])


def test_a_state_dict_that_a_hook_changes_is_the_one_that_is_loaded():
    _, optimizer = trained()
    other, its = trained(steps=0)
    its.register_load_state_dict_pre_hook(lambda _, saved: {**saved, "state": {0: saved["state"][0]}})
    its.load_state_dict(optimizer.state_dict())
    assert list(its.state) == [other[0].weight]


def test_a_state_dict_of_another_optimizer_or_shape_is_refused_before_anything_changes():
    model, optimizer = trained()
    before = live(model, optimizer)
    plain = AdamW(fp32_copies(model))
    for parameter in plain.param_groups[0]["params"]:
        parameter.grad = torch.ones_like(parameter)
    plain.step()
    half = optimizer.state_dict()
    half["state"] = {0: {**half["state"][0], "master": half["state"][0]["master"].bfloat16()}}
    turned = optimizer.state_dict()
    turned["param_groups"] = [{**turned["param_groups"][0], "params": [1, 0]}]
    for saved in (plain.state_dict(), half, turned):
        with pytest.raises(OptimizerMismatch, match="not the state of an FP32Master") as caught:
            optimizer.load_state_dict(saved)
        assert caught.value.code == "optim.state"
        assert live(model, optimizer) == before
    fewer = optimizer.state_dict()
    fewer["param_groups"] = [{**fewer["param_groups"][0], "params": [0]}]
    with pytest.raises(ValueError, match="doesn't match the size"):
        optimizer.load_state_dict(fewer)
    assert live(model, optimizer) == before


def test_a_deep_copy_goes_on_alike():
    model, optimizer = trained(max_norm=0.7)
    other, its = copy.deepcopy((model, optimizer))
    assert (its.inner_class, its.max_norm) == (AdamW, 0.7)
    for each in ((model, optimizer), (other, its)):
        for parameter in each[0].parameters():
            parameter.grad_dtype = torch.float32  # which copies don't have (torch 2.13)
        give_gradients(each[0], 5)
        each[1].step()
    assert live(other, its) == live(model, optimizer)


class WithCounter(SGD):
    """Keeps state in an attribute, from its first step on."""

    def step(self, closure=None):
        self.calls = 1
        return super().step(closure)


class WithStrayState(SGD):
    def step(self, closure=None):
        super().step(closure)
        self.state["all"] = {"norm": 1.0}


class WithMaster(SGD):
    def step(self, closure=None):
        super().step(closure)
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["master"] = 1


@pytest.mark.parametrize("inner", [WithCounter, WithStrayState, WithMaster])
def test_an_inner_optimizer_with_state_elsewhere_is_refused_at_its_first_step(inner):
    model = matrices()
    optimizer = FP32Master(model.parameters(), inner, lr=0.1)
    give_gradients(model, 0)
    before = live(model, optimizer)
    with pytest.raises(UnsupportedState):
        optimizer.step()
    assert live(model, optimizer) == before


def test_an_inner_optimizer_that_writes_to_its_options_is_followed():
    class Halving(SGD):
        def step(self, closure=None):
            super().step(closure)
            for group in self.param_groups:
                group["lr"] /= 2

    model = matrices()
    optimizer = FP32Master(model.parameters(), Halving, lr=0.5)
    for _ in range(2):
        give_gradients(model, 0)
        optimizer.step()
    assert optimizer.param_groups[0]["lr"] == 0.125
    assert optimizer.param_groups[0]["params"] == list(model.parameters())


class Base(Optimizer):
    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})
        self.history = []


@pytest.mark.parametrize(
    ("inner", "code"), [(torch.optim.LBFGS, "optim.inner"), (Base, "capture.unsupported")]
)
def test_an_unfit_inner_optimizer_is_refused(inner, code):
    with pytest.raises(UnsupportedState) as caught:
        FP32Master(matrices().parameters(), inner)
    assert (caught.value.code, caught.value.where) == (code, "FP32Master inner")


def test_an_inner_optimizer_whose_attributes_are_known_is_refused_too():
    # They would be neither recorded nor compared here.
    torchao = pytest.importorskip("torchao.optim")
    with pytest.raises(UnsupportedState, match="attributes of its own"):
        FP32Master(matrices().parameters(), torchao.AdamW8bit)


def test_masters_of_masters_are_refused():
    class Nested(FP32Master):
        def __init__(self, params, lr=0.1):
            super().__init__(params, SGD, lr=lr)

    with pytest.raises(UnsupportedState, match="attributes of its own"):
        FP32Master(matrices().parameters(), Nested)


def test_what_is_no_class_of_optimizers_is_refused():
    for inner in (SGD(matrices().parameters()), nn.Linear, None, partial(AdamW, lr=0.1)):
        with pytest.raises(TypeError, match="a class of optimizers"):
            FP32Master(matrices().parameters(), inner)


@pytest.mark.parametrize("max_norm", [0.0, -1.0, float("inf"), float("nan")])
def test_a_norm_that_is_not_finite_and_positive_is_refused(max_norm):
    with pytest.raises(ValueError, match="max_norm"):
        FP32Master(matrices().parameters(), SGD, max_norm=max_norm)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64, torch.float8_e4m3fn])
def test_parameters_of_other_dtypes_are_refused(dtype):
    with pytest.raises(UnsupportedState) as caught:
        FP32Master([nn.Parameter(torch.zeros(2, dtype=dtype), requires_grad=False)], SGD)
    assert (caught.value.code, caught.value.found) == ("optim.dtype", dtype)


def test_what_the_inner_optimizer_refuses_is_refused():
    with pytest.raises(ValueError, match="learning rate"):
        FP32Master(matrices().parameters(), AdamW, lr=-1.0)
    with pytest.raises(TypeError, match="momentum"):
        FP32Master(matrices().parameters(), AdamW, momentum=0.9)
    with pytest.raises(ValueError, match="2D"):
        FP32Master([nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))], Muon)
    optimizer = FP32Master(matrices().parameters(), Muon)
    with pytest.raises(ValueError, match="2D"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))]})
    assert len(optimizer.param_groups) == 1


def test_a_gradient_that_stands_already_is_refused_until_it_is_cleared():
    model = matrices()
    model[0].weight.grad = torch.zeros_like(model[0].weight)
    with pytest.raises(UnsupportedState) as caught:
        FP32Master(model.parameters(), SGD)
    assert caught.value.code == "optim.standing"
    assert model[0].weight.grad_dtype is torch.bfloat16
    model.zero_grad()
    FP32Master(model.parameters(), SGD)
    assert model[0].weight.grad_dtype is torch.float32


def test_a_grad_dtype_that_the_caller_set_stays():
    model = matrices()
    model[0].weight.grad_dtype = None
    FP32Master(model.parameters(), SGD)
    assert model[0].weight.grad_dtype is None


def test_a_sparse_gradient_is_refused_before_anything_changes():
    model = nn.Embedding(5, 2, sparse=True, dtype=torch.bfloat16)
    optimizer = FP32Master(model.parameters(), SGD, lr=0.1)
    model(torch.tensor([1, 3])).sum().backward()
    before = raw(model.weight)
    with pytest.raises(UnsupportedState) as caught:
        optimizer.step()
    assert caught.value.code == "optim.sparse"
    assert raw(model.weight) == before
    assert not optimizer.state


@pytest.mark.parametrize("what", ["no master", "dtype", "shape"])
def test_a_state_that_does_not_fit_its_parameter_is_refused(what):
    model, optimizer = trained()
    slots = optimizer.state[model[0].weight]
    if what == "no master":
        del slots["master"]
    else:
        slots["master"] = slots["master"].double() if what == "dtype" else slots["master"][:1]
    give_gradients(model, 0)
    before = live(model, optimizer)
    with pytest.raises(UnsupportedState) as caught:
        optimizer.step()
    assert caught.value.code == "optim.master"
    assert live(model, optimizer) == before


def test_a_model_that_was_cast_to_another_half_goes_on_from_its_masters():
    model, optimizer = trained()
    kept = [optimizer.master(p).clone() for p in model.parameters()]
    model.to(torch.float16)
    for parameter in model.parameters():
        parameter.grad = torch.zeros(parameter.shape)
    optimizer.param_groups[0]["lr"] = 0.0
    optimizer.step()
    # bf16 values that fp16 has too were cast twice: they differ from the masters' own cast, and count as edited.
    for parameter, master in zip(model.parameters(), kept, strict=True):
        assert raw(parameter) == raw(master.bfloat16().half())


def test_masters_are_captured_without_being_touched():
    model, optimizer = trained()
    training = Training(model, optimizer, rng=None)
    masters = [(id(m), m.data_ptr(), m._version) for m in map(optimizer.master, model.parameters())]
    training.capture()
    assert [(id(m), m.data_ptr(), m._version) for m in map(optimizer.master, model.parameters())] == masters
    training.restore(training.capture())
    assert [id(optimizer.master(p)) for p in model.parameters()] == [each[0] for each in masters]
