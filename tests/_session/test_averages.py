"""A capture while averaged weights stand in the model is refused, and no other is."""

import copy

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import segue
from segue.errors import NotAtBoundary
from tests.cases.state import everything


class Ema:
    """An average as people write them: copies by name, a backup while it is swapped in."""

    def __init__(self, model, decay=0.9, dtype=None):
        self.decay = decay
        self.shadow = {name: p.detach().clone().to(dtype or p.dtype) for name, p in model.named_parameters()}

    def update(self, model):
        for name, p in model.named_parameters():
            shadow = self.shadow[name]
            shadow.mul_(self.decay).add_(p.detach().to(shadow.dtype), alpha=1 - self.decay)

    def state_dict(self):
        return dict(self.shadow)

    def load_state_dict(self, state):
        self.shadow = {name: value.clone() for name, value in state.items()}


class EmaModule(nn.Module):
    """The same as a module, whose names are not the model's."""

    def __init__(self, model, decay=0.9):
        super().__init__()
        self.decay = decay
        self.names = {name: name.replace(".", "") for name, _ in model.named_parameters()}
        for name, p in model.named_parameters():
            self.register_buffer(self.names[name], p.detach().clone())

    @property
    def shadow(self):
        return {name: getattr(self, own) for name, own in self.names.items()}

    update = Ema.update


def by_copy(model, shadow):
    for name, p in model.named_parameters():
        p.data.copy_(shadow[name])


def by_loading(model, shadow):
    model.load_state_dict({**model.state_dict(), **shadow})


def by_memory(model, shadow):
    for name, p in model.named_parameters():
        p.data = shadow[name].to(p.dtype)


def in_no_grad(model, shadow):
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(shadow[name])


WAYS = {"copy": by_copy, "loading": by_loading, "memory": by_memory, "no grad": in_no_grad}


class Program:
    def __init__(self, average=Ema, optimizer=torch.optim.AdamW, dtype=torch.float32, **components):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).to(dtype)
        self.optimizer = optimizer(self.model.parameters(), lr=0.1)
        self.ema = average(self.model)
        self.training = segue.Training(
            self.model, self.optimizer, components={"ema": self.ema, **components}, not_state=["*"]
        )

    def step(self, update=True):
        self.optimizer.zero_grad()
        batch = torch.randn(4, 3).to(self.model[0].weight.dtype)
        self.model(batch).float().pow(2).sum().backward()
        self.optimizer.step()
        if update:
            self.ema.update(self.model)

    def steps(self, count, **options):
        for _ in range(count):
            self.step(**options)
        return self

    def is_refused(self, state=None):
        before, refusal = everything(self.model, self.optimizer), None
        try:
            self.training.capture(state)
        except NotAtBoundary as error:
            refusal = error
        assert everything(self.model, self.optimizer) == before
        if refusal is not None:
            assert refusal.code == "capture.averaged_weights"
            assert "save when the trained weights are back" in refusal.hint
        return refusal is not None


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("average", [Ema, EmaModule])
def test_averaged_weights_in_the_model_are_refused_however_they_came_there(way, average):
    program = Program(average).steps(3)
    for _ in range(2):
        assert not program.is_refused()
        raw = [p.data for p in program.model.parameters()]
        backup = [p.detach().clone() for p in program.model.parameters()]
        WAYS[way](program.model, program.ema.shadow)
        assert program.is_refused()
        for p, memory, value in zip(program.model.parameters(), raw, backup, strict=True):
            p.data = memory
            p.data.copy_(value)
        assert not program.is_refused()
        program.steps(2)


def test_the_refusal_names_the_component_and_capture_async_refuses_likewise():
    program = Program().steps(3)
    by_copy(program.model, program.ema.shadow)
    with pytest.raises(NotAtBoundary) as caught:
        program.training.capture()
    assert caught.value.where == "component.ema"
    assert caught.value.found.endswith("Ema")
    with pytest.raises(NotAtBoundary):
        program.training.capture_async().result()


