"""Optimizers with a way of saving of their own: methods, hooks, objects around one of torch; what they hide, and their links."""

import types

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, NAdam, lr_scheduler

import segue
from segue import StateOf, Training
from segue._capture.deferred import deferrable
from segue._record.diff import diff
from segue._record.structure import needed_version
from segue.errors import InvalidRecord, OptimizerMismatch, RestoreInterrupted, UnsupportedState
from tests.cases.state import live, raw
from tests.exactness.strangers import Lookahead, OwnMomentum


class OwnDictionary(AdamW):
    """Saves a count of its own beside what torch saves."""

    count = 0

    def step(self, closure=None):
        self.count += 1
        return super().step(closure)

    def state_dict(self):
        return {**super().state_dict(), "count": self.count}

    def load_state_dict(self, state_dict):
        self.count = state_dict["count"]
        super().load_state_dict({key: value for key, value in state_dict.items() if key != "count"})


class OwnLoading(NAdam):
    """Repairs something as it loads."""

    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)
        self.loads = getattr(self, "loads", 0) + 1


calls = []


def hooked(*kinds):
    def make(params, **options):
        optimizer = NAdam(params, **options)
        for kind in kinds:
            getattr(optimizer, f"register_{kind}_hook")(lambda *_, name=kind: calls.append(name))
        return optimizer

    return make


def instance_method(params, **options):
    optimizer = AdamW(params, **options)
    optimizer.state_dict = types.MethodType(lambda self: AdamW.state_dict(self), optimizer)
    return optimizer


MAKERS = {
    "own dictionary": OwnDictionary,
    "own loading": OwnLoading,
    "a method of the instance": instance_method,
    "hook before saving": hooked("state_dict_pre"),
    "hook after saving": hooked("state_dict_post"),
    "hook before loading": hooked("load_state_dict_pre"),
    "hook after loading": hooked("load_state_dict_post"),
}


def net(seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(dtype)


def step(model, optimizer, index=0):
    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(index))
    model(x.to(model[0].weight.dtype)).float().square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def made(make, seed=0, dtype=torch.float32, **options):
    model = net(seed, dtype)
    optimizer = make(model.parameters(), lr=0.05)
    return model, optimizer, Training(model, optimizer, rng=None, **options)


def goes_on(make, dtype=torch.float32):
    model, optimizer, training = made(make, 0, dtype)
    for index in range(3):
        step(model, optimizer, index)
    record = segue.from_bytes(segue.to_bytes(training.capture()))
    other_model, other, resumed = made(make, 1, dtype)
    resumed.restore(record)
    assert live(other_model, other) == live(model, optimizer)
    for index in range(3, 6):
        step(model, optimizer, index)
        step(other_model, other, index)
        assert live(other_model, other) == live(model, optimizer)
    return record, other


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_it_is_asked_whole_and_goes_on_with_the_same_bits(make, dtype):
    # In bf16 torch's loading casts NAdam's fp32 `mu_product`, which changes its steps (torch 2.13).
    record, other = goes_on(make, dtype)
    assert list(record.opaque_optimizers) == ["optimizer"]
    assert record.optimizers == {}
    assert record.opaque_optimizers["optimizer"].groups == (("0.weight", "0.bias", "2.weight", "2.bias"),)
    saved = record.opaque_optimizers["optimizer"]
    assert needed_version(saved) == (1 if saved.attributes is None else 4)
    if isinstance(other, OwnDictionary):
        assert other.count == 6
    if isinstance(other, OwnLoading):
        assert other.loads == 1


@pytest.mark.parametrize(
    "kind", ["state_dict_pre", "state_dict_post", "load_state_dict_pre", "load_state_dict_post"]
)
def test_hooks_run_as_they_would_in_any_program(kind):
    model, optimizer, training = made(hooked(kind))
    step(model, optimizer)
    calls.clear()
    record = training.capture()
    assert calls == [kind][: kind.startswith("state_dict")]
    calls.clear()
    training.restore(record)
    assert set(calls) == {kind}


