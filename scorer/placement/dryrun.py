"""Where would this job go? A dry run over all nodes, beside what a variability-blind choice would get."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scorer.model.grade import Grade
from scorer.model.words import counted
from scorer.placement.asked import key_of
from scorer.placement.decide import node_reason
from scorer.placement.gang import Candidates, GangPlan, plan_gang
from scorer.placement.levels import Level, span_of
from scorer.placement.pod import PodRequest
from scorer.placement.scoring import Verdict
from scorer.placement.world import World

#: Draws behind the expected time of a variability-blind choice.
BLIND_DRAWS = 64


@dataclass(frozen=True, slots=True)
class Assignment:
    """What goes to one node.

    Attributes:
        node: name.
        pods: how many of the job's.
        slowdown: predicted relative time there; NaN where never measured.
        grade: for this job.
        reasons: for people.
    """

    node: str
    pods: int
    slowdown: float
    grade: Grade
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Placement:
    """The outcome of a dry run.

    Attributes:
        assignments: in natural order of node names; empty where nothing fits.
        relative_time: slowdown of the slowest GPU times the locality factor; NaN where nothing fits. A node that was
            never measured counts as typical.
        blind_relative_time: what a choice that packs by topology and knows no grades is expected to take; NaN likewise.
        level: that the job spans.
        domain: its name.
        locality_factor: of that level.
        infeasible: why nothing fits; empty if it does.
        warnings: on the job and on the board's age.
    """

    assignments: tuple[Assignment, ...]
    relative_time: float
    blind_relative_time: float
    level: str
    domain: str
    locality_factor: float
    infeasible: str = ""
    warnings: tuple[str, ...] = ()


def place(
    world: World,
    job: PodRequest,
    exclude: Collection[str],
    *,
    rng: np.random.Generator,
    now: float | None = None,
    product: str = "",
) -> Placement:
    """Place a job on paper.

    Args:
        world: the snapshot.
        job: of :func:`scorer.placement.pod.job_request`.
        exclude: nodes to leave out.
        rng: for the blind choice's draws; equally seeded ones give equal figures.
        now: Unix seconds; where given, a stale board gives a warning.
        product: only nodes whose GPU product contains this, in any case of letters; empty: any.
    """
    warnings = list(job.warnings)
    because = world.neutral_because(now) if now is not None else ""
    if because:
        warnings.append(f"{because}: grades may be out of date, and the scheduler is answered neutrally")
    slots = np.append(world.view.free // job.slots, 0).astype(np.int32)
    for name in exclude:
        row = world.view.row.get(name, -1)
        if row < 0:
            warnings.append(f"{name} is to be left out, but is not a node of this cluster")
        else:
            slots[row] = 0
    if product:
        fits = _of_product(world, product)
        if not fits.any():
            there = ", ".join(sorted({name for name in world.view.product if name})) or "none that is known"
            nothing = f"no node has GPUs of a product that contains {product!r}; there are: {there}"
            return Placement((), np.nan, np.nan, "", "", np.nan, nothing, tuple(warnings))
        slots[:-1][~fits] = 0
    key = key_of(world, job)
    plan = _choose(world, job, key, slots)
    if plan is None:
        return Placement((), np.nan, np.nan, "", "", np.nan, _why_not(world, job, key, slots), tuple(warnings))
    times = _times(world, key)
    return Placement(
        assignments=tuple(_assign(world, key, plan, i) for i in range(len(plan.rows))),
        relative_time=float(times[plan.rows].max()) * plan.level.factor,
        blind_relative_time=_blind_time(world, job, times, slots, rng),
        level=plan.level.name,
        domain=plan.domain,
        locality_factor=plan.level.factor,
        warnings=tuple(warnings),
    )


def _of_product(world: World, product: str) -> NDArray[np.bool_]:
    """Return bool (N,). Labels write blanks as dashes, so both are read alike."""
    wanted = product.replace("-", " ").casefold()
    return np.array([wanted in name.replace("-", " ").casefold() for name in world.view.product], np.bool_)


def _choose(world: World, job: PodRequest, key: tuple[int, int, int], slots: NDArray[np.int32]) -> GangPlan | None:
    nobody = np.empty(0, np.int32)
    if job.gang_size > 1:
        return plan_gang(world, job, key, Candidates(slots, np.zeros_like(slots)), nobody)
    rows = world.by_name[(slots[:-1] > 0)[world.by_name] & np.isfinite(world.cost[key][world.by_name])]
    if not len(rows):
        return None
    row = rows[[int(np.argmax(world.score[key][rows]))]]
    level, domain = span_of(world.levels, row)
    return GangPlan(row, np.ones(1, np.int32), level, domain, float(world.cost[key][row[0]]))


def _times(world: World, key: tuple[int, int, int]) -> NDArray[np.float64]:
    slowdown = world.slowdown[key[0], key[1]].astype(np.float64)
    return np.where(np.isfinite(slowdown), slowdown, 1.0)


def _assign(world: World, key: tuple[int, int, int], plan: GangPlan, index: int) -> Assignment:
    row = int(plan.rows[index])
    free, gpus = int(world.view.free[row]), int(world.view.gpus[row])
    return Assignment(
        node=world.view.nodes[row],
        pods=int(plan.pods[index]),
        slowdown=float(world.slowdown[key[0], key[1], row]),
        grade=Grade(int(world.grade[key][row])),
        reasons=(node_reason(world, key, row), f"{free} of {counted(gpus, 'GPU')} free"),
    )


def _why_not(world: World, job: PodRequest, key: tuple[int, int, int], slots: NDArray[np.int32]) -> str:
    gpus = counted(job.slots, "GPU")
    wanted = f"{job.gang_size} pods of {gpus}" if job.gang_size > 1 else gpus
    room = int(slots.sum())
    if room < job.gang_size:
        return f"no room for {wanted}: the free GPUs hold {counted(room, 'such pod')}"
    fit = int(slots[:-1][np.isfinite(world.cost[key][:-1])].sum())
    if fit < job.gang_size:
        return (
            f"no room for {wanted}: the free GPUs hold {counted(room, 'such pod')}, but only {fit} on nodes that are "
            f"not red for {job.job_type} ({job.sensitivity.label})"
        )
    return f"no room for {wanted} on GPUs of one product: room for {counted(fit, 'such pod')} is spread over several"


def _blind_time(
    world: World, job: PodRequest, times: NDArray[np.float64], slots: NDArray[np.int32], rng: np.random.Generator
) -> float:
    """Mean time of choices that pack first and look at no grade: any lowest domain with room, any nodes in it.

    Nodes with a fault are left to nobody: a job there would not be slow, it would die, and no time says that.
    """
    need = job.gang_size
    healthy = np.where(world.code[key_of(world, job)] == Verdict.FAULT, 0, slots).astype(np.int32)
    slots = healthy if any(len(_with_room(level, healthy, need)) for level in world.levels) else slots
    level, pools = _lowest_with_room(world, slots, need)
    free = world.view.free
    total = 0.0
    for _ in range(BLIND_DRAWS):
        pool = int(rng.choice(pools))
        rows = rng.permutation(np.flatnonzero((slots[:-1] > 0) & (level.pool[:-1] == pool)))
        rows = rows[np.argsort(free[rows], kind="stable")]
        taken = rows[: int(np.searchsorted(np.cumsum(slots[rows]), need)) + 1].astype(np.int32)
        total += float(times[taken].max()) * span_of(world.levels, taken)[0].factor
    return total / BLIND_DRAWS


def _lowest_with_room(world: World, slots: NDArray[np.int32], need: int) -> tuple[Level, NDArray[np.int64]]:
    for level in world.levels:
        pools = _with_room(level, slots, need)
        if len(pools):
            return level, pools
    return world.levels[-1], np.zeros(1, np.int64)


def _with_room(level: Level, slots: NDArray[np.int32], need: int) -> NDArray[np.int64]:
    """Pools of a level that have room for that many members."""
    inside = np.flatnonzero(level.pool >= 0)
    return np.flatnonzero(np.bincount(level.pool[inside], slots[inside]) >= need)
