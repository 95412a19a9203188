"""B27 to B31: a stop in mid-window, a short window, windows divided by tokens, and where the data is."""

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW

import segue
from segue import Checkpointer, GradientAccumulator, Training, WeightedAccumulator
from segue.errors import ContractMismatch
from tests.cases import children
from tests.cases.state import live, raw, stored

TOTAL = 12


class Loop:
    """Microbatches of a window of any size, with a record after any of them."""

    def __init__(self, window, grad_dtype=None, dtype=torch.float32):
        torch.manual_seed(0)
        self.model = nn.Linear(4, 2, dtype=dtype)
        if grad_dtype is not None:
            for parameter in self.model.parameters():
                parameter.grad_dtype = grad_dtype
        self.optimizer = SGD(self.model.parameters(), lr=0.05, momentum=0.9, foreach=False)
        self.window = window
        self.at, self.shared = 0, 0.0
        self.training = Training(self.model, self.optimizer)

    def run(self, until):
        while self.at < until:
            x = torch.randn(3, 4, generator=torch.Generator().manual_seed(self.at))
            parts = self.model(x.to(self.model.weight.dtype))
            # The bias has no gradient in every other microbatch.
            loss = parts.pow(2).mean() if self.at % 2 else (parts - self.model.bias).pow(2).mean()
            (loss / self.window).backward()
            self.shared += loss.item()
            self.at += 1
            if self.at % self.window == 0:
                if self.model.weight.grad.dtype is not self.model.weight.dtype:
                    self.cast_gradients()
                self.optimizer.step()
                self.optimizer.zero_grad()
        return self

    def cast_gradients(self):
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                gradient, parameter.grad = parameter.grad.to(parameter.dtype), None
                parameter.grad_dtype = parameter.dtype
                parameter.grad = gradient

    def state(self):
        return {"at": self.at, "shared": self.shared}

    def resume(self, record):
        state = self.training.restore(record)
        self.at, self.shared = state["at"], state["shared"]
        return self

    def everything(self):
        return live(self.model, self.optimizer), self.at, self.shared.hex()


@pytest.mark.parametrize(
    "window", [pytest.param(1, marks=pytest.mark.exact), 3, pytest.param(4, marks=pytest.mark.exact)]
)
def test_b27_a_run_cut_after_any_microbatch_ends_in_the_same_bits(window, tmp_path):
    whole = Loop(window).run(TOTAL)
    for cut in range(TOTAL + 1):
        first = Loop(window).run(cut)
        record = stored(first.training.capture(first.state()), tmp_path)
        assert Loop(window).resume(record).run(TOTAL).everything() == whole.everything(), cut


def test_b27_two_stops_in_one_window(tmp_path):
    whole = Loop(4).run(TOTAL)
    first = Loop(4).run(5)
    second = Loop(4).resume(stored(first.training.capture(first.state()), tmp_path)).run(7)
    third = Loop(4).resume(stored(second.training.capture(second.state()), tmp_path)).run(TOTAL)
    assert third.everything() == whole.everything()


def test_b27_gradients_of_another_dtype_than_the_parameter(tmp_path):
    def fresh():
        return Loop(4, grad_dtype=torch.float32, dtype=torch.bfloat16)

    first = fresh().run(2)
    assert first.model.weight.grad.dtype is torch.float32
    resumed = fresh().resume(stored(first.training.capture(first.state()), tmp_path))
    assert resumed.model.weight.grad.dtype is torch.float32
    assert resumed.everything() == first.everything()
    assert resumed.run(4).everything() == first.run(4).everything()


@pytest.mark.exact
def test_b27_a_run_killed_in_mid_window_again_and_again_ends_in_the_same_bits(tmp_path):
    whole = children.run("windowed", tmp_path / "whole", 12, 99)
    for stop in (6, 7):
        done = children.run("windowed", tmp_path / "run", 12, stop, check=False)
        assert done.returncode == -9
    assert children.run("windowed", tmp_path / "run", 12, 99) == whole


