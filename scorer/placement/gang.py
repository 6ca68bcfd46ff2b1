"""Where a gang should go: the lowest level that holds it, with the fastest slowest member, side by side."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scorer.model.jobtype import JobShape
from scorer.placement.levels import Level, find_level, span_of
from scorer.placement.pod import PodRequest
from scorer.placement.world import World

#: Plans whose predicted times differ by less than this share are equally good: probes do not repeat more closely.
SAME_TIME = 0.005


@dataclass(frozen=True, slots=True, eq=False)
class GangPlan:
    """Where the members that are still to come should go.

    Attributes:
        rows: int32 (m,): nodes to use, in natural order of their names.
        pods: int32 (m,): members on each.
        level: that the whole gang spans, members already bound included.
        domain: name of its domain; empty for the whole cluster.
        cost: of the slowest member.
    """

    rows: NDArray[np.int32]
    pods: NDArray[np.int32]
    level: Level
    domain: str
    cost: float

    @property
    def time(self) -> float:
        """Predicted relative time: the slowest member times the factor of the level."""
        return self.cost * self.level.factor


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """Which nodes a plan may use.

    Attributes:
        slots: int32 (N + 1,): members that fit a node by what is free; 0 for nodes that were not asked about.
        presumed: int32 (N + 1,): the same for nodes that were *not* asked about.
        credit: how many members are presumed to sit on those: the scheduler has placed them, and no watch has told
            yet. Without it the second member of a gang would find its rack too small, and leave it.
    """

    slots: NDArray[np.int32]
    presumed: NDArray[np.int32]
    credit: int = 0


@dataclass(frozen=True, slots=True)
class _Choice:
    key: tuple[int, int, int, int]
    level: int
    pool: int
    limit: float
    need: int


def variant_of(pod: PodRequest) -> int:
    """The V index of a request."""
    return JobShape(pod.gang_size, pod.shape.gpus).variant


def anchors_of(world: World, pod: PodRequest) -> NDArray[np.int32]:
    """Rows of the members of the pod's gang that are bound, itself excepted; one entry a member."""
    if pod.gang is None or pod.gang_size <= 1:
        return np.empty(0, np.int32)
    own = pod.uid or f"{pod.namespace}/{pod.name}"
    return np.array([row for uid, row in world.gangs.get(pod.gang, ()) if uid != own], np.int32)


