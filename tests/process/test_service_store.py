"""The store on real files: once is once, acknowledged is durable, and no broken disk or file loses what is known."""

import json
import math
import os
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from scorer.model.errors import StoreError
from scorer.model.evidence import GpuFacts, KernelMessage, Reading, Residue, Run, RunPhase
from scorer.sources.cluster import NodeRecord
from scorer.sources.evidence_log import EvidenceLog
from scorer.store import Batch, Retention, SampleStore
from tests.service_support import sample, until

NOW = time.time()


def batch(first: int, count: int, detail: str = "") -> Batch:
    return Batch(
        "gpu-0", samples=tuple(sample(f"s{i}", NOW - 1000 + i, detail=detail) for i in range(first, first + count))
    )


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


def write_much(store: SampleStore) -> None:
    for i in range(100):
        store.write(batch(1000 * (i + 1), 100, detail="x" * 200)).result(10)


def count(store: SampleStore) -> int:
    return sum(len(rows) for rows in store.sample_rows(0))


def test_twice_is_once(tmp_path: Path) -> None:
    store = SampleStore.open(tmp_path / "s.db")
    assert len(store.write(batch(0, 10)).result(10).samples) == 10
    again = store.write(batch(5, 10)).result(10)
    assert [s.id for s in again.samples] == [f"s{i}" for i in range(10, 15)]
    assert count(store) == 15
    store.close()


def test_samples_come_back_with_the_clock_under_which_they_were_taken(tmp_path: Path) -> None:
    store = SampleStore.open(tmp_path / "s.db")
    told, silent = sample("a", NOW - 2, sm_clock_mhz=1350.0), sample("b", NOW - 1)
    store.write(Batch("gpu-0", samples=(told, silent))).result(10)
    log = EvidenceLog()
    for rows in store.sample_rows(0):
        log.add_rows(rows)
    found = log.evidence(NOW, {"gpu-0": NodeRecord("gpu-0", gpus=1, expected_gpus=1)}).samples.sm_clock.tolist()
    assert found[0] == 1350.0
    assert math.isnan(found[1])
    store.close()


def test_no_node_can_take_anothers_ids(tmp_path: Path) -> None:
    store = SampleStore.open(tmp_path / "s.db")
    store.write(batch(0, 3)).result(10)
    other = Batch("gpu-1", samples=tuple(sample(f"s{i}", NOW, "gpu-1") for i in range(3)))
    assert len(store.write(other).result(10).samples) == 3
    store.close()


def test_a_file_that_was_moved_away_takes_nothing_until_it_is_back(tmp_path: Path) -> None:
    store = SampleStore.open(tmp_path / "s.db")
    (tmp_path / "s.db").rename(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="moved or removed"):
        store.write(batch(0, 3)).result(10)
    (tmp_path / "elsewhere").rename(tmp_path / "s.db")
    assert len(store.write(batch(0, 3)).result(10).samples) == 3
    store.close()


def test_everything_outlives_a_restart(tmp_path: Path) -> None:
    store = SampleStore.open(tmp_path / "s.db")
    run = Run("r1", "gpu-0", "dcgm-inject", (1, 2), RunPhase.REVERTED, NOW - 60, NOW, (Residue("kmsg", "xid:79", 1),))
    gpus = (GpuFacts(0, "GPU-a", "H100", "0:1:0", 81559, 700.0, "570.1"), GpuFacts(1, "GPU-b"))
    message = KernelMessage("gpu-0", NOW, "NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus.")
    reading = Reading("gpu-0", 0, "GPU-a", 230, 79.0, NOW, NOW - 5, 0.0)
    store.write(Batch("gpu-0", gpus, batch(0, 3).samples, (run,), (message,))).result(10)
    store.save_readings((reading,), {"gpu-0": NOW}).result(10)
    assert store.reserve("board", 100) == 0
    store.close()

    store = SampleStore.open(tmp_path / "s.db")
    history = store.history()
    assert (history.runs, history.kernel, history.gpus) == ((run,), (message,), {"gpu-0": gpus})
    assert (history.readings, history.scraped) == ((reading,), {"gpu-0": NOW})
    assert store.reserve("board", 100) == 100
    assert count(store) == 3
    store.close()


@pytest.mark.parametrize(
    ("first", "then", "stands"),
    [
        (RunPhase.ACTIVE, RunPhase.REVERTED, RunPhase.REVERTED),
        (RunPhase.REVERTED, RunPhase.ACTIVE, RunPhase.REVERTED),
        (RunPhase.FAILED_REVERT, RunPhase.REVERTED, RunPhase.REVERTED),
        (RunPhase.REVERTED, RunPhase.FAILED_REVERT, RunPhase.REVERTED),
        (RunPhase.FAILED_REVERT, RunPhase.ACTIVE, RunPhase.FAILED_REVERT),
    ],
)
def test_a_late_report_never_turns_a_run_back(tmp_path: Path, first: Any, then: Any, stands: Any) -> None:
    store = SampleStore.open(tmp_path / "s.db")
    for phase in (first, then):
        store.write(Batch("gpu-0", runs=(Run("r", "gpu-0", "k", (), phase, NOW - 9, NOW),))).result(10)
    assert store.history().runs[0].phase is stands
    foreign = store.write(Batch("gpu-1", runs=(Run("r", "gpu-1", "k", (), RunPhase.REVERTED, NOW - 9, NOW),))).result(
        10
    )
    assert foreign.foreign_runs == ("r",)
    assert store.history().runs[0].node == "gpu-0"
    store.close()


