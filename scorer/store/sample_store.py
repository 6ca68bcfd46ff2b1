"""The store: many callers, one writer thread, one commit for all that wait."""

import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self, TypeVar

import structlog

from scorer.model.errors import StoreError
from scorer.model.evidence import Reading
from scorer.store.records import Batch, History, Row, Written, apply_batch, read_history, replace_readings
from scorer.store.retention import Retention, prune
from scorer.store.schema import lock_file, open_database

log = structlog.get_logger(__name__)

T = TypeVar("T")

_QUEUE = 512
_GROUP = 64
_RETRY_S = 5.0


@dataclass(frozen=True, slots=True)
class _Job:
    work: Callable[[sqlite3.Connection], Any]
    done: "Future[Any]"


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
        self._retention = retention
        self._file = _file_id(path)
        self._jobs: queue.Queue[_Job | None] = queue.Queue(_QUEUE)
        self._problem = ""
        self._closed = threading.Event()
        self._next_prune = 0.0
        self.commits = 0
        self.failures = 0
        self._writer = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._writer.start()

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
        return self._problem

    def submit(self, work: Callable[[sqlite3.Connection], Any]) -> "Future[Any]":
        """Have the writer run ``work`` inside a transaction.

        The future ends with the result once that is durable, or with a :class:`StoreError`.
        """
        done: Future[Any] = Future()
        if self._closed.is_set():
            done.set_exception(StoreError("the store is closed"))
            return done
        try:
            self._jobs.put_nowait(_Job(work, done))
        except queue.Full:
            done.set_exception(StoreError(f"{self._path}: {_QUEUE} writes are waiting already; try again later"))
        return done

    def write(self, batch: Batch) -> "Future[Written]":
        """Keep a batch; the future tells what of it was new."""
        return self.submit(lambda connection: apply_batch(connection, batch))

    def save_readings(self, readings: tuple[Reading, ...], scraped: dict[str, float]) -> "Future[None]":
        """Keep telemetry as it stands, so that a restart does not forget since when a gauge says what it says."""
        return self.submit(lambda connection: replace_readings(connection, readings, scraped))

    def save_board(self, data: bytes, at: float) -> "Future[None]":
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
            Lists of (node, gpu index, gpu uuid, dimension, at, value or None, status, run).
        """
        connection = self._reader()
        try:
            cursor = connection.execute(
                "SELECT node, gpu_index, gpu_uuid, dimension, at, value, status, run FROM sample"
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
        if self._closed.is_set():
            return
        self._closed.set()
        self._jobs.put(None)
        self._writer.join()
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

    def _run(self) -> None:
        """Writer thread: take what waits, commit it as one, and answer."""
        open_ended = True
        while open_ended:
            jobs, open_ended = self._take()
            if jobs and not self._commit(jobs) and len(jobs) > 1:
                # One bad job must not take the others with it.
                for job in jobs:
                    self._commit([job], last=True)
            elif not jobs and open_ended:
                self._housekeep()

    def _take(self) -> tuple[list[_Job], bool]:
        wait = _RETRY_S if self._problem else max(0.0, min(60.0, self._next_prune - time.monotonic()))
        jobs: list[_Job] = []
        try:
            job = self._jobs.get(timeout=wait)
            while job is not None:
                jobs.append(job)
                if len(jobs) == _GROUP:
                    return jobs, True
                job = self._jobs.get_nowait()
        except queue.Empty:
            return jobs, True
        return jobs, False

    def _commit(self, jobs: list[_Job], *, last: bool = False) -> bool:
        """Run jobs in one transaction. On failure they are answered only if they stand alone."""
        results: list[Any] = []
        try:
            self._check_place()
            self._connection.execute("BEGIN IMMEDIATE")
            results.extend(job.work(self._connection) for job in jobs)
            self._connection.execute("COMMIT")
        except Exception as error:  # noqa: BLE001 - whatever it was, the callers are told and the writer lives
            self._roll_back()
            if last or len(jobs) == 1:
                self._failed(error)
                jobs[0].done.set_exception(self._error(error))
            return False
        self.commits += 1
        self._recovered()
        for job, result in zip(jobs, results, strict=True):
            job.done.set_result(result)
        return True

    def _check_place(self) -> None:
        """SQLite would go on writing into a file that was moved away, and nobody would find it again."""
        if _file_id(self._path) != self._file:
            raise sqlite3.OperationalError("the file was moved or removed; put it back, or restart")

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            try:
                self._connection.execute("ROLLBACK")
            except sqlite3.Error as error:
                log.warning("store rollback failed", path=str(self._path), error=str(error))

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        if not isinstance(error, sqlite3.OperationalError | sqlite3.DatabaseError):
            # The job was wrong, not the store.
            return
        if not self._problem:
            log.error("store cannot write", path=str(self._path), error=str(error))
        self._problem = str(error)

    def _recovered(self) -> None:
        if self._problem:
            log.info("store writes again", path=str(self._path), after=self._problem)
            self._problem = ""

    def _housekeep(self) -> None:
        """While failing, try a write; else prune when it is time."""
        if self._problem:
            self._commit([_Job(_touch, Future())])
        elif time.monotonic() >= self._next_prune:
            more = Future[int]()
            retention = self._retention
            # Retention goes by the same wall clock that stamps samples.
            if self._commit([_Job(lambda connection: prune(connection, retention, time.time()), more)]):
                self._next_prune = time.monotonic() + (0.05 if more.result() else retention.every_s)


def _file_id(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return (0, 0)
    return (found.st_dev, found.st_ino)


def _touch(connection: sqlite3.Connection) -> None:
    connection.execute("INSERT OR REPLACE INTO counter (name, value) VALUES ('touched', ?)", (int(time.time()),))