def candidates_for(world: World, pod: PodRequest, rows: NDArray[np.int32], bound: int) -> Candidates:
    """What a plan for this pod's gang may use.

    Args:
        world: the snapshot.
        pod: one member.
        rows: int32: nodes that were asked about; -1 for unknown ones.
        bound: members that are bound already.
    """
    free = np.append(world.view.free // pod.slots, 0).astype(np.int32)
    asked = np.zeros(len(free), bool)
    asked[rows] = True
    ahead = (pod.gang_index or 0) - bound
    credit = max(0, min(ahead, pod.gang_size - 1 - bound))
    # The scheduler knows better than the view what is free: a node that it asks about has room for one.
    slots = np.where(asked, np.maximum(free, 1), 0).astype(np.int32)
    slots[-1] = 0
    return Candidates(slots, np.where(asked, 0, np.maximum(free, 0)).astype(np.int32), credit)


def plan_gang(
    world: World, pod: PodRequest, key: tuple[int, int, int], candidates: Candidates, anchors: NDArray[np.int32]
) -> GangPlan | None:
    """Plan all members of a gang that are still to come.

    Minimises the predicted time over all levels; of equally good plans the lower level, then the domain that is left
    fullest (so that whole ones stay whole), then the first by name.

    Args:
        world: the snapshot.
        pod: one member.
        key: the request's (j, v, s).
        candidates: nodes that may be used.
        anchors: rows of members already bound.

    Returns:
        ``None`` where no level holds the gang.
    """
    cost = world.cost[key]
    need = max(1, pod.gang_size - len(anchors))
    anchor_cost = _anchor_cost(world, key, anchors)
    best: _Choice | None = None
    for number in _allowed_levels(world, pod):
        level = world.levels[number]
        found = _best_pool(level, number, world.orders[key][number], cost, candidates, need, anchors, anchor_cost)
        if found is not None and (best is None or found.key < best.key):
            best = found
    return None if best is None else _members(world, best, cost, candidates, anchors, anchor_cost)


def _anchor_cost(world: World, key: tuple[int, int, int], anchors: NDArray[np.int32]) -> float:
    """Cost of the slowest bound member; one on a node that is not to be used any more bears no choice."""
    if not len(anchors):
        return 0.0
    costs = world.cost[key][anchors]
    known = costs[np.isfinite(costs)]
    return float(known.max()) if len(known) else 1.0


def _allowed_levels(world: World, pod: PodRequest) -> list[int]:
    wanted = find_level(world.levels, pod.required_level) if pod.required_level else None
    if wanted is None:
        return list(range(len(world.levels)))
    own = [i for i, level in enumerate(world.levels) if level.tree == wanted.tree and level.key]
    inner = own[: next(k for k, i in enumerate(own) if world.levels[i] is wanted) + 1]
    return [i for i, level in enumerate(world.levels) if level.name == "node" and not level.key] + inner


def _best_pool(
    level: Level,
    number: int,
    order: NDArray[np.int32],
    cost: NDArray[np.float32],
    candidates: Candidates,
    need: int,
    anchors: NDArray[np.int32],
    anchor_cost: float,
) -> _Choice | None:
    usable = (candidates.slots > 0) & np.isfinite(cost)
    if len(anchors):
        own = level.pool[anchors]
        if own[0] < 0 or (own != own[0]).any():
            return None
        usable &= level.pool == own[0]
    rows = order[usable[order]]
    if not len(rows):
        return None
    pool = level.pool[rows]
    starts = np.flatnonzero(np.append(True, pool[1:] != pool[:-1]))
    group = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(rows))))
    slots = candidates.slots[rows]
    total = np.cumsum(slots)
    within = total - (total[starts] - slots[starts])[group]
    needs = need - _credit(level, pool[starts], candidates)
    first = np.flatnonzero((within >= needs[group]) & (within - slots < needs[group]))
    if not len(first):
        return None
    hit = group[first]
    time = np.maximum(np.maximum(cost[rows[first]], anchor_cost) * level.factor, 1e-6)
    full = np.append(starts[1:], len(rows)) - 1
    left = within[full[hit]] - needs[hit]
    bucket = np.round(np.log(time) / SAME_TIME).astype(np.int64)
    pick = int(np.lexsort((pool[first], left, bucket))[0])
    chosen = int(pool[first][pick])
    return _Choice(
        key=(int(bucket[pick]), number, int(left[pick]), chosen),
        level=number,
        pool=chosen,
        limit=float(cost[rows[first[pick]]]),
        need=int(needs[hit[pick]]),
    )


def _credit(level: Level, pools: NDArray[np.int32], candidates: Candidates) -> NDArray[np.int64]:
    """Members presumed to sit in each pool, on nodes that were not asked about."""
    if candidates.credit == 0:
        return np.zeros(len(pools), np.int64)
    rows = np.flatnonzero((candidates.presumed > 0) & (level.pool >= 0))
    held = np.bincount(level.pool[rows], candidates.presumed[rows], minlength=int(pools.max()) + 1)
    return np.minimum(held[pools], candidates.credit).astype(np.int64)


def _members(
    world: World,
    choice: _Choice,
    cost: NDArray[np.float32],
    candidates: Candidates,
    anchors: NDArray[np.int32],
    anchor_cost: float,
) -> GangPlan:
    """Of the pool's nodes that are as good as the slowest one needed, take those that lie closest together."""
    level = world.levels[choice.level]
    bound = max(choice.limit, anchor_cost) * (1.0 + SAME_TIME)
    fits = (candidates.slots[:-1] > 0) & (cost[:-1] <= bound) & (level.pool[:-1] == choice.pool)
    rows = world.by_name[fits[world.by_name]]
    slots = candidates.slots[rows]
    after = np.cumsum(slots)
    before = after - slots
    last = np.searchsorted(after, before + choice.need)
    begins = np.flatnonzero(last < len(rows))
    place = world.natural[rows]
    spans = place[last[begins]] - place[begins]
    begin = int(begins[np.argmin(spans)])
    end = int(last[begin])
    rows, pods = rows[begin : end + 1], slots[begin : end + 1].copy()
    pods[-1] = choice.need - int(pods[:-1].sum())
    everyone = np.concatenate([anchors, rows])
    spanned, name = span_of(world.levels, everyone)
    return GangPlan(rows, pods, spanned, name, max(float(cost[rows].max()), anchor_cost))
