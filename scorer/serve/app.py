"""The server in one process: sources in, store and fold inside, three doors out."""

import gc
import json
import os
import queue
import signal
import socket
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import numpy as np
import structlog
from gpugrade.v1 import grading_pb2_grpc, placement_pb2_grpc, probe_pb2_grpc
from prometheus_client import CollectorRegistry

from scorer.model.errors import UnavailableError
from scorer.serve.admin import AdminViews, Check, make_admin_app
from scorer.serve.doors import GrpcDoor, HttpDoor, Tls, listen
from scorer.serve.extender import make_extender_app
from scorer.serve.folding import Folder
from scorer.serve.grades_service import GradesService
from scorer.serve.metrics import ServiceMetrics, Status, StatusCollector
from scorer.serve.page import render_page
from scorer.serve.placement_service import PlacementService
from scorer.serve.probe_service import ProbeService
from scorer.serve.settings_source import SettingsSource
from scorer.serve.state import ServingState
from scorer.sources.cluster import ClusterSource
from scorer.sources.evidence_log import EvidenceLog
from scorer.sources.exporters import Scraper
from scorer.sources.fetching import ScrapeLimits
from scorer.sources.telemetry_feed import TelemetryFeed
from scorer.store import BoardCodecError, Retention, SampleStore, decode_board

log = structlog.get_logger(__name__)

_DAY = 86_400.0
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What ``gpugrade serve`` is told."""

    db: Path
    host: str = "127.0.0.1"
    scheduler_port: int = 9440
    grpc_port: int = 9441
    admin_port: int = 9442
    ports_file: Path | None = None
    fold_interval_s: float = 1.0
    scrapes: ScrapeLimits = field(default_factory=ScrapeLimits)
    retention: Retention = field(default_factory=Retention)
    evidence_s: float = 21 * _DAY
    """Samples of this time are held in memory for the fold."""
    reflection: bool = True
    tls: Tls | None = None
    """For the scheduler's door."""
    grpc_tls: Tls | None = None
    """For the gRPC door: probes show their tokens there."""


class _Asked:
    """Whether the end was asked for, told by handlers of signals.

    An event will not do: a handler that interrupts another, or the wait, would take the event's lock twice.
    """

    def __init__(self) -> None:
        self._set = False
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()

    def set(self) -> None:
        self._set = True
        self._wake.put(None)

    def is_set(self) -> bool:
        return self._set

    def wait(self) -> None:
        """Once; nobody else waits."""
        self._wake.get()