def test_a_hook_that_is_registered_after_binding_is_told():
    model, optimizer, training = made(AdamW)
    record = training.capture()
    optimizer.register_state_dict_post_hook(lambda *_: None)
    for attempt in (training.capture, lambda: training.restore(record), lambda: training.check(record)):
        with pytest.raises(UnsupportedState) as caught:
            attempt()
        assert caught.value.code == "capture.own_saving"
    again = Training(model, optimizer, rng=None)
    again.capture()
    with pytest.raises(OptimizerMismatch, match="saves otherwise than it did") as refused:
        again.restore(record)
    assert refused.value.code == "optimizer.optimizer.kind"


def test_one_without_the_hooks_that_it_had_is_told():
    record = made(hooked("state_dict_post"))[2].capture()
    with pytest.raises(OptimizerMismatch, match="saves otherwise than it did"):
        made(NAdam)[2].restore(record)


def test_its_memory_is_never_deferred_since_its_steps_are_not_waited_for():
    model = nn.Linear(1024, 1024)
    plain, own = AdamW([model.weight]), OwnDictionary([model.bias])
    training = Training(model, {"plain": plain, "own": own}, rng=None)
    assert {id(each) for each in deferrable(training._live.optimizers.values())} == {id(model.weight)}
    model(torch.ones(1, 1024)).sum().backward()
    for optimizer in (plain, own):
        optimizer.step()
    expected = training.capture()
    pending = training.capture_async()
    own.step()
    own.state[model.bias]["exp_avg"].add_(1)
    assert diff(expected, pending.result()).identical


def test_an_option_that_has_moved_and_is_not_saved_is_refused():
    class Silent(Lookahead):
        def state_dict(self):
            saved = super().state_dict()
            groups = [{"params": group["params"]} for group in saved["fast"]["param_groups"]]
            return {**saved, "fast": {**saved["fast"], "param_groups": groups}}

    model, optimizer, training = made(Silent)
    step(model, optimizer)
    training.capture()
    optimizer.optimizer.param_groups[0]["lr"] = 0.01
    with pytest.raises(UnsupportedState, match="leaves out an option that has moved") as caught:
        training.capture()
    assert caught.value.code == "capture.lost_state"
    assert caught.value.where == "optimizer.optimizer optimizer group 0 lr"


class Counting(OwnMomentum):
    """Keeps more than it saves."""

    def __init__(self, params, lr):
        super().__init__(params, lr)
        self.norm, self.flag, self.best, self.note = torch.zeros(2), False, None, "x"
        self.factor = 0.5


def test_attributes_that_have_moved_and_are_not_saved_are_refused():
    model, optimizer, training = made(Counting)
    step(model, optimizer)
    record = training.capture()  # what it saves has moved, and nothing else
    moved = record.opaque_optimizers["optimizer"].attributes["moved"]
    assert set(moved) == {"num_steps", "param_groups", "state"}
    assert record.opaque_optimizers["optimizer"].attributes["configured"]["factor"] == 0.5
    optimizer.norm += 1
    optimizer.flag, optimizer.best, optimizer.note = True, 0.25, "y"
    with pytest.raises(UnsupportedState) as caught:
        training.capture()
    assert caught.value.code == "capture.hidden_state"
    for told in (
        "norm ([0.0, 0.0] -> [1.0, 1.0])",
        "flag (False -> True)",
        "best (None -> 0.25)",
        "note (x -> y)",
    ):
        assert told in caught.value.what
    components = {"rest": StateOf(optimizer, "norm", "flag", "best", "note")}
    registered = Training(model, optimizer, components=components, rng=None)
    record = segue.from_bytes(segue.to_bytes(registered.capture()))
    other_model = net(1)
    other = Counting(other_model.parameters(), lr=0.05)
    components = {"rest": StateOf(other, "norm", "flag", "best", "note")}
    Training(other_model, other, components=components, rng=None).restore(record)
    for name in ("norm", "flag", "best", "note", "num_steps"):
        assert raw(vars(other)[name]) == raw(vars(optimizer)[name])


