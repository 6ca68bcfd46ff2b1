"""What the doors share: the current world behind one attribute, the recent decisions, and the metrics."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from scorer.model.cluster import ClusterView
from scorer.model.policy import GradingPolicy, Mode, PlacementPolicy
from scorer.placement import FilterAnswer, PodRequest, ScoreAnswer, World
from scorer.placement.pod import JOB_TYPE_LABEL, LEVEL_ANNOTATION, SENSITIVITY_LABEL
from scorer.serve.answers import ScoreTable
from scorer.serve.names import NameMemory

#: Decisions that can be explained afterwards. Each keeps 10 bytes a node.
RING = 128
#: Upper bounds in seconds; the scheduler's recommended time-out is the last.
_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5)


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """An answer that was given, with what is needed to explain it.

    Attributes:
        verb: ``filter`` or ``score``.
        at: Unix seconds.
        pod: as it was resolved.
        mode: of the policy then.
        board_version: 0 where there was no board.
        view_version: of the cluster view.
        nodes: names of the view then.
        strangers: names that were unknown, in the order asked.
        rows: int32 (n,): row in ``nodes``; -1 for the next stranger.
        values: uint8 (n,): codes of a filter (k fails for ``reasons[k - 1]``), or scores 0-100.
        reasons: distinct reasons of a filter.
        planned: rows that the gang's plan uses.
        neutral: why nothing was judged; empty where it was.
        grade: uint8 (n,): for the pod's kind of job.
        slowdown: float32 (n,): likewise; NaN where not known.
    """

    verb: str
    at: float
    pod: PodRequest
    mode: Mode
    board_version: int
    view_version: int
    nodes: tuple[str, ...]
    strangers: tuple[str, ...]
    rows: NDArray[np.int32]
    values: NDArray[np.uint8]
    reasons: tuple[str, ...]
    planned: frozenset[int]
    neutral: str
    grade: NDArray[np.uint8]
    slowdown: NDArray[np.float32]


class Metrics:
    """Handles of the metrics that the doors count in."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register them.

        Args:
            registry: where they are to be found; two states need two registries.
        """
        self.duration = Histogram(
            "gpugrade_extender_request_duration_seconds",
            "Time from the last byte of a request to its answer.",
            ("verb", "code"),
            buckets=_BUCKETS,
            registry=registry,
        )
        self.fail_open = Counter(
            "gpugrade_extender_fail_open",
            "Answers that were neutral because nothing could be said, or errors that the scheduler may ignore.",
            ("reason",),
            registry=registry,
        )
        self.label_errors = Counter(
            "gpugrade_pod_label_errors",
            "Wrong values on pods that were answered by defaults.",
            ("label",),
            registry=registry,
        )
        self.unknown_names = Counter(
            "gpugrade_extender_unknown_names",
            "Node names asked about that the cluster view does not have.",
            registry=registry,
        )
        self.judged = Counter(
            "gpugrade_extender_unfit_nodes",
            "Nodes asked about that enforce removes; the other modes only count them.",
            ("reason", "mode"),
            registry=registry,
        )
        self.board_version = Gauge(
            "gpugrade_extender_board_version", "Version of the board that answers rest on.", registry=registry
        )
        self.view_version = Gauge(
            "gpugrade_extender_view_version", "Version of the cluster view that answers rest on.", registry=registry
        )


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """What one request reads.

    Attributes:
        world: never changes.
        scores: answers to prioritize, of exactly this world's nodes.
        names: looks up lists of names among exactly these nodes.
    """

    world: World
    scores: ScoreTable
    names: NameMemory


class ServingState:
    """The current world, replaced whole, with the recent decisions and the metrics.

    Requests read :attr:`snapshot` once and never wait; :meth:`replace` may be called from any one other thread.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        policy: PlacementPolicy | None = None,
        grading: GradingPolicy | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Start with an empty world, in which every name is unknown and every answer neutral.

        Args:
            registry: for the metrics.
            policy: until the first world comes; it also bounds bodies.
            grading: until the first world comes.
            clock: gives Unix seconds.
        """
        self.clock = clock
        self.metrics = Metrics(registry)
        none = np.empty(0, np.int32)
        view = ClusterView(0, clock(), (), {}, (), (), none, none)
        world = World.build(None, view, policy or PlacementPolicy(), grading or GradingPolicy())
        self.snapshot = Snapshot(world, ScoreTable(()), NameMemory(()))
        self._ring: OrderedDict[str, Decision] = OrderedDict()
        self._ring_lock = threading.Lock()

    @property
    def world(self) -> World:
        """The current world."""
        return self.snapshot.world

    def replace(self, world: World) -> None:
        """Put a new world in place; requests under way finish with the old one.

        Args:
            world: of any age; the caller keeps the order.
        """
        old = self.snapshot
        if old.scores.nodes == world.view.nodes:
            self.snapshot = Snapshot(world, old.scores, old.names)
        else:
            self.snapshot = Snapshot(world, ScoreTable(world.view.nodes), NameMemory(world.view.nodes))
        self.metrics.board_version.set(world.board_version)
        self.metrics.view_version.set(world.view.version)

    def record(self, world: World, pod: PodRequest, answer: FilterAnswer | ScoreAnswer) -> None:
        """Count an answer and keep it for later explanation. The same decision again replaces itself.

        Args:
            world: it was made in.
            pod: it was made for.
            answer: what was answered.
        """
        asked, mode = answer.asked, world.policy.mode
        for label in pod.label_errors:
            known = label in {JOB_TYPE_LABEL, SENSITIVITY_LABEL, LEVEL_ANNOTATION}
            self.metrics.label_errors.labels(label if known else "other").inc()
        if asked.unknown:
            self.metrics.unknown_names.inc(asked.unknown)
        if answer.neutral and answer.neutral != "no-gpu":
            self.metrics.fail_open.labels(answer.neutral).inc()
        scored = isinstance(answer, ScoreAnswer)
        planned: tuple[int, ...] = ()
        reasons: tuple[str, ...] = ()
        if isinstance(answer, FilterAnswer):
            values, reasons = answer.codes, tuple(reason.text for reason in answer.reasons)
            for reason, count in answer.would.items():
                self.metrics.judged.labels(reason, str(mode)).inc(count)
        else:
            values = answer.scores
            planned = tuple(answer.plan.rows.tolist()) if answer.plan is not None else ()
        decision = Decision(
            verb="score" if scored else "filter",
            at=self.clock(),
            pod=pod,
            mode=mode,
            board_version=world.board_version,
            view_version=world.view.version,
            nodes=world.view.nodes,
            strangers=_strangers(asked.names, asked.rows) if asked.unknown else (),
            rows=asked.rows,
            values=values,
            reasons=reasons,
            planned=frozenset(planned),
            neutral=answer.neutral,
            grade=world.grade[asked.key].take(asked.rows),
            slowdown=world.slowdown[asked.key[0], asked.key[1]].take(asked.rows),
        )
        # Two doors write here from two threads; the lock is held for two dictionary steps.
        with self._ring_lock:
            self._ring[asked.decision_id] = decision
            self._ring.move_to_end(asked.decision_id)
            while len(self._ring) > RING:
                self._ring.popitem(last=False)

    def decision(self, decision_id: str) -> Decision | None:
        """A recent decision; ``None`` once it has left the ring.

        Args:
            decision_id: as the answer said.
        """
        with self._ring_lock:
            return self._ring.get(decision_id)

    def recent(self) -> list[tuple[str, Decision]]:
        """The recent decisions with their ids, newest first; at most :data:`RING`."""
        with self._ring_lock:
            return list(reversed(self._ring.items()))


def _strangers(names: Sequence[str], rows: NDArray[np.int32]) -> tuple[str, ...]:
    return tuple(names[i] for i in np.flatnonzero(rows < 0).tolist())
