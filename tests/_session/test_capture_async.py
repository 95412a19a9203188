import asyncio
import contextlib
import gc
import os
import signal
import threading
import weakref

import pytest
import torch
from torch import nn

import segue
from segue._capture.transfer import HostTransfer
from segue._session.pending_capture import AsyncCaptures, PendingCapture
from segue.errors import CaptureError, ConcurrentMutation, UnsupportedState
from tests._capture.held import Failing, Held
from tests.exactness.processes import in_new_process


class Small:
    """A training with large tensors, whose deferred copies are held until `release()`."""

    def __init__(self, begin=None, **options):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(512, 512), nn.BatchNorm1d(512))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1, **options)
        self.training = segue.Training(self.model, self.optimizer)
        self.held = begin or Held()
        self.captures = AsyncCaptures([self.optimizer], self.held)
        self.backward()
        self.optimizer.step()

    @property
    def weight(self):
        return self.model[0].weight

    def backward(self):
        self.model(torch.ones(2, 512) * torch.arange(1, 3).unsqueeze(1)).pow(2).sum().backward()

    def start(self, state=None):
        return self.captures.start(lambda: self.training.capture(state))


def test_behaviour_15_async_and_sync_capture_of_one_boundary_are_byte_equal(tmp_path):
    small = Small()
    expected = small.training.capture({"n": 1}, step=1, microbatch=2)
    pending = small.training.capture_async({"n": 1}, step=1, microbatch=2)
    small.backward()
    small.optimizer.step()
    record = pending.result()
    assert segue.diff(record, expected).identical
    assert segue.diff(record, small.training.capture({"n": 1}, step=1, microbatch=2)).identical is False
    for name, value in {"sync": expected, "async": record}.items():
        segue.save(value, tmp_path / name)
    for path in (tmp_path / "sync").rglob("*.safetensors"):
        other = tmp_path / "async" / path.relative_to(tmp_path / "sync")
        assert path.read_bytes() == other.read_bytes()


def test_large_parameters_and_moments_are_deferred_and_nothing_else():
    small = Small()
    slots = small.optimizer.state[small.weight]
    pending = small.start()
    expected = {tensor.data_ptr() for tensor in (small.weight, slots["exp_avg"], slots["exp_avg_sq"])}
    assert {tensor.data_ptr() for tensor in small.held.begun} == expected
    assert not pending.done()
    small.held.release()
    assert segue.diff(pending.result(), small.training.capture()).identical


def test_what_no_version_shows_is_copied_before_the_call_returns():
    """Gradients, window sums, buffers, components, caller state, and parameters that no torch optimizer steps."""
    torch.manual_seed(0)
    model, teacher = nn.Linear(512, 512, bias=False), nn.Linear(512, 512, bias=False)
    model.register_buffer("table", torch.ones(512, 512))
    model.frozen = nn.Parameter(torch.ones(512, 512), requires_grad=False)
    window = segue.WeightedAccumulator(model, dtype=torch.float32)
    optimizer = torch.optim.SGD([model.weight], lr=0.1)
    training = segue.Training(model, optimizer, accumulator=window, components={"teacher": teacher})
    model(torch.ones(1, 512)).sum().backward()
    window.add_sum(weight=1)
    model(torch.ones(1, 512)).sum().backward()
    state = {"history": torch.ones(512, 512)}
    held = Held()
    expected = training.capture(state)
    pending = AsyncCaptures([optimizer], held).start(lambda: training.capture(state))
    written = [model.table, model.frozen, teacher.weight, state["history"], model.weight.grad]
    written += [total for _, total in window.sums()]
    for tensor in written:
        tensor.data.detach().numpy()[3, 5] += 1
    held.release()
    assert len(held.begun) == 1
    assert segue.diff(pending.result(), expected).identical


def test_forward_and_backward_go_on_while_the_copies_are_under_way():
    small = Small()
    expected = small.training.capture()
    pending = small.start()
    small.backward()
    assert not pending.done()
    small.held.release()
    assert segue.diff(pending.result(), expected).identical


@pytest.mark.parametrize("options", [{}, {"fused": True}], ids=["foreach", "fused"])
def test_a_step_waits(options):
    small = Small(**options)
    expected = small.training.capture()
    pending = small.start()
    small.held.release_soon()
    small.optimizer.step()
    assert segue.diff(pending.result(), expected).identical


def test_after_a_step_anything_may_change_before_the_result_is_asked_for():
    small = Small()
    expected = small.training.capture()
    pending = small.training.capture_async()
    small.optimizer.step()
    nn.init.zeros_(small.weight)
    assert segue.diff(pending.result(), expected).identical


def test_state_that_is_written_or_replaced():
    small = Small()
    slots = small.optimizer.state[small.weight]
    expected, pending = small.training.capture(), small.start()
    slots["exp_avg"] = torch.zeros(512, 512)
    small.held.release()
    assert segue.diff(pending.result(), expected).identical

    pending = small.training.capture_async()
    slots["exp_avg"].zero_()
    with pytest.raises(ConcurrentMutation) as error:
        pending.result()
    assert error.value.where.startswith("optimizer.optimizer state 0.weight")
    assert isinstance(pending.exception(), ConcurrentMutation)
    assert pending.done()


