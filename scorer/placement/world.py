"""The world that a request reads: board and view on the same rows, with everything that can be computed beforehand."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from scorer.model.board import GradeBoard
from scorer.model.cluster import ClusterView, GangKey
from scorer.model.grade import Grade, Sensitivity
from scorer.model.jobtype import VARIANTS
from scorer.model.policy import GradingPolicy, PlacementPolicy, UnknownPolicy
from scorer.placement.levels import Level, build_levels
from scorer.placement.scoring import NEUTRAL, Verdict, judge
from scorer.placement.topology import natural_key

#: Variants whose shape has several pods: only those are planned as gangs.
GANG_VARIANTS = (2, 3)


@dataclass(frozen=True, slots=True, eq=False)
class World:
    """Everything that answers need, at one moment. Never changed; the next board or view makes a new one.

    Arrays over nodes have N + 1 entries in the order of ``view.nodes``. The last one, which row -1 reads as well,
    stands for every unknown node: it passes, with a neutral score. Axes J, V, S are job types (of the grading policy),
    shape variants and sensitivities.

    Attributes:
        board: ``None`` before the first fold.
        view: the cluster.
        policy: how to answer.
        grading: which job types and thresholds there are.
        types: index of each job type on the J axis.
        grade: uint8 (J, V, S, N + 1).
        slowdown: float32 (J, V, N + 1); NaN where not known.
        code: uint8 (J, V, S, N + 1): a :class:`Verdict`, as enforce would give it.
        score: uint8 (J, V, S, N + 1): 0-100.
        cost: float32 (J, V, S, N + 1): see :class:`scorer.placement.scoring.Columns`.
        levels: that a gang may span, the quickest first.
        orders: for (j, v, s) per level: int32 rows by pool and, within it, by cost.
        natural: int32 (N + 1,): rank of a node's name in natural order.
        by_name: int32 (N,): rows in natural order of names.
        gangs: (uid, row) of the members that are bound, by gang.
    """

    board: GradeBoard | None
    view: ClusterView
    policy: PlacementPolicy
    grading: GradingPolicy
    types: Mapping[str, int]
    grade: NDArray[np.uint8]
    slowdown: NDArray[np.float32]
    code: NDArray[np.uint8]
    score: NDArray[np.uint8]
    cost: NDArray[np.float32]
    levels: tuple[Level, ...]
    orders: Mapping[tuple[int, int, int], tuple[NDArray[np.int32], ...]]
    natural: NDArray[np.int32]
    by_name: NDArray[np.int32]
    gangs: Mapping[GangKey, tuple[tuple[str, int], ...]]

    @classmethod
    def build(
        cls,
        board: GradeBoard | None,
        view: ClusterView,
        policy: PlacementPolicy,
        grading: GradingPolicy,
    ) -> "World":
        """Align a board with a view and compute what requests will look up.

        Takes about a third of a second for 15,000 nodes: for the thread that folds, not for a request.

        Args:
            board: ``None`` where there is none yet.
            view: the cluster; its nodes give the order of rows.
            policy: how to answer.
            grading: job types and thresholds; a job type that the board lacks is unknown everywhere.
        """
        grade, slowdown = _align(board, view, grading)
        levels = build_levels(view, policy.locality)
        code, score, cost = _judge_all(grade, slowdown, view, policy, grading)
        names = view.nodes
        by_name = np.array(sorted(range(len(names)), key=lambda row: natural_key(names[row])), np.int32)
        natural = np.empty(len(names) + 1, np.int32)
        natural[by_name] = np.arange(len(names))
        natural[-1] = len(names)
        return cls(
            board=board,
            view=view,
            policy=policy,
            grading=grading,
            types={t.name: i for i, t in enumerate(grading.job_types)},
            grade=grade,
            slowdown=slowdown,
            code=code,
            score=score,
            cost=cost,
            levels=levels,
            orders=_orders(cost, levels, by_name),
            natural=natural,
            by_name=by_name,
            gangs=_bound(view),
        )

    def neutral_because(self, now: float) -> str:
        """Why answers are neutral: ``no-board`` or ``stale-board``; empty where the board is good.

        Args:
            now: Unix seconds.
        """
        if self.board is None:
            return "no-board"
        return "stale-board" if now - self.board.at > self.policy.stale_board_s else ""

    @property
    def board_version(self) -> int:
        """Version of the board; 0 where there is none."""
        return self.board.version if self.board is not None else 0


def _align(
    board: GradeBoard | None, view: ClusterView, grading: GradingPolicy
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    shape = (len(grading.job_types), VARIANTS, len(Sensitivity), len(view.nodes) + 1)
    grade = np.full(shape, Grade.UNKNOWN, np.uint8)
    slowdown = np.full((*shape[:2], shape[3]), np.nan, np.float32)
    if board is None or not board.nodes:
        return grade, slowdown
    rows = np.array([board.row.get(name, -1) for name in view.nodes], np.int64)
    known = np.flatnonzero(rows >= 0)
    at = {name: i for i, name in enumerate(board.job_types)}
    for j, job_type in enumerate(grading.job_types):
        i = at.get(job_type.name)
        if i is not None:
            grade[j][:, :, known] = np.moveaxis(board.grade[rows[known], i], 0, -1)
            slowdown[j][:, known] = board.slowdown[rows[known], i].T
    return grade, slowdown


def _judge_all(
    grade: NDArray[np.uint8],
    slowdown: NDArray[np.float32],
    view: ClusterView,
    policy: PlacementPolicy,
    grading: GradingPolicy,
) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.float32]]:
    code = np.full(grade.shape, Verdict.PASS, np.uint8)
    score = np.full(grade.shape, NEUTRAL, np.uint8)
    cost = np.full(grade.shape, np.inf, np.float32)
    count = len(view.nodes)
    gpus = np.maximum(view.gpus, 1)
    used = np.clip(1.0 - view.free / gpus, 0.0, 1.0).astype(np.float32)
    graded = view.gpus > 0
    spoilt = _spoilt(grade, grading)
    for j, v in product(range(grade.shape[0]), range(VARIANTS)):
        for s in Sensitivity:
            own = grade[j, v, s, :count]
            share = float((own[graded] == Grade.UNKNOWN).mean()) if graded.any() else 1.0
            # Where much is unknown it is our eyes that are broken, and rejecting would close the cluster.
            reject = policy.unknown_policy is UnknownPolicy.REJECT and share <= policy.unknown_share_limit
            bounds = grading.thresholds[s]
            columns = judge(own, slowdown[j, v, :count], used, bounds, s, spoilt, reject_unknown=reject)
            code[j, v, s, :count] = columns.code
            score[j, v, s, :count] = columns.score
            cost[j, v, s, :count] = columns.cost
    return code, score, cost


def _spoilt(grade: NDArray[np.uint8], grading: GradingPolicy) -> NDArray[np.float32]:
    """Return float32 (N,): of the job types that are not tolerant, the share that is red there; yellow counts half."""
    strict = [
        grade[j, t.shape.variant, t.sensitivity, :-1]
        for j, t in enumerate(grading.job_types)
        if t.sensitivity is not Sensitivity.TOLERANT
    ]
    if not strict:
        return np.zeros(grade.shape[-1] - 1, np.float32)
    grades = np.stack(strict)
    share: NDArray[np.float32] = ((grades == Grade.RED) + 0.5 * (grades == Grade.YELLOW)).mean(axis=0, dtype=np.float32)
    return share


def _orders(
    cost: NDArray[np.float32], levels: tuple[Level, ...], by_name: NDArray[np.int32]
) -> dict[tuple[int, int, int], tuple[NDArray[np.int32], ...]]:
    orders: dict[tuple[int, int, int], tuple[NDArray[np.int32], ...]] = {}
    for j, v, s in product(range(cost.shape[0]), GANG_VARIANTS, range(cost.shape[2])):
        by_cost = by_name[np.argsort(cost[j, v, s][by_name], kind="stable")]
        orders[j, v, s] = tuple(_by_domain(level, by_cost) for level in levels)
    return orders


def _by_domain(level: Level, by_cost: NDArray[np.int32]) -> NDArray[np.int32]:
    domain = level.pool[by_cost]
    rows = by_cost[np.argsort(domain, kind="stable")]
    return rows[np.count_nonzero(domain < 0) :]


def _bound(view: ClusterView) -> dict[GangKey, tuple[tuple[str, int], ...]]:
    found: dict[GangKey, list[tuple[str, int]]] = {}
    for pod in view.pods:
        row = view.row.get(pod.node, -1)
        if pod.gang is not None and row >= 0:
            found.setdefault(pod.gang, []).append((pod.uid or f"{pod.namespace}/{pod.name}", row))
    return {key: tuple(members) for key, members in found.items()}
