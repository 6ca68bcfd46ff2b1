"""The queue on disk, and the kernel log that feeds it."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaos_probe import spool, wire
from chaos_probe.errors import SpoolError
from chaos_probe.kernel_log import KernelLog, parse_line
from chaos_probe.records import Residue, RunPhase, RunRecord, Sample, Vitals
from chaos_probe.spool import Spool

# Queue.


def plain(number: int, run: str = "") -> Sample:
    return Sample(at=float(number), gpu=0, uuid="GPU-0", dimension="compute", value=1.0, run=run, id=f"s{number}")


def run_record(name: str, phase: RunPhase = RunPhase.ACTIVE, ended: float | None = None) -> RunRecord:
    return RunRecord(name, "gpu-throttle", (0,), phase, 1.0, ended, (Residue("dcgm", "xid:79", 0),))


def test_the_oldest_plain_samples_go_first_and_runs_never(tmp_path: Path) -> None:
    queue = Spool(tmp_path / "q.db", 5, 1 << 20)
    wire.queue_run(queue, run_record("r1"))
    wire.queue_sample(queue, plain(1, run="r1"))
    wire.queue_kernel(queue, 1.0, "NVRM: Xid")
    for number in range(2, 6):
        wire.queue_sample(queue, plain(number))
    assert [(r.kind, r.name) for r in queue.oldest(10, 1 << 20)] == [
        ("run", "r1"), ("tagged", "s1"), ("kernel", ""), ("sample", "s4"), ("sample", "s5"),
    ]  # fmt: skip
    assert queue.level().lost == {"sample": 2}
    for number in range(2, 6):
        wire.queue_run(queue, run_record(f"r{number}"))
    assert [r.kind for r in queue.oldest(10, 1 << 20)] == ["run"] * 5
    assert queue.level().lost == {"sample": 4, "kernel": 1, "tagged": 1}
    with pytest.raises(SpoolError, match="full of run reports"):
        wire.queue_run(queue, run_record("r9"))
    assert queue.level().records == 5
    # The end of a run that waits takes the place of its beginning, so it always fits.
    wire.queue_run(queue, run_record("r3", RunPhase.REVERTED, 2.0))
    request = wire.request_of("n1", "1", queue.oldest(10, 1 << 20))
    assert [(r.id, r.phase) for r in request.runs][-1] == ("r3", 2)
    assert request.runs[-1].residues[0].code == "xid:79"


@settings(max_examples=40)  # each put is flushed to disk, which takes what it takes
@given(st.lists(st.tuples(st.sampled_from(["sample", "tagged", "kernel"]), st.integers(1, 400)), max_size=25))
def test_the_queue_never_passes_its_bounds(
    tmp_path_factory: pytest.TempPathFactory, puts: list[tuple[str, int]]
) -> None:
    queue = Spool(tmp_path_factory.mktemp("q") / "q.db", 8, 1000)
    for number, (kind, size) in enumerate(puts):
        queue.put(kind, str(number), bytes(size))
        level = queue.level()
        assert level.records <= 8
        assert level.size <= 1000
    level = queue.level()
    assert level.records + sum(level.lost.values()) == len(puts)


def test_a_batch_is_bounded_and_leaves_only_when_done(tmp_path: Path) -> None:
    queue = Spool(tmp_path / "q.db", 100, 1 << 20)
    for number in range(4):
        queue.put(spool.SAMPLE, str(number), bytes(300))
    assert len(queue.oldest(10, 700)) == 2
    assert len(queue.oldest(10, 1)) == 1
    queue.done(queue.oldest(3, 1 << 20))
    assert [r.name for r in Spool(tmp_path / "q.db", 100, 1 << 20).oldest(10, 1 << 20)] == ["3"]


def test_a_file_that_is_no_queue_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "q.db"
    path.write_bytes(b"not a database at all, but long enough to look at" * 30)
    queue = Spool(path, 10, 1 << 20)
    assert queue.moved is not None
    assert queue.moved.read_bytes().startswith(b"not a database")
    queue.put(spool.SAMPLE, "x", b"1")
    assert queue.level().records == 1


def test_a_full_disk_is_said_and_nothing_is_lost(tmp_path: Path) -> None:
    queue = Spool(tmp_path / "q.db", 10_000, 1 << 30)
    queue.put(spool.RUN, "r", b"1")

    class Full(Spool):
        def _open(self) -> Any:
            return limited(super()._open())

    full = Full.__new__(Full)
    full.__dict__ |= queue.__dict__
    with pytest.raises(SpoolError, match="takes nothing: database or disk is full"):
        full.put(spool.SAMPLE, "big", bytes(1 << 22))
    assert [r.name for r in queue.oldest(10, 1 << 20)] == ["r"]


class limited:  # noqa: N801 - used as a context manager
    """SQLite's own bound on pages stands for a full disk: the same error comes."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __enter__(self) -> sqlite3.Connection:
        db: sqlite3.Connection = self._inner.__enter__()
        pages = db.execute("PRAGMA page_count").fetchone()[0]
        db.execute(f"PRAGMA max_page_count = {pages + 1}")
        return db

    def __exit__(self, *error: object) -> None:
        self._inner.__exit__(*error)


