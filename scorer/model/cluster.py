"""The cluster as placement sees it: nodes, what is free, topology, and who is bound where."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class GangKey:
    """Which gang a pod belongs to.

    Attributes:
        kind: the row of the identity table that matched, such as ``kueue-pod-group``.
        namespace: of the pod.
        name: of the gang.
    """

    kind: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class BoundPod:
    """A pod that has its node.

    Attributes:
        uid: may be empty.
        namespace: of the pod.
        name: of the pod.
        node: node name.
        gpus: whole GPUs that it holds.
        gang: its gang, if it has one.
    """

    uid: str
    namespace: str
    name: str
    node: str
    gpus: int
    gang: GangKey | None = None


@dataclass(frozen=True, slots=True, eq=False)
class TopologyTree:
    """An ordered list of label keys, nearest the node first, and every node's domain on each level.

    Attributes:
        name: ``fabric``, ``accelerator``, ...
        keys: label keys, nearest first; L of them.
        domain: int32 (L, N): number of the node's domain on that level; -1 where the label is missing.
        names: per level the domains' label values; ``names[l][domain[l, n]]``.
    """

    name: str
    keys: tuple[str, ...]
    domain: NDArray[np.int32]
    names: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, eq=False)
class ClusterView:
    """The cluster at one moment. Never changed; the next change makes a new one.

    Attributes:
        version: grows by one with each change.
        at: Unix seconds.
        nodes: names; ``row[nodes[i]] == i``.
        row: index of a name.
        labels: of each node.
        product: GPU product of each node; empty where not known.
        gpus: int32 (N,): GPUs that the kubelet offers.
        free: int32 (N,): GPUs not held by bound pods. A hint for planning, never a reason to filter.
        trees: topology, the most telling tree first.
        pods: bound pods that hold GPUs.
        problems: what is wrong with the topology labels, for people.
    """

    version: int
    at: float
    nodes: tuple[str, ...]
    row: Mapping[str, int]
    labels: tuple[Mapping[str, str], ...]
    product: tuple[str, ...]
    gpus: NDArray[np.int32]
    free: NDArray[np.int32]
    trees: tuple[TopologyTree, ...] = ()
    pods: tuple[BoundPod, ...] = ()
    problems: tuple[str, ...] = field(default=())
