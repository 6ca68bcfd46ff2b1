"""The two questions of a scheduler: which nodes may this pod use, and how good is each of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from scorer.model.grade import Grade
from scorer.model.policy import Mode
from scorer.placement.asked import Asked, ask_world
from scorer.placement.gang import GangPlan, anchors_of, candidates_for, plan_gang
from scorer.placement.gangs import PodFacts
from scorer.placement.levels import find_level, span_factors
from scorer.placement.pod import LEVEL_ANNOTATION, PodRequest, resolve_pod
from scorer.placement.scoring import NEUTRAL, Verdict
from scorer.placement.world import World

#: Of a gang's pod: the best score of a node outside the plan, and the range in which the plan's nodes are ranked.
OUTSIDE_PLAN, PLAN_RANKS = 80, 9


@dataclass(frozen=True, slots=True)
class Reason:
    """Why nodes fail.

    Attributes:
        text: without node names, so that equal ones add up in the pod's event.
        unresolvable: preemption cannot cure it.
    """

    text: str
    unresolvable: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class FilterAnswer:
    """Which nodes pass.

    Attributes:
        asked: what it answers.
        codes: uint8 (n,): 0 passes, k > 0 fails for ``reasons[k - 1]``.
        reasons: the distinct ones.
        would: by reason the nodes that enforce would remove, whatever the mode is.
        neutral: why nothing was judged; empty where it was.
    """

    asked: Asked
    codes: NDArray[np.uint8]
    reasons: tuple[Reason, ...]
    would: Mapping[str, int]
    neutral: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class ScoreAnswer:
    """How good each node is.

    Attributes:
        asked: what it answers.
        scores: uint8 (n,): 0-100.
        plan: of the pod's gang; ``None`` for a single pod, and where none was found.
        neutral: why nothing was judged; empty where it was.
    """

    asked: Asked
    scores: NDArray[np.uint8]
    plan: GangPlan | None = None
    neutral: str = ""


def request_of(world: World, facts: PodFacts) -> PodRequest:
    """Read a pod by the policies and the topology of a world. Never fails: what is wrong becomes a warning.

    Args:
        world: the snapshot.
        facts: the pod as it was sent.
    """
    pod = resolve_pod(facts, world.grading, world.policy)
    if not pod.required_level or find_level(world.levels, pod.required_level) is not None:
        return pod
    names = ", ".join(level.key for level in world.levels if level.key) or "none"
    text = f"no topology level is called {pod.required_level[:63]!r}; there are {names}; placed without"
    return replace(
        pod, required_level="", warnings=(*pod.warnings, text), label_errors=(*pod.label_errors, LEVEL_ANNOTATION)
    )


def filter_nodes(
    world: World, pod: PodRequest, names: Sequence[str], now: float, rows: NDArray[np.int32] | None = None
) -> FilterAnswer:
    """Say which nodes a pod may use. Without side effects, and equal for equal snapshots and requests.

    Args:
        world: the snapshot.
        pod: what is to be placed.
        names: of nodes; unknown ones pass.
        now: Unix seconds, by which the board's age is judged.
        rows: of the names, where they have been looked up in this world's view already.

    Raises:
        RequestError: a name is given twice, or there are too many.
    """
    asked = ask_world(world, pod, names, "filter", rows)
    neutral = _neutral(world, pod, now)
    passing = np.zeros(len(names), np.uint8)
    if neutral:
        return FilterAnswer(asked, passing, (), {}, neutral)
    codes = world.code[asked.key].take(asked.rows)
    _require_domain(world, pod, asked, codes)
    counts = np.bincount(codes, minlength=len(Verdict))
    would = {Verdict(c).name.lower(): int(n) for c, n in enumerate(counts) if c and n}
    if world.policy.mode is not Mode.ENFORCE or not would:
        return FilterAnswer(asked, passing, (), would)
    # The distinct reasons of this answer only, numbered from one in the order of their codes.
    used = [Verdict(c) for c in range(1, len(Verdict)) if counts[c]]
    number = np.zeros(len(Verdict), np.uint8)
    number[used] = np.arange(1, len(used) + 1)
    return FilterAnswer(asked, number[codes], tuple(Reason(reason_text(v, pod)) for v in used), would)


def score_nodes(
    world: World, pod: PodRequest, names: Sequence[str], now: float, rows: NDArray[np.int32] | None = None
) -> ScoreAnswer:
    """Say how good each node is for a pod. Without side effects, and equal for equal snapshots and requests.

    Args:
        world: the snapshot.
        pod: what is to be placed.
        names: of nodes; unknown ones are scored neutrally.
        now: Unix seconds, by which the board's age is judged.
        rows: of the names, where they have been looked up in this world's view already.

    Raises:
        RequestError: a name is given twice, or there are too many.
    """
    asked = ask_world(world, pod, names, "score", rows)
    neutral = _neutral(world, pod, now)
    if neutral:
        return ScoreAnswer(asked, np.full(len(names), NEUTRAL, np.uint8), None, neutral)
    scores, plan = world.score[asked.key].take(asked.rows), None
    if pod.gang_size > 1:
        scores, plan = _gang_scores(world, pod, asked, scores)
    if world.policy.mode is Mode.OBSERVE:
        scores = np.full(len(names), NEUTRAL, np.uint8)
    return ScoreAnswer(asked, scores, plan)


def reason_text(verdict: Verdict, pod: PodRequest) -> str:
    """What the pod's event says of nodes that fail: few distinct texts, without node names."""
    job = f"{pod.job_type} ({pod.sensitivity.label})"
    return {
        Verdict.PASS: "",
        Verdict.TOO_SLOW: f"gpugrade: GPUs too slow for {job}",
        Verdict.FAULT: f"gpugrade: GPU fault, red for {job}",
        Verdict.UNKNOWN: f"gpugrade: GPU grade unknown for {job}",
        Verdict.OUTSIDE_DOMAIN: "gpugrade: outside the domain that the gang requires",
    }[verdict]


