"""The fold's thread: a fold that fails keeps the last good board, and versions grow whatever happens."""

import math
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from scorer.model.errors import StoreError
from scorer.model.evidence import Reading
from scorer.model.grade import Grade
from scorer.model.policy import Settings
from scorer.serve.folding import Folder
from scorer.serve.metrics import ServiceMetrics, Status, StatusCollector
from scorer.serve.state import ServingState
from scorer.sources.cluster import ClusterState, NodeRecord, build_state
from scorer.sources.evidence_log import EvidenceLog
from scorer.sources.telemetry_feed import TelemetryFeed
from scorer.store import BoardCodecError, SampleStore, decode_board, encode_board
from tests.conftest import ROOT
from tests.service_support import sample, until


class Source:
    """A cluster source that can be broken."""

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes
        self.version = 1
        self.broken = False
        self.problem = ""

    @property
    def current(self) -> ClusterState:
        if self.broken:
            raise RuntimeError("the source is broken")
        return build_state(
            self.version, 0.0, [NodeRecord(f"gpu-{i}", gpus=2, product="H100") for i in range(self.nodes)]
        )

    def start(self, changed: Callable[[], None]) -> None:
        changed()

    def stop(self) -> None:
        return


class Bench:
    """A folder with everything around it real but the source."""

    def __init__(self, path: Path, nodes: int = 8) -> None:
        self.registry = CollectorRegistry()
        self.store = SampleStore.open(path)
        self.source = Source(nodes)
        self.log = EvidenceLog()
        self.feed = TelemetryFeed(lambda: None, self.log.suggest_gpus)
        self.state = ServingState(self.registry)
        self.metrics = ServiceMetrics(self.registry)
        self.folder = Folder(
            self.log, self.feed, self.source, Settings, self.state, self.store, self.metrics, interval_s=0.02
        )

    def folds(self, outcome: str) -> float:
        return self.registry.get_sample_value("gpugrade_folds_total", {"outcome": outcome}) or 0.0

    def probe(self, slow: int = 2) -> None:
        now = time.time()
        self.log.add_samples(
            sample(f"{i}-{g}-{t}", now - 100 + t, f"gpu-{i}", g, (500.0 if i == slow else 700.0) + g + 0.1 * t)
            for i in range(8)
            for g in range(2)
            for t in range(4)
        )


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "s.db")
    yield made
    made.store.close()


def test_new_evidence_comes_to_the_doors(bench: Bench) -> None:
    assert bench.folder.fold_now()
    assert bench.state.world.board is not None
    assert bench.folder.graded is not None
    assert set(bench.folder.graded.overall.tolist()) == {Grade.UNKNOWN}
    bench.folder.start()
    bench.probe()
    bench.folder.trigger()

    def red() -> bool:
        graded = bench.folder.graded
        return graded is not None and graded.overall.tolist()[2] == Grade.RED

    until(red, "the slow node is red")
    bench.folder.stop()
    assert bench.store.board() is not None


def test_a_failing_fold_keeps_the_last_good_board(bench: Bench) -> None:
    bench.probe()
    assert bench.folder.fold_now()
    good = bench.folder.graded
    world = bench.state.world
    bench.source.broken = True
    assert not bench.folder.fold_now()
    assert bench.folder.graded is good
    assert bench.state.world is world
    assert "the source is broken" in bench.folder.problem
    assert (bench.folds("ok"), bench.folds("failed")) == (1, 1)
    bench.source.broken = False
    assert bench.folder.fold_now()
    assert bench.folder.problem == ""
    assert bench.state.world is not world


def test_versions_grow_over_restarts_and_over_a_full_store(tmp_path: Path) -> None:
    versions: list[int] = []
    for _ in range(3):
        bench = Bench(tmp_path / "s.db")
        for _ in range(2):
            assert bench.folder.fold_now()
            assert bench.folder.graded is not None
            versions.append(bench.folder.graded.board.version)
        bench.store.close()
    bench = Bench(tmp_path / "s.db")
    bench.folder.fold_now()
    bench.store.close()
    with pytest.raises(StoreError):
        bench.store.reserve("board-version", 1)
    assert bench.folder.fold_now()
    assert versions == sorted(set(versions))


def test_a_board_reads_back_the_same(bench: Bench) -> None:
    bench.probe()
    bench.folder.fold_now()
    assert bench.folder.graded is not None
    board = bench.folder.graded.board
    again = decode_board(encode_board(board))
    for name in board.__slots__:
        first, second = getattr(board, name), getattr(again, name)
        if isinstance(first, np.ndarray):
            assert first.dtype == second.dtype
            assert np.array_equal(first, second, equal_nan=first.dtype.kind == "f")
        elif name == "findings":
            assert repr(first) == repr(second)
        else:
            assert first == second


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04 no zip", b"x" * 1000])
def test_a_damaged_board_is_told(data: bytes) -> None:
    with pytest.raises(BoardCodecError):
        decode_board(data)