def test_what_it_is_configured_with_is_compared_and_can_be_accepted():
    record = made(Counting)[2].capture()
    model, optimizer, _ = made(Counting)

    def changed():
        other = Counting(model.parameters(), lr=0.05)
        other.factor = 0.25
        return other, Training(model, other, rng=None)

    other, training = changed()
    before = live(model, other)
    with pytest.raises(OptimizerMismatch) as caught:
        training.restore(record)
    assert [finding.code for finding in caught.value.findings] == ["optimizer.optimizer.attribute.factor"]
    assert live(model, other) == before
    training.restore(record, accept=["optimizer.optimizer.attribute.factor"])
    assert other.factor == 0.25
    assert optimizer.factor == 0.5


def test_rolling_back_compares_what_a_program_asks_for_and_not_where_it_is():
    model, optimizer, training = made(OwnMomentum)
    begun = training.capture()
    step(model, optimizer)
    stepped = training.capture()
    training.restore(begun)
    assert optimizer.num_steps == 0
    training.restore(stepped)
    assert optimizer.num_steps == 1
    assert diff(stepped, training.capture()).identical


class Half(OwnMomentum):
    """Saves a count, and does not load it."""

    def load_state_dict(self, state):
        super().load_state_dict({**state, "steps": self.num_steps})


def test_an_attribute_that_loading_does_not_put_back_is_refused_and_all_is_put_back():
    model, optimizer, training = made(Half)
    step(model, optimizer)
    record = training.capture()
    other_model, other, resumed = made(Half, 1)
    before = live(other_model, other)
    with pytest.raises(OptimizerMismatch, match="does not give back the state") as caught:
        resumed.restore(record)
    assert caught.value.code == "optimizer.optimizer.altered"
    assert caught.value.found == "Half"
    assert caught.value.hint.startswith("its `load_state_dict` does not put back num_steps; register")
    assert live(other_model, other) == before
    assert other.state == {}


def test_a_value_that_is_found_by_chance_among_options_does_not_count():
    class Chance(OwnDictionary):
        def step(self, closure=None):
            self.last = 0.05  # as the learning rate
            return super().step(closure)

    model, optimizer, training = made(Chance)
    step(model, optimizer)
    with pytest.raises(UnsupportedState, match=r"last \(absent -> 0.05\)"):
        training.capture()


def test_an_attribute_of_a_torch_optimizer_inside_is_looked_at_too():
    model, optimizer, training = made(Lookahead)
    optimizer.optimizer.counter = 3
    with pytest.raises(UnsupportedState) as caught:
        training.capture()
    assert "optimizer.counter (absent -> 3)" in caught.value.what
    assert 'StateOf(optimizer.optimizer, "counter")' in caught.value.hint
    components = {"count": StateOf(optimizer.optimizer, "counter")}
    Training(model, optimizer, components=components, rng=None).capture()


def test_state_that_it_saves_by_the_id_of_a_parameter_is_refused():
    class ById(OwnMomentum):
        def state_dict(self):
            return {**super().state_dict(), "masks": {id(p): 1 for p in self.param_groups[0]["params"]}}

    with pytest.raises(UnsupportedState) as caught:
        made(ById)[2].capture()
    assert caught.value.code == "capture.address"


class Holding:
    """As trust-ratio wrappers and hand-made schedules do: holds groups and state of the optimizer that it wraps."""

    def __init__(self, params, lr):
        self.base = AdamW(params, lr=torch.tensor(lr))
        self.param_groups, self.state, self.defaults = (
            self.base.param_groups,
            self.base.state,
            self.base.defaults,
        )
        self.first = self.base.param_groups[0]

    def step(self):
        self.base.step()

    def zero_grad(self):
        self.base.zero_grad()

    def state_dict(self):
        return self.base.state_dict()

    def load_state_dict(self, state):
        self.base.load_state_dict(state)


def test_b09_what_a_wrapper_holds_is_what_is_stepped_after_its_own_loading():
    model, optimizer, training = made(Holding)
    for index in range(3):
        step(model, optimizer, index)
    record = training.capture()
    other_model, other, resumed = made(Holding, 1)
    groups, first, state, rate = other.param_groups, other.first, other.state, other.first["lr"]
    resumed.restore(record)
    assert other.base.param_groups is groups is other.param_groups
    assert other.base.param_groups[0] is first
    assert other.base.state is state
    assert other.base.param_groups[0]["lr"] is rate
    assert live(other_model, other.base) == live(model, optimizer.base)
    # The wrapper's change of the rate is effective.
    for holder in (optimizer, other):
        holder.first["lr"].fill_(0.5)
    step(model, optimizer, 9)
    step(other_model, other, 9)
    assert live(other_model, other.base) == live(model, optimizer.base)