def test_samples_travel_whole() -> None:
    sample = Sample(
        at=1700000000.25, gpu=3, uuid="GPU-3", dimension="memory", value=2.5, run="r", source="gpu-burn", detail="d",
        vitals=Vitals(61.0, 650.0, 700.0, 1635.0), driver="570.1",
    )  # fmt: skip
    message = wire.sample_message(sample)
    assert message.at.ToMilliseconds() == 1700000000250
    assert (message.value, message.unit, message.gpu_index, message.run) == (2.5, "GB/s", 3, "r")
    assert (message.context.temperature_c, message.context.power_limit_w) == (61.0, 700.0)
    empty = wire.sample_message(Sample(at=1.0, gpu=-1, uuid="", dimension="host", value=None))
    assert not empty.HasField("value")
    assert not empty.context.HasField("temperature_c")


# Kernel log.


def test_the_log_is_followed_over_restart_and_rotation(tmp_path: Path) -> None:
    log, place = tmp_path / "kmsg", tmp_path / "place.json"
    log.write_text(
        "NVRM: Xid (PCI:0000:18:00): 31, old, without a time\n"
        "2026-06-01T10:00:00Z NVRM: Xid (PCI:0000:18:00): 79, pid=1\n"
        "2026-06-01T10:00:01Z usb 1-1: new device\n"
    )
    first = KernelLog(log, place)
    (line,) = first.poll()
    assert (line.at, line.text) == (1780308000.0, "NVRM: Xid (PCI:0000:18:00): 79, pid=1")
    assert first.poll() == []
    with log.open("a") as file:
        file.write("2026-06-01T10:00:02Z mlx5_core 0000:9c:00.0: link down\n2026-06-01T10:00:03Z NVRM: ha")
    assert [one.text for one in first.poll()] == ["mlx5_core 0000:9c:00.0: link down"]
    first.keep()
    with log.open("a") as file:
        file.write("lf a line\nNVRM: bare\n")
    second = KernelLog(log, place)
    assert [one.text for one in second.poll()] == ["NVRM: half a line", "NVRM: bare"]
    log.rename(tmp_path / "kmsg.1")
    assert second.poll() == []
    log.write_text("2026-06-01T11:00:00Z NVRM: after rotation\n")
    assert [one.text for one in second.poll()] == ["NVRM: after rotation"]


def test_old_lines_without_a_time_are_not_taken_for_new_however_many_there_are(tmp_path: Path) -> None:
    log, place = tmp_path / "kmsg", tmp_path / "place.json"
    log.write_text("NVRM: Xid (PCI:0000:18:00): 79, long ago\n" * 10_000)
    follower = KernelLog(log, place)
    assert follower.poll() == []
    follower.keep()
    # A restart in the middle of the old part changes nothing.
    follower = KernelLog(log, place)
    assert [follower.poll() for _ in range(5)] == [[]] * 5
    with log.open("a") as file:
        file.write("NVRM: Xid (PCI:0000:18:00): 48, now\n")
    assert [line.text for line in follower.poll()] == ["NVRM: Xid (PCI:0000:18:00): 48, now"]


def test_lines_that_could_not_be_queued_are_read_again(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text("2026-06-01T10:00:00Z NVRM: a\n2026-06-01T10:00:01Z NVRM: b")
    follower = KernelLog(log, tmp_path / "place.json")
    assert [line.text for line in follower.poll()] == ["NVRM: a"]
    follower.rewind()
    assert [line.text for line in follower.poll()] == ["NVRM: a"]
    follower.keep()
    with log.open("a") as file:
        file.write("!\n")
    assert [line.text for line in follower.poll()] == ["NVRM: b!"]
    follower.rewind()
    assert [line.text for line in follower.poll()] == ["NVRM: b!"]


def test_a_flood_of_lines_loses_none(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text("".join(f"2026-06-01T10:00:00Z NVRM: Xid {number}\n" for number in range(9000)))
    follower = KernelLog(log, tmp_path / "place.json")
    found = [line.text for _ in range(4) for line in follower.poll()]
    assert found == [f"NVRM: Xid {number}" for number in range(9000)]


def test_kmsg_records_count_from_boot() -> None:
    line = parse_line("6,1234,5000000,-;NVRM: Xid (PCI:0000:18:00): 48", 99.0, 1000.0)
    assert line is not None
    assert (line.at, line.text, line.timed) == (1005.0, "NVRM: Xid (PCI:0000:18:00): 48", True)
    assert parse_line("6,1,1,-;systemd[1]: started", 99.0, 0.0) is None