def test_a_full_disk_refuses_and_recovers_by_itself(tmp_path: Path) -> None:
    store = SampleStore.open(tmp_path / "s.db", max_pages=60)
    first = store.write(batch(0, 50)).result(10)
    assert len(first.samples) == 50
    with pytest.raises(StoreError, match="full"):
        store.write(batch(100, 2000, detail="x" * 200)).result(10)
    assert "full" in store.problem
    assert count(store) == 50
    # Room again.
    store.submit(lambda c: c.execute("PRAGMA max_page_count = 100000").fetchone()).result(10)
    assert len(store.write(batch(100, 2000, detail="x" * 200)).result(10).samples) == 2000
    assert store.problem == ""
    store.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="a small file system can be mounted by root only")
def test_a_really_full_file_system(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        store = SampleStore.open(small / "s.db")
        assert len(store.write(batch(0, 50)).result(10).samples) == 50
        ballast = small / "ballast"
        ballast.write_bytes(b"")
        with pytest.raises(OSError, match="No space"):
            fill(ballast)
        with pytest.raises(StoreError):
            write_much(store)
        kept = count(store)
        assert kept >= 50
        ballast.unlink()
        # No write of ours: the store tries by itself.
        until(lambda: not store.problem, "the store finds out that there is room again")
        assert len(store.write(batch(500_000, 10)).result(10).samples) == 10
        store.close()
        store = SampleStore.open(small / "s.db")
        assert count(store) == kept + 10
        store.close()
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_one_bad_job_does_not_take_the_others(tmp_path: Path) -> None:
    store = SampleStore.open(tmp_path / "s.db")
    gate = threading.Event()
    store.submit(lambda _: gate.wait(10))
    bad = store.submit(lambda c: c.execute("INSERT INTO nowhere VALUES (1)"))
    good = store.write(batch(0, 5))
    gate.set()
    with pytest.raises(StoreError, match="nowhere"):
        bad.result(10)
    assert len(good.result(10).samples) == 5
    store.close()


def test_a_locked_file_is_told_and_got_over(tmp_path: Path) -> None:
    store = SampleStore.open(tmp_path / "s.db", busy_timeout_s=0.05)
    other = sqlite3.connect(tmp_path / "s.db", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreError, match="locked"):
        store.write(batch(0, 5)).result(10)
    other.execute("ROLLBACK")
    other.close()
    assert len(store.write(batch(0, 5)).result(10).samples) == 5
    store.close()


def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    path.write_text("name,grade\ngpu-0,green\n" * 100)
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"not a SQLite database.*--db"):
        SampleStore.open(path)
    assert path.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["s.db", "s.db.lock"]


def test_a_damaged_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    path.write_bytes(b"SQLite format 3\0" + b"\x07" * 4096)
    before = path.read_bytes()
    with pytest.raises(StoreError, match="left as it is"):
        SampleStore.open(path)
    assert path.read_bytes() == before


def test_a_strangers_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE cookies (host TEXT)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="another program"):
        SampleStore.open(path)
    assert path.read_bytes() == before


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    SampleStore.open(path).close()
    other = sqlite3.connect(path)
    other.execute("PRAGMA user_version = 99")
    other.close()
    with pytest.raises(StoreError, match="newer gpugrade"):
        SampleStore.open(path)


def test_two_servers_never_share_a_file(tmp_path: Path) -> None:
    store = SampleStore.open(tmp_path / "s.db")
    with pytest.raises(StoreError, match="another gpugrade is using it"):
        SampleStore.open(tmp_path / "s.db")
    store.close()
    SampleStore.open(tmp_path / "s.db").close()


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no such folder"):
        SampleStore.open(tmp_path / "none" / "s.db")


def test_the_old_is_pruned_and_the_size_is_bounded(tmp_path: Path) -> None:
    store = SampleStore.open(tmp_path / "s.db", retention=Retention(max_age_s=500, every_s=0.05))
    ended = NOW - 900
    runs = [Run(phase.value, "gpu-0", "k", (), phase, ended - 9, ended) for phase in list(RunPhase)[1:]]
    store.write(Batch("gpu-0", runs=tuple(runs))).result(10)
    store.write(batch(0, 1000)).result(10)
    until(lambda: count(store) < 1000, "what is older than 500 s goes")
    until(lambda: len(store.history().runs) < 2, "a reverted run goes")
    assert [run.phase for run in store.history().runs] == [RunPhase.FAILED_REVERT]
    oldest = min(row[4] for rows in store.sample_rows(0) for row in rows)
    assert oldest >= NOW - 500
    store.close()
    store = SampleStore.open(tmp_path / "s.db", retention=Retention(max_bytes=1, every_s=0.05))
    until(lambda: count(store) == 0, "what is over the size goes")
    store.close()


KILLED = """
import os, sys
from pathlib import Path
from typing import Any
sys.path[:0] = [p for p in {paths!r}]
from scorer.sources.cluster import NodeRecord
from scorer.sources.evidence_log import EvidenceLog
from scorer.store import SampleStore
from tests.process.test_service_store import batch
store = SampleStore.open(Path({path!r}))
for i in range(10_000):
    store.write(batch(10 * i, 10)).result(10)
    print(i, flush=True)
"""


def test_what_was_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    code = KILLED.format(paths=sys.path, path=str(path))
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    acknowledged = 0
    for line in child.stdout:
        acknowledged = json.loads(line) + 1
        if acknowledged == 30:
            child.kill()
    child.wait(10)
    child.stdout.close()
    store = SampleStore.open(path)
    assert count(store) >= 10 * acknowledged >= 300
    store.close()


def test_the_path_is_told(tmp_path: Path) -> None:
    store = SampleStore.open(Path(tmp_path) / "s.db")
    assert store.size() > 0
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.write(batch(0, 1)).result(1)