def test_b09_after_a_refusal_the_wrapper_holds_what_is_stepped_too():
    class Refusing(Holding):
        refuses = False

        def load_state_dict(self, state):
            super().load_state_dict(state)
            if self.refuses:
                self.refuses = False
                raise ValueError("no")

    model, optimizer, training = made(Refusing)
    step(model, optimizer)
    record = training.capture()
    step(model, optimizer, 1)
    before, first, state = live(model, optimizer.base), optimizer.first, optimizer.state
    Refusing.refuses = True
    with pytest.raises((OptimizerMismatch, RestoreInterrupted)):
        training.restore(record)
    Refusing.refuses = False
    assert live(model, optimizer.base) == before
    assert optimizer.base.param_groups[0] is first
    assert optimizer.base.state is state


def test_two_groups_that_share_one_rate_and_come_apart_are_not_filled_through_each_other():
    model = net()
    groups = [{"params": [model[0].weight, model[0].bias]}, {"params": [model[2].weight, model[2].bias]}]
    optimizer = Holding(groups, 0.1)
    training = Training(model, optimizer, rng=None)
    optimizer.param_groups[1]["lr"] = torch.tensor(0.2)
    record = training.capture()
    other = Holding([{"params": list(group["params"])} for group in groups], 0.1)
    Training(model, other, rng=None).restore(record)
    assert [float(group["lr"]) for group in other.param_groups] == [pytest.approx(0.1), pytest.approx(0.2)]


class Anneals:
    """An object around AdamW that has a schedule of its own, and saves it."""

    def __init__(self, params, lr, saves=True):
        self.base = AdamW(params, lr=lr)
        self.scheduler = lr_scheduler.CosineAnnealingLR(self.base, 10)
        self.saves = saves

    def step(self):
        self.base.step()
        self.scheduler.step()

    def zero_grad(self):
        self.base.zero_grad()

    def state_dict(self):
        own = {"scheduler": self.scheduler.state_dict()} if self.saves else {}
        return {"base": self.base.state_dict(), **own}

    def load_state_dict(self, state):
        self.base.load_state_dict(state["base"])
        self.scheduler.load_state_dict(state["scheduler"])


def test_a_scheduler_that_an_optimizer_holds_and_saves_is_its_own():
    def make(params, lr):
        return Anneals(params, lr)

    model, optimizer, training = made(make)
    for index in range(3):
        step(model, optimizer, index)
    record = segue.from_bytes(segue.to_bytes(training.capture()))
    other_model, other, resumed = made(make, 1)
    resumed.restore(record)
    for index in range(3, 6):
        step(model, optimizer, index)
        step(other_model, other, index)
        assert live(other_model, other.base) == live(model, optimizer.base)
    assert other.scheduler.last_epoch == 6


def test_a_scheduler_that_an_optimizer_holds_and_does_not_save_is_refused():
    model, optimizer, training = made(lambda params, lr: Anneals(params, lr, saves=False))
    step(model, optimizer)
    with pytest.raises(UnsupportedState) as caught:
        training.capture()
    assert caught.value.code == "capture.hidden_state"
    assert "scheduler.last_epoch (0 -> 1)" in caught.value.what


def test_an_own_optimizer_drives_schedules_and_owns_its_parameters_like_any():
    model = net()
    optimizer = OwnDictionary(model.parameters(), lr=0.05)
    scheduler = lr_scheduler.StepLR(optimizer, 1, 0.5)
    with pytest.raises(UnsupportedState, match="not registered"):
        Training(model, optimizer, rng=None).capture()
    training = Training(model, optimizer, scheduler, rng=None)
    step(model, optimizer)
    scheduler.step()
    record = training.capture()
    assert record.schedulers["scheduler"].optimizer == "optimizer"
    scheduler.step()
    training.restore(record)
    assert optimizer.param_groups[0]["lr"] == 0.025
    with pytest.raises(UnsupportedState, match="two owners"):
        Training(model, {"a": optimizer, "b": SGD(model.parameters())}, scheduler, rng=None).capture()