class Server:
    """Everything that runs. :meth:`run` returns when a signal asks for the end."""

    def __init__(self, options: ServeOptions, cluster: ClusterSource, settings: SettingsSource) -> None:
        """Put the parts together; ports are bound and the store is opened here, so that mistakes show at once.

        Args:
            options: what to do.
            cluster: where the nodes are known from.
            settings: the policies.

        Raises:
            StoreError: if the database cannot be used.
            UnavailableError: if a port cannot be had.
            ConfigError: if the files for TLS cannot be used.
        """
        self._options = options
        self._cluster = cluster
        self._settings = settings
        self._closing = ExitStack()
        try:
            self._build()
        except BaseException:
            self._closing.close()
            raise

    def _build(self) -> None:
        options, policy = self._options, self._settings.current()
        scheduler = self._bind("scheduler", options.scheduler_port)
        admin = self._bind("admin", options.admin_port)
        self._grpc = GrpcDoor(options.host, options.grpc_port, with_reflection=options.reflection, tls=options.grpc_tls)
        self._closing.callback(self._grpc.stop)
        self.ports = {
            "scheduler": int(scheduler.getsockname()[1]),
            "grpc": self._grpc.port,
            "admin": int(admin.getsockname()[1]),
        }
        self._store = SampleStore.open(options.db, retention=options.retention)
        self._closing.callback(self._store.close)
        registry = CollectorRegistry()
        self._state = ServingState(registry, policy.placement, policy.grading)
        self._metrics = ServiceMetrics(registry)
        self._evidence = EvidenceLog(options.evidence_s)
        self._telemetry = TelemetryFeed(self._changed, self._evidence.suggest_gpus)
        self._scraper = Scraper(self._telemetry.handle, options.scrapes)
        self._folder = Folder(
            self._evidence,
            self._telemetry,
            self._cluster,
            self._settings.current,
            self._state,
            self._store,
            self._metrics,
            options.fold_interval_s,
        )
        registry.register(StatusCollector(self._status))
        views = AdminViews(self._checks, self._page, registry)
        self._http = HttpDoor("scheduler", make_extender_app(self._state), scheduler, options.tls)
        self._admin = HttpDoor("admin", make_admin_app(views), admin)
        self._add_services()

    def _bind(self, what: str, port: int) -> socket.socket:
        sock = listen(self._options.host, port, what)
        self._closing.callback(sock.close)
        return sock

    def _add_services(self) -> None:
        probes = ProbeService(
            lambda: self._cluster.current,
            self._store,
            self._evidence,
            self._changed,
            self._metrics,
            trust_tokenless=self._options.host in _LOOPBACK,
            retention_s=self._options.retention.max_age_s,
        )
        grades = GradesService(lambda: self._folder.graded, lambda: self._folder.shown, self._settings.current)
        placement = PlacementService(self._state)
        add = self._grpc.add
        add("gpugrade.v1.ProbeIngest", lambda s: probe_pb2_grpc.add_ProbeIngestServicer_to_server(probes, s))
        add("gpugrade.v1.Grades", lambda s: grading_pb2_grpc.add_GradesServicer_to_server(grades, s))
        add("gpugrade.v1.Placement", lambda s: placement_pb2_grpc.add_PlacementServicer_to_server(placement, s))

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT; a second one ends at once.

        Raises:
            UnavailableError: if a door does not come up.
            StoreError: if the history cannot be read.
        """
        asked = _Asked()

        def on_signal(number: int, _frame: FrameType | None) -> None:
            if asked.is_set():
                os._exit(128 + number)
            asked.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, on_signal)
        with self._closing:
            self._start(asked)
            asked.wait()
            log.info("closing")
            self._stop()
        log.info("closed")

    def _start(self, asked: _Asked) -> None:
        # Threads take turns every millisecond instead of every five: a fold must not add to a request's time.
        sys.setswitchinterval(0.001)
        self._closing.callback(self._admin.stop)
        self._admin.start()
        self._announce()
        self._restore(asked)
        if asked.is_set():
            return
        self._follow_exporters()
        self._folder.fold_now()
        # What is there now stays; the collector need not look at it again during requests.
        gc.collect()
        gc.freeze()
        self._closing.callback(self._http.stop)
        self._http.start()
        self._grpc.start()
        self._folder.start()
        self._cluster.start(self._on_cluster)
        self._settings.start(self._changed)
        self._scraper.start()
        self._on_cluster()
        log.info("serving", mode=str(self._settings.current().placement.mode), **self.ports)

    def _stop(self) -> None:
        """First what brings work, then what does it; the doors and the store close after."""
        self._cluster.stop()
        self._settings.stop()
        self._scraper.stop()
        self._http.stop()
        self._grpc.stop()
        self._folder.stop()

    def _announce(self) -> None:
        host = f"[{self._options.host}]" if ":" in self._options.host else self._options.host
        scheme = "https" if self._options.tls else "http"
        print(f"scheduler  {scheme}://{host}:{self.ports['scheduler']}/scheduler/filter")
        print(f"grpc       {host}:{self.ports['grpc']}")
        print(f"page       http://{host}:{self.ports['admin']}/", flush=True)
        if (path := self._options.ports_file) is not None:
            text = json.dumps({"host": self._options.host, "pid": os.getpid(), **self.ports})
            beside = path.with_name(f".{path.name}.{os.getpid()}")
            try:
                beside.write_text(text + "\n", encoding="utf-8")
                beside.replace(path)
            except OSError as error:
                raise UnavailableError(
                    f"{path}: the ports cannot be written there ({error.strerror}); name another file with --ports-file"
                ) from None

    def _restore(self, asked: _Asked) -> None:
        """Bring back from the store what was known."""
        history = self._store.history()
        self._evidence.add_runs(history.runs)
        self._evidence.add_kernel(history.kernel)
        for node, gpus in history.gpus.items():
            self._evidence.set_gpus(node, gpus)
        self._telemetry.restore(history.readings, history.scraped)
        for rows in self._store.sample_rows(time.time() - self._options.evidence_s):
            self._evidence.add_rows(rows)
            if asked.is_set():
                return
        data = self._store.board()
        if data is not None:
            try:
                self._folder.restore(decode_board(data))
            except BoardCodecError as error:
                log.warning("kept board left aside", error=str(error))
        log.info("history read", samples=self._evidence.samples, runs=len(history.runs))

    def _changed(self) -> None:
        self._folder.trigger()

    def _on_cluster(self) -> None:
        self._scraper.set_targets(self._follow_exporters())
        self._folder.follow()
        self._folder.trigger()

    def _follow_exporters(self) -> dict[str, str]:
        """URL of each node that has an exporter, once telemetry is told who those are."""
        targets = {r.name: r.exporter for r in self._cluster.current.nodes.values() if r.exporter}
        self._telemetry.follow(targets, time.time())
        return targets

    def _checks(self) -> list[Check]:
        graded, problems = self._folder.graded, self._scraper.problems
        board = graded is not None
        failing = self._folder.problem
        told = "no board yet"
        if graded is not None:
            told = f"version {graded.board.version}, {time.time() - graded.board.at:.0f} s old"
        return [
            Check("board", board, told, gates=True),
            Check("fold", not failing, failing or "ok"),
            Check("store", not self._store.problem, self._store.problem or "ok"),
            Check("fleet", not self._cluster.problem, self._cluster.problem or "ok"),
            Check("settings", not self._settings.problem, self._settings.problem or "ok"),
            Check("exporters", not problems, f"{len(problems)} cannot be scraped" if problems else "ok"),
        ]

    def _status(self) -> Status:
        graded = self._folder.graded
        evidence = None if graded is None else graded.evidence
        return Status(
            now=time.time(),
            board=None if graded is None else graded.board,
            grading=self._settings.current().grading,
            store_writable=not self._store.problem,
            store_bytes=self._store.size(),
            store_failures=self._store.failures,
            samples=self._evidence.samples,
            scrapes=dict(self._scraper.outcomes),
            exporters_failing=len(self._scraper.problems),
            files={"fleet": bool(self._cluster.problem), "settings": bool(self._settings.problem)},
            dropped={} if evidence is None else evidence.dropped,
        )

    def _page(self, job_type: str | None) -> bytes:
        graded, settings = self._folder.graded, self._settings.current()
        return render_page(
            None if graded is None else graded.board,
            self._folder.shown.view,
            settings.grading if graded is None else graded.settings.grading,
            np.empty(0, np.uint8) if graded is None else graded.overall,
            time.time(),
            str(settings.placement.mode),
            job_type,
        )