def node_reason(world: World, key: tuple[int, int, int], row: int) -> str:
    """One line on a node for one kind of job: its grade and slowdown.

    Args:
        world: the snapshot.
        key: (j, v, s).
        row: of the node; -1 for an unknown one.
    """
    if row < 0:
        return "not a node of the cluster that gpugrade sees"
    return standing(Grade(int(world.grade[key][row])), float(world.slowdown[key[0], key[1], row]))


def standing(grade: Grade, slowdown: float) -> str:
    """A grade and the slowdown beside it, in words; NaN was never measured."""
    return f"{grade.label}, " + (f"slowdown {slowdown:.3f}" if np.isfinite(slowdown) else "never measured")


def _neutral(world: World, pod: PodRequest, now: float) -> str:
    return world.neutral_because(now) if pod.wants_gpu else "no-gpu"


def _require_domain(world: World, pod: PodRequest, asked: Asked, codes: NDArray[np.uint8]) -> None:
    """Mark nodes outside the domain that the gang requires, once a bound member tells which one it is."""
    if not pod.required_level or pod.gang_size <= 1:
        return
    level = find_level(world.levels, pod.required_level)
    if level is None:
        return
    own = level.domain.take(asked.rows)
    anchors = anchors_of(world, pod)
    held = level.domain[anchors[0]] if len(anchors) else -1
    outside = (own != held) if held >= 0 else (own < 0)
    codes[outside & (asked.rows >= 0) & (codes == Verdict.PASS)] = Verdict.OUTSIDE_DOMAIN


def _gang_scores(
    world: World, pod: PodRequest, asked: Asked, scores: NDArray[np.uint8]
) -> tuple[NDArray[np.uint8], GangPlan | None]:
    """Nodes of the plan first, in its order; the rest by quality and nearness to the gang; red ones stay last."""
    anchors = anchors_of(world, pod)
    candidates = candidates_for(world, pod, asked.rows, len(anchors))
    plan = plan_gang(world, pod, asked.key, candidates, anchors)
    around = anchors if len(anchors) else plan.rows if plan is not None else anchors
    known = asked.rows >= 0
    if len(around):
        factors = span_factors(world.levels, around, asked.rows)
        best = plan.level.factor if plan is not None else float(factors.min())
        near = np.minimum(best / factors, 1.0) if best > 0 else np.ones_like(factors)
        rest = np.floor(scores * near * (OUTSIDE_PLAN / 100)).astype(np.uint8)
        scores = np.where(known, rest, scores).astype(np.uint8)
    if plan is not None:
        rank = np.full(len(world.natural), -1, np.int64)
        rank[plan.rows] = np.minimum(np.arange(len(plan.rows)), PLAN_RANKS)
        own = rank.take(asked.rows)
        scores = np.where(known & (own >= 0), 100 - own, scores).astype(np.uint8)
    return scores, plan
