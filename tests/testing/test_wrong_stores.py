"""The conformance suite finds what is wrong with stores that are wrong: each mutant fails the test that is about it."""

import dataclasses
import subprocess
import sys
import unittest

import pytest

import segue.testing
from segue import stores
from segue.testing import StoreConformance


class Careless(stores.FileStore):
    """A file store, to be made worse."""

    def __init__(self, path, **options):
        super().__init__(path, lock_timeout_seconds=0, **options)


class ForgetsTheLock(Careless):
    def acquire(self):
        stores.FileStore(self.path, lock_timeout_seconds=0)
        self._lock = type("Lock", (), {"held": True, "exclusive": False, "give_back": lambda self: None})()


class WritesWithoutLock(Careless):
    def put(self, record):
        self.acquire()
        return super().put(record)


class RemovesFirst(Careless):
    def put(self, record):
        for candidate in self.candidates():
            self.remove(candidate)
        return super().put(record)


class LosesStrides(Careless):
    def put(self, record):
        from segue._record.tensors import contiguous_strides

        state = record.caller_state
        if isinstance(state, dict):
            state = {
                key: dataclasses.replace(value, strides=contiguous_strides(value.shape))
                if hasattr(value, "strides") and hasattr(value, "source")
                else value
                for key, value in state.items()
            }
        return super().put(dataclasses.replace(record, caller_state=state))


class CountsFromOne(Careless):
    def put(self, record):
        return dataclasses.replace(super().put(record), seq=1)


class OpensWhateverIsThere(Careless):
    def _check_asked_for(self, info, candidate):
        pass


class KeepsWhatIsRemoved(Careless):
    def remove(self, candidate):
        self._require_lock()


class ListsNothingDamaged(Careless):
    def candidates(self):
        return [candidate for candidate in super().candidates() if candidate.seq]


class ReadsUnverified(Careless):
    def open(self, candidate):
        checkpoint = super().open(candidate)
        checkpoint.verify = checkpoint.record
        return checkpoint


MUTANTS = {
    ForgetsTheLock: "test_a_second_writer_is_refused_until_the_first_lets_go",
    WritesWithoutLock: "test_writing_needs_the_lock",
    RemovesFirst: "test_a_put_that_fails_leaves_the_old",
    LosesStrides: "test_everything_comes_back_bit_for_bit",
    CountsFromOne: "test_numbers_grow_and_the_newest_comes_first",
    OpensWhateverIsThere: "test_what_is_replaced_is_never_removed_in_place_of_another",
    KeepsWhatIsRemoved: "test_what_is_removed_is_gone",
    ListsNothingDamaged: "test_damage_is_refused_and_never_a_record",
    ReadsUnverified: "test_damage_is_refused_and_never_a_record",
}


def suite(kind):
    class Suite(StoreConformance):
        def make_store(self, place):
            return kind(place / "run.segue")

        def turn_bit(self, store, candidate, fraction):
            with open(store.path, "r+b") as file:
                data = bytearray(file.read())
                data[round(fraction * (len(data) - 1))] ^= 4
                file.seek(0)
                file.write(data)

    return Suite()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_wrong_store_fails(mutant, tmp_path):
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.mkdir()
    wrong.mkdir()
    getattr(suite(Careless), MUTANTS[mutant])(right)
    with pytest.raises((AssertionError, segue.errors.SegueError, ValueError)):
        getattr(suite(mutant), MUTANTS[mutant])(wrong)


def test_what_a_suite_does_not_say_is_skipped_and_not_passed(tmp_path):
    with pytest.raises(unittest.SkipTest, match="make_store"):
        StoreConformance().test_numbers_grow_and_the_newest_comes_first(tmp_path)
    silent = suite(Careless)
    type(silent).turn_bit = StoreConformance.turn_bit
    with pytest.raises(unittest.SkipTest, match="turn_bit"):
        silent.test_damage_is_refused_and_never_a_record(tmp_path)


def test_importing_it_needs_no_pytest():
    script = "import sys; sys.modules['pytest'] = None; import segue.testing; print(segue.testing.__all__)"
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "['StoreConformance']\n"), done.stderr


def test_all_stores_are_stores(tmp_path):
    made = (
        stores.DirectoryStore(tmp_path),
        stores.FileStore(tmp_path / "a"),
        stores.MemoryStore("memory://x"),
        stores.BytesStore(),
    )
    assert all(isinstance(store, stores.Store) for store in made)
    assert [store.keeps_history for store in made] == [True, False, True, False]
    assert not isinstance(object(), stores.Store)