def scalar_window(size=4, dtype=torch.float64):
    model = nn.Linear(1, 1, bias=False)
    window = GradientAccumulator(model, dtype, microbatches=size)
    return model, window, Training(model, SGD(model.parameters(), lr=0.1), accumulator=window)


def give(model, window, values):
    """Let each value be the gradient of one microbatch; return the means of the windows that filled."""
    means = []
    for value in values:
        model.weight.grad = torch.full((1, 1), float(value))
        window.add()
        if window.is_full:
            window.finish_mean()
            means.append(model.weight.grad.item())
            model.zero_grad()
    return means


def test_b28_a_window_resumed_in_its_middle_is_divided_by_all_of_it(tmp_path):
    model, window, training = scalar_window()
    assert give(model, window, range(1, 7)) == [2.5]
    record = stored(training.capture(), tmp_path)
    assert give(model, window, [7, 8]) == [6.5]
    model_2, window_2, resumed = scalar_window()
    resumed.restore(record)
    assert window_2.microbatches == 2
    assert give(model_2, window_2, [7, 8]) == [6.5]


def test_b28_a_short_window_is_divided_by_what_is_in_it_in_both_runs(tmp_path):
    model, window, training = scalar_window()
    give(model, window, range(1, 10))
    record = stored(training.capture(), tmp_path)
    model_2, window_2, resumed = scalar_window()
    resumed.restore(record)
    for live_model, live_window in ((model, window), (model_2, window_2)):
        assert give(live_model, live_window, [10]) == []
        live_window.finish_mean()
        assert live_model.weight.grad.item() == 9.5


@pytest.mark.parametrize(
    ("change", "code"), [({"size": 8}, "window.window_microbatches"), ({"size": None}, "window.window_microbatches"),
                         ({"dtype": torch.float32}, "window.dtype")],
)  # fmt: skip
def test_b28_another_window_is_refused(change, code):
    model, window, training = scalar_window()
    give(model, window, [1])
    record = training.capture()
    with pytest.raises(ContractMismatch) as caught:
        scalar_window(**change)[2].restore(record)
    assert [finding.code for finding in caught.value.findings] == [code]


def test_b28_a_window_on_one_side_only_is_refused():
    model, _, training = scalar_window()
    bare = Training(model, SGD(model.parameters(), lr=0.1))
    for record, live_training in ((training.capture(), bare), (bare.capture(), training)):
        with pytest.raises(ContractMismatch, match="on one side only") as caught:
            live_training.restore(record)
        assert caught.value.code == "window"


TOKENS = (2, 9, 1, 4, 0, 3)


def token_window(scale=1.0):
    torch.manual_seed(0)
    model = nn.Linear(5, 6, dtype=torch.bfloat16)
    window = WeightedAccumulator(model, microbatches=len(TOKENS), loss_scale=scale)
    return model, window, Training(model, AdamW(model.parameters(), lr=0.01), accumulator=window)


def add_tokens(model, window, microbatches):
    for index in microbatches:
        generator = torch.Generator().manual_seed(index)
        x = torch.randn(TOKENS[index], 5, generator=generator).to(torch.bfloat16)
        y = torch.randint(0, 6, (TOKENS[index],), generator=generator)
        nn.functional.cross_entropy(model(x).float(), y, reduction="sum").backward()
        window.add_sum(TOKENS[index])


@pytest.mark.parametrize("cut", range(len(TOKENS) + 1))
def test_b29_sums_and_tokens_of_a_window_cut_anywhere_give_the_same_mean(cut, tmp_path):
    model, window, training = token_window()
    add_tokens(model, window, range(cut))
    record = stored(training.capture(), tmp_path)
    add_tokens(model, window, range(cut, len(TOKENS)))
    model_2, window_2, resumed = token_window()
    resumed.restore(record)
    assert window_2.total_weight == sum(TOKENS[:cut])
    add_tokens(model_2, window_2, range(cut, len(TOKENS)))
    for live_window in (window, window_2):
        assert live_window.is_full
        assert live_window.total_weight == sum(TOKENS)
        live_window.finish_mean()
    assert [raw(p.grad) for p in model.parameters()] == [raw(p.grad) for p in model_2.parameters()]