def accelerated(make=AdamW, seed=0, dtype=torch.float32):
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    model = net(seed, dtype)
    optimizer = make(model.parameters(), lr=0.05)
    schedule = lr_scheduler.StepLR(optimizer, 2, 0.5)
    model, prepared, around = accelerator.prepare(model, optimizer, schedule)
    return model, prepared, around


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("make", [AdamW, NAdam])
def test_an_optimizer_of_accelerate_with_a_schedule_of_the_one_inside_goes_on(make, dtype):
    def training(seed):
        model, prepared, around = accelerated(make, seed, dtype)
        return model, prepared, around, Training(model, prepared, around.scheduler, rng=None)

    def go(model, prepared, around, index):
        step(model, prepared, index)
        around.step()

    *one, first = training(0)
    for index in range(3):
        go(*one, index)
    record = segue.from_bytes(segue.to_bytes(first.capture()))
    assert record.schedulers["scheduler"].optimizer == "optimizer.optimizer"
    assert record.opaque_optimizers["optimizer"].attributes["kept"] == {"_is_overflow": False}
    *two, second = training(1)
    second.restore(record)
    for index in range(3, 6):
        go(*one, index)
        go(*two, index)
        assert live(two[0], two[1].optimizer) == live(one[0], one[1].optimizer)


def test_schedules_that_accelerate_wraps_and_such_around_its_optimizer_are_told():
    model, prepared, around = accelerated()
    with pytest.raises(UnsupportedState, match="must be a torch LRScheduler") as caught:
        Training(model, prepared, around)
    assert caught.value.hint == "hand in the one inside: `scheduler.scheduler`"
    outer = lr_scheduler.StepLR(prepared, 1)
    with pytest.raises(UnsupportedState, match="its steps can't be counted") as caught:
        Training(model, prepared, outer)
    assert "accelerator.prepare" in caught.value.hint
    with pytest.raises(UnsupportedState, match="attached to an optimizer but not registered"):
        Training(model, prepared, around.scheduler).capture()


def test_what_can_not_be_looked_into_is_an_objects_own_affair_and_only_told():
    def make(params, lr):
        optimizer = OwnMomentum(params, lr)
        optimizer.source = None
        return optimizer

    model, optimizer, training = made(make)
    optimizer.source = iter([1])  # as it is set by the first step, say
    step(model, optimizer)
    record = training.capture()
    attributes = record.opaque_optimizers["optimizer"].attributes
    assert attributes["unseen"] == {"source": "builtins.list_iterator"}
    other_model, other, resumed = made(make, 1)
    resumed.restore(record)
    assert other.source is None
    assert live(other_model, other) == live(model, optimizer)


def test_what_torch_saves_alone_has_to_be_looked_into():
    _, optimizer, training = made(OwnLoading)
    optimizer.source = iter([1])
    with pytest.raises(UnsupportedState, match=r"source \(builtins.list_iterator: it can't be looked into\)"):
        training.capture()


def test_a_record_whose_attributes_are_none_is_refused():
    record = made(Counting)[2].capture().opaque_optimizers["optimizer"]
    for lie in (3, {"other": {}}, {"kept": 3}, {"moved": {3: 4}}):
        with pytest.raises(InvalidRecord, match="no attributes"):
            type(record)(record.state, record.groups, lie)


def test_names_of_attributes_that_a_record_makes_up_reach_nothing():
    _, optimizer, training = made(Counting)
    record = training.capture()
    own = record.opaque_optimizers["optimizer"]
    lying = type(own)(own.state, own.groups, {**own.attributes, "kept": {"step": 3}})
    changed = type(record)(**{**vars(record), "opaque_optimizers": {"optimizer": lying}})
    with pytest.raises(OptimizerMismatch):
        training.restore(changed)
    assert callable(optimizer.step)
    assert "step" not in vars(optimizer)
