"""The levels that a gang can span, with the time factor of each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scorer.model.cluster import ClusterView, TopologyTree


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """One level that a gang may span.

    Attributes:
        name: for people: ``node``, ``rack``, ``leaf``, ..., ``across``.
        key: label key; empty for the node itself and for the whole cluster.
        tree: name of the tree; empty likewise.
        factor: relative time of a gang that spans it.
        domain: int32 (N + 1,): the node's domain; -1 where it has none. The last entry stands for unknown nodes.
        names: of the domains; empty for the whole cluster.
        pool: int32 (N + 1,): like the domain, but nodes of different GPU products never share one. Gangs are planned
            within a pool: a gang of mixed products would run at the pace of the slower product, and slowdowns are
            relative to the product.
    """

    name: str
    key: str
    tree: str
    factor: float
    domain: NDArray[np.int32]
    names: tuple[str, ...]
    pool: NDArray[np.int32]


def short_name(key: str) -> str:
    """The part of a label key that people use: ``example.dev/rack`` is a ``rack``."""
    return key.rsplit("/", 1)[-1]


def build_levels(view: ClusterView, locality: Mapping[str, float]) -> tuple[Level, ...]:
    """Levels of a cluster, the quickest first; equal ones in the order node, nearest, ..., farthest, across.

    Args:
        view: nodes and trees.
        locality: relative time by level: ``node``, ``across``, a short name or a label key. A level that it does
            not name lies between its neighbours.
    """
    count = len(view.nodes)
    node = float(locality.get("node", 1.0))
    across = max(node, float(locality.get("across", 1.7)))
    _, product = np.unique(np.array(view.product, dtype=np.str_), return_inverse=True)

    def level(
        name: str, key: str, tree: str, factor: float, domain: NDArray[np.int32], names: tuple[str, ...]
    ) -> Level:
        return Level(name, key, tree, factor, _padded(domain), names, _padded(_pools(domain, product)))

    levels = [level("node", "", "", node, np.arange(count, dtype=np.int32), view.nodes)]
    for tree in view.trees:
        factors = _factors(tree, locality, node, across)
        levels += [
            level(short_name(key), key, tree.name, factor, domain, names)
            for key, factor, domain, names in zip(tree.keys, factors, tree.domain, tree.names, strict=True)
        ]
    levels.append(level("across", "", "", across, np.zeros(count, np.int32), ()))
    return tuple(sorted(levels, key=lambda each: each.factor))


def span_factors(levels: Sequence[Level], members: NDArray[np.int32], rows: NDArray[np.int32]) -> NDArray[np.float64]:
    """Relative time of a gang by locality, if each of ``rows`` joined ``members``.

    Args:
        levels: the quickest first.
        members: rows of the nodes that the gang already has; at least one.
        rows: int32 (n,): nodes to judge; -1 for an unknown one, which counts as the farthest.

    Returns:
        float64 (n,).
    """
    factors = np.full(len(rows), levels[-1].factor)
    for level in reversed(levels):
        own = level.domain[members]
        if own[0] >= 0 and (own == own[0]).all():
            factors[level.domain.take(rows) == own[0]] = level.factor
    return factors


def span_of(levels: Sequence[Level], members: NDArray[np.int32]) -> tuple[Level, str]:
    """The quickest level with one domain that holds all members, and the name of that domain."""
    for level in levels:
        own = level.domain[members]
        if own[0] >= 0 and (own == own[0]).all():
            return level, level.names[own[0]] if level.names else ""
    return levels[-1], ""


def find_level(levels: Sequence[Level], text: str) -> Level | None:
    """The level of the trees that ``text`` names, by label key or short name; ``None`` where there is none."""
    named = [level for level in levels if level.key]
    return next((level for level in named if level.key == text), None) or next(
        (level for level in named if level.name == text), None
    )


def _pools(domain: NDArray[np.int32], product: NDArray[np.int64]) -> NDArray[np.int32]:
    """Number the pairs of domain and product that occur; -1 where there is no domain."""
    if not len(domain):
        return domain
    _, pool = np.unique(domain.astype(np.int64) * (int(product.max()) + 1) + product, return_inverse=True)
    return np.where(domain >= 0, pool, -1).astype(np.int32)


def _padded(domain: NDArray[np.int32]) -> NDArray[np.int32]:
    return np.append(domain, np.int32(-1)).astype(np.int32)


def _factors(tree: TopologyTree, locality: Mapping[str, float], node: float, across: float) -> list[float]:
    positions, values = [-1.0], [node]
    for i, key in enumerate(tree.keys):
        found = locality.get(key, locality.get(short_name(key)))
        if found is not None:
            positions.append(float(i))
            values.append(float(found))
    positions.append(float(len(tree.keys)))
    values.append(across)
    between = np.interp(np.arange(len(tree.keys)), positions, values)
    # A farther level is never quicker than a nearer one, whatever the figures say.
    ordered = np.minimum(np.maximum.accumulate(np.maximum(between, node)), across)
    return [float(f) for f in ordered]
