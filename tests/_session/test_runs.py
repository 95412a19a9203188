"""Living with a run, as docs/explanation/runs.md tells: going back, pruning, moving, and what is said to the forgetful."""

import os
import shutil

import pytest
import torch
from torch import nn

import segue
from segue.errors import (
    CheckpointExists,
    CheckpointNotFound,
    ComponentMismatch,
    IncompleteCheckpoint,
    OptimizerMismatch,
    RunLocked,
    SkippedCheckpointWarning,
    StoreError,
    UnsupportedState,
)
from tests._session.small import make, step


def names(run):
    return sorted(os.listdir(run))


def trained(run, until, **options):
    """Run the program: from where the run stands until this many steps, saving after each."""
    model, optimizer, training = make()
    with segue.Checkpointer(training, run, **options) as checkpointer:
        state = checkpointer.resume(default={"n": 0})
        begun = state["n"]
        while state["n"] < until:
            step(model, optimizer)
            state["n"] += 1
            checkpointer.save_if_due(state, step=state["n"])
    return begun


def checkpoint(run, number):
    return run / f"ckpt-{number:09}"


# Going back.


def begun_from(record, run):
    _, _, training = make()
    state = training.restore(record)
    with segue.Checkpointer(training, run) as checkpointer:
        return checkpointer.resume(default=state)


def test_a_run_begins_from_a_checkpoint_of_another_and_is_resumed_by_the_same_program(tmp_path):
    trained(tmp_path / "a", 3)
    record = segue.load(checkpoint(tmp_path / "a", 2))
    assert begun_from(record, tmp_path / "b") == {"n": 2}
    model, optimizer, training = make(seed=4)
    state = training.restore(record)
    with segue.Checkpointer(training, tmp_path / "b") as checkpointer:
        checkpointer.resume(default=state)
        step(model, optimizer)
        checkpointer.save_if_due({"n": 3})
        assert checkpointer.newest().microbatch == 1, "counted anew"
    assert segue.diff(checkpoint(tmp_path / "a", 3), checkpoint(tmp_path / "b", 1)).identical
    assert begun_from(record, tmp_path / "b") == {"n": 3}


def test_what_is_to_go_on_otherwise_is_said_at_the_restore(tmp_path):
    trained(tmp_path / "a", 2)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    training = segue.Training(model, optimizer)
    record = segue.load(checkpoint(tmp_path / "a", 1))
    with pytest.raises(OptimizerMismatch, match=r"optimizer\.optimizer\.lr"):
        training.restore(record)
    training.restore(record, accept=["optimizer.optimizer.lr"])
    assert optimizer.param_groups[0]["lr"] == 0.01


def test_newer_checkpoints_that_are_moved_away_are_gone_back_behind(tmp_path):
    trained(tmp_path / "a", 5)
    aside = tmp_path / "aside"
    aside.mkdir()
    for number in (3, 4, 5):
        checkpoint(tmp_path / "a", number).rename(checkpoint(aside, number))
    assert trained(tmp_path / "a", 3) == 2
    assert names(tmp_path / "a") == ["ckpt-000000001", "ckpt-000000002", "ckpt-000000003", "run.json"]
    assert segue.diff(checkpoint(tmp_path / "a", 3), checkpoint(aside, 3)).identical


def test_a_checkpoint_that_is_copied_with_run_json_is_a_run_that_goes_on_counting(tmp_path):
    trained(tmp_path / "a", 3)
    (tmp_path / "b").mkdir()
    shutil.copy(tmp_path / "a" / "run.json", tmp_path / "b")
    shutil.copytree(checkpoint(tmp_path / "a", 2), checkpoint(tmp_path / "b", 2))
    assert trained(tmp_path / "b", 3) == 2
    assert names(tmp_path / "b") == ["ckpt-000000002", "ckpt-000000003", "run.json"]
    assert segue.load(checkpoint(tmp_path / "b", 3)).microbatch == 3
    assert segue.diff(checkpoint(tmp_path / "a", 3), checkpoint(tmp_path / "b", 3)).identical


# Pruning.


def test_any_checkpoint_can_be_deleted_since_none_needs_another(tmp_path):
    trained(tmp_path / "a", 4)
    record = segue.load(checkpoint(tmp_path / "a", 1))
    for number in (1, 3):
        shutil.rmtree(checkpoint(tmp_path / "a", number))
    assert [segue.verify(checkpoint(tmp_path / "a", number)).step for number in (2, 4)] == [2, 4]
    _, _, training = make(seed=5)
    assert training.restore(record) == {"n": 1}, "what is open is read on"
    assert trained(tmp_path / "a", 4) == 4


def test_a_run_that_kept_all_keeps_the_last_ones_from_now_on(tmp_path):
    trained(tmp_path / "a", 5)
    trained(tmp_path / "a", 7, keep_last=2)
    assert names(tmp_path / "a") == ["ckpt-000000006", "ckpt-000000007", "run.json"]


def test_a_milestone_is_copied_out_of_the_run(tmp_path):
    trained(tmp_path / "a", 1)
    milestone = checkpoint(tmp_path / "a", 1)
    shutil.copytree(milestone, tmp_path / "copied")
    segue.save(segue.load(milestone), tmp_path / "saved")
    with pytest.raises(CheckpointExists):
        segue.save(segue.load(milestone), tmp_path / "saved")
    trained(tmp_path / "a", 3, keep_last=1)
    assert not milestone.exists()
    for place in ("copied", "saved"):
        _, _, training = make(seed=5)
        assert training.restore(segue.load(tmp_path / place)) == {"n": 1}


