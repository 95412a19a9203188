"""A writer killed at random moments, again and again in one run: nothing that was acknowledged is ever lost."""

import os
import random
import signal
import time

import pytest

from segue._record.digest import digests
from tests._store.records import record
from tests.crash.outcome import store_at

KEEP = 2


def write_until_killed(path, first, tell) -> None:
    with store_at(path, lock_timeout_seconds=10) as store:
        step = first
        while True:
            store.put(record(step))
            os.write(tell, step.to_bytes(4, "little"))
            for candidate in store.candidates()[KEEP:]:
                store.remove(candidate)
            step += 1


def newest_step(path) -> int:
    store = store_at(path)
    for candidate in store.candidates():
        with store.open(candidate) as checkpoint:
            checkpoint.verify()
            found = checkpoint.record()
            assert digests(found) == digests(record(found.step))
            return found.step
    return 0


def storm(path, kills) -> int:
    generator, acknowledged = random.Random(kills), 0
    for _ in range(kills):
        hear, tell = os.pipe()
        first = newest_step(path) + 1
        child = os.fork()
        if child == 0:
            write_until_killed(path, first, tell)
        os.close(tell)
        time.sleep(generator.uniform(0.001, 0.04))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        told = os.read(hear, 2**16)
        os.close(hear)
        if told:
            acknowledged = int.from_bytes(told[-4:], "little")
        # The newest is always whole: it is the acknowledged one, or the one whose acknowledgement the kill cut off.
        assert newest_step(path) in (acknowledged, acknowledged + 1)
        acknowledged = newest_step(path)
    return acknowledged


@pytest.mark.parametrize("name", ["run", "run.segue"])
def test_a_short_storm_loses_nothing(tmp_path, name):
    assert storm(tmp_path / name, 40) > 0


@pytest.mark.crash
@pytest.mark.parametrize("name", ["run", "run.segue"])
def test_a_storm_loses_nothing(tmp_path, name):
    assert storm(tmp_path / name, 1500) > 0
