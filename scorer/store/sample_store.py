"""The store: what is kept in the SQLite file, and how it is asked for."""

import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import IO, Any, Self, TypeVar

import structlog

from scorer.model.errors import StoreError
from scorer.model.evidence import Reading
from scorer.store.records import Batch, History, Row, Written, apply_batch, read_history, replace_readings
from scorer.store.retention import Retention
from scorer.store.schema import lock_file, open_database
from scorer.store.writer import Writer

log = structlog.get_logger(__name__)

T = TypeVar("T")


class SampleStore:
    """Keeps samples, runs, inventories, kernel messages, telemetry state and the last board in one SQLite file.

    A write is acknowledged only after its commit has been synced. Writes that wait together share a commit. When a
    write fails (disk full, read-only, locked), nothing kept before is lost, the caller gets a :class:`StoreError`, and
    the writer tries by itself every few seconds until :attr:`problem` is empty again.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, lock: IO[bytes], retention: Retention) -> None:
        """Use :meth:`open`."""
        self._path = path
        self._connection = connection
        self._lock = lock
        self._writer = Writer(path, connection, retention)

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        retention: Retention | None = None,
        busy_timeout_s: float = 2.0,
        max_pages: int | None = None,
    ) -> Self:
        """Open or make the database.

        Args:
            path: the file; its folder must exist.
            retention: how much to keep.
            busy_timeout_s: how long a write waits for another process that holds the file.
            max_pages: bound of the file in pages; ``None`` leaves SQLite's own.

        Raises:
            StoreError: if the file is not ours, newer than we are, damaged, in use, or cannot be written.
        """
        if not path.parent.is_dir():
            raise StoreError(f"{path.parent}: no such folder; make it or name another file with --db")
        lock = lock_file(path)
        try:
            connection = open_database(path, busy_timeout_s=busy_timeout_s, max_pages=max_pages)
        except StoreError:
            lock.close()
            raise
        return cls(path, connection, lock, retention or Retention())

    @property
    def path(self) -> Path:
        """The database file."""
        return self._path

    @property
    def problem(self) -> str:
        """Why the last write failed; empty while writes succeed."""
        return self._writer.problem

    @property
    def commits(self) -> int:
        """Transactions that were written."""
        return self._writer.commits

    @property
    def failures(self) -> int:
        """Writes that failed."""
        return self._writer.failures

    def submit(self, work: Callable[[sqlite3.Connection], Any]) -> Future[Any]:
        """Have the writer run ``work`` inside a transaction.

        The future ends with the result once that is durable, or with a :class:`StoreError`.
        """
        return self._writer.submit(work)

    def write(self, batch: Batch) -> Future[Written]:
        """Keep a batch; the future tells what of it was new."""
        return self.submit(lambda connection: apply_batch(connection, batch))

    def save_readings(self, readings: tuple[Reading, ...], scraped: dict[str, float]) -> Future[None]:
        """Keep telemetry as it stands, so that a restart does not forget since when a gauge says what it says."""
        return self.submit(lambda connection: replace_readings(connection, readings, scraped))

    def save_board(self, data: bytes, at: float) -> Future[None]:
        """Keep the newest board in place of the one before."""

        def work(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT OR REPLACE INTO board (id, at, data) VALUES (1, ?, ?)", (at, data))

        return self.submit(work)

    def reserve(self, counter: str, count: int) -> int:
        """Set ``count`` numbers aside and return the last one given out before; numbers never come twice.

        Raises:
            StoreError: if that cannot be kept.
        """

        def work(connection: sqlite3.Connection) -> int:
            row = connection.execute("SELECT value FROM counter WHERE name = ?", (counter,)).fetchone()
            start = row[0] if row else 0
            connection.execute("INSERT OR REPLACE INTO counter (name, value) VALUES (?, ?)", (counter, start + count))
            return int(start)

        return int(self.submit(work).result(timeout=30))

    def history(self) -> History:
        """Everything but the samples.

        Raises:
            StoreError: if the file is damaged.
        """
        return self._read(read_history)

    def board(self) -> bytes | None:
        """The last board kept, as :func:`encode_board` made it."""

        def work(connection: sqlite3.Connection) -> bytes | None:
            row = connection.execute("SELECT data FROM board WHERE id = 1").fetchone()
            return bytes(row[0]) if row else None

        return self._read(work)

    def sample_rows(self, since: float, slice_rows: int = 50_000) -> Iterator[list[Row]]:
        """Samples taken after ``since`` (Unix seconds), oldest first, in slices.

        Yields:
            Lists of (node, gpu index, gpu uuid, dimension, at, value or None, status, run, SM clock in
            MHz or None).
        """
        connection = self._reader()
        try:
            cursor = connection.execute(
                "SELECT node, gpu_index, gpu_uuid, dimension, at, value, status, run, sm_clock_mhz"
                " FROM sample"
                " WHERE at >= ? ORDER BY at",
                (since,),
            )
            while rows := cursor.fetchmany(slice_rows):
                yield rows
        except sqlite3.Error as error:
            raise self._error(error) from None
        finally:
            connection.close()

    def size(self) -> int:
        """Bytes that the file and its write-ahead log take on disk."""
        total = 0
        for name in (self._path, self._path.with_name(self._path.name + "-wal")):
            try:
                total += name.stat().st_size
            except OSError:
                continue
        return total

    def close(self) -> None:
        """Finish what waits, fold the log into the file and let go of it."""
        if not self._writer.close():
            return
        try:
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error as error:
            # Nothing is lost: the log beside the file is read at the next start.
            log.warning("store checkpoint failed", path=str(self._path), error=str(error))
        self._connection.close()
        self._lock.close()

    def _reader(self) -> sqlite3.Connection:
        try:
            return sqlite3.connect(f"{self._path.absolute().as_uri()}?mode=ro", uri=True, timeout=5)
        except sqlite3.Error as error:
            raise self._error(error) from None

    def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        connection = self._reader()
        try:
            return work(connection)
        except sqlite3.Error as error:
            raise self._error(error) from None
        finally:
            connection.close()

    def _error(self, error: BaseException) -> StoreError:
        return StoreError(f"{self._path}: {error}")
