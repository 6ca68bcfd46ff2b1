"""Where the cluster is known from. A fleet file is the one source so far."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

import numpy as np

from scorer.model.cluster import BoundPod, ClusterView
from scorer.placement import build_trees

Topology = tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """What a source says of a node.

    Attributes:
        name: the Kubernetes node name.
        labels: of the node.
        gpus: GPUs that the kubelet offers.
        expected_gpus: GPUs that it should have; ``None`` where not known.
        product: as the driver names it; empty where not known.
        exporter: URL of its dcgm-exporter; empty where it has none.
        probe_token_sha256: hex of the hash of the token that its agent shows; empty where none was set.
    """

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    gpus: int = 0
    expected_gpus: int | None = None
    product: str = ""
    exporter: str = ""
    probe_token_sha256: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class ClusterState:
    """The cluster at one moment: what placement sees, and what else the scorer needs of each node.

    Attributes:
        view: for placement.
        nodes: by name, in the order of the view's rows.
    """

    view: ClusterView
    nodes: Mapping[str, NodeRecord]


class ClusterSource(Protocol):
    """What the server asks of a source. Implementations swap ``current`` whole and never change it."""

    @property
    def current(self) -> ClusterState:
        """The newest state; at hand at once, from the first moment on."""
        ...

    @property
    def problem(self) -> str:
        """Why ``current`` may be out of date; empty if it is not."""
        ...

    def start(self, changed: Callable[[], None]) -> None:
        """Begin to follow changes; ``changed`` is called from a thread of the source after each swap."""
        ...

    def stop(self) -> None:
        """Stop following and release what was held."""
        ...


def build_state(
    version: int,
    at: float,
    records: Sequence[NodeRecord],
    pods: Sequence[BoundPod] = (),
    topology: Topology = (),
) -> ClusterState:
    """Put a state together.

    Args:
        version: grows with each state.
        at: Unix seconds.
        records: one per node, names unique.
        pods: bound pods that hold GPUs; those on unknown nodes are kept but take nothing.
        topology: trees as (name, label keys nearest first); empty: known presets are detected.

    Returns:
        The state; a node's free GPUs are those offered less those that bound pods hold, never below zero.
    """
    nodes = tuple(record.name for record in records)
    labels = tuple(record.labels for record in records)
    row = {name: i for i, name in enumerate(nodes)}
    gpus = np.array([record.gpus for record in records], np.int32)
    held = np.zeros(len(nodes), np.int32)
    for pod in pods:
        if (i := row.get(pod.node)) is not None:
            held[i] += pod.gpus
    trees, problems = build_trees(nodes, labels, topology)
    view = ClusterView(
        version=version,
        at=at,
        nodes=nodes,
        row=MappingProxyType(row),
        labels=labels,
        product=tuple(record.product for record in records),
        gpus=gpus,
        free=np.maximum(gpus - held, 0),
        trees=tuple(trees),
        pods=tuple(pods),
        problems=tuple(problems),
    )
    return ClusterState(view, MappingProxyType({record.name: record for record in records}))
