"""Modules that are built at their first forward: restored before it, or refused and lazy as they were."""

import pytest
import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter, is_lazy

import segue
from segue.errors import ComponentMismatch, ContractMismatch, MismatchError, UnsupportedState
from tests.cases.state import codes_of, everything, stored

SHAPES = {
    "linear": (lambda: nn.LazyLinear(3), (2, 4)),
    "linear without bias": (lambda: nn.LazyLinear(3, bias=False), (2, 4)),
    "conv": (lambda: nn.LazyConv2d(4, 3, groups=2), (2, 2, 5, 5)),
    "channels last": (lambda: nn.LazyConv2d(4, 3), (2, 3, 5, 5)),
    "transposed": (lambda: nn.LazyConvTranspose1d(4, 3, groups=2), (2, 2, 5)),
    "batch norm": (nn.LazyBatchNorm1d, (4, 3)),
    "batch norm of all batches": (lambda: nn.LazyBatchNorm2d(momentum=None), (4, 3, 2, 2)),
    "batch norm without memory": (lambda: nn.LazyBatchNorm1d(track_running_stats=False), (4, 3)),
    "instance norm": (lambda: nn.LazyInstanceNorm1d(affine=True, track_running_stats=True), (2, 3, 4)),
    "several": (
        lambda: nn.Sequential(nn.LazyConv1d(3, 2), nn.LazyBatchNorm1d(), nn.Flatten(), nn.Dropout(0.5), nn.LazyLinear(2)), (2, 3, 4),
    ),
    "double": (lambda: nn.LazyLinear(3, dtype=torch.float64), (2, 4)),
}  # fmt: skip


