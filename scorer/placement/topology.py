"""Topology trees from node labels: presets of the clouds and fabrics in the field, or keys from the configuration."""

import re
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from scorer.model.cluster import TopologyTree

#: Label keys, nearest the node first. The first preset of which a node carries a key is the fabric tree.
FABRIC_PRESETS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "topograph",
        ("network.topology.nvidia.com/leaf", "network.topology.nvidia.com/spine", "network.topology.nvidia.com/core"),
    ),
    (
        "gke",
        (
            "cloud.google.com/gce-topology-host",
            "cloud.google.com/gce-topology-subblock",
            "cloud.google.com/gce-topology-block",
        ),
    ),
    (
        "aws",
        (
            "topology.k8s.aws/network-node-layer-3",
            "topology.k8s.aws/network-node-layer-2",
            "topology.k8s.aws/network-node-layer-1",
        ),
    ),
    ("oci", ("oci.oraclecloud.com/host.rack_id", "oci.oraclecloud.com/host.network_block_id")),
    (
        "coreweave",
        (
            "node.coreweave.cloud/rack",
            "backend.coreweave.cloud/leafgroup",
            "ib.coreweave.cloud/superpod",
            "backend.coreweave.cloud/fabric",
        ),
    ),
    ("crusoe", ("crusoe.ai/pod.id", "crusoe.ai/ib.partition.id")),
)
ACCELERATOR_PRESETS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("topograph", ("accelerator.topograph.run/sub-domain", "accelerator.topograph.run/domain")),
    ("gfd", ("nvidia.com/gpu.clique",)),
    ("topograph-0", ("network.topology.nvidia.com/accelerator",)),
)
#: Farthest levels of every fabric tree.
PLACES = ("topology.kubernetes.io/zone", "topology.kubernetes.io/region")

_TIER = re.compile(r"fabric\.topograph\.run/tier-(\d{1,3})")
_DIGITS = re.compile(r"(\d+)")

#: Problems beyond these repeat the same mistake.
MAX_PROBLEMS = 20


def natural_key(text: str) -> tuple[tuple[int, str, int], ...]:
    """Sort key in which ``n2`` comes before ``n10``."""
    parts = _DIGITS.split(text)
    return tuple((1, "", int(p)) if i % 2 else (0, p, 0) for i, p in enumerate(parts))


def build_trees(
    nodes: Sequence[str],
    labels: Sequence[Mapping[str, str]],
    configured: Sequence[tuple[str, tuple[str, ...]]] = (),
) -> tuple[tuple[TopologyTree, ...], tuple[str, ...]]:
    """Build the topology trees of a cluster.

    Each value of a level must lie in one value of the next level. Where one does not (racks that are numbered afresh
    in every row of a hall), it is reported, and counts as one domain in each parent.

    Args:
        nodes: names.
        labels: of each node, in the order of ``nodes``.
        configured: trees as (name, label keys nearest first); empty: known presets are detected.

    Returns:
        The trees, the most telling first, and the problems found, for people.
    """
    problems: list[str] = []
    trees: list[TopologyTree] = []
    present = {key for row in labels for key in row}
    for name, keys in configured or _detect(present):
        missing = [key for key in keys if key not in present]
        if configured and missing and nodes:
            problems.append(f"topology {name}: no node carries the label {', '.join(missing)}; check the key")
        used = tuple(key for key in keys if key in present)
        if used:
            trees.append(_tree(name, used, labels, problems))
    hidden = len(problems) - MAX_PROBLEMS
    if hidden > 0:
        problems = [*problems[:MAX_PROBLEMS], f"and {hidden} more problems of the same kinds"]
    return tuple(trees), tuple(problems)


def _detect(present: set[str]) -> list[tuple[str, tuple[str, ...]]]:
    tiers = sorted((int(found[1]), key) for key in present if (found := _TIER.fullmatch(key)))
    fabrics = [tuple(key for _, key in tiers), *(keys for _, keys in FABRIC_PRESETS)]
    fabric = next((keys for keys in fabrics if present.intersection(keys)), ())
    accelerator = next((keys for _, keys in ACCELERATOR_PRESETS if present.intersection(keys)), ())
    return [("fabric", (*fabric, *PLACES)), ("accelerator", accelerator)]


def _tree(name: str, keys: tuple[str, ...], labels: Sequence[Mapping[str, str]], problems: list[str]) -> TopologyTree:
    count = len(labels)
    domain = np.full((len(keys), count), -1, np.int32)
    names: list[tuple[str, ...]] = [()] * len(keys)
    parent: NDArray[np.int32] | None = None
    for level in range(len(keys) - 1, -1, -1):
        key = keys[level]
        values = [row.get(key, "") for row in labels]
        split = _misplaced(values, parent)
        if parent is not None and split:
            example = min(split, key=natural_key)
            problems.append(
                f"topology {name}: {len(split)} values of {key} lie in more than one {keys[level + 1]} "
                f"(such as {example!r}); each counts once in every one of them"
            )
        idents = [
            (value, int(parent[i]) if parent is not None and value in split else -1) for i, value in enumerate(values)
        ]
        known = sorted({ident for ident in idents if ident[0]}, key=lambda ident: (natural_key(ident[0]), ident[1]))
        number = {ident: i for i, ident in enumerate(known)}
        domain[level] = [number.get(ident, -1) for ident in idents]
        names[level] = tuple(value for value, _ in known)
        parent = domain[level]
    return TopologyTree(name, keys, domain, tuple(names))


def _misplaced(values: Sequence[str], parent: NDArray[np.int32] | None) -> set[str]:
    """Values that lie in more than one parent; a node without the parent's label contradicts nothing."""
    if parent is None:
        return set()
    seen: dict[str, int] = {}
    split: set[str] = set()
    for value, above in zip(values, parent.tolist(), strict=True):
        if value and above >= 0 and seen.setdefault(value, above) != above:
            split.add(value)
    return split
