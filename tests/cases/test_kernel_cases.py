"""B12: kernel flags are the program's and are never taken over in silence; a step counter keeps its value and its type."""

import contextlib

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW

from segue import Training
from segue.errors import CounterWarning, OptimizerMismatch
from tests.cases.state import codes_of, everything, raw, stored

FLAGS = {
    "default": {},
    "foreach": {"foreach": True},
    "for-loop": {"foreach": False},
    "fused": {"fused": True},
    "capturable": {"capturable": True},
    "differentiable": {"differentiable": True},
}
CLASSES = {
    "SGD": lambda p, **flags: SGD(p, lr=0.1, momentum=0.9, **flags),
    "Adam": lambda p, **flags: Adam(p, lr=0.1, **flags),
    "AdamW": lambda p, **flags: AdamW(p, lr=0.1, amsgrad=True, **flags),
    "Adagrad": lambda p, **flags: Adagrad(p, lr=0.1, **flags),
}
PAIRS = [
    (name, then, now)
    for name in CLASSES
    for then in FLAGS
    for now in FLAGS
    if ("capturable" not in (then, now) or name in ("Adam", "AdamW"))
    and ("differentiable" not in (then, now) or "default" in (then, now))
]


def program(name, flags):
    torch.manual_seed(0)
    model = nn.Linear(5, 3)
    optimizer = CLASSES[name](model.parameters(), **flags)
    return model, optimizer, Training(model, optimizer)


@contextlib.contextmanager
def on_this_machine(optimizer):
    """Step without the flags that torch has no kernel for here: no accelerator, and parameters that are leaves."""
    holders = [optimizer.defaults, *optimizer.param_groups]
    kept = [
        {key: holder[key] for key in ("capturable", "differentiable") if key in holder} for holder in holders
    ]
    for holder, flags in zip(holders, kept, strict=True):
        holder.update(dict.fromkeys(flags, False))
    yield
    for holder, flags in zip(holders, kept, strict=True):
        holder.update(flags)


def backward(model, optimizer, seed):
    optimizer.zero_grad()
    rows = torch.randn(4, model.in_features, generator=torch.Generator().manual_seed(seed))
    model(rows).pow(2).sum().backward()


def step(model, optimizer, seed):
    backward(model, optimizer, seed)
    with on_this_machine(optimizer):
        optimizer.step()


@pytest.mark.parametrize(("name", "then", "now"), PAIRS)
def test_b12_a_flag_that_differs_is_refused_and_where_none_does_the_next_updates_are_equal(
    name, then, now, tmp_path
):
    model, optimizer, training = program(name, FLAGS[then])
    step(model, optimizer, 0)
    record = stored(training.capture(), tmp_path)
    again, other, resumed = program(name, FLAGS[now])
    before = everything(again, other)
    asked = {flag for flag in other.defaults if other.defaults[flag] is not optimizer.defaults[flag]}
    asked &= {"foreach", "fused", "capturable", "differentiable"}
    assert bool(asked) == (then != now)
    if asked:
        codes = codes_of(resumed, record, OptimizerMismatch)
        assert sorted(codes) == sorted(f"optimizer.optimizer.{flag}" for flag in asked)
        for code in codes:  # each alone is not enough
            if len(codes) > 1:
                assert codes_of(resumed, record, accept=[code]) == [item for item in codes if item != code]
        assert everything(again, other) == before
        resumed.restore(record, accept=codes)
        assert resumed.capture().lineage[-1]["accepted"] == sorted(codes)
        # As if the run had switched by hand, here and now: the flags are the program's, the state is the record's.
        for holder in (optimizer.defaults, *optimizer.param_groups):
            holder.update({flag: other.defaults[flag] for flag in asked})
    else:
        resumed.restore(record)
    for seed in range(1, 4):
        assert everything(again, other) == everything(model, optimizer)
        step(model, optimizer, seed)
        step(again, other, seed)
    assert everything(again, other) == everything(model, optimizer)


def test_b12_flags_are_each_group_s_own(tmp_path):
    def begin(first, second):
        torch.manual_seed(0)
        model = nn.Linear(5, 3)
        groups = [{"params": [model.weight], **FLAGS[first]}, {"params": [model.bias], **FLAGS[second]}]
        optimizer = AdamW(groups, lr=0.1)
        return model, optimizer, Training(model, optimizer)

    model, optimizer, training = begin("fused", "foreach")
    step(model, optimizer, 0)
    record = stored(training.capture(), tmp_path)
    swapped, other, resumed = begin("foreach", "fused")
    before = everything(swapped, other)
    with pytest.raises(OptimizerMismatch) as caught:
        resumed.restore(record)
    told = {(finding.where, finding.expected, finding.found) for finding in caught.value.findings}
    assert told == {
        ("optimizer.optimizer group 0 foreach", None, True), ("optimizer.optimizer group 0 fused", True, None),
        ("optimizer.optimizer group 1 foreach", True, None), ("optimizer.optimizer group 1 fused", None, True),
    }  # fmt: skip
    assert everything(swapped, other) == before
    again, other, resumed = begin("fused", "foreach")
    resumed.restore(record)
    step(model, optimizer, 1)
    step(again, other, 1)
    assert everything(again, other) == everything(model, optimizer)


