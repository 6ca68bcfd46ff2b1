"""Rows of the store and the nouns they stand for."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from sqlite3 import Connection, Cursor
from typing import Any

import msgspec

from scorer.model.evidence import GpuFacts, KernelMessage, Reading, Residue, Run, RunPhase, Sample

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """What one report of one node brings.

    Attributes:
        node: the node that all of it is about.
        gpus: its GPUs; ``None`` where the report says that nothing changed.
        samples: in any order.
        runs: in any order; a run that was reverted never becomes active again.
        kernel: kernel messages.
    """

    node: str
    gpus: tuple[GpuFacts, ...] | None = None
    samples: tuple[Sample, ...] = ()
    runs: tuple[Run, ...] = ()
    kernel: tuple[KernelMessage, ...] = ()


@dataclass(frozen=True, slots=True)
class Written:
    """What of a batch was new. The rest was known before and is not an error.

    Attributes:
        samples: samples that were not known: ids are the node's own, no node can take another's.
        runs: runs as they now stand, if the batch changed them.
        kernel: messages that were not known.
        foreign_runs: ids of runs that belong to another node and were therefore not touched.
    """

    samples: tuple[Sample, ...] = ()
    runs: tuple[Run, ...] = ()
    kernel: tuple[KernelMessage, ...] = ()
    foreign_runs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class History:
    """What outlived a restart, samples apart: those are streamed.

    Attributes:
        runs: every run kept.
        kernel: oldest first.
        gpus: inventory by node.
        readings: telemetry as it stood when it was last saved.
        scraped: Unix seconds of the last good scrape by node.
    """

    runs: tuple[Run, ...]
    kernel: tuple[KernelMessage, ...]
    gpus: dict[str, tuple[GpuFacts, ...]]
    readings: tuple[Reading, ...]
    scraped: dict[str, float]


SAMPLE_COLUMNS = (
    "id, at, node, gpu_index, gpu_uuid, dimension, value, status, run, source, detail,"
    " sm_clock_mhz, temperature_c, power_limit_w, driver"
)
_INSERT_SAMPLE = f"INSERT OR IGNORE INTO sample ({SAMPLE_COLUMNS}) VALUES ({','.join('?' * 15)})"  # noqa: S608 - constants
_INSERT_KERNEL = "INSERT OR IGNORE INTO kernel (node, at, text) VALUES (?, ?, ?)"
_SELECT_RUN = "SELECT id, node, kind, gpus, phase, started, ended, residues FROM run"
_UPSERT_RUN = (
    "INSERT OR REPLACE INTO run (id, node, kind, gpus, phase, started, ended, residues) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
_SELECT_READING = "SELECT node, gpu_index, gpu_uuid, field, value, at, since, previous, source FROM reading"
_INSERT_READING = (
    "INSERT OR REPLACE INTO reading (node, gpu_index, gpu_uuid, field, value, at, since, previous, source)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)

#: A later phase replaces an earlier one; the same or an earlier one is old news. A failed revert may still be cured.
_RANK = {RunPhase.ACTIVE: 0, RunPhase.FAILED_REVERT: 1, RunPhase.REVERTED: 2}


def _null(value: float) -> float | None:
    """SQLite turns NaN into NULL by itself; said here so that it is not an accident."""
    return None if math.isnan(value) else value


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def apply_batch(connection: Connection, batch: Batch) -> Written:
    """Write a batch inside the open transaction and say what of it was new."""
    cursor = connection.cursor()
    samples = tuple(s for s in batch.samples if cursor.execute(_INSERT_SAMPLE, _sample_row(s)).rowcount == 1)
    kernel = tuple(m for m in batch.kernel if cursor.execute(_INSERT_KERNEL, (m.node, m.at, m.text)).rowcount == 1)
    runs: list[Run] = []
    foreign: list[str] = []
    for run in batch.runs:
        known = _run(cursor, run.id)
        if known is not None and known.node != run.node:
            foreign.append(run.id)
        elif known is None or _RANK[run.phase] > _RANK[known.phase]:
            cursor.execute(_UPSERT_RUN, _run_row(run))
            runs.append(run)
    if batch.gpus is not None:
        _replace_gpus(cursor, batch.node, batch.gpus)
    return Written(samples, tuple(runs), kernel, tuple(foreign))


def _sample_row(s: Sample) -> Row:
    return (
        s.id,
        s.at,
        s.node,
        s.gpu_index,
        s.gpu_uuid,
        int(s.dimension),
        _null(s.value),
        int(s.status),
        s.run,
        s.source,
        s.detail,
        _null(s.sm_clock_mhz),
        _null(s.temperature_c),
        _null(s.power_limit_w),
        s.driver,
    )


def _run(cursor: Cursor, run_id: str) -> Run | None:
    row = cursor.execute(f"{_SELECT_RUN} WHERE id = ?", (run_id,)).fetchone()
    return None if row is None else _run_of(row)


def _run_row(run: Run) -> Row:
    residues = msgspec.json.encode(run.residues).decode()
    gpus = msgspec.json.encode(run.gpus).decode()
    return (run.id, run.node, run.kind, gpus, run.phase.value, run.started, _null(run.ended), residues)


def _run_of(row: Row) -> Run:
    run_id, node, kind, gpus, phase, started, ended, residues = row
    return Run(
        run_id,
        node,
        kind,
        msgspec.json.decode(gpus, type=tuple[int, ...]),
        RunPhase(phase),
        started,
        _number(ended),
        msgspec.json.decode(residues, type=tuple[Residue, ...]),
    )


def _replace_gpus(cursor: Cursor, node: str, gpus: Sequence[GpuFacts]) -> None:
    cursor.execute("DELETE FROM gpu WHERE node = ?", (node,))
    cursor.executemany(
        "INSERT INTO gpu (node, gpu_index, uuid, product, pci_bus_id, memory_mib, default_power_limit_w, driver)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (node, g.index, g.uuid, g.product, g.pci_bus_id, g.memory_mib, g.default_power_limit_w, g.driver)
            for g in gpus
        ],
    )


def replace_readings(connection: Connection, readings: Sequence[Reading], scraped: dict[str, float]) -> None:
    """Keep telemetry as it stands now, in place of what was kept before."""
    connection.execute("DELETE FROM reading")
    connection.executemany(
        _INSERT_READING,
        [
            (r.node, r.gpu_index, r.gpu_uuid, r.field, _null(r.value), r.at, r.since, _null(r.previous), r.source)
            for r in readings
        ],
    )
    connection.execute("DELETE FROM scrape")
    connection.executemany("INSERT INTO scrape (node, at) VALUES (?, ?)", list(scraped.items()))


def read_history(connection: Connection) -> History:
    """Everything but the samples."""
    gpus: dict[str, list[GpuFacts]] = {}
    for node, *facts in connection.execute(
        "SELECT node, gpu_index, uuid, product, pci_bus_id, memory_mib, default_power_limit_w, driver"
        " FROM gpu ORDER BY node, gpu_index"
    ):
        gpus.setdefault(node, []).append(GpuFacts(*facts))
    return History(
        runs=tuple(_run_of(row) for row in connection.execute(f"{_SELECT_RUN} ORDER BY started, id")),
        kernel=tuple(
            KernelMessage(*row) for row in connection.execute("SELECT node, at, text FROM kernel ORDER BY at")
        ),
        gpus={node: tuple(found) for node, found in gpus.items()},
        readings=tuple(
            Reading(node, index, uuid, field, _number(value), at, since, _number(previous), source)
            for node, index, uuid, field, value, at, since, previous, source in connection.execute(_SELECT_READING)
        ),
        scraped=dict(connection.execute("SELECT node, at FROM scrape").fetchall()),
    )