def test_an_average_in_another_dtype_is_seen_through_its_cast():
    program = Program(lambda model: Ema(model, dtype=torch.float32), dtype=torch.bfloat16).steps(3)
    by_copy(program.model, program.ema.shadow)
    assert program.is_refused()


def test_an_average_in_the_callers_state_is_seen_too():
    program = Program().steps(3)
    average = {name: value + 1 for name, value in program.ema.shadow.items()}
    assert not program.is_refused({"ema": average})
    by_copy(program.model, average)
    assert program.is_refused({"ema": average})


def averaged(model):
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))


class Averaged(AveragedModel):
    def update(self, model):
        self.update_parameters(model)


def own_average(model):
    return Averaged(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))


def exchange_values(model, average):
    for p, q in zip(model.parameters(), average.module.parameters(), strict=True):
        kept = p.data.clone()
        p.data.copy_(q.data)
        q.data.copy_(kept)


def exchange_memory(model, average):
    for p, q in zip(model.parameters(), average.module.parameters(), strict=True):
        p.data, q.data = q.data, p.data


@pytest.mark.parametrize("exchange", [exchange_values, exchange_memory])
def test_weights_that_were_exchanged_with_an_averaged_model_are_refused(exchange):
    program = Program(own_average).steps(3)
    for _ in range(2):
        assert not program.is_refused()
        exchange(program.model, program.ema)
        assert program.is_refused()
        exchange(program.model, program.ema)
        assert not program.is_refused()
        program.steps(1)


