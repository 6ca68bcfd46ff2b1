"""The thread that folds evidence into boards and puts new worlds in front of the doors."""

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import structlog
from numpy.typing import NDArray

from scorer.grading import fold, overall
from scorer.model.board import GradeBoard
from scorer.model.errors import StoreError
from scorer.model.evidence import Evidence, Reading
from scorer.model.policy import Settings
from scorer.placement import World
from scorer.serve.metrics import ServiceMetrics
from scorer.serve.state import ServingState
from scorer.sources.cluster import ClusterSource, ClusterState
from scorer.sources.evidence_log import EvidenceLog
from scorer.sources.telemetry_feed import TelemetryFeed
from scorer.store import SampleStore, encode_board

if TYPE_CHECKING:
    from concurrent.futures import Future

log = structlog.get_logger(__name__)

#: Grades age without new evidence too.
_AT_LEAST_EVERY_S = 30.0
#: The board and the telemetry behind it are kept this often, and this soon after grades have changed: a kill loses at
#: most so much of since when a grade holds.
_KEEP_EVERY_S = 60.0
_KEEP_CHANGED_S = 2.0
#: Keeping takes at most a twentieth of the time of one core.
_KEEP_REST = 20.0
_VERSIONS = 1_000
_MAX_READINGS = 200_000
#: Folding takes at most a quarter of the time of one core.
_REST = 3.0


@dataclass(frozen=True, slots=True, eq=False)
class Graded:
    """A board with what it was made of.

    Attributes:
        board: the grades.
        overall: uint8 (N,): each node's worst grade over the job types.
        evidence: behind the board; ``None`` for a board that was kept over a restart.
        settings: by which it was made.
    """

    board: GradeBoard
    overall: NDArray[np.uint8]
    evidence: Evidence | None
    settings: Settings


