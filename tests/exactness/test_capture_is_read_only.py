"""Capture, check and a refused restore leave every bit, storage, version and identity as it was."""

import pytest
import torch

import segue
from segue.errors import MismatchError, UnsupportedState
from tests.exactness.live import everything
from tests.exactness.trainings import MODES, Run, seed


@pytest.mark.parametrize("num_microbatches", [0, 2, 4, 6])
@pytest.mark.parametrize("mode", MODES)
def test_capture_and_check_change_nothing(mode, num_microbatches):
    seed(1)
    run = Run(MODES[mode])
    for number in range(num_microbatches):
        run.microbatch(number)
    before = everything(run)
    record = run.training.capture({"microbatch": num_microbatches})
    assert everything(run) == before
    run.training.check(record)
    assert everything(run) == before


def test_saving_looking_and_comparing_change_nothing(tmp_path):
    seed(1)
    run = Run(MODES["autocast-fp16-scaler"])
    for number in range(6):
        run.microbatch(number)
    before = everything(run)
    with segue.Checkpointer(run.training, tmp_path / "run", background=True) as checkpointer:
        checkpointer.save({"n": 6}).wait()
        assert everything(run) == before
        newest = checkpointer.newest()
        record = run.training.capture_async({"n": 6}).result()
        assert segue.diff(newest, record).identical
    info = segue.save(record, tmp_path / "export")
    segue.verify(info.path)
    run.training.check(segue.load(info.path))
    assert everything(run) == before


def test_a_capture_before_the_first_step_makes_no_optimizer_state():
    seed(1)
    run = Run(MODES["adamw-foreach-fp32"])
    record = run.training.capture()
    assert record.optimizers["optimizer"].state == {}
    assert dict(run.optimizer.state) == {}


def test_a_restore_of_no_optimizer_state_leaves_none():
    seed(1)
    run = Run(MODES["adamw-foreach-fp32"])
    record = run.training.capture()
    for number in range(4):
        run.microbatch(number)
    assert run.optimizer.state
    run.training.restore(record)
    assert dict(run.optimizer.state) == {}


def test_a_refused_capture_changes_nothing():
    seed(1)
    run = Run(MODES["adamw-foreach-fp32"])
    run.microbatch(0)
    before = everything(run)
    with pytest.raises(UnsupportedState, match=r"state\['x'\]"):
        run.training.capture({"x": object()})
    assert everything(run) == before


def test_a_record_shares_nothing_with_the_training_it_came_from():
    seed(1)
    run = Run(MODES["adamw-foreach-bf16"])
    for number in range(6):
        run.microbatch(number)
    state = {"list": [1], "tensor": torch.zeros(2)}
    record, same = run.training.capture(state), run.training.capture(state)
    for number in range(6, 9):
        run.microbatch(number)
    state["list"].append(2)
    state["tensor"].fill_(7)
    assert segue.diff(record, same).identical
    assert record.state["list"] == [1]
    assert record.state["tensor"].tolist() == [0, 0]


def test_a_record_can_be_restored_twice_and_is_never_aliased():
    seed(1)
    run = Run(MODES["adamw-foreach-fp32"])
    for number in range(6):
        run.microbatch(number)
    record = run.training.capture()
    ends = []
    for _ in range(2):
        run.training.restore(record)
        losses = [run.microbatch(number) for number in range(6, 12)]
        ends.append((losses, run.training.capture()))
    assert ends[0][0] == ends[1][0]
    assert segue.diff(ends[0][1], ends[1][1]).identical


@pytest.mark.parametrize("mode", MODES)
def test_a_refused_restore_changes_nothing(mode):
    seed(1)
    other = Run(MODES[mode])
    for number in range(6):
        other.microbatch(number)
    record = other.training.capture()
    seed(2)
    run = Run(MODES[mode])
    for number in range(5):
        run.microbatch(number)
    run.net.mix.weight.requires_grad_(False)
    run.net.mix.weight.grad = None
    before = everything(run)
    with pytest.raises(MismatchError, match=r"model\.requires_grad\.mix\.weight"):
        run.training.restore(record)
    assert everything(run) == before
