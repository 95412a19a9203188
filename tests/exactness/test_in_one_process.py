"""One process that fails, goes back and goes on: an exception, a cell run twice, any record restored at any time."""

import random

import pytest
import torch

import segue
from segue.errors import MismatchError, StoreError
from tests.exactness import live
from tests.exactness.trainings import MODES, TOTAL, WINDOW, Run, seed

pytestmark = pytest.mark.filterwarnings("ignore:state that segue can see")  # of a run that stands beside

LAST = 5 * WINDOW
# Every third mode in each `make test`, all in `make exact`.
SOME = [
    pytest.param(mode, marks=() if index % 3 == 0 else pytest.mark.exact) for index, mode in enumerate(MODES)
]


def start():
    return {"microbatch": 0, "losses": []}


def loop(run, checkpointer, state, fails_at=None):
    for number in range(state["microbatch"], TOTAL):
        state["losses"].append(run.microbatch(number))
        if number == fails_at:
            raise KeyError("a bug")
        state["microbatch"] += 1
        checkpointer.save_if_due(state)
    return state


def uninterrupted(mode):
    seed(1)
    run = Run(MODES[mode])
    losses = [run.microbatch(number) for number in range(TOTAL)]
    return {"microbatch": TOTAL, "losses": losses}, live.digests(run)


@pytest.mark.parametrize("mode", MODES)
def test_an_exception_in_mid_window_and_a_resume_end_in_the_same_bits(mode, tmp_path):
    expected, expected_digests = uninterrupted(mode)
    seed(1)
    run = Run(MODES[mode])
    with segue.Checkpointer(run.training, tmp_path / "run", every_microbatches=3) as checkpointer:
        with pytest.raises(KeyError):
            loop(run, checkpointer, checkpointer.resume(default=start()), fails_at=10)
        seed(99)  # whatever the handler does
        state = loop(run, checkpointer, checkpointer.resume(default=start()))
    assert state == expected
    assert live.digests(run) == expected_digests


@pytest.mark.parametrize("mode", SOME)
def test_a_cell_that_is_run_again_over_the_same_objects_goes_on(mode, tmp_path):
    expected, expected_digests = uninterrupted(mode)
    seed(1)
    run = Run(MODES[mode])
    first = segue.Checkpointer(run.training, tmp_path / "run")
    with pytest.raises(KeyError):
        loop(run, first, first.resume(default=start()), fails_at=6)
    # The cell makes a new training and a new checkpointer over a model and optimizers that have moved since.
    run.training = bound_again(run)
    second = segue.Checkpointer(run.training, tmp_path / "run", lock_timeout_seconds=0)
    state = loop(run, second, second.resume(default=start()))
    with pytest.raises(StoreError, match="taken over"):
        first.save(state)
    second.close()
    first.close()
    assert state == expected
    assert live.digests(run) == expected_digests


def bound_again(run):
    components = {"ema": run.ema, "order": run.order}
    if run.mode.autocast is torch.float16:
        components["scaler"] = run.scaler
    run.window = run.make_window()
    return segue.Training(
        run.net, run.optimizers, run.schedulers, accumulator=run.window, components=components
    )


@pytest.mark.parametrize("mode", SOME)
def test_everything_built_anew_beside_the_old_objects_goes_on(mode, tmp_path):
    expected, expected_digests = uninterrupted(mode)
    seed(1)
    old = Run(MODES[mode])
    first = segue.Checkpointer(old.training, tmp_path / "run")
    with pytest.raises(KeyError):
        loop(old, first, first.resume(default=start()), fails_at=9)
    before = live.digests(old)
    seed(50)
    new = Run(MODES[mode])
    with segue.Checkpointer(new.training, tmp_path / "run") as second:
        state = loop(new, second, second.resume(default=start()))
    assert state == expected
    assert live.digests(new) == expected_digests
    assert [name for name, digest in live.digests(old).items() if before[name] != digest] == ["live streams"]


@pytest.mark.parametrize("walk", [0, *(pytest.param(walk, marks=pytest.mark.exact) for walk in range(1, 5))])
@pytest.mark.parametrize("mode", MODES)
def test_any_record_can_be_restored_at_any_time(mode, walk):
    """A random walk: go on, keep a record, go back or ahead to one, or be refused; every boundary is always itself."""
    chance = random.Random(f"{mode} {walk}")
    seed(1)
    run = Run(MODES[mode])
    known = {0: live.digests(run)}
    for number in range(LAST):
        run.microbatch(number)
        known[number + 1] = live.digests(run)
    seed(1)
    run = Run(MODES[mode])
    records, boundary = [run.training.capture({"boundary": 0})], 0
    for _ in range(80):
        assert live.digests(run) == known[boundary]
        action = chance.choice(["advance"] * 4 + ["keep", "restore", "refuse"])
        if action == "advance" and boundary < LAST:
            run.microbatch(boundary)
            boundary += 1
        elif action == "keep":
            records.append(run.training.capture({"boundary": boundary}))
        elif action == "restore":
            boundary = run.training.restore(chance.choice(records))["boundary"]
        elif action == "refuse":
            refuse(run, chance.choice(records))


def refuse(run, record):
    # A frozen parameter can hold no pending gradient, and the way back gives it its own.
    weight = run.net.mix.weight
    gradient, weight.grad = weight.grad, None
    weight.requires_grad_(False)
    before = live.everything(run)
    with pytest.raises(MismatchError):
        run.training.restore(record)
    assert live.everything(run) == before
    weight.requires_grad_(True)
    weight.grad = gradient