class Folder:
    """Folds soon after new evidence, at most once an interval, and every half minute in any case.

    A fold that fails keeps the last good board: it is counted and logged, and the next one tries again.
    """

    def __init__(
        self,
        evidence: EvidenceLog,
        telemetry: TelemetryFeed,
        cluster: ClusterSource,
        settings: Callable[[], Settings],
        state: ServingState,
        store: SampleStore,
        metrics: ServiceMetrics,
        interval_s: float = 1.0,
    ) -> None:
        """Make a folder; nothing happens before :meth:`fold_now` or :meth:`start`."""
        self._evidence = evidence
        self._telemetry = telemetry
        self._cluster = cluster
        self._settings = settings
        self._state = state
        self._store = store
        self._metrics = metrics
        self._interval_s = interval_s
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._graded: Graded | None = None
        self._shown = cluster.current
        self._swap = threading.Lock()
        self._versions = itertools.count(1)
        self._reserved = 0
        self._kept: GradeBoard | None = None
        self._keep_from = 0.0
        self._keep_at = 0.0
        self._keeping: tuple[Future[None], ...] = ()
        self.problem = ""
        self._thread = threading.Thread(target=self._run, name="folder", daemon=True)

    @property
    def graded(self) -> Graded | None:
        """The newest board; ``None`` before the first fold."""
        return self._graded

    @property
    def shown(self) -> ClusterState:
        """The cluster as the doors answer from it: what people are told agrees with what the scheduler is told."""
        return self._shown

    def follow(self) -> None:
        """Put the cluster's newest state in front of the doors at once, with the last good board.

        The scheduler binds pods far faster than evidence is folded, and a gang's next member is placed by where the
        members before it went.
        """
        try:
            self._show(None, self._settings())
        except Exception:
            log.exception("the cluster's change could not be followed")

    def restore(self, board: GradeBoard) -> None:
        """Begin from a board that outlived a restart: since when a grade holds is not forgotten."""
        settings = self._settings()
        if board.job_types != tuple(job.name for job in settings.grading.job_types):
            log.info("kept board left aside: the job types have changed")
            return
        self._graded = Graded(board, overall(board, settings.grading), None, settings)

    def start(self) -> None:
        """Fold from now on."""
        self._thread.start()

    def trigger(self) -> None:
        """Say that there is something new. Returns at once."""
        self._wake.set()

    def stop(self) -> None:
        """End, and keep the last board."""
        self._stop.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        self._keep()
        for future in self._keeping:
            try:
                future.result(10)
            except (StoreError, TimeoutError) as error:
                log.warning("board not kept", error=str(error))

    def fold_now(self) -> bool:
        """Fold once, in this thread; whether there is a new board."""
        started = time.perf_counter()
        settings, now = self._settings(), time.time()
        try:
            graded = self._fold(self._cluster.current, settings, now)
            self._show(graded, settings)
        except Exception as error:
            self._metrics.folds.labels("failed").inc()
            self.problem = f"{type(error).__name__}: {error}"
            log.exception("fold failed, the last good board stays")
            self.follow()
            return False
        self.problem = ""
        self._metrics.folds.labels("ok").inc()
        self._metrics.fold_duration.observe(time.perf_counter() - started)
        return True

    def _fold(self, cluster: ClusterState, settings: Settings, now: float) -> Graded:
        readings, scraped, dropped = self._telemetry.standing()
        evidence = self._evidence.evidence(now, cluster.nodes, readings, scraped, dropped)
        previous = None if self._graded is None else self._graded.board
        if previous is not None and previous.job_types != tuple(job.name for job in settings.grading.job_types):
            previous = None
        board = fold(evidence, settings.grading, now, previous)
        board = replace(board, version=self._next_version())
        return Graded(board, overall(board, settings.grading), evidence, settings)

    def _show(self, graded: Graded | None, settings: Settings) -> None:
        """Join a board (``None``: the last one) with the cluster as it is now; one at a time, so neither goes back."""
        with self._swap:
            graded = graded or self._graded
            cluster = self._cluster.current
            board = None if graded is None else graded.board
            world = World.build(board, cluster.view, settings.placement, settings.grading)
            self._graded = graded
            self._state.replace(world)
            self._shown = cluster

    def _next_version(self) -> int:
        """Versions grow over restarts: a block is set aside in the store, so that not every fold writes there."""
        if self._reserved == 0:
            try:
                start = self._store.reserve("board-version", _VERSIONS)
            except (StoreError, TimeoutError) as error:
                log.warning("board versions cannot be set aside; numbers go on", error=str(error))
            else:
                self._versions = itertools.count(start + 1)
                self._reserved = _VERSIONS
        self._reserved = max(0, self._reserved - 1)
        return next(self._versions)

    def _run(self) -> None:
        while True:
            self._wake.wait(_AT_LEAST_EVERY_S)
            self._wake.clear()
            if self._stop.is_set():
                return
            started = time.monotonic()
            if self.fold_now() and self._worth_a_write(started):
                self._keep()
                now = time.monotonic()
                self._keep_from = now + max(_KEEP_CHANGED_S, _KEEP_REST * (now - started))
                self._keep_at = now + _KEEP_EVERY_S
            # What comes meanwhile waits for the next fold: one fold answers for many reports.
            took = time.monotonic() - started
            if self._stop.wait(max(self._interval_s - took, _REST * took)):
                return

    def _worth_a_write(self, now: float) -> bool:
        if now < self._keep_from or self._graded is None:
            return False
        kept, board = self._kept, self._graded.board
        return now >= self._keep_at or kept is None or not np.array_equal(kept.since, board.since, equal_nan=True)

    def _keep(self) -> None:
        graded = self._graded
        if graded is None or graded.evidence is None:
            return
        self._kept = graded.board
        readings, scraped, _ = self._telemetry.standing()
        self._keeping = (
            self._store.save_board(encode_board(graded.board), graded.board.at),
            self._store.save_readings(_worth_keeping(readings), scraped),
        )


def _worth_keeping(readings: tuple[Reading, ...]) -> tuple[Reading, ...]:
    """All readings; of a very large fleet those alone that stand at something, as a whole table takes too long."""
    if len(readings) <= _MAX_READINGS:
        return readings
    return tuple(r for r in readings if r.value != 0 and r.since < r.at)[:_MAX_READINGS]
