"""What a training tells of counters that can't count on, at capture and at restore; every bit of them stays."""

import pytest
import torch
from torch import nn
from torch.optim import Adam, Adamax, Optimizer
from torch.optim.swa_utils import AveragedModel

import segue
from segue.errors import CounterWarning
from tests.cases.state import live, stored


def trained(optimizer=Adam, counter=None, **components):
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    made = optimizer(model.parameters(), lr=0.1)
    model(torch.ones(1, 2)).sum().backward()
    made.step()
    made.zero_grad()
    if counter is not None:
        for slots in made.state.values():
            slots["step"] = counter.clone()
    return model, made, segue.Training(model, made, components=components)


def assert_told(make, told, tmp_path):
    """At capture, and at the restore of what was stored; afterwards both trainings are the same bits."""
    model, optimizer, training = make()
    before = live(model, optimizer)
    with pytest.warns(CounterWarning, match=told) as caught:
        record = stored(training.capture(), tmp_path)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert live(model, optimizer) == before
    again, other, resumed = make()
    with pytest.warns(CounterWarning, match=told) as caught:
        resumed.restore(record)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert live(again, other) == before


@pytest.mark.parametrize("optimizer", [Adam, Adamax])
@pytest.mark.parametrize(
    ("counter", "told"),
    [
        (torch.tensor(256.0).bfloat16(), r"stands at 256, .*cast it to float32"),
        (torch.tensor(2048.0).half(), r"stands at 2048, .*cast it to float32"),
        (torch.tensor(16.0).to(torch.float8_e4m3fn), r"float8_e4m3fn and stands at 16, .*cast it to float32"),
        (torch.tensor(2.0**24), r"stands at 16777216, .*cast it to float64"),
        (torch.tensor(100, dtype=torch.int8), r"stands at 100; at 127 that dtype ends.*cast it to int64"),
        (torch.tensor(30_000, dtype=torch.int16), r"stands at 30000; at 32767 that dtype ends"),
    ],
    ids=str,
)
def test_a_step_of_any_dtype_is_told_once_for_all_parameters(optimizer, counter, told, tmp_path):
    named = r"optimizer\.optimizer: the step counter of weight \(and 1 more\) is torch\."
    assert_told(lambda: trained(optimizer, counter), named + ".*" + told, tmp_path)


class CountsInOptions(Optimizer):
    """As fused optimizers of others do: one counter for each group."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr, "step": torch.tensor(40, dtype=torch.int8)})

    def step(self, closure=None):
        for group in self.param_groups:
            group["step"] += 30


def test_a_counter_among_the_options_is_told(tmp_path):
    assert_told(
        lambda: trained(CountsInOptions), r"step counter of group 0 is torch\.int8 and stands at 70", tmp_path
    )


class CastAverage(AveragedModel):
    """Cast with all of its buffers, as savers do that cast everything."""

    def __init__(self, model):
        super().__init__(model)
        self.n_averaged = torch.tensor(300.0).bfloat16()


def test_the_number_of_averaged_models_is_told(tmp_path):
    assert_told(
        lambda: trained(ema=CastAverage(nn.Linear(2, 2))),
        r"component\.ema: the n_averaged counter of it is torch\.bfloat16 and stands at 300",
        tmp_path,
    )


class CountsInTensors:
    """A scaler of one's own."""

    def __init__(self):
        self.tree = {"_scale": torch.tensor(2.0**30), "_growth_tracker": torch.tensor(2048.0).half()}

    def state_dict(self):
        return self.tree

    def load_state_dict(self, tree):
        self.tree = tree


def test_a_growth_tracker_in_a_tensor_is_told(tmp_path):
    assert_told(
        lambda: trained(scaler=CountsInTensors()), r"component\.scaler: the _growth_tracker counter", tmp_path
    )


def test_torch_s_own_counters_are_none_of_these(tmp_path, recwarn):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    average = AveragedModel(model, use_buffers=True).bfloat16()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    training = segue.Training(model, optimizer, scheduler, components={"scaler": scaler, "ema": average})
    assert average.n_averaged.dtype is torch.int64
    training.restore(stored(training.capture(), tmp_path))
    assert [warning for warning in recwarn if issubclass(warning.category, CounterWarning)] == []
