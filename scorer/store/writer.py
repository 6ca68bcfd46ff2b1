"""The writer: many callers, one thread, one commit for all that wait."""

import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from scorer.model.errors import StoreError
from scorer.store.retention import Retention, prune

log = structlog.get_logger(__name__)

_QUEUE = 512
_GROUP = 64
_RETRY_S = 5.0


@dataclass(frozen=True, slots=True)
class _Job:
    work: Callable[[sqlite3.Connection], Any]
    done: "Future[Any]"


class Writer:
    """The thread that writes. What fails is told to its caller; the thread lives, and tries again by itself."""

    def __init__(self, path: Path, connection: sqlite3.Connection, retention: Retention) -> None:
        """Begin to write.

        Args:
            path: of the database, which must stay where it is.
            connection: for this thread's use alone until :meth:`close` returns.
            retention: how much to keep.
        """
        self._path = path
        self._connection = connection
        self._retention = retention
        self._file = _file_id(path)
        self._jobs: queue.Queue[_Job | None] = queue.Queue(_QUEUE)
        self._closed = threading.Event()
        self._next_prune = 0.0
        self.problem = ""
        """Why the last write failed; empty while writes succeed."""
        self.commits = 0
        self.failures = 0
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[sqlite3.Connection], Any]) -> "Future[Any]":
        """Run ``work`` inside a transaction.

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

    def close(self) -> bool:
        """Finish what waits and end; false where that was done before."""
        if self._closed.is_set():
            return False
        self._closed.set()
        self._jobs.put(None)
        self._thread.join()
        return True

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
        wait = _RETRY_S if self.problem else max(0.0, min(60.0, self._next_prune - time.monotonic()))
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
        if not self.problem:
            log.error("store cannot write", path=str(self._path), error=str(error))
        self.problem = str(error)

    def _recovered(self) -> None:
        if self.problem:
            log.info("store writes again", path=str(self._path), after=self.problem)
            self.problem = ""

    def _housekeep(self) -> None:
        """While failing, try a write; else prune when it is time."""
        if self.problem:
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
