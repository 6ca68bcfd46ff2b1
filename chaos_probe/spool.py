"""The queue on disk between what is measured and what is reported: bounded, crash-safe, shared by processes."""

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from chaos_probe.errors import SpoolError

SAMPLE = "sample"
TAGGED = "tagged"
KERNEL = "kernel"
RUN = "run"
GPUS = "gpus"
DROP_ORDER = (SAMPLE, KERNEL, TAGGED)
"""What goes first when the queue is full, oldest first. Runs and the inventory never go."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS record (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  kind TEXT NOT NULL,
  name TEXT NOT NULL,
  size INTEGER NOT NULL,
  body BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX IF NOT EXISTS record_name ON record (kind, name) WHERE kind IN ('run', 'gpus');
CREATE INDEX IF NOT EXISTS record_kind ON record (kind, seq);
CREATE TABLE IF NOT EXISTS lost (kind TEXT PRIMARY KEY, n INTEGER NOT NULL) STRICT;
"""
_BUSY_S = 10.0


@dataclass(frozen=True, slots=True)
class Record:
    """One queued record: ``seq`` is its place, ``body`` its bytes on the wire."""

    seq: int
    kind: str
    name: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Level:
    """How full the queue is."""

    records: int
    size: int
    lost: dict[str, int]


class Spool:
    """The queue. Each call opens the file anew, so that any thread or process may use it."""

    def __init__(self, path: Path, max_records: int, max_bytes: int) -> None:
        """Open the file, and create it where needed. One that is no queue is moved aside, and said so in ``moved``.

        Raises:
            SpoolError: the folder cannot be written.
        """
        self.path = path
        self.moved: Path | None = None
        self._max_records = max_records
        self._max_bytes = max_bytes
        try:
            self._create()
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise SpoolError(f"the queue {path} cannot be opened: {error}") from error
            self.moved = path.with_name(f"{path.name}.damaged.{time.time_ns()}")
            for suffix in ("-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            path.rename(self.moved)
            self._create()

    def _create(self) -> None:
        with self._open() as db:
            db.executescript(_SCHEMA)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        db = sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level=None)
        try:
            db.execute("PRAGMA journal_mode=WAL")
            # Power may fail under a fault: a run's record must not be lost with it.
            db.execute("PRAGMA synchronous=FULL")
            yield db
        finally:
            db.close()

    def put(self, kind: str, name: str, body: bytes) -> None:
        """Queue a record. A run, or the inventory, replaces the record of the same name that still waits.

        In a full queue the oldest plain samples go, then kernel lines, then tagged samples; what goes is counted.

        Raises:
            SpoolError: the disk is full, or nothing more may be dropped.
        """
        try:
            with self._open() as db:
                db.execute("BEGIN IMMEDIATE")
                try:
                    if kind in {RUN, GPUS}:
                        db.execute("DELETE FROM record WHERE kind = ? AND name = ?", (kind, name))
                    self._make_room(db, len(body))
                    db.execute(
                        "INSERT INTO record (kind, name, size, body) VALUES (?, ?, ?, ?)", (kind, name, len(body), body)
                    )
                except BaseException:
                    with suppress(sqlite3.Error):
                        db.execute("ROLLBACK")
                    raise
                db.execute("COMMIT")
        except sqlite3.Error as error:
            raise SpoolError(f"the queue {self.path} takes nothing: {error}; make room on its disk") from error

    def _make_room(self, db: sqlite3.Connection, coming: int) -> None:
        records, size = db.execute("SELECT count(*), coalesce(sum(size), 0) FROM record").fetchone()
        while records + 1 > self._max_records or size + coming > self._max_bytes:
            victim = None
            for kind in DROP_ORDER:
                victim = db.execute(
                    "SELECT seq, size FROM record WHERE kind = ? ORDER BY seq LIMIT 1", (kind,)
                ).fetchone()
                if victim:
                    break
            if not victim:
                raise SpoolError("the queue is full of run reports; let it send them before injecting more")
            db.execute("DELETE FROM record WHERE seq = ?", (victim[0],))
            self._count(db, kind)
            records, size = records - 1, size - victim[1]

    @staticmethod
    def _count(db: sqlite3.Connection, kind: str) -> None:
        db.execute("INSERT INTO lost VALUES (?, 1) ON CONFLICT (kind) DO UPDATE SET n = n + 1", (kind,))

    def oldest(self, limit: int, max_bytes: int) -> list[Record]:
        """Return the records that have waited longest, at least one if there is any."""
        chosen: list[Record] = []
        size = 0
        with self._read() as db:
            rows = db.execute("SELECT seq, kind, name, body FROM record ORDER BY seq LIMIT ?", (limit,))
            for row in rows:
                size += len(row[3])
                if chosen and size > max_bytes:
                    break
                chosen.append(Record(*row))
        return chosen

    @contextmanager
    def _read(self) -> Iterator[sqlite3.Connection]:
        try:
            with self._open() as db:
                yield db
        except sqlite3.Error as error:
            raise SpoolError(f"the queue {self.path} cannot be used: {error}") from error

    def done(self, records: Sequence[Record], *, lost: bool = False) -> None:
        """Take records away that were accepted, or that nobody will ever take (``lost``, which is counted)."""
        with self._read() as db:
            db.execute("BEGIN IMMEDIATE")
            db.executemany("DELETE FROM record WHERE seq = ?", [(record.seq,) for record in records])
            if lost:
                for record in records:
                    self._count(db, record.kind)
            db.execute("COMMIT")

    def level(self) -> Level:
        """Return how full it is, and what was lost so far by kind."""
        with self._read() as db:
            records, size = db.execute("SELECT count(*), coalesce(sum(size), 0) FROM record").fetchone()
            return Level(records, size, dict(db.execute("SELECT kind, n FROM lost").fetchall()))
