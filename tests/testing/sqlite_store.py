"""A store of one's own, as docs/explanation/stores.md quotes it: a run in a table of an SQLite database."""

import contextlib
import os
import sqlite3
import warnings

import segue
from segue.errors import (
    CheckpointNotFound,
    InvalidRecord,
    RunLocked,
    StoreError,
    StoreFull,
    StoreUnavailable,
    StoreWarning,
)
from segue.stores import BytesStore, Candidate, CheckpointInfo, OpenCheckpoint

TABLE = """CREATE TABLE IF NOT EXISTS checkpoints (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, attempt TEXT, step INTEGER, microbatch INTEGER, data BLOB)"""


class SqliteStore:
    keeps_history = True

    def __init__(self, path: str | os.PathLike[str], *, lock_timeout_seconds: float = 30.0) -> None:
        self.path = os.path.abspath(path)  # now, since programs change directory
        self._lock_timeout_seconds = lock_timeout_seconds
        self._lock: sqlite3.Connection | None = None
        self._writer = 0  # the process that called acquire

    def acquire(self) -> None:
        if self._is_writer:
            return
        with self._database() as database:
            database.execute(TABLE)
        # A database beside it, locked for as long as we write; the kernel unlocks it when this process dies.
        timeout = self._lock_timeout_seconds
        with self._explained():
            lock = sqlite3.connect(
                f"{self.path}.lock", timeout, isolation_level=None, check_same_thread=False
            )
            try:
                lock.execute("BEGIN EXCLUSIVE")
            except sqlite3.Error as error:
                lock.close()
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                    raise
                raise RunLocked("another process is writing to this run", where=self.path) from error
        self._lock, self._writer = lock, os.getpid()

    def release(self) -> None:
        if self._is_writer:  # in a forked child the lock is the parent's
            self._lock.close()
            self._lock = None

    @property
    def _is_writer(self) -> bool:
        return self._lock is not None and self._writer == os.getpid()

    def put(self, record: segue.TrainingRecord) -> CheckpointInfo:
        self._require_writer()
        made = BytesStore()  # makes the bytes, and reads them back in `open`
        made.acquire()
        info = made.put(record)
        row = (info.attempt, info.step, info.microbatch, made.data)
        with self._database() as database:  # one transaction: the row is there whole, or not at all
            insert = "INSERT INTO checkpoints (attempt, step, microbatch, data) VALUES (?, ?, ?, ?)"
            seq = database.execute(insert, row).lastrowid
        return self.summary(self._candidate(seq))

    def candidates(self) -> list[Candidate]:
        if not os.path.exists(self.path):
            return []  # a reader makes no database
        with self._database() as database:
            rows = database.execute("SELECT seq FROM checkpoints ORDER BY seq DESC").fetchall()
        return [self._candidate(seq) for (seq,) in rows]

    def open(self, candidate: Candidate) -> OpenCheckpoint:
        [data] = self._row(candidate, "data")
        stored = BytesStore(data)
        [only] = stored.candidates()
        return OpenRow(self.summary(candidate), stored.open(only))

    def summary(self, candidate: Candidate) -> CheckpointInfo:
        size, *rest = self._row(candidate, "length(data), attempt, step, microbatch")
        return CheckpointInfo(candidate.seq, candidate.path, size, *rest)

    def remove(self, candidate: Candidate) -> None:
        self._require_writer()
        try:
            with self._database() as database:
                database.execute("DELETE FROM checkpoints WHERE seq = ?", (candidate.seq,))
        except StoreUnavailable as error:  # what stays does no harm
            warnings.warn(StoreWarning(f"could not remove {candidate.path}: {error}"), stacklevel=2)

    def _candidate(self, seq: int) -> Candidate:
        return Candidate(seq, str(seq), f"{self.path}#{seq}")

    def _row(self, candidate: Candidate, columns: str) -> tuple:
        with self._database() as database:
            select = f"SELECT {columns} FROM checkpoints WHERE seq = ?"
            row = database.execute(select, (candidate.seq,)).fetchone()
        if row is None:
            raise CheckpointNotFound("no such checkpoint", where=candidate.path)
        return row

    def _require_writer(self) -> None:
        if not self._is_writer:
            raise StoreError("call acquire before writing", code="store.not_acquired", where=self.path)

    @contextlib.contextmanager
    def _database(self):
        """Open the database for one transaction: connections may not pass to other threads or forked children."""
        with self._explained(), contextlib.closing(sqlite3.connect(self.path)) as database, database:
            yield database

    @contextlib.contextmanager
    def _explained(self):
        try:
            yield
        except (sqlite3.DataError, OverflowError) as error:
            raise InvalidRecord(f"too large for a row: {error}", where=self.path) from error
        except sqlite3.Error as error:
            is_full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
            kind = StoreFull if is_full else StoreUnavailable
            raise kind(f"the database says: {error}", where=self.path) from error


class OpenRow:
    """A checkpoint under the number and place that it has here."""

    def __init__(self, info: CheckpointInfo, stored: OpenCheckpoint) -> None:
        self.info = info
        self.record, self.verify, self.close = stored.record, stored.verify, stored.close

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()