class Program:
    def __init__(self, kind, seed=0):
        make, self.shape = SHAPES[kind]
        torch.manual_seed(seed)
        self.model = nn.Sequential(
            make(), nn.LazyLinear(2, dtype=torch.float64 if kind == "double" else None)
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.training = segue.Training(self.model, self.optimizer, self.scheduler)

    def step(self, number, channels_last=False):
        dtype = self.optimizer.param_groups[0]["params"][0].dtype
        batch = torch.randn(self.shape, generator=torch.Generator().manual_seed(number)).to(dtype)
        if channels_last:
            batch = batch.to(memory_format=torch.channels_last)
        torch.manual_seed(number)
        self.optimizer.zero_grad()
        self.model(batch).pow(2).sum().backward()
        self.optimizer.step()
        self.scheduler.step()


def kinds_of(model):
    return [type(tensor) for tensor in (*model.parameters(), *model.buffers())]


@pytest.mark.parametrize("kind", SHAPES)
def test_it_goes_on_as_if_it_had_been_built(kind, tmp_path):
    one, other = Program(kind), Program(kind, seed=1)
    for number in range(2):
        one.step(number, kind == "channels last")
    if kind == "channels last":
        one.model.to(memory_format=torch.channels_last)
    record = stored(one.training.capture(), tmp_path)
    held = [id(parameter) for parameter in other.model.parameters()]
    other.training.check(record)
    assert any(is_lazy(parameter) for parameter in other.model.parameters())
    other.training.restore(record)
    assert [id(parameter) for parameter in other.model.parameters()] == held
    assert not any(map(is_lazy, (*other.model.parameters(), *other.model.buffers())))
    assert segue.diff(one.training.capture(), other.training.capture()).identical
    for number in range(2, 4):
        one.step(number, kind == "channels last")
        other.step(number, kind == "channels last")
    assert everything(other.model, other.optimizer) == everything(one.model, one.optimizer)
    assert type(other.model[1]) is nn.Linear


def test_it_can_be_captured_between_its_restore_and_its_first_forward(tmp_path):
    one, between, other = (Program("several", seed) for seed in range(3))
    one.step(0)
    between.training.restore(one.training.capture())
    other.training.restore(stored(between.training.capture(), tmp_path))
    one.step(1)
    other.step(1)
    assert everything(other.model, other.optimizer) == everything(one.model, one.optimizer)


def test_a_component_is_built_likewise():
    def fresh():
        model, loss = nn.Linear(3, 2), nn.LazyLinear(1)
        optimizer = torch.optim.SGD([*model.parameters(), *loss.parameters()], lr=0.1)
        return model, loss, segue.Training(model, optimizer, components={"loss": loss})

    one, other = fresh(), fresh()
    one[1](one[0](torch.ones(1, 3)))
    other[2].restore(one[2].capture())
    assert torch.equal(other[1].weight, one[1].weight)


def test_a_module_alone():
    one, other = Program("several"), Program("several", seed=1)
    one.step(0)
    one.optimizer.zero_grad()
    segue.restore_module(segue.capture_module(one.model), other.model)
    assert everything(other.model) == everything(one.model)


MISFITS = {
    "linear": lambda: nn.LazyLinear(4),
    "conv": lambda: nn.LazyConv2d(4, 2, groups=2),
    "transposed": lambda: nn.LazyConvTranspose1d(6, 3, groups=2),
    "double": lambda: nn.LazyLinear(3),
    "batch norm": lambda: nn.LazyBatchNorm1d(affine=False),
}


@pytest.mark.parametrize("kind", MISFITS)
def test_what_would_be_built_otherwise_is_refused_and_stays_lazy(kind):
    one = Program(kind)
    one.step(0)
    record = one.training.capture()
    model = nn.Sequential(MISFITS[kind](), nn.LazyLinear(2, dtype=one.model[1].weight.dtype))
    training = segue.Training(model, torch.optim.AdamW(model.parameters(), lr=0.1))
    before = kinds_of(model), [tensor.data.shape for tensor in model.parameters() if is_lazy(tensor)]
    with pytest.raises(MismatchError):
        training.restore(record)
    with pytest.raises(ContractMismatch):
        segue.restore_module(record.model, model)
    assert (kinds_of(model), [t.data.shape for t in model.parameters() if is_lazy(t)]) == before


class Picky:
    def __init__(self, value):
        self.value = value

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        if state["value"] == "bad":
            raise ValueError("not this one")
        self.value = state["value"]


def test_after_a_component_has_refused_it_is_lazy_again():
    def fresh(value):
        model = nn.Sequential(nn.LazyLinear(2), nn.LazyBatchNorm1d())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return model, segue.Training(model, optimizer, components={"picky": Picky(value)})

    (one, bad), (other, resumed) = fresh("bad"), fresh("good")
    one(torch.ones(2, 3))
    before = kinds_of(other)
    with pytest.raises(ComponentMismatch, match="not this one"):
        resumed.restore(bad.capture())
    assert kinds_of(other) == before
    good = segue.Training(one, torch.optim.SGD(one.parameters(), lr=0.1), components={"picky": Picky("fine")})
    resumed.restore(good.capture())
    assert torch.equal(other[0].weight, one[0].weight)


def test_what_the_record_does_not_know_can_not_be_built():
    one = nn.Sequential(nn.Linear(3, 2))
    record = segue.Training(one, torch.optim.SGD(one.parameters(), lr=0.1)).capture()
    other = nn.Sequential(nn.Linear(3, 2), nn.LazyLinear(2))
    training = segue.Training(other, torch.optim.SGD(other.parameters(), lr=0.1))
    with pytest.raises(UnsupportedState, match="run one forward first"):
        training.restore(record)
    assert isinstance(other[1].weight, UninitializedParameter)


class Own(LazyModuleMixin, nn.Module):
    """Built by a program of its own, in any shape."""

    def __init__(self):
        super().__init__()
        self.weight = UninitializedParameter()
        self.register_buffer("seen", UninitializedBuffer())

    def initialize_parameters(self, x):
        if self.has_uninitialized_params():
            self.weight.materialize((x.shape[-1], 2))
            self.seen.materialize((x.shape[-1],))
            nn.init.normal_(self.weight)
            nn.init.zeros_(self.seen)

    def forward(self, x):
        self.seen.add_(x.detach().sum(0))
        return x @ self.weight


def test_one_of_the_programs_own(tmp_path):
    def fresh(seed):
        torch.manual_seed(seed)
        model = nn.Sequential(Own())
        return model, segue.Training(model, torch.optim.SGD(model.parameters(), lr=0.1))

    (one, training), (other, resumed) = fresh(0), fresh(1)
    one(torch.ones(2, 3))
    resumed.restore(stored(training.capture(), tmp_path))
    assert everything(other) == everything(one)
    one(torch.ones(2, 3))
    other(torch.ones(2, 3))
    assert everything(other) == everything(one)


def test_before_the_first_forward_there_is_nothing_to_capture():
    program = Program("linear")
    with pytest.raises(UnsupportedState, match="run one forward first"):
        program.training.capture()


def test_a_lazy_program_and_one_that_was_built_can_be_exchanged():
    one = Program("linear")
    one.step(0)
    built = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    optimizer = torch.optim.AdamW(built.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    training = segue.Training(built, optimizer, scheduler)
    training.restore(one.training.capture())
    other = Program("linear", seed=1)
    other.training.restore(training.capture())
    assert everything(other.model, other.optimizer) == everything(one.model, one.optimizer)
    assert codes_of(
        segue.Training(nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 2)), {}), one.training.capture()
    )
