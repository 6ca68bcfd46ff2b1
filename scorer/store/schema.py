"""The database file: its tables, and the checks before it is trusted."""

import fcntl
import os
import sqlite3
from pathlib import Path
from typing import IO

from scorer.model.errors import StoreError

#: Grows with every change of the tables; a file with a larger one was written by a newer gpugrade.
SCHEMA_VERSION = 1
#: "gpgr": marks a SQLite file as ours, so that nobody else's database is written to by mistake.
APPLICATION_ID = 0x67706772

_MAGIC = b"SQLite format 3\0"
_NEEDS = (3, 37, 0)

_TABLES = """
CREATE TABLE sample (
    id TEXT NOT NULL,
    at REAL NOT NULL,
    node TEXT NOT NULL,
    gpu_index INTEGER NOT NULL,
    gpu_uuid TEXT NOT NULL,
    dimension INTEGER NOT NULL,
    value REAL,
    status INTEGER NOT NULL,
    run TEXT NOT NULL,
    source TEXT NOT NULL,
    detail TEXT NOT NULL,
    sm_clock_mhz REAL,
    temperature_c REAL,
    power_limit_w REAL,
    driver TEXT NOT NULL,
    PRIMARY KEY (node, id)
) STRICT;
CREATE INDEX sample_at ON sample (at);
CREATE TABLE run (
    id TEXT NOT NULL PRIMARY KEY,
    node TEXT NOT NULL,
    kind TEXT NOT NULL,
    gpus TEXT NOT NULL,
    phase TEXT NOT NULL,
    started REAL NOT NULL,
    ended REAL,
    residues TEXT NOT NULL
) STRICT;
CREATE TABLE kernel (
    node TEXT NOT NULL,
    at REAL NOT NULL,
    text TEXT NOT NULL,
    PRIMARY KEY (node, at, text)
) STRICT, WITHOUT ROWID;
CREATE INDEX kernel_at ON kernel (at);
CREATE TABLE gpu (
    node TEXT NOT NULL,
    gpu_index INTEGER NOT NULL,
    uuid TEXT NOT NULL,
    product TEXT NOT NULL,
    pci_bus_id TEXT NOT NULL,
    memory_mib INTEGER NOT NULL,
    default_power_limit_w REAL NOT NULL,
    driver TEXT NOT NULL,
    PRIMARY KEY (node, gpu_index)
) STRICT, WITHOUT ROWID;
CREATE TABLE reading (
    node TEXT NOT NULL,
    gpu_index INTEGER NOT NULL,
    gpu_uuid TEXT NOT NULL,
    field INTEGER NOT NULL,
    value REAL,
    at REAL NOT NULL,
    since REAL NOT NULL,
    previous REAL,
    source TEXT NOT NULL,
    PRIMARY KEY (node, gpu_index, gpu_uuid, field, source)
) STRICT, WITHOUT ROWID;
CREATE TABLE scrape (node TEXT NOT NULL PRIMARY KEY, at REAL NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE board (id INTEGER NOT NULL PRIMARY KEY CHECK (id = 1), at REAL NOT NULL, data BLOB NOT NULL) STRICT;
CREATE TABLE counter (name TEXT NOT NULL PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;
"""


def lock_file(path: Path) -> IO[bytes]:
    """Hold ``<path>.lock`` for as long as the returned file is open, so that two servers never share a database.

    Raises:
        StoreError: if another process holds it, or the folder cannot be written.
    """
    if path.is_dir() or (path.exists() and not path.is_file()):
        raise StoreError(f"{path}: is not a regular file; name another one with --db")
    name = path.with_name(path.name + ".lock")
    try:
        held = name.open("ab")
    except OSError as error:
        raise StoreError(
            f"{path.parent}: cannot write there ({error.strerror}); name a folder that can be written with --db"
        ) from None
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        held.close()
        raise StoreError(
            f"{path}: another gpugrade is using it; stop that one or name another file with --db"
        ) from None
    return held


def check_file(path: Path) -> None:
    """Refuse what is not a SQLite file, by its first bytes, before SQLite is let near it.

    Raises:
        StoreError: if it is something else or cannot be read.
    """
    if sqlite3.sqlite_version_info < _NEEDS:
        raise StoreError(f"SQLite {sqlite3.sqlite_version} is too old for strict tables; 3.37 or newer is needed")
    try:
        with path.open("rb") as file:
            head = file.read(len(_MAGIC))
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror})") from None
    if head and head != _MAGIC:
        raise StoreError(f"{path}: this is not a SQLite database; it was left as it is. Name another file with --db")


def open_database(path: Path, *, busy_timeout_s: float, max_pages: int | None = None) -> sqlite3.Connection:
    """Open the database for writing, and make its tables where it is new.

    Args:
        path: the file; made where there is none.
        busy_timeout_s: how long to wait for another process that holds the file locked.
        max_pages: upper bound of the file's pages; ``None`` leaves SQLite's.

    Raises:
        StoreError: if it is not ours, is newer than we are, is damaged, or cannot be written.
    """
    check_file(path)
    existed = path.exists() and path.stat().st_size > 0
    if existed and not os.access(path, os.W_OK):
        raise StoreError(f"{path}: is read-only; make it writable or name another file with --db")
    connection: sqlite3.Connection | None = None
    try:
        connection = sqlite3.connect(path, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False)
        _prepare(connection, path, max_pages)
    except sqlite3.Error as error:
        if connection is not None:
            connection.close()
        raise StoreError(f"{path}: {error}; it was left as it is. Repair it or name another file with --db") from None
    except StoreError:
        if connection is not None:
            connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path, max_pages: int | None) -> None:
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    if tables and application != APPLICATION_ID:
        raise StoreError(
            f"{path}: this SQLite database belongs to another program; it was left as it is. "
            "Name another file with --db"
        )
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"{path}: written by a newer gpugrade (schema {version}, this one knows {SCHEMA_VERSION}); "
            "upgrade gpugrade or name another file with --db"
        )
    if max_pages is not None:
        connection.execute(f"PRAGMA max_page_count = {int(max_pages)}")
    if not tables:
        connection.execute("BEGIN IMMEDIATE")
        for statement in _TABLES.split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute("COMMIT")
    connection.execute("PRAGMA journal_mode = WAL")
    # FULL: in WAL mode NORMAL does not sync on commit, and what was acknowledged could be lost with the power.
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA journal_size_limit = 67108864")
