"""The cluster and the requests of the benchmark: seeded, of any size."""

import json
from dataclasses import dataclass

import numpy as np

from scorer.model.board import GradeBoard
from scorer.model.cluster import ClusterView
from scorer.model.dimension import Dimension
from scorer.model.grade import Grade, Sensitivity
from scorer.model.jobtype import VARIANTS
from scorer.model.policy import GradingPolicy, Mode, PlacementPolicy
from scorer.placement import World, build_trees

SIZES = (500, 5_000, 15_000)
RACK, LEAF, SPINE = "example.dev/rack", "network.topology.nvidia.com/leaf", "network.topology.nvidia.com/spine"
#: Orders in which the names are asked. The scheduler finds feasible nodes in parallel, so that no two of its lists
#: have the same order; these are more than a server could remember by accident.
ORDERS = 32


def node_names(count: int) -> tuple[str, ...]:
    """Names of 31 characters, as in the published figures."""
    return tuple(f"gpu-pool-a-zone-1-node-{i:08d}" for i in range(count))


def build_world(count: int, now: float) -> World:
    """A world of ``count`` nodes of 8 GPUs, in enforce mode; about three in a hundred are red for sensitive jobs.

    Args:
        count: of nodes.
        now: Unix seconds, the board's time.
    """
    rng = np.random.default_rng(count)
    names = node_names(count)
    labels = [{RACK: f"r{i // 4}", LEAF: f"l{i // 32}", SPINE: f"s{i // 512}"} for i in range(count)]
    trees, _ = build_trees(names, labels, (("fabric", (RACK, LEAF, SPINE)),))
    row = {name: i for i, name in enumerate(names)}
    view = ClusterView(
        version=1,
        at=now,
        nodes=names,
        row=row,
        labels=tuple(labels),
        product=("NVIDIA H100 80GB HBM3",) * count,
        gpus=np.full(count, 8, np.int32),
        free=rng.choice(np.array([0, 4, 8], np.int32), count),
        trees=trees,
    )
    slowdown = 0.97 + rng.gamma(2.0, 0.02, count).astype(np.float32)
    slowdown[rng.random(count) < 0.02] = 1.3
    policy = PlacementPolicy(mode=Mode.ENFORCE, stale_board_s=float("inf"))
    return World.build(_board(names, row, slowdown, now), view, policy, GradingPolicy())


def _board(
    names: tuple[str, ...], row: dict[str, int], slowdown: np.typing.NDArray[np.float32], now: float
) -> GradeBoard:
    grading = GradingPolicy()
    count, types = len(names), len(grading.job_types)
    grade = np.zeros((count, types, VARIANTS, len(Sensitivity)), np.uint8)
    for s, bounds in grading.thresholds.items():
        own = np.where(
            slowdown >= bounds.red, Grade.RED, np.where(slowdown >= bounds.yellow, Grade.YELLOW, Grade.GREEN)
        )
        grade[..., s] = own[:, None, None]
    slow = np.ascontiguousarray(np.broadcast_to(slowdown[:, None, None], grade.shape[:3]))
    no_gpus = np.empty((0, len(Dimension)), np.float32)
    return GradeBoard(
        version=1,
        at=now,
        nodes=names,
        row=row,
        job_types=tuple(t.name for t in grading.job_types),
        slowdown=slow,
        low=slow,
        high=slow,
        grade=grade,
        confidence=np.ones(grade.shape, np.float32),
        evidence_at=np.full(count, now),
        since=np.full(grade.shape, now),
        gpu_start=np.zeros(count + 1, np.int32),
        gpu_index=np.empty(0, np.int32),
        gpu_uuid=(),
        gpu_slowdown=no_gpus,
        gpu_low=no_gpus,
        gpu_high=no_gpus,
        gpu_samples=np.empty((0, len(Dimension)), np.int32),
        gpu_grade=np.empty((0, *grade.shape[1:]), np.uint8),
        findings=((),) * count,
    )


@dataclass(frozen=True, slots=True)
class Job:
    """A pod to ask with.

    Attributes:
        gpus: of the pod.
        members: of its gang; 1 for none.
    """

    gpus: int = 8
    members: int = 1


def pod_object(job: Job) -> dict[str, object]:
    """A pod of about 1.8 KB, as the API server would write it."""
    gang = job.members > 1
    labels = {"app": "train", "gpugrade.dev/sensitivity": "sensitive"}
    amounts = {"cpu": "96", "memory": "900Gi", "nvidia.com/gpu": str(job.gpus)}
    return {
        "metadata": {
            "name": "train-0",
            "namespace": "ml",
            "uid": "df77cfcc-b44c-47bb-a68a-7e0bd5eb99ce",
            "resourceVersion": "99",
            "creationTimestamp": "2026-12-01T06:18:40Z",
            "labels": {**labels, "kueue.x-k8s.io/pod-group-name": "train"} if gang else labels,
            "annotations": {"kueue.x-k8s.io/pod-group-total-count": str(job.members)} if gang else {},
        },
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example/train:1",
                    "command": ["torchrun", "train.py"],
                    "env": [{"name": f"SETTING_{i}", "value": "x" * 24} for i in range(16)],
                    "resources": {"limits": amounts, "requests": amounts},
                }
            ],
            "restartPolicy": "Never",
            "schedulerName": "default-scheduler",
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        },
        "status": {"phase": "Pending", "qosClass": "Guaranteed"},
    }


def orders(count: int) -> list[list[str]]:
    """The names in the orders in which they are asked, seeded."""
    names = np.array(node_names(count), object)
    rng = np.random.default_rng(count)
    return [rng.permutation(names).tolist() for _ in range(ORDERS)]


def body_of(job: Job, names: list[str]) -> bytes:
    """A request body of the HTTP door, as kube-scheduler writes it."""
    return json.dumps({"Pod": pod_object(job), "Nodes": None, "NodeNames": names}, separators=(",", ":")).encode()