def test_loading_another_state_dict_is_noticed_and_that_of_an_optimizer_does_no_harm():
    small = Small()
    others = {name: tensor.clone() for name, tensor in small.model.state_dict().items()}
    expected, pending = small.training.capture(), small.start()
    small.optimizer.load_state_dict(small.optimizer.state_dict())
    small.held.release()
    assert segue.diff(pending.result(), expected).identical
    pending = small.start()
    small.model.load_state_dict(others)
    with pytest.raises(ConcurrentMutation, match=r"0\.weight"):
        pending.result()


def test_errors_of_the_capture_are_raised_by_the_future():
    small = Small()
    small.held.release()
    pending = small.training.capture_async({"n": open})
    assert pending.done()
    assert isinstance(pending.exception(), UnsupportedState)
    with pytest.raises(UnsupportedState):
        pending.result()
    assert small.training.capture_async().result().version


def test_an_error_of_the_thread_is_raised_by_the_future_and_training_goes_on():
    small = Small(Failing)
    pending = small.start()
    small.optimizer.step()
    assert pending.done()
    with pytest.raises(MemoryError):
        pending.result()


def test_a_second_capture_waits_for_the_copies_of_the_first():
    small = Small()
    expected = small.training.capture()
    first = small.start()
    threading.Thread(target=small.held.release).start()
    second = small.start()
    assert first.done()
    nn.init.zeros_(small.weight)
    assert segue.diff(first.result(), expected).identical
    with pytest.raises(ConcurrentMutation):
        second.result()


def test_a_restore_waits():
    small = Small()
    record = small.training.capture()
    small.optimizer.step()
    expected, pending = small.training.capture(), small.training.capture_async()
    small.training.restore(record)
    assert segue.diff(pending.result(), expected).identical
    assert segue.diff(small.training.capture(), record).identical


def test_a_capture_and_a_save_go_on_beside(tmp_path):
    small = Small()
    expected, pending = small.training.capture(), small.start()
    with segue.Checkpointer(small.training, tmp_path / "run") as checkpointer:
        info = checkpointer.save().wait()
    assert segue.diff(segue.load(info.path), small.training.capture(microbatch=0)).identical
    small.held.release()
    assert segue.diff(pending.result(), expected).identical


def test_without_large_tensors_it_is_done_at_once():
    model = nn.Linear(2, 2)
    training = segue.Training(model, torch.optim.SGD(model.parameters(), lr=0.1))
    pending = training.capture_async()
    assert PendingCapture.done(pending)
    nn.init.zeros_(model.weight)
    assert pending.result().model.tensors["weight"].to_host().any()


def test_it_can_not_be_cancelled():
    small = Small()
    expected, pending = small.training.capture(), small.start()
    assert not pending.cancel()
    assert not pending.cancelled()
    with pytest.raises(TimeoutError):
        pending.result(timeout=0)
    with pytest.raises(TimeoutError):
        pending.exception(timeout=0)
    small.held.release()
    assert segue.diff(pending.result(timeout=60), expected).identical


def test_the_training_may_be_gone_before_its_capture_is_complete():
    small = Small()
    optimizer, held, training = small.optimizer, small.held, weakref.ref(small.training)
    expected, pending = small.training.capture(), small.start()
    del small
    gc.collect()
    assert training() is None
    held.release_soon()
    optimizer.step()
    assert segue.diff(pending.result(), expected).identical


def test_a_future_that_is_forgotten_keeps_no_record():
    small = Small()
    small.held.release()
    pending = small.start()
    record = weakref.ref(pending.result())
    del pending
    gc.collect()
    assert record() is None


# Awaiting.


def test_it_is_awaited_while_other_work_goes_on():
    small = Small()
    expected = small.training.capture()

    async def other_work():
        small.backward()
        small.held.release()

    async def run():
        record, _ = await asyncio.gather(asyncio.ensure_future(wait(small.start())), other_work())
        return record

    async def wait(pending):
        return await pending

    assert segue.diff(asyncio.run(run()), expected).identical


def test_what_went_wrong_is_raised_by_await():
    small = Small()

    async def run():
        pending = small.start()
        nn.init.zeros_(small.weight)
        small.held.release()
        await pending

    with pytest.raises(ConcurrentMutation, match=r"0\.weight"):
        asyncio.run(run())


def test_a_cancelled_task_and_a_closed_loop_leave_the_capture_as_it_is():
    small = Small()
    expected, started = small.training.capture(), []

    async def wait():
        started.append(small.start())
        await started[0]

    async def run():
        task = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(run())
    small.held.release()
    assert segue.diff(started[0].result(), expected).identical


# Processes.


class UntilTheMainThreadEnds(HostTransfer):
    def finish(self):
        threading.main_thread().join()
        super().finish()


def leave_while_copying(path):
    small = Small(UntilTheMainThreadEnds)
    expected = small.training.capture()

    def write(pending):
        path.write_text(str(segue.diff(pending.result(), expected).identical))

    small.start().add_done_callback(write)


def test_an_interpreter_that_exits_waits_for_the_copies(tmp_path):
    assert in_new_process(leave_while_copying, tmp_path / "outcome") == 0
    assert (tmp_path / "outcome").read_text() == "True"


def fork_while_copying():
    small = Small()
    expected, pending = small.training.capture(), small.start()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        small.optimizer.step()
        with pytest.raises(CaptureError) as error:
            pending.result()
        os._exit(0 if error.value.code == "capture.forked" else 1)
    _, status = os.waitpid(child, 0)
    assert status == 0
    small.held.release()
    assert segue.diff(pending.result(), expected).identical


def test_a_forked_child_does_not_wait_for_a_thread_that_it_does_not_have():
    assert in_new_process(fork_while_copying) == 0