def test_b29_the_mean_is_that_of_all_tokens_not_of_the_microbatches():
    torch.manual_seed(0)
    model = nn.Linear(5, 6, dtype=torch.float64)
    x, y = torch.randn(16, 5, dtype=torch.float64), torch.randint(0, 6, (16,))
    nn.functional.cross_entropy(model(x), y).backward()
    whole = model.weight.grad
    model.zero_grad()
    window = WeightedAccumulator(model, torch.float64)
    for part in torch.arange(16).split([2, 9, 1, 4]):
        nn.functional.cross_entropy(model(x[part]), y[part], reduction="sum").backward()
        window.add_sum(len(part))
    window.finish_mean()
    assert (model.weight.grad - whole).abs().max() < 1e-15


def test_b29_another_loss_scale_is_refused():
    record = token_window(scale=2.0)[2].capture()
    with pytest.raises(ContractMismatch) as caught:
        token_window(scale=4.0)[2].restore(record)
    assert [finding.code for finding in caught.value.findings] == ["window.loss_scale"]


def sums_by_name(model, window):
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {names[id(parameter)]: raw(total) for parameter, total in window.sums()}


def test_b29_gradients_beside_an_open_window_are_kept_too(tmp_path):
    model, window, training = token_window()
    add_tokens(model, window, [0])
    model.weight.grad = torch.ones_like(model.weight)
    model_2, window_2, resumed = token_window()
    resumed.restore(stored(training.capture(), tmp_path))
    assert raw(model_2.weight.grad) == raw(model.weight.grad)
    assert sums_by_name(model_2, window_2) == sums_by_name(model, window)


SAMPLES = 20


def sampled(folder, size, stop=SAMPLES, window_type=GradientAccumulator):
    """Train on one sample a microbatch; a checkpoint after each update says where the data is, in microbatches."""
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    window = window_type(model, microbatches=size)
    seen = []
    training = Training(model, optimizer, accumulator=window)
    with Checkpointer(training, folder) as checkpointer:
        state = checkpointer.resume(default={"sample": 0, "step": 0})
        while state["sample"] < stop:
            seen.append(state["sample"])
            model(torch.full((1, 2), float(state["sample"]))).sum().backward()
            window.add() if window_type is GradientAccumulator else window.add_sum(1)
            state["sample"] += 1
            if window.is_full:
                window.finish_mean()
                optimizer.step()
                optimizer.zero_grad()
                state["step"] += 1
            checkpointer.save_if_due(state, step=state["step"])
    return seen, state


@pytest.mark.parametrize("window_type", [GradientAccumulator, WeightedAccumulator])
def test_b31_the_position_is_counted_in_microbatches_and_not_in_updates(window_type, tmp_path):
    before, state = sampled(tmp_path / "run", 3, stop=12, window_type=window_type)
    assert (before, state) == (list(range(12)), {"sample": 12, "step": 4})
    record = segue.load(sorted((tmp_path / "run").glob("ckpt-*"))[-1])
    assert (record.step, record.microbatch) == (4, 12)
    after, state = sampled(tmp_path / "run", 3, window_type=window_type)
    assert after == list(range(12, SAMPLES))
    assert state == {"sample": 20, "step": 6}


@pytest.mark.parametrize("stop", [12, 13])
def test_b31_another_window_size_is_refused_at_its_beginning_and_in_its_middle(stop, tmp_path):
    sampled(tmp_path / "run", 3, stop=stop)
    with pytest.raises(ContractMismatch) as caught:
        sampled(tmp_path / "run", 4)
    assert [(item.code, item.expected, item.found) for item in caught.value.findings] == [
        ("window.window_microbatches", 3, 4)
    ]