def test_a_cut_board_is_told(bench: Bench) -> None:
    bench.folder.fold_now()
    assert bench.folder.graded is not None
    data = encode_board(bench.folder.graded.board)
    for size in range(0, len(data), max(1, len(data) // 40)):
        with pytest.raises(BoardCodecError):
            decode_board(data[:size])


def test_telemetry_goes_on_where_it_stood() -> None:
    log = EvidenceLog()
    page = 'DCGM_FI_DEV_XID_ERRORS{{gpu="0",UUID="GPU-a",modelName="H100"}} {}\n'
    first = TelemetryFeed(lambda: None, log.suggest_gpus)
    first.handle("gpu-0", page.format(0), 100.0)
    first.handle("gpu-0", page.format(79), 115.0)
    first.handle("gpu-0", page.format(79), 130.0)
    readings, scraped, _ = first.standing()
    second = TelemetryFeed(lambda: None, log.suggest_gpus)
    second.restore((*readings, Reading("gone", 0, "", 230, 0.0, 1.0, 1.0)), scraped)
    second.handle("gpu-0", page.format(79), 145.0)
    (found,) = second.standing()[0]
    assert (found.value, found.previous, found.since, found.at) == (79.0, 0.0, 115.0, 145.0)
    second.follow({"gpu-1"}, 150.0)
    assert second.standing() == ((), {"gpu-1": 150.0}, {})
    node = log.evidence(150.0, {"gpu-0": NodeRecord("gpu-0", gpus=2)}).nodes[0]
    assert [(g.index, g.uuid, g.product) for g in node.gpus] == [(0, "GPU-a", "H100"), (1, "", "")]


def test_an_exporter_that_never_answered_goes_stale_and_a_start_is_not_held_against_one() -> None:
    feed = TelemetryFeed(lambda: None, EvidenceLog().suggest_gpus)
    page = 'DCGM_FI_DEV_XID_ERRORS{gpu="0",UUID="GPU-a",modelName="H100"} 0\n'
    feed.restore((), {"gpu-0": 100.0})
    feed.follow({"gpu-0", "gpu-1"}, 9_000.0)
    feed.follow({"gpu-0", "gpu-1"}, 9_500.0)
    assert feed.standing()[1] == {"gpu-0": 9_000.0, "gpu-1": 9_000.0}
    feed.handle("gpu-0", page, 9_600.0)
    assert feed.standing()[1] == {"gpu-0": 9_600.0, "gpu-1": 9_000.0}
    feed.follow({"gpu-0"}, 9_700.0)
    assert feed.standing()[1] == {"gpu-0": 9_600.0}


def test_metrics_are_of_the_board_as_it_is(bench: Bench) -> None:
    bench.probe()
    bench.folder.fold_now()

    def status() -> Status:
        graded = bench.folder.graded
        board = None if graded is None else graded.board
        return Status(time.time(), board, Settings().grading, True, 1, 0, 0)

    registry = CollectorRegistry()
    registry.register(StatusCollector(status))

    def value(name: str, **labels: str) -> Any:
        return registry.get_sample_value(name, labels)

    def grade(node: str, name: str) -> Any:
        return registry.get_sample_value("gpugrade_node_grade", {"node": node, "class": "train-node", "grade": name})

    assert (grade("gpu-2", "red"), grade("gpu-2", "green")) == (1.0, 0.0)
    assert sum(grade("gpu-1", name.label) for name in Grade) == 1.0
    assert 0 <= value("gpugrade_baseline_age_seconds", node="gpu-1") < math.inf
    bench.source.nodes, bench.source.version = 2, 2
    bench.folder.fold_now()
    assert grade("gpu-2", "red") is None


def test_every_metric_of_the_status_is_in_its_reference(bench: Bench) -> None:
    bench.folder.fold_now()
    assert bench.folder.graded is not None
    status = Status(
        0.0,
        bench.folder.graded.board,
        Settings().grading,
        store_writable=True,
        store_bytes=1,
        store_failures=0,
        samples=0,
    )
    registry = CollectorRegistry()
    registry.register(StatusCollector(lambda: status))
    page = (ROOT / "docs/reference/metrics.md").read_text("utf-8")
    for family in re.findall(r"^# TYPE (gpugrade_\w+)", generate_latest(registry).decode(), re.MULTILINE):
        assert f"| `{family}` |" in page