def test_what_an_interrupted_deletion_leaves_is_passed_over(tmp_path):
    trained(tmp_path / "a", 2)
    (checkpoint(tmp_path / "a", 2) / "training.safetensors").unlink()
    with pytest.warns(SkippedCheckpointWarning, match=r"no training\.safetensors"):
        assert trained(tmp_path / "a", 1) == 1


# Moving.


def test_a_run_can_be_moved_and_copied(tmp_path):
    trained(tmp_path / "a", 2)
    shutil.move(tmp_path / "a", tmp_path / "moved")
    shutil.copytree(tmp_path / "moved", tmp_path / "copied")
    assert [trained(tmp_path / name, 3) for name in ("moved", "copied")] == [2, 2]
    assert segue.diff(checkpoint(tmp_path / "moved", 3), checkpoint(tmp_path / "copied", 3)).identical


def test_without_run_json_it_is_refused(tmp_path):
    trained(tmp_path / "a", 2)
    (tmp_path / "a" / "run.json").unlink()
    with pytest.raises(
        IncompleteCheckpoint, match=r"(?s)no run\.json: whose are they\?.*hint: .*copy run\.json"
    ):
        trained(tmp_path / "a", 3)
    _, _, training = make(seed=5)
    assert training.restore(segue.load(checkpoint(tmp_path / "a", 2))) == {"n": 2}


# What resume says.


def test_a_run_that_is_not_there_is_begun_by_resume_and_only_looked_for_by_newest(tmp_path):
    _, _, training = make()
    with segue.Checkpointer(training, tmp_path / "tpyo") as checkpointer:
        assert checkpointer.newest() is None
        assert not (tmp_path / "tpyo").exists()
        assert checkpointer.resume() is None
        assert checkpointer.resume(default={"n": 0}) == {"n": 0}
    assert names(tmp_path / "tpyo") == ["run.json"]


def test_the_end_that_is_saved_is_saved_once_more(tmp_path):
    for _ in range(2):
        _, _, training = make()
        with segue.Checkpointer(training, tmp_path / "a", every_seconds=300) as checkpointer:
            state = checkpointer.resume(default={"n": 2})
            checkpointer.save(state)
    assert segue.diff(checkpoint(tmp_path / "a", 1), checkpoint(tmp_path / "a", 2)).identical


# What is forgotten.


def test_resume(tmp_path):
    trained(tmp_path / "a", 1)
    _, _, training = make()
    with (
        segue.Checkpointer(training, tmp_path / "a") as checkpointer,
        pytest.raises(CheckpointExists, match=r"not resumed \[checkpointer\.not_resumed\]"),
    ):
        checkpointer.save_if_due({"n": 1})
    assert names(tmp_path / "a") == ["ckpt-000000001", "run.json"]


def test_the_state_and_the_step(tmp_path):
    _, _, training = make()
    with segue.Checkpointer(training, tmp_path / "a", every_steps=2) as checkpointer:
        checkpointer.resume(default={"n": 0})
        with pytest.raises(TypeError, match="pass it on to each save, or it is lost"):
            checkpointer.save_if_due(step=1)
        with pytest.raises(ValueError, match="with every_steps, tell the step"):
            checkpointer.save_if_due({"n": 1})


def test_an_optimizer_or_a_scheduler():
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    with pytest.raises(UnsupportedState, match=r"no optimizer owns them(?s:.*)1\.weight, 1\.bias") as unowned:
        segue.Training(model, torch.optim.SGD(model[0].parameters(), lr=0.1)).capture()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    with pytest.raises(UnsupportedState, match="attached to an optimizer but not registered") as unregistered:
        segue.Training(model, optimizer).capture()
    segue.Training(model, optimizer, scheduler).capture()
    assert unowned.value.code == "capture.unowned_parameter"
    assert unregistered.value.code == "capture.unregistered_scheduler"


def test_a_component_on_either_side():
    def training(**components):
        model = nn.Linear(3, 2)
        return segue.Training(model, torch.optim.SGD(model.parameters(), lr=0.1), components=components)

    without, with_one = training(), training(ema=nn.Linear(3, 2))
    for record, live in ((without.capture(), with_one), (with_one.capture(), without)):
        with pytest.raises(ComponentMismatch) as caught:
            live.restore(record)
        assert caught.value.code == "component.ema"


def test_to_build_anew_and_to_keep_plain_values(tmp_path):
    _, _, training = make()
    with segue.Checkpointer(training, tmp_path / "a", every_microbatches=5) as checkpointer:
        checkpointer.resume(default={"n": 0})
        checkpointer.save_if_due({"n": 1})
        with pytest.raises(CheckpointNotFound) as moved_on:
            checkpointer.resume(default={"n": 0})
        with pytest.raises(UnsupportedState) as no_value:
            checkpointer.save({"f": open})
    assert moved_on.value.code == "checkpointer.nothing_saved"
    assert no_value.value.where == "state['f']"


# Two processes.


def test_a_second_process_waits_and_is_refused_and_one_process_takes_over(tmp_path):
    _, _, training = make()
    first = segue.Checkpointer(training, tmp_path / "a")
    first.resume()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            other = segue.Checkpointer(make()[2], tmp_path / "a", lock_timeout_seconds=0)
            assert other.newest() is None
            with pytest.raises(RunLocked, match=f"process {os.getppid()} on this machine is writing"):
                other.resume()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    second = segue.Checkpointer(training, tmp_path / "a")
    second.resume()
    with pytest.raises(StoreError) as superseded:
        first.save({"n": 1})
    assert superseded.value.code == "checkpointer.superseded"
    second.close()
