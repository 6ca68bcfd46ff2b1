"""Small worlds for tests of placement: boards written down by hand, without a grader."""

from collections.abc import Mapping, Sequence

import numpy as np

from scorer.model.board import GradeBoard
from scorer.model.cluster import BoundPod, ClusterView
from scorer.model.dimension import Dimension
from scorer.model.grade import Grade, Sensitivity
from scorer.model.jobtype import VARIANTS
from scorer.model.policy import GradingPolicy, Mode, PlacementPolicy
from scorer.placement import PodFacts, Resources, World, build_trees

NOW = 1_800_000_000.0
RACK, LEAF, SPINE = "example.dev/rack", "network.topology.nvidia.com/leaf", "network.topology.nvidia.com/spine"
TOPOLOGY = (("fabric", (RACK, LEAF, SPINE)),)


def board_of(
    slowdown: Mapping[str, float], grades: Mapping[str, Grade] | None = None, *, at: float = NOW, version: int = 7
) -> GradeBoard:
    """A board on which a node has one slowdown for every job; NaN is unknown; ``grades`` overrides thresholds."""
    policy = GradingPolicy()
    nodes = tuple(slowdown)
    types = len(policy.job_types)
    values = np.array([slowdown[n] for n in nodes], np.float32)
    shape = (len(nodes), types, VARIANTS)
    grade = np.zeros((*shape, len(Sensitivity)), np.uint8)
    for s, bounds in policy.thresholds.items():
        verdict = np.where(
            values >= bounds.red, Grade.RED, np.where(values >= bounds.yellow, Grade.YELLOW, Grade.GREEN)
        )
        grade[..., s] = np.where(np.isnan(values), Grade.UNKNOWN, verdict)[:, None, None]
    for i, node in enumerate(nodes):
        if grades and node in grades:
            grade[i] = grades[node]
    slow = np.broadcast_to(values[:, None, None], shape).copy()
    gpus = len(nodes)
    return GradeBoard(
        version=version,
        at=at,
        nodes=nodes,
        row={n: i for i, n in enumerate(nodes)},
        job_types=tuple(t.name for t in policy.job_types),
        slowdown=slow,
        low=slow,
        high=slow,
        grade=grade,
        confidence=np.ones(grade.shape, np.float32),
        evidence_at=np.full(len(nodes), at),
        since=np.full(grade.shape, at),
        gpu_start=np.arange(gpus + 1, dtype=np.int32),
        gpu_index=np.zeros(gpus, np.int32),
        gpu_uuid=("",) * gpus,
        gpu_slowdown=np.ones((gpus, len(Dimension)), np.float32),
        gpu_low=np.ones((gpus, len(Dimension)), np.float32),
        gpu_high=np.ones((gpus, len(Dimension)), np.float32),
        gpu_samples=np.ones((gpus, len(Dimension)), np.int32),
        gpu_grade=np.zeros((gpus, types, VARIANTS, len(Sensitivity)), np.uint8),
        findings=((),) * len(nodes),
    )


def view_of(
    nodes: Sequence[str],
    labels: Mapping[str, Mapping[str, str]] | None = None,
    *,
    free: Mapping[str, int] | None = None,
    gpus: int = 8,
    pods: Sequence[BoundPod] = (),
    version: int = 3,
) -> ClusterView:
    """A view of nodes with 8 GPUs each, all free unless ``free`` says otherwise."""
    rows = [dict((labels or {}).get(n, {})) for n in nodes]
    trees, problems = build_trees(nodes, rows, TOPOLOGY if labels else ())
    return ClusterView(
        version=version,
        at=NOW,
        nodes=tuple(nodes),
        row={n: i for i, n in enumerate(nodes)},
        labels=tuple(rows),
        product=("NVIDIA H100 80GB HBM3",) * len(nodes),
        gpus=np.full(len(nodes), gpus, np.int32),
        free=np.array([(free or {}).get(n, gpus) for n in nodes], np.int32),
        trees=trees,
        pods=tuple(pods),
        problems=problems,
    )


def world_of(
    slowdown: Mapping[str, float],
    *,
    mode: Mode = Mode.ENFORCE,
    grades: Mapping[str, Grade] | None = None,
    labels: Mapping[str, Mapping[str, str]] | None = None,
    free: Mapping[str, int] | None = None,
    pods: Sequence[BoundPod] = (),
    policy: PlacementPolicy | None = None,
) -> World:
    """A world of the nodes that ``slowdown`` names."""
    return World.build(
        board_of(slowdown, grades),
        view_of(tuple(slowdown), labels, free=free, pods=pods),
        policy or PlacementPolicy(mode=mode),
        GradingPolicy(),
    )


def racks(count: int, per_rack: int, racks_per_leaf: int = 2) -> dict[str, dict[str, str]]:
    """Labels of nodes ``r1-n1``, ... in racks, leaves and one spine."""
    return {
        f"r{r}-n{n}": {RACK: f"r{r}", LEAF: f"l{(r - 1) // racks_per_leaf}", SPINE: "s0"}
        for r in range(1, count + 1)
        for n in range(1, per_rack + 1)
    }


def pod_facts(
    gpus: int = 1,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    name: str = "train",
) -> PodFacts:
    """A pod of one container."""
    amounts = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    return PodFacts(
        name=name,
        namespace="ml",
        uid=f"uid-{name}",
        labels=dict(labels or {}),
        annotations=dict(annotations or {}),
        containers=(Resources(amounts, amounts),),
    )


def pod_json(facts: PodFacts) -> dict[str, object]:
    """The same pod as the API server would write it."""
    containers = [
        {"name": f"c{i}", "resources": {"requests": dict(c.requests), "limits": dict(c.limits)}}
        for i, c in enumerate(facts.containers)
    ]
    return {
        "metadata": {
            "name": facts.name,
            "namespace": facts.namespace,
            "uid": facts.uid,
            "labels": dict(facts.labels),
            "annotations": dict(facts.annotations),
        },
        "spec": {"containers": containers},
    }


def gang_facts(size: int, index: int, gpus: int = 8, labels: Mapping[str, str] | None = None) -> PodFacts:
    """A member of a Kueue plain-pod group called ``big``."""
    return pod_facts(
        gpus,
        {"kueue.x-k8s.io/pod-group-name": "big", "kueue.x-k8s.io/pod-group-pod-index": str(index), **(labels or {})},
        {"kueue.x-k8s.io/pod-group-total-count": str(size)},
        name=f"big-{index}",
    )