def test_memory_that_was_exchanged_with_any_module_is_refused():
    class Held(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.module = copy.deepcopy(model)

        def update(self, model):
            with torch.no_grad():
                for p, q in zip(model.parameters(), self.module.parameters(), strict=True):
                    q.mul_(0.9).add_(p, alpha=0.1)

    program = Program(Held)
    exchange_memory(program.model, program.ema)
    assert program.is_refused()
    exchange_memory(program.model, program.ema)
    assert not program.steps(2).is_refused()
    exchange_memory(program.model, program.ema)
    assert program.is_refused()


class Aside:
    """As diffusers' `EMAModel` and NeMo's callback: the trained weights are kept until they are put back."""

    def __init__(self, aside, beside):
        self.aside = aside
        setattr(self, aside, None)
        setattr(self, beside, [])

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


@pytest.mark.parametrize(
    "names", [("temp_stored_params", "shadow_params"), ("_weights_buffer", "_ema_model_weights")]
)
def test_an_object_that_keeps_the_trained_weights_aside_is_believed(names):
    aside = Aside(*names)
    program = Program(other=aside).steps(1)
    assert not program.is_refused()
    setattr(aside, names[0], [torch.ones(1)])
    assert program.is_refused()
    setattr(aside, names[0], None)
    assert not program.is_refused()


def test_a_like_name_elsewhere_says_nothing():
    aside = Aside("temp_stored_params", "something_else")
    aside.temp_stored_params = [torch.ones(1)]
    assert not Program(other=aside).steps(2).is_refused()


# What equals its average, and is no average.


def test_not_at_the_beginning_nor_when_both_were_loaded_after_binding():
    program = Program()
    assert not program.is_refused()
    for p in program.model.parameters():
        p.data.add_(1)
    program.ema.load_state_dict({name: p.detach() for name, p in program.model.named_parameters()})
    assert not program.is_refused()
    assert not program.steps(1).is_refused()


def test_not_after_the_first_update_of_an_averaged_model_which_copies():
    program = Program(own_average)
    program.steps(5, update=False)
    program.ema.update_parameters(program.model)
    assert all(map(torch.equal, program.model.parameters(), program.ema.module.parameters()))
    assert not program.is_refused()
    program.steps(1, update=False)
    assert not program.is_refused()


def test_not_while_an_average_warms_up_by_copying():
    program = Program(lambda model: Ema(model, decay=0.0))
    assert not any(program.steps(1).is_refused() for _ in range(4))


def test_not_with_a_rate_of_zero():
    program = Program(optimizer=lambda parameters, lr: torch.optim.SGD(parameters, lr=0.0))
    assert not any(program.steps(1).is_refused() for _ in range(4))


def test_not_when_everything_is_frozen():
    program = Program().steps(3)
    program.model.requires_grad_(False)
    program.optimizer.zero_grad()
    by_copy(program.model, program.ema.shadow)
    assert not program.is_refused()


def test_not_when_a_target_was_copied_or_the_best_weights_were_kept():
    best = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    program = Program(best=best)
    for _ in range(4):
        program.steps(2)
        best.load_state_dict(program.model.state_dict())
        assert not program.is_refused()


def test_not_when_weights_are_clipped_between_steps_and_then_copied_to_a_target():
    target = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    program = Program(target=target)
    for _ in range(5):
        program.steps(1)
        for p in program.model.parameters():
            p.data.clamp_(-0.05, 0.05)
        target.load_state_dict(program.model.state_dict())
        program.steps(1) if program.is_refused() else None
        assert not program.is_refused()


def test_not_when_an_evaluation_has_put_the_weights_back():
    program = Program().steps(3)
    for _ in range(3):
        backup = copy.deepcopy(program.model.state_dict())
        by_copy(program.model, program.ema.shadow)
        program.model.load_state_dict(backup)
        assert not program.steps(1).is_refused()
    by_copy(program.model, program.ema.shadow)
    assert program.is_refused()


def test_not_when_a_component_holds_the_model_itself():
    model = nn.Linear(2, 2)
    holder = nn.Sequential(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = segue.Training(model, optimizer, components={"holder": holder}, not_state=["*"])
    for _ in range(3):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    with torch.no_grad():
        model.weight.add_(1)
    training.capture()


def test_not_after_a_step_from_weights_that_were_put_in_to_go_on_from():
    program = Program().steps(3)
    by_copy(program.model, program.ema.shadow)
    assert program.is_refused()
    program.steps(1)
    assert not program.is_refused()


def test_not_after_a_restore(tmp_path):
    program = Program().steps(3)
    record = program.training.capture()
    program.steps(2)
    by_copy(program.model, program.ema.shadow)
    assert program.is_refused()
    program.training.restore(record)
    assert not program.is_refused()
    assert not program.steps(3).is_refused()
    by_copy(program.model, program.ema.shadow)
    assert program.is_refused()


def test_not_with_accumulated_gradients_nor_between_microbatches():
    program = Program().steps(2)
    for _ in range(3):
        program.model(torch.randn(4, 3)).sum().backward()
        assert not program.is_refused()
    program.optimizer.step()
    assert not program.is_refused()


def test_the_hooks_go_with_the_training_and_change_no_bit():
    one, other = Program(), Program()
    torch.manual_seed(1)
    one.steps(5)
    with_it = len(other.optimizer._optimizer_step_pre_hooks), len(other.optimizer._optimizer_step_post_hooks)
    other.training = None
    without = len(other.optimizer._optimizer_step_pre_hooks), len(other.optimizer._optimizer_step_post_hooks)
    assert without[0] < with_it[0]
    assert without[1] < with_it[1]
    torch.manual_seed(1)
    other.steps(5)
    assert everything(one.model, one.optimizer) == everything(other.model, other.optimizer)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
def test_a_compiled_step_goes_on_and_is_the_same():
    one, other = Program(), Program()
    other.training = None
    for program in (one, other):
        program.optimizer.step = torch.compile(program.optimizer.step, backend="eager")
        torch.manual_seed(1)
        program.steps(4)
    assert not one.is_refused()
    assert everything(one.model, one.optimizer) == everything(other.model, other.optimizer)
