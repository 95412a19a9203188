import os
import signal
import threading

import pytest

from segue._session.writer import BackgroundWriter, PendingSave
from segue.errors import SaveFailed, StoreFull


def test_a_save_in_progress_times_out_and_then_comes_back():
    release = threading.Event()
    writer = BackgroundWriter()
    pending = writer.submit(lambda: release.wait(30) and "info")
    assert not pending.done()
    with pytest.raises(TimeoutError):
        pending.wait(timeout_seconds=0.01)
    release.set()
    assert pending.wait() == "info"
    writer.settle()


def test_a_failure_is_raised_once_by_settling_and_always_by_its_handle():
    def put():
        raise StoreFull("no room")

    writer = BackgroundWriter()
    pending = writer.submit(put)
    with pytest.raises(SaveFailed, match="no room"):
        writer.settle()
    writer.settle()
    for _ in range(2):
        with pytest.raises(SaveFailed):
            pending.wait()


def test_an_interrupted_wait_still_waits_the_next_time():
    release, started = threading.Event(), threading.Event()

    def put():
        started.set()
        release.wait(30)
        return "info"

    def interrupt():
        started.wait(30)
        os.kill(os.getpid(), signal.SIGUSR1)

    def raises(number, frame):
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGUSR1, raises)
    writer = BackgroundWriter()
    pending = writer.submit(put)
    threading.Timer(0.2, interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        writer.settle()
    signal.signal(signal.SIGUSR1, previous)
    assert not pending.done()
    release.set()
    writer.settle()
    assert pending.done()


def test_a_completed_save_is_done():
    assert PendingSave.completed("info").wait() == "info"