@pytest.mark.parametrize("now", ["foreach", "fused"])
@pytest.mark.parametrize("name", CLASSES)
def test_b12_a_flag_that_the_run_switched_by_hand_stays_switched_in_the_unchanged_program(
    name, now, tmp_path
):
    model, optimizer, training = program(name, {"foreach": False})
    step(model, optimizer, 0)
    optimizer.param_groups[0].update({"foreach": None, "fused": None, **FLAGS[now]})
    step(model, optimizer, 1)
    record = stored(training.capture(), tmp_path)
    again, other, resumed = program(name, {"foreach": False})
    resumed.restore(record)
    assert everything(again, other) == everything(model, optimizer)
    step(model, optimizer, 2)
    step(again, other, 2)
    assert everything(again, other) == everything(model, optimizer)


# --- the step counter ---

STEPS = {
    "float64 that float32 can't hold": torch.tensor(16777217.0, dtype=torch.float64),
    "int": 7,
    "float32": torch.tensor(7.0),
    "float32 of one element": torch.tensor([7.0]),
    "float": 7.0,
    "bool": True,
    "int that float64 can't hold": 2**60 + 1,
    "int64": torch.tensor(7),
    "int64 that float32 can't hold": torch.tensor(2**24 + 1),
    "int32": torch.tensor(7, dtype=torch.int32),
    "uint8": torch.tensor(7, dtype=torch.uint8),
    "bfloat16": torch.tensor(7.0, dtype=torch.bfloat16),
    "float16": torch.tensor(7.0, dtype=torch.float16),
}


def copied(value):
    return value.clone() if isinstance(value, torch.Tensor) else value


def outcome(model, optimizer, seed):
    """Step, and return what torch says of a counter that this kernel can't take."""
    backward(model, optimizer, seed)
    try:
        optimizer.step()
    except RuntimeError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    "kernel",
    ["default", *(pytest.param(each, marks=pytest.mark.exact) for each in ("foreach", "for-loop", "fused"))],
)
@pytest.mark.parametrize("kind", STEPS)
@pytest.mark.parametrize("name", ["AdamW", "Adagrad"])
def test_b12_a_step_counter_keeps_value_and_type_and_the_next_update_is_equal(name, kind, kernel, tmp_path):
    model, optimizer, training = program(name, FLAGS[kernel])
    step(model, optimizer, 0)
    for slots in optimizer.state.values():
        slots["step"] = copied(STEPS[kind])
    record = stored(training.capture(), tmp_path)
    said = outcome(model, optimizer, 1)
    assert said is None or getattr(STEPS[kind], "dtype", None) is not torch.float32
    for steps_before in (0, 1):  # into no state, and into state with a counter of torch's own type
        again, other, resumed = program(name, FLAGS[kernel])
        for seed in range(steps_before):
            step(again, other, 5 + seed)
        resumed.restore(record)
        for slots in other.state.values():
            assert raw(slots["step"]) == raw(STEPS[kind])
        assert outcome(again, other, 1) == said
        assert everything(again, other) == everything(model, optimizer)


def test_b12_the_update_from_a_float64_counter_is_not_that_from_a_cast_one():
    def after(counter):
        model, optimizer, _ = program("AdamW", FLAGS["fused"])
        step(model, optimizer, 0)
        for slots in optimizer.state.values():
            slots["step"] = counter.clone()
        step(model, optimizer, 1)
        return raw(optimizer.state[model.weight]["step"])

    exact = STEPS["float64 that float32 can't hold"]
    assert after(exact) != after(exact.float().double())


def test_b12_a_float32_counter_at_its_end_is_kept_and_told(tmp_path):
    model, optimizer, training = program("AdamW", FLAGS["fused"])
    step(model, optimizer, 0)
    for slots in optimizer.state.values():
        slots["step"] = torch.tensor(2.0**24)
    with pytest.warns(CounterWarning, match=r"torch\.float32 and stands at 16777216"):
        record = stored(training.capture(), tmp_path)
    again, other, resumed = program("AdamW", FLAGS["fused"])
    with pytest.warns(CounterWarning):
        resumed.restore(record)
    step(model, optimizer, 1)
    step(again, other, 1)
    assert everything(again, other) == everything(model, optimizer)
    assert other.state[again.weight]["step"] == 2**24
