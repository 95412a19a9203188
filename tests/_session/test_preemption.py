import os
import signal
import threading
import time

import pytest

import segue
from segue._session.preemption import PreemptionFlag
from tests._session.small import make


@pytest.fixture
def handler():
    """A handler of the program's own, and what it has received."""
    received = []
    previous = signal.signal(signal.SIGUSR1, lambda number, frame: received.append(number))
    yield received
    signal.signal(signal.SIGUSR1, previous)


def test_a_signal_sets_the_flag_calls_the_own_handler_and_is_put_back(handler):
    own = signal.getsignal(signal.SIGUSR1)
    flag = PreemptionFlag([signal.SIGUSR1])
    flag.install()
    assert not flag.is_set
    os.kill(os.getpid(), signal.SIGUSR1)
    assert flag.is_set
    assert handler == [signal.SIGUSR1]
    flag.remove()
    assert signal.getsignal(signal.SIGUSR1) is own


def test_a_handler_that_was_put_on_top_stays(handler):
    flag = PreemptionFlag([signal.SIGUSR1])
    flag.install()

    def newer(number, frame):
        pass

    signal.signal(signal.SIGUSR1, newer)
    flag.remove()
    assert signal.getsignal(signal.SIGUSR1) is newer


def test_another_thread_can_not_listen_and_does_not_fail(handler):
    own = signal.getsignal(signal.SIGUSR1)
    flag = PreemptionFlag([signal.SIGUSR1])
    thread = threading.Thread(target=flag.install)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGUSR1) is own


@pytest.mark.parametrize("background", [False, True])
def test_a_preempted_run_saves_at_the_next_boundary_and_is_told_to_end(tmp_path, background, handler):
    _, _, training = make()
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)]
    checkpointer = segue.Checkpointer(training, tmp_path / "run", every_seconds=3600, background=background)
    with checkpointer:
        assert checkpointer.resume(default={"n": 0}) == {"n": 0}
        assert not checkpointer.save_if_due({"n": 1})
        os.kill(os.getpid(), signal.SIGTERM)
        assert checkpointer.preempted
        assert checkpointer.save_if_due({"n": 2})
        assert checkpointer.newest().state == {"n": 2}
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)] == before
    assert handler == []


def test_a_flag_that_was_removed_out_of_order_passes_signals_on(handler):
    first, second = PreemptionFlag([signal.SIGUSR1]), PreemptionFlag([signal.SIGUSR1])
    first.install()
    second.install()
    first.remove()
    second.remove()  # puts the first one's handler back, which no longer listens
    os.kill(os.getpid(), signal.SIGUSR1)
    assert handler == [signal.SIGUSR1]
    assert not first.is_set


def test_a_signal_after_the_last_boundary_is_not_swallowed(handler):
    flag = PreemptionFlag([signal.SIGUSR1])
    flag.install()
    os.kill(os.getpid(), signal.SIGUSR1)
    assert handler == [signal.SIGUSR1]
    flag.remove()
    assert handler == [signal.SIGUSR1] * 2


def test_a_forked_child_dies_of_sigterm_as_ever():
    flag = PreemptionFlag([signal.SIGTERM])
    flag.install()
    try:
        ready, ready_in_child = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(ready_in_child, b"x")
            while True:  # not `pause`: a signal that comes just before it is handled after it
                time.sleep(0.01)
        os.read(ready, 1)
        os.kill(child, signal.SIGTERM)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM
        assert not flag.is_set
    finally:
        flag.remove()
        os.close(ready)
        os.close(ready_in_child)
