"""The store that the documents show is one that a training can rely on, and tells its errors as segue's own do."""

import contextlib
import os
import sqlite3
from pathlib import Path

import pytest

import segue
import segue.testing
from segue.errors import InvalidRecord, RunLocked, StoreError, StoreFull, StoreUnavailable, StoreWarning
from segue.testing import records
from tests._session.small import make, step
from tests.testing.sqlite_store import SqliteStore
from tests.testing.test_stores import turned

ROOT = Path(__file__).resolve().parents[2]


class TestSqliteStore(segue.testing.StoreConformance):
    def make_store(self, place):
        return SqliteStore(place / "run.sqlite", lock_timeout_seconds=0)

    def turn_bit(self, store, candidate, fraction):
        with contextlib.closing(sqlite3.connect(store.path)) as database, database:
            row = (candidate.seq,)
            [data] = database.execute("SELECT data FROM checkpoints WHERE seq = ?", row).fetchone()
            change = (turned(data, fraction), *row)
            database.execute("UPDATE checkpoints SET data = ? WHERE seq = ?", change)


def test_the_document_quotes_it_as_it_is():
    _, _, code = (ROOT / "tests/testing/sqlite_store.py").read_text().partition('"""\n\n')
    assert f"```python\n{code}```\n" in (ROOT / "docs/explanation/stores.md").read_text()


def test_a_checkpointer_keeps_the_last_ones_in_it(tmp_path):
    model, optimizer, training = make()
    store = SqliteStore(tmp_path / "run.sqlite")
    with segue.Checkpointer(training, store, keep_last=2, background=True) as checkpointer:
        state = checkpointer.resume(default={"n": 0})
        for _ in range(4):
            step(model, optimizer)
            state["n"] += 1
            checkpointer.save(state)
    assert [candidate.seq for candidate in store.candidates()] == [4, 3]
    _, _, training = make()
    with segue.Checkpointer(training, SqliteStore(tmp_path / "run.sqlite")) as checkpointer:
        assert checkpointer.resume() == {"n": 4}


def test_a_number_is_never_given_twice(tmp_path):
    store = SqliteStore(tmp_path / "run.sqlite")
    store.acquire()
    first = store.put(records.plain(1)).seq
    store.remove(store.candidates()[0])
    assert store.put(records.plain(2)).seq > first
    store.release()


def test_errors_have_the_code_and_the_place(tmp_path):
    first, second = (SqliteStore(tmp_path / "run.sqlite", lock_timeout_seconds=0) for _ in range(2))
    first.acquire()
    with pytest.raises(RunLocked) as locked:
        second.acquire()
    with pytest.raises(StoreError) as unlocked:
        second.put(records.plain(1))
    first.release()
    found = [(error.value.code, error.value.where) for error in (locked, unlocked)]
    assert found == [("store.locked", first.path), ("store.not_acquired", first.path)]


def test_a_database_that_can_not_be_used_is_unavailable(tmp_path):
    (tmp_path / "run.sqlite").write_bytes(b"something else, and long enough to be a header" * 9)
    with pytest.raises(StoreUnavailable, match="not a database") as caught:
        SqliteStore(tmp_path / "run.sqlite").candidates()
    assert (caught.value.code, caught.value.where) == ("store.unavailable", str(tmp_path / "run.sqlite"))
    with pytest.raises(StoreUnavailable):
        SqliteStore(tmp_path / "nowhere" / "run.sqlite").acquire()


def test_a_full_database_keeps_what_it_has(tmp_path):
    class Small(SqliteStore):
        @contextlib.contextmanager
        def _database(self):
            with super()._database() as database:
                database.execute("PRAGMA max_page_count = 20")
                yield database

    store = Small(tmp_path / "run.sqlite")
    store.acquire()
    store.put(records.plain(1))
    with pytest.raises(StoreFull) as caught:
        store.put(records.mostly_data())
    assert caught.value.code == "store.full"
    assert [store.summary(candidate).step for candidate in store.candidates()] == [1]
    store.release()


def test_a_record_that_is_too_large_for_a_row_is_refused(tmp_path):
    class Narrow(SqliteStore):
        @contextlib.contextmanager
        def _database(self):
            with super()._database() as database:
                database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 100_000)
                yield database

    store = Narrow(tmp_path / "run.sqlite")
    store.acquire()
    store.put(records.plain(1))
    with pytest.raises(InvalidRecord, match="too large"):
        store.put(records.mostly_data())
    assert len(store.candidates()) == 1
    store.release()


def test_what_can_not_be_removed_is_a_warning(tmp_path):
    class Stuck(SqliteStore):
        @contextlib.contextmanager
        def _database(self):
            with super()._database() as database:
                database.execute("PRAGMA query_only = on")
                yield database

    writer = SqliteStore(tmp_path / "run.sqlite")
    writer.acquire()
    writer.put(records.plain(1))
    stuck = Stuck(tmp_path / "run.sqlite")
    stuck._lock, stuck._writer = writer._lock, writer._writer
    with pytest.warns(StoreWarning, match="could not remove.*#1"):
        stuck.remove(stuck.candidates()[0])
    assert len(writer.candidates()) == 1
    writer.release()


def test_a_lock_that_can_not_be_made_is_no_other_writer(tmp_path):
    (tmp_path / "run.sqlite.lock").mkdir()
    with pytest.raises(StoreUnavailable, match="unable to open"):
        SqliteStore(tmp_path / "run.sqlite").acquire()


def test_the_lock_goes_with_its_process_though_a_child_lives_on(tmp_path):
    ends, goes_on = os.pipe(), os.pipe()
    writer = os.fork()
    if writer == 0:
        try:
            SqliteStore(tmp_path / "run.sqlite").acquire()
            if os.fork() == 0:  # as a data worker that outlives a killed trainer
                os.write(ends[1], b"x")
                os.read(goes_on[0], 1)
        finally:
            os._exit(0)
    os.waitpid(writer, 0)
    assert os.read(ends[0], 1) == b"x"
    store = SqliteStore(tmp_path / "run.sqlite", lock_timeout_seconds=0)
    store.acquire()
    store.release()
    os.write(goes_on[1], b"x")
