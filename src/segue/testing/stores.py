"""What every store must do, as tests: inherit, say how a store is made, and run pytest.

```python
class TestMyStore(segue.testing.StoreConformance):
    def make_store(self, place):
        return MyStore(f"my://bucket/{place.name}", lock_timeout_seconds=0)
```
"""

from __future__ import annotations

import contextlib
import os
import threading
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from segue._record.digest import digests
from segue._record.training import TrainingRecord
from segue._record.tree import same
from segue._store.protocol import Store
from segue._store.scan import Candidate
from segue.errors import (
    CheckpointNotFound,
    CorruptCheckpoint,
    RunLocked,
    StoreError,
    StoreUnavailable,
    UnsupportedFormat,
)
from segue.testing import records
from segue.testing.trainings import SmallTraining

_TURNS = 12


class StoreConformance:
    """Tests that any `segue.stores.Store` passes on which a training may rely.

    Inherit from it under a name that pytest collects, and override `make_store`; the rest says what the store can do.
    """

    several_handles = True
    """Whether `make_store` called twice with one place gives two stores of one run."""

    def make_store(self, place: Path) -> Store:
        """Make a store that waits for a lock as briefly as it can.

        Args:
            place: An empty folder, or one of an earlier call in the same test: then the store is of the same run. A
                store that is elsewhere may use it as a name.
        """
        raise unittest.SkipTest("make_store says how a store is made")

    def turn_bit(self, store: Store, candidate: Candidate, fraction: float) -> None:
        """Turn one bit of what is stored of a checkpoint, at about this fraction of it: 0 is the first byte, 1 the last."""
        raise unittest.SkipTest("without turn_bit it is not tested that damage is noticed")

    # What was stored comes back.

    def test_everything_comes_back_bit_for_bit(self, tmp_path: Path) -> None:
        with self._writer(tmp_path) as store:
            for name, record in records.everything().items():
                store.put(record)
                with store.open(store.candidates()[0]) as checkpoint:
                    for found in (checkpoint.record(), checkpoint.verify()):
                        assert same(record.sections(), found.sections()), name
                        assert digests(record) == digests(found), name

    def test_a_record_shares_no_memory_with_the_store(self, tmp_path: Path) -> None:
        small = SmallTraining(1)
        with self._writer(tmp_path) as store:
            store.put(small.training.capture())
            expected = digests(self._newest(store))
            small.scribble()
            found = self._newest(store)
            assert digests(found) == expected, "what was live is not stored"
            next(iter(found.model.tensors.values())).to_host().fill_(7)  # type: ignore[union-attr]
            assert digests(self._newest(store)) == expected, "what was read is not stored"

    def test_a_summary_is_what_put_returned(self, tmp_path: Path) -> None:
        with self._writer(tmp_path) as store:
            info = store.put(records.plain(3))
            [candidate] = store.candidates()
            assert store.summary(candidate) == info
            with store.open(candidate) as checkpoint:
                assert checkpoint.info == info
            assert (info.seq, info.step, info.microbatch) == (candidate.seq, 3, 6)
            assert info.num_bytes > 0

    # Order.

    def test_a_new_run_has_no_candidates(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        assert store.candidates() == []
        store.acquire()
        assert store.candidates() == []
        store.release()

    def test_numbers_grow_and_the_newest_comes_first(self, tmp_path: Path) -> None:
        with self._writer(tmp_path) as store:
            numbers = [store.put(records.plain(number)).seq for number in (1, 2, 3)]
            assert numbers == sorted(set(numbers))
            found = [candidate.seq for candidate in store.candidates()]
            assert found == (numbers[::-1] if store.keeps_history else numbers[-1:])
            assert self._newest(store).step == 3

    def test_a_later_writer_goes_on_counting(self, tmp_path: Path) -> None:
        with self._writer(tmp_path) as store:
            first = store.put(records.plain(1)).seq
        with self._next_writer(tmp_path, store) as store:
            assert self._newest(store).step == 1
            assert store.put(records.plain(2)).seq > first
            assert self._newest(store).step == 2

    def test_the_record_that_is_replaced_can_be_put_again(self, tmp_path: Path) -> None:
        with self._writer(tmp_path) as store:
            store.put(records.plain(1))
            with store.open(store.candidates()[0]) as checkpoint:
                store.put(checkpoint.record())
            assert digests(self._newest(store)) == digests(records.plain(1))

    # All or nothing.

    def test_a_put_that_fails_leaves_the_old(self, tmp_path: Path) -> None:
        with self._writer(tmp_path) as store:
            store.put(records.plain(1))
            before = store.candidates()
            for error in (StoreUnavailable("the source is gone"), KeyboardInterrupt(), MemoryError()):
                _raises(type(error), lambda error=error: store.put(records.failing(2, error)))  # type: ignore[misc]
                assert store.candidates() == before
                assert digests(self._newest(store)) == digests(records.plain(1))
            store.put(records.plain(3))
            assert self._newest(store).step == 3

    def test_a_put_that_fails_first_leaves_nothing(self, tmp_path: Path) -> None:
        with self._writer(tmp_path) as store:
            _raises(StoreUnavailable, lambda: store.put(records.failing(1, StoreUnavailable("gone"))))
            assert store.candidates() == []

    def test_damage_is_refused_and_never_a_record(self, tmp_path: Path) -> None:
        for part in range(_TURNS + 1):
            place = tmp_path / str(part)
            place.mkdir()
            with self._writer(place) as store:
                store.put(records.mostly_data())
                [candidate] = store.candidates()
                self.turn_bit(store, candidate, part / _TURNS)
                [candidate] = store.candidates()
                _raises((CorruptCheckpoint, UnsupportedFormat), lambda: self._verified(store, candidate))  # noqa: B023

    # One writer.

    def test_writing_needs_the_lock(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        store.release()
        _refuses_to_write(store)
        store.acquire()
        store.acquire()
        store.put(records.plain(1))
        [candidate] = store.candidates()
        store.release()
        store.release()
        _refuses_to_write(store, candidate)
        assert store.candidates() == [candidate]

    def test_a_second_writer_is_refused_until_the_first_lets_go(self, tmp_path: Path) -> None:
        first, second = self._two(tmp_path)
        first.acquire()
        _raises(RunLocked, second.acquire)
        _refuses_to_write(second)
        first.put(records.plain(1))
        first.release()
        second.acquire()
        second.put(records.plain(2))
        second.release()
        assert self._newest(first).step == 2

    def test_a_forked_child_does_not_write_and_leaves_the_lock_alone(self, tmp_path: Path) -> None:
        with self._writer(tmp_path) as store:
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    _refuses_to_write(store)
                    store.release()
                    status = 0
                finally:
                    os._exit(status)
            assert os.waitpid(child, 0)[1] == 0, "a child that inherits a writer is none"
            store.put(records.plain(1))

    # Readers.

    def test_readers_need_no_lock(self, tmp_path: Path) -> None:
        writer, reader = self._two(tmp_path)
        writer.acquire()
        writer.put(records.plain(1))
        assert self._newest(reader).step == 1
        writer.put(records.plain(2))
        assert self._newest(reader).step == 2
        writer.release()

    def test_a_reader_finds_a_whole_record_while_a_writer_works(self, tmp_path: Path) -> None:
        writer, reader = self._two(tmp_path)
        expected = [digests(records.plain(number)) for number in range(1, _TURNS + 1)]
        writer.acquire()
        writer.put(records.plain(1))
        stopped = threading.Event()
        with _thread(lambda: self._work(writer), stopped):
            last = 0
            while not stopped.is_set():
                try:
                    record = self._newest(reader)
                except CheckpointNotFound:
                    continue
                number = record.step or 0
                assert number >= last, "an older one is never the newest again"
                assert digests(record) == expected[number - 1]
                last = number
        assert self._newest(reader).step == _TURNS
        writer.release()

    def _work(self, writer: Store) -> None:
        for number in range(2, _TURNS + 1):
            writer.put(records.plain(number))
            for candidate in writer.candidates()[1:]:
                writer.remove(candidate)

    def test_what_is_open_stays_readable(self, tmp_path: Path) -> None:
        with self._writer(tmp_path) as store:
            store.put(records.plain(1))
            [candidate] = store.candidates()
            record = store.open(candidate).record()
            store.put(records.plain(2))
            store.remove(candidate)
            assert digests(record) == digests(records.plain(1))

    def test_what_is_closed_is_not_readable(self, tmp_path: Path) -> None:
        with self._writer(tmp_path) as store:
            store.put(records.plain(1))
            checkpoint = store.open(store.candidates()[0])
            record = checkpoint.record()
            checkpoint.close()
            checkpoint.close()
            _raises(StoreError, lambda: digests(record))

    # Removal.

    def test_what_is_removed_is_gone(self, tmp_path: Path) -> None:
        with self._writer(tmp_path) as store:
            first = store.put(records.plain(1)).seq
            [candidate] = store.candidates()
            store.remove(candidate)
            assert store.candidates() == []
            _raises(CheckpointNotFound, lambda: store.open(candidate))
            _raises(CheckpointNotFound, lambda: store.summary(candidate))
            if not store.keeps_history:
                assert store.put(records.plain(2)).seq > first

    def test_what_is_replaced_is_never_removed_in_place_of_another(self, tmp_path: Path) -> None:
        with self._writer(tmp_path) as store:
            store.put(records.plain(1))
            [old] = store.candidates()
            store.put(records.plain(2))
            store.remove(old)
            assert [candidate.seq for candidate in store.candidates()] == [old.seq + 1]
            _raises(CheckpointNotFound, lambda: store.open(old))
            assert self._newest(store).step == 2

    # A training on top.

    def test_a_training_goes_on_from_it(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        uninterrupted = SmallTraining(1)
        uninterrupted.run(None, until=4)
        first = SmallTraining(1)
        first.run(store, until=2)
        second = SmallTraining(2)
        second.run(store, until=4)
        assert second.digests() == uninterrupted.digests()

    # How the tests look at a store.

    @contextlib.contextmanager
    def _writer(self, place: Path) -> Iterator[Store]:
        store = self.make_store(place)
        store.acquire()
        try:
            yield store
        finally:
            store.release()

    def _next_writer(self, place: Path, before: Store) -> contextlib.AbstractContextManager[Store]:
        if self.several_handles:
            return self._writer(place)
        before.acquire()
        return contextlib.nullcontext(before)

    def _two(self, place: Path) -> tuple[Store, Store]:
        if not self.several_handles:
            raise unittest.SkipTest("there is one store of each run")
        return self.make_store(place), self.make_store(place)

    def _newest(self, store: Store) -> TrainingRecord:
        candidates = store.candidates()
        if not candidates:
            raise CheckpointNotFound("no checkpoint")
        return self._verified(store, candidates[0])

    def _verified(self, store: Store, candidate: Candidate) -> TrainingRecord:
        return store.open(candidate).verify()


def _refuses_to_write(store: Store, candidate: Candidate | None = None) -> None:
    error = _raises(StoreError, lambda: store.put(records.plain(1)))
    assert getattr(error, "code", None) == "store.not_acquired", error
    if candidate is not None:
        _raises(StoreError, lambda: store.remove(candidate))


def _raises(
    expected: type[BaseException] | tuple[type[BaseException], ...], action: Callable[[], Any]
) -> BaseException:
    try:
        found = action()
    except expected as error:
        return error
    raise AssertionError(f"expected {expected}, and there was no error but {found!r}")


@contextlib.contextmanager
def _thread(work: Callable[[], None], stopped: threading.Event) -> Iterator[None]:
    """Run something beside the body; its error is raised at the end."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)
        finally:
            stopped.set()

    thread = threading.Thread(target=run, name="conformance")
    thread.start()
    try:
        yield
    finally:
        thread.join()
    if errors:
        raise errors[0]
