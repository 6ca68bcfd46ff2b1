"""What is typical: the reference of each GPU and dimension, from its peers on other nodes.

The node's own GPUs are left out, so a node that is slow as a whole (they often are: one PSU, one fan wall) does not
become its own standard.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scorer.grading.series import DIMENSIONS, MAD_SCALE, Floats, Ints
from scorer.model.dimension import Dimension
from scorer.model.evidence import NodeFacts, PeerFigures
from scorer.model.policy import GradingPolicy

#: Between GPUs of one model the level of a quiet dimension still differs by this much (0.4 %).
LEAST_SPREAD = 0.004
#: Between repetitions on one GPU.
LEAST_NOISE = 0.003


@dataclass(frozen=True, slots=True, eq=False)
class Fleet:
    """Where each GPU stands.

    Attributes:
        node: int64 (G,): row of its node.
        gpu_start: int32 (N + 1,): GPUs of node i are rows ``gpu_start[i]:gpu_start[i + 1]``.
        group: int64 (G,): its reference group.
        groups: number of reference groups.
        product: name of each GPU's product.
    """

    node: Ints
    gpu_start: NDArray[np.int32]
    group: Ints
    groups: int
    product: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """Typical figures for each GPU and dimension; all arrays have the shape (G, D).

    Attributes:
        level: z of the peers' median; NaN where there is no reference.
        spread: how peers differ from each other, as a standard deviation of z.
        noise: how one GPU's samples differ from each other, likewise.
        peers: number of GPUs behind the median.
    """

    level: Floats
    spread: Floats
    noise: Floats
    peers: Ints


def fleet_of(nodes: tuple[NodeFacts, ...]) -> Fleet:
    """Number the GPUs of all nodes and sort them into reference groups."""
    counts = np.fromiter((len(n.gpus) for n in nodes), np.int64, len(nodes))
    start = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    seen: dict[tuple[str, int, float, str], int] = {}
    group = np.fromiter(
        (
            seen.setdefault((g.product, g.memory_mib, g.default_power_limit_w, g.driver.split(".", 1)[0]), len(seen))
            for n in nodes
            for g in n.gpus
        ),
        np.int64,
        int(start[-1]),
    )
    product = tuple(g.product for n in nodes for g in n.gpus)
    return Fleet(np.repeat(np.arange(len(nodes)), counts), start, group, max(len(seen), 1), product)


def reference(
    own: Floats,
    weight: Floats,
    noise: Floats,
    fleet: Fleet,
    peers: Mapping[Dimension, PeerFigures],
    policy: GradingPolicy,
) -> Reference:
    """Work out the reference of every GPU and dimension.

    Args:
        own: float64 (G, D): each GPU's own level as z; NaN where never measured.
        weight: float64 (G, D): effective number of samples behind it.
        noise: float64 (groups, D): scatter of repetitions in each group.
        fleet: where the GPUs stand.
        peers: figures from outside, used where the fleet itself is too small a group.
        policy: how many peers are enough.
    """
    shape = own.shape
    level = np.full(shape, np.nan)
    spread = np.full(shape, LEAST_SPREAD)
    count = np.zeros(shape, np.int64)
    for g in range(fleet.groups):
        members = np.flatnonzero(fleet.group == g)
        for d in range(DIMENSIONS):
            rows = members[np.isfinite(own[members, d])]
            if rows.size < policy.min_peers:
                continue
            value = own[rows, d]
            middle, left, nodes = _median_without_own_node(value, fleet.node[rows])
            enough = (left >= policy.min_peers) & (nodes >= policy.min_peer_nodes)
            level[rows, d] = np.where(enough, middle, np.nan)
            count[rows, d] = np.where(enough, left, 0)
            total = MAD_SCALE * float(np.median(np.abs(value - np.median(value))))
            within = noise[g, d] ** 2 * float(np.mean(1 / weight[rows, d]))
            spread[rows, d] = max(LEAST_SPREAD, float(np.sqrt(max(total**2 - within, 0.0))))
    result = Reference(level, spread, noise[fleet.group], count)
    _fill_from_outside(result, peers, policy)
    return result


def _fill_from_outside(ref: Reference, peers: Mapping[Dimension, PeerFigures], policy: GradingPolicy) -> None:
    """Where the fleet gives no reference, take the figures that came with the evidence."""
    for dimension, figures in peers.items():
        if figures.count < policy.min_peers or not figures.median > 0:
            continue
        d = int(dimension)
        missing = ~np.isfinite(ref.level[:, d])
        relative = MAD_SCALE * max(figures.mad, 0.0) / figures.median
        ref.level[missing, d] = -np.log(figures.median)
        ref.spread[missing, d] = max(LEAST_SPREAD, relative)
        ref.noise[missing, d] = np.maximum(ref.noise[missing, d], LEAST_NOISE)
        ref.peers[missing, d] = figures.count


def _median_without_own_node(value: Floats, node: Ints) -> tuple[Floats, Ints, Ints]:
    """For each of m values, the median of those of other nodes.

    The k values of its node are taken out of the sorted list by walking over their ranks: the element that stands at
    place j without them stands at j + (how many of them rank at or before it).

    Returns:
        medians (m,), how many values each rests on (m,), on how many nodes (m,).
    """
    m = value.size
    order = np.argsort(value, kind="stable")
    ranked = value[order]
    rank = np.empty(m, np.int64)
    rank[order] = np.arange(m)
    _, which, size = np.unique(node, return_inverse=True, return_counts=True)
    by_node = np.lexsort((rank, which))
    begin = np.concatenate(([0], np.cumsum(size)))
    column = np.arange(int(size.max()))
    inside = column < size[:, None]
    taken = np.where(inside, rank[by_node][np.where(inside, begin[:-1, None] + column, 0)], m)
    left = m - size
    low, high = _place(np.maximum(left - 1, 0) // 2, taken), _place(left // 2, taken)
    last = m - 1
    middle = 0.5 * (ranked[np.minimum(low, last)] + ranked[np.minimum(high, last)])
    others = size.size - 1
    return middle[which], left[which], np.full(m, others)


def _place(place: Ints, taken: Ints) -> Ints:
    """Turn places in the shortened list into places in the whole one; ``taken`` holds ascending ranks by row."""
    found = place.copy()
    for i in range(taken.shape[1]):
        found += taken[:, i] <= found
    return found
