"""The service's own metrics: what came in, what is kept, how old the grades are."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from scorer.model.board import GradeBoard
from scorer.model.grade import Grade
from scorer.model.policy import GradingPolicy

_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


def build_version() -> str:
    """The version of the installed distribution."""
    try:
        return version("gpugrade")
    except PackageNotFoundError:
        return "unknown"


@dataclass(frozen=True, slots=True)
class Status:
    """What the collector shows, read at scrape time.

    Attributes:
        now: Unix seconds.
        board: the newest board; ``None`` before the first fold.
        grading: policy that it was made by.
        store_writable: whether the last write succeeded.
        store_bytes: size on disk.
        store_failures: failed writes.
        samples: samples in memory.
        scrapes: scrapes by outcome.
        exporters_failing: nodes whose last scrape failed.
        files: by file (``fleet``, ``settings``): whether its present content was refused.
        dropped: evidence that was not used, by reason.
    """

    now: float
    board: GradeBoard | None
    grading: GradingPolicy
    store_writable: bool
    store_bytes: int
    store_failures: int
    samples: int
    scrapes: Mapping[str, int] = field(default_factory=dict)
    exporters_failing: int = 0
    files: Mapping[str, bool] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)


class ServiceMetrics:
    """Handles of the counters of ingest and folding."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register them in ``registry``."""
        disable_created_metrics()
        self.reports = Counter(
            "gpugrade_ingest_reports", "Probe reports by gRPC status code.", ("code",), registry=registry
        )
        self.records = Counter(
            "gpugrade_ingest_records",
            "Records in probe reports. Impossible values are kept as failed measurements.",
            ("kind", "outcome"),
            registry=registry,
        )
        self.folds = Counter("gpugrade_folds", "Folds of evidence into a board.", ("outcome",), registry=registry)
        self.fold_duration = Histogram(
            "gpugrade_fold_duration_seconds", "Time of a fold.", buckets=_BUCKETS, registry=registry
        )
        for kind in ("sample", "run", "kernel"):
            for outcome in ("accepted", "duplicate"):
                self.records.labels(kind, outcome)
        self.records.labels("sample", "impossible")
        self.records.labels("any", "rejected")
        for outcome in ("ok", "failed"):
            self.folds.labels(outcome)


class StatusCollector(Collector):
    """Computes metrics from the current snapshots at scrape time, so that nodes that left vanish at once."""

    def __init__(self, status: Callable[[], Status]) -> None:
        """Read ``status`` at each scrape."""
        self._status = status

    def describe(self) -> list[GaugeMetricFamily]:
        """Nothing: the registry need not scrape in order to learn names."""
        return []

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily | InfoMetricFamily]:
        """All families."""
        status = self._status()
        yield InfoMetricFamily("gpugrade_build", "The version that runs.", value={"version": build_version()})
        yield _gauge("gpugrade_store_writable", "1 while writes succeed.", float(status.store_writable))
        yield _gauge("gpugrade_store_bytes", "Size of the database on disk.", status.store_bytes)
        yield CounterMetricFamily("gpugrade_store_failures", "Writes that failed.", value=status.store_failures)
        yield _gauge("gpugrade_evidence_samples", "Samples in memory.", status.samples)
        scrapes = CounterMetricFamily("gpugrade_exporter_scrapes", "Scrapes of exporters.", labels=("outcome",))
        for outcome, count in sorted(status.scrapes.items()):
            scrapes.add_metric((outcome,), count)
        yield scrapes
        yield _gauge(
            "gpugrade_exporters_failing", "Nodes whose last scrape gave nothing.", float(status.exporters_failing)
        )
        yield _family("gpugrade_config_refused", "1 while the file as it is was refused.", "file", status.files)
        yield _family("gpugrade_evidence_dropped", "Evidence in hand that was not used.", "reason", status.dropped)
        if status.board is not None:
            yield from _board(status.board, status)


def _board(board: GradeBoard, status: Status) -> Iterator[GaugeMetricFamily]:
    yield _gauge("gpugrade_board_version", "Version of the newest board.", board.version)
    yield _gauge("gpugrade_board_age_seconds", "Since the newest board was made.", max(0.0, status.now - board.at))
    age = GaugeMetricFamily(
        "gpugrade_baseline_age_seconds",
        "Since the newest good probe of a node's GPUs; absent without one.",
        labels=("node",),
    )
    for node, at in zip(board.nodes, board.evidence_at.tolist(), strict=True):
        if not math.isnan(at):
            age.add_metric((node,), max(0.0, status.now - at))
    yield age
    grades = GaugeMetricFamily(
        "gpugrade_node_grade",
        "1 for the grade that a node has for a class of jobs, at the class's own sensitivity; 0 for the others.",
        labels=("node", "class", "grade"),
    )
    counts = GaugeMetricFamily("gpugrade_nodes", "Nodes by class of jobs and grade.", labels=("class", "grade"))
    policy = {job.name: job for job in status.grading.job_types}
    for j, name in enumerate(board.job_types):
        job = policy.get(name)
        if job is None:
            continue
        column = board.grade[:, j, job.shape.variant, job.sensitivity].tolist()
        for grade in Grade:
            label = grade.label
            for node, value in zip(board.nodes, column, strict=True):
                grades.add_metric((node, name, label), float(value == grade))
            counts.add_metric((name, label), column.count(grade))
    yield grades
    yield counts


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)


def _family(name: str, text: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=(label,))
    for key, value in sorted(values.items()):
        family.add_metric((key,), float(value))
    return family
