import contextlib
import gc
import multiprocessing
import os
import resource
import signal
import threading
from pathlib import Path

import pytest
import torch

import segue
from segue.errors import (
    CheckpointExists,
    CheckpointNotFound,
    CorruptCheckpoint,
    OptimizerMismatch,
    RunLocked,
    SaveFailed,
    SkippedCheckpointWarning,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from tests._session.small import make, step


def names(root):
    return sorted(path.name for path in Path(root).glob("ckpt-*"))


def damage(checkpoint, file="model.safetensors"):
    path = Path(checkpoint) / file
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def saved(root, count, **options):
    model, optimizer, training = make()
    with segue.Checkpointer(training, root, **options) as checkpointer:
        checkpointer.resume()
        for number in range(1, count + 1):
            step(model, optimizer)
            checkpointer.save_if_due({"n": number}, step=number)
    return model, optimizer, training


def test_the_default_comes_back_only_where_the_run_has_nothing(tmp_path):
    default = {"n": 0}
    _, _, training = make()
    with segue.Checkpointer(training, tmp_path / "run") as checkpointer:
        assert checkpointer.newest() is None
        assert checkpointer.resume(default) is default
        checkpointer.save({"n": 1})
        assert checkpointer.resume(default) == {"n": 1}


def test_resume_restores_the_newest(tmp_path):
    model, _, _ = saved(tmp_path / "run", 3)
    other, _, training = make(seed=5)
    with segue.Checkpointer(training, tmp_path / "run") as checkpointer:
        assert checkpointer.resume() == {"n": 3}
    assert torch.equal(other.weight, model.weight)


def test_save_if_due_saves_on_its_cadence_and_counts_on_after_a_resume(tmp_path):
    saved(tmp_path / "run", 5, every_microbatches=2)
    assert names(tmp_path / "run") == ["ckpt-000000001", "ckpt-000000002"]
    _, _, training = make()
    with segue.Checkpointer(training, tmp_path / "run", every_microbatches=2) as checkpointer:
        assert checkpointer.resume() == {"n": 4}
        assert checkpointer.newest().microbatch == 4
        assert checkpointer.newest().step == 4
        checkpointer.save_if_due({"n": 5})
        assert checkpointer.newest().state == {"n": 4}
        checkpointer.save_if_due({"n": 6})
        assert checkpointer.newest().state == {"n": 6}
        assert checkpointer.newest().microbatch == 6


def test_the_last_ones_are_kept(tmp_path):
    saved(tmp_path / "run", 5, keep_last=2)
    assert names(tmp_path / "run") == ["ckpt-000000004", "ckpt-000000005"]


def test_the_one_resumed_from_stays_until_two_newer_ones_exist(tmp_path):
    saved(tmp_path / "run", 3, keep_last=1)
    _, _, training = make()
    with segue.Checkpointer(training, tmp_path / "run", keep_last=1) as checkpointer:
        checkpointer.resume()
        checkpointer.save({"n": 4})
        assert names(tmp_path / "run") == ["ckpt-000000003", "ckpt-000000004"]
        checkpointer.save({"n": 5})
        assert names(tmp_path / "run") == ["ckpt-000000005"]


def test_a_training_that_moved_before_its_first_save_can_not_begin_again(tmp_path):
    model, optimizer, training = make()
    with segue.Checkpointer(training, tmp_path / "run", every_microbatches=5) as checkpointer:
        assert checkpointer.resume({"n": 0}) == {"n": 0}
        assert checkpointer.resume({"n": 0}) == {"n": 0}
        step(model, optimizer)
        checkpointer.save_if_due({"n": 1})
        with pytest.raises(
            CheckpointNotFound, match=r"moved on(?s:.*)1 microbatches(?s:.*)build the training again"
        ):
            checkpointer.resume({"n": 0})
        checkpointer.save({"n": 1})
        assert checkpointer.resume({"n": 0}) == {"n": 1}


def test_a_damaged_newest_is_passed_over_with_a_warning_that_names_it_and_why(tmp_path):
    saved(tmp_path / "run", 3)
    damage(tmp_path / "run" / "ckpt-000000003")
    _, _, training = make()
    with segue.Checkpointer(training, tmp_path / "run") as checkpointer:
        with pytest.warns(SkippedCheckpointWarning, match=r"(?s)ckpt-000000003.*model\.safetensors"):
            assert checkpointer.resume() == {"n": 2}
        # The damaged one keeps its number: nothing stored is ever written over.
        checkpointer.save({"n": 3})
    assert names(tmp_path / "run")[-1] == "ckpt-000000004"
    with pytest.raises(CorruptCheckpoint, match=r"model\.safetensors"):
        segue.verify(tmp_path / "run" / "ckpt-000000003")


def test_a_run_whose_checkpoints_are_all_damaged_never_starts_afresh(tmp_path):
    saved(tmp_path / "run", 2)
    for name in names(tmp_path / "run"):
        damage(tmp_path / "run" / name)
    model, _, training = make(seed=3)
    before = model.weight.detach().clone()
    with (
        segue.Checkpointer(training, tmp_path / "run") as checkpointer,
        pytest.warns(SkippedCheckpointWarning),
        pytest.raises(CorruptCheckpoint, match="no checkpoint of this run can be read"),
    ):
        checkpointer.resume(default={})
    assert torch.equal(model.weight, before)


def test_a_checkpoint_of_another_run_is_passed_over(tmp_path):
    saved(tmp_path / "mine", 1)
    saved(tmp_path / "theirs", 2)
    os.rename(tmp_path / "theirs" / "ckpt-000000002", tmp_path / "mine" / "ckpt-000000002")
    _, _, training = make()
    with (
        segue.Checkpointer(training, tmp_path / "mine") as checkpointer,
        pytest.warns(SkippedCheckpointWarning, match="another run"),
    ):
        assert checkpointer.resume() == {"n": 1}


def test_a_mismatch_is_no_damage_and_the_entry_that_admits_it_is_printed(tmp_path):
    saved(tmp_path / "run", 2)
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    training = segue.Training(model, optimizer)
    with segue.Checkpointer(training, tmp_path / "run") as checkpointer:
        with pytest.raises(OptimizerMismatch, match=r'accept=\["optimizer\.optimizer\.lr"\]'):
            checkpointer.resume()
        assert checkpointer.resume(accept=["optimizer.optimizer.lr"]) == {"n": 2}
        assert optimizer.param_groups[0]["lr"] == 0.5
        checkpointer.save({"n": 3})
        [entry] = checkpointer.newest().lineage
        assert entry["accepted"] == ["optimizer.optimizer.lr"]
        assert checkpointer.resume(accept=["optimizer.optimizer.lr"]) == {"n": 3}


def test_a_renamed_module_is_admitted_by_name_and_written_into_the_lineage(tmp_path):
    def build(name, seed):
        torch.manual_seed(seed)
        model = torch.nn.ModuleDict({name: torch.nn.Linear(3, 2)})
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        model[name](torch.ones(1, 3)).sum().backward()
        optimizer.step()
        return model, optimizer, segue.Training(model, optimizer)

    old, old_optimizer, training = build("old", 0)
    with segue.Checkpointer(training, tmp_path / "run") as checkpointer:
        checkpointer.save({"n": 1})
    new, optimizer, training = build("new", 1)
    with segue.Checkpointer(training, tmp_path / "run") as checkpointer:
        with pytest.raises(segue.errors.ContractMismatch, match=r'rename=\{"old": "new"\}'):
            checkpointer.resume()
        assert checkpointer.resume(rename={"old": "new"}) == {"n": 1}
        checkpointer.save({"n": 2})
        assert checkpointer.newest().lineage[0]["renamed"] == {"old": "new"}
        assert checkpointer.resume(rename={"old": "new"}) == {"n": 2}
        assert len(checkpointer.newest().lineage) == 1
    moment = optimizer.state[new["new"].weight]["exp_avg"]
    assert torch.equal(moment, old_optimizer.state[old["old"].weight]["exp_avg"])


def test_a_relative_path_counts_from_where_the_program_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, _, training = make()
    with segue.Checkpointer(training, "runs/a") as checkpointer:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        checkpointer.save({"n": 1})
    assert names(tmp_path / "runs" / "a") == ["ckpt-000000001"]


def test_another_kind_of_url_is_refused(tmp_path):
    _, _, training = make()
    with pytest.raises(StoreUnavailable, match="local path, or in memory"):
        segue.Checkpointer(training, "s3://bucket/run")
    with segue.Checkpointer(training, f"file://{tmp_path}/a%20run") as checkpointer:
        checkpointer.save({"n": 1})
    assert names(tmp_path / "a run")


def test_a_second_checkpointer_in_one_process_takes_over(tmp_path):
    _, _, training = make()
    (tmp_path / "link").symlink_to(tmp_path / "run", target_is_directory=True)
    first = segue.Checkpointer(training, tmp_path / "run")
    first.save({"n": 1})
    second = segue.Checkpointer(training, tmp_path / "link", lock_timeout_seconds=0)
    assert second.resume() == {"n": 1}
    second.save({"n": 2})
    with pytest.raises(StoreError, match="taken over"):
        first.save({"n": 3})
    second.close()
    first.close()


def test_a_checkpointer_that_is_dropped_leaves_the_run_free(tmp_path):
    _, _, training = make()
    segue.Checkpointer(training, tmp_path / "run").save({"n": 1})
    gc.collect()
    with segue.Checkpointer(training, tmp_path / "run", lock_timeout_seconds=0) as checkpointer:
        assert checkpointer.resume() == {"n": 1}


def hold(root, ready, done):
    _, _, training = make()
    with segue.Checkpointer(training, root) as checkpointer:
        checkpointer.save({"n": 1})
        ready.set()
        done.wait(30)


def test_a_second_process_is_refused_and_can_still_look(tmp_path):
    context = multiprocessing.get_context("forkserver")
    ready, done = context.Event(), context.Event()
    process = context.Process(target=hold, args=(str(tmp_path / "run"), ready, done))
    process.start()
    try:
        assert ready.wait(60)
        _, _, training = make()
        checkpointer = segue.Checkpointer(training, tmp_path / "run", lock_timeout_seconds=0)
        with pytest.raises(RunLocked, match=str(process.pid)):
            checkpointer.save({"n": 2})
        assert checkpointer.newest().state == {"n": 1}
    finally:
        done.set()
        process.join()


def test_a_program_that_forgot_to_resume_can_not_bury_the_old_work(tmp_path):
    saved(tmp_path / "run", 2)
    _, _, training = make(seed=9)
    with segue.Checkpointer(training, tmp_path / "run", keep_last=1) as checkpointer:
        with pytest.raises(CheckpointExists, match=r"call `resume\(\)`"):
            checkpointer.save({"n": 1})
        assert names(tmp_path / "run") == ["ckpt-000000001", "ckpt-000000002"]
        assert checkpointer.resume() == {"n": 2}
        checkpointer.save({"n": 3})


def test_leaving_never_saves(tmp_path):
    _, _, training = make()
    with segue.Checkpointer(training, tmp_path / "run", every_seconds=3600) as checkpointer:
        checkpointer.resume()
        checkpointer.save_if_due({"n": 1})
    assert names(tmp_path / "run") == []


def test_a_caller_state_that_can_not_be_kept_is_refused_before_anything_is_written(tmp_path):
    _, _, training = make()
    with (
        segue.Checkpointer(training, tmp_path / "run") as checkpointer,
        pytest.raises(segue.errors.UnsupportedState, match=r"state\['f'\]"),
    ):
        checkpointer.save({"f": open})
    assert names(tmp_path / "run") == []


def test_in_the_background_the_values_are_those_of_the_call(tmp_path):
    model, optimizer, training = make(size=800)
    state = {"list": [1]}
    with segue.Checkpointer(training, tmp_path / "run", background=True) as checkpointer:
        step(model, optimizer)
        expected = training.capture(state)
        pending = checkpointer.save(state)
        for _ in range(3):
            step(model, optimizer)
        state["list"].append(2)
        info = pending.wait()
        assert pending.done()
    record = segue.load(info.path)
    assert segue.diff(expected, record).identical
    assert record.state == {"list": [1]}


def test_the_writer_keeps_no_daemon_and_one_save_is_in_flight(tmp_path):
    model, optimizer, training = make(size=800)
    with segue.Checkpointer(training, tmp_path / "run", background=True) as checkpointer:
        for number in range(4):
            step(model, optimizer)
            checkpointer.save({"n": number})
            writers = [thread for thread in threading.enumerate() if thread.name == "segue-writer"]
            assert len(writers) <= 1
            assert not any(thread.daemon for thread in writers)
    assert len(names(tmp_path / "run")) == 4


@pytest.fixture
def no_large_files():
    with disk_full():
        yield


@contextlib.contextmanager
def disk_full():
    """Let the kernel refuse files above 20 kB, as a full disk would."""
    previous = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, previous[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, previous)
    signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_keeps_the_old_one_and_leaves_nothing(tmp_path):
    _, _, training = make(size=20_000)
    with segue.Checkpointer(training, tmp_path / "run") as checkpointer:
        checkpointer.save({"n": 1})
        with disk_full(), pytest.raises(StoreFull):
            checkpointer.save({"n": 2})
        assert checkpointer.newest().state == {"n": 1}
    assert sorted(os.listdir(tmp_path / "run")) == ["ckpt-000000001", "run.json"]


def test_an_error_in_the_background_comes_back_from_wait_and_the_next_save(tmp_path, no_large_files):
    _, _, training = make(size=20_000)
    checkpointer = segue.Checkpointer(training, tmp_path / "run", background=True)
    pending = checkpointer.save({"n": 1})
    with pytest.raises(SaveFailed) as caught:
        pending.wait()
    assert isinstance(caught.value.__cause__, StoreFull)
    with pytest.raises(SaveFailed):
        checkpointer.save({"n": 2})
    checkpointer.save({"n": 3})
    with pytest.raises(SaveFailed):
        checkpointer.close()
    checkpointer.close()


def test_an_error_in_the_background_is_a_note_where_something_else_was_wrong(tmp_path, no_large_files):
    _, _, training = make(size=20_000)

    def fail():
        with segue.Checkpointer(training, tmp_path / "run", background=True) as checkpointer:
            checkpointer.save({"n": 1})
            raise KeyError("the real problem")

    with pytest.raises(KeyError) as caught:
        fail()
    assert any("last save failed" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("options", [{"keep_last": 0}, {"every_steps": 0}, {"every_seconds": -1}])
def test_options_out_of_range_are_refused(tmp_path, options):
    _, _, training = make()
    with pytest.raises(ValueError, match="must be"):
        segue.Checkpointer(training, tmp_path / "run", **options)


def test_a_save_that_would_lose_the_caller_state_is_an_error_of_its_own(tmp_path):
    _, _, training = make()
    with segue.Checkpointer(training, tmp_path / "run") as checkpointer:
        checkpointer.resume(default={"n": 0})
        for save in (checkpointer.save, checkpointer.save_if_due):
            with pytest.raises(TypeError, match="pass it on"):
                save()
        checkpointer.save({"n": 1})


def test_swapped_arguments_and_intervals_of_another_type_are_named(tmp_path):
    _, _, training = make()
    with pytest.raises(TypeError, match=r"the first is a segue\.Training"):
        segue.Checkpointer(str(tmp_path), training)
    with pytest.raises(TypeError, match="every_microbatches must be a number"):
        segue.Checkpointer(training, tmp_path / "run", every_microbatches="3")


def test_a_checkpoint_is_no_run_to_begin_in(tmp_path):
    *_, training = make()
    with segue.Checkpointer(training, tmp_path / "run") as checkpointer:
        checkpointer.save({"at": 1})
    inside = tmp_path / "run" / "ckpt-000000001"
    before = sorted(path.name for path in inside.iterdir())
    for act in (lambda c: c.resume(default={}), lambda c: c.save({})):
        with (
            segue.Checkpointer(make()[2], inside) as checkpointer,
            pytest.raises(StoreError, match="one checkpoint and not a run") as caught,
        ):
            act(checkpointer)
        assert caught.value.code == "store.not_a_run"
        assert str(tmp_path / "run") in caught.value.hint
    assert sorted(path.name for path in inside.iterdir()) == before
    segue.verify(inside)
