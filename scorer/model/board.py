"""The grade board: every node's grade for every job type, as arrays that a request can read at once."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from scorer.model.dimension import Dimension
from scorer.model.grade import Grade


class Reach(StrEnum):
    """Which jobs a finding concerns."""

    ALL = "all"
    MULTI_GPU = "multi-gpu"
    GANG = "gang"
    WHOLE_NODE = "whole-node"
    PCIE_HEAVY = "pcie-heavy"
    SLOWDOWN = "slowdown"


class Action(StrEnum):
    """The remedy to advise, from mild to drastic."""

    NONE = "none"
    REPAIR_MONITORING = "repair_monitoring"
    RESTART_APP = "restart_app"
    RESTART_DEVICE_PLUGIN = "restart_device_plugin"
    START_FABRIC_MANAGER = "start_fabric_manager"
    CHECK_COOLING_POWER = "check_cooling_power"
    CHECK_CABLING = "check_cabling"
    RESET_GPU = "reset_gpu"
    REBOOT = "reboot"
    RMA = "rma"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that the evidence says about a node, and what follows from it.

    Attributes:
        rule: id of the rule that found it, such as ``xid-fatal`` or ``slow``.
        grade: the grade that it gives to the jobs it reaches.
        reach: which jobs those are.
        gpu_index: the GPU at fault, or -1 for the node.
        text: one sentence for people: what, how much, since when.
        evidence: where it was seen, such as ``dcgm-exporter field 230 = 79``.
        source: ``probe``, ``dcgm-exporter``, ``kmsg``, ``kubelet``, ``dcgmi-health``, ``monitoring``.
        action: the remedy.
        first_seen: Unix seconds; NaN where not known.
        last_seen: Unix seconds; NaN where not known.
        names_gpu: whether ``gpu_index`` is to be named as a bad GPU (a follower is not).
        dimension: for a slowdown, on which dimension.
        slowdown: for a slowdown, how much.
        run: id of the run that injected it, where that is known.
    """

    rule: str
    grade: Grade
    reach: Reach
    gpu_index: int
    text: str
    evidence: str = ""
    source: str = ""
    action: Action = Action.NONE
    first_seen: float = float("nan")
    last_seen: float = float("nan")
    names_gpu: bool = True
    dimension: Dimension | None = None
    slowdown: float = float("nan")
    run: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class GradeBoard:
    """Grades of all nodes at one moment. Never changed; the next fold makes a new one.

    Axes: N nodes, G GPUs (counted node after node), J job types, V shape variants (:attr:`JobShape.variant`),
    S sensitivities, D dimensions.

    Attributes:
        version: grows by one with each fold.
        at: Unix seconds of the fold.
        nodes: names; ``row[nodes[i]] == i``.
        row: index of a name.
        job_types: names, in the order of the J axis.
        slowdown: float32 (N, J, V): predicted relative time on the worst GPU that the kubelet may hand out.
        low: float32 (N, J, V): lower end of its interval.
        high: float32 (N, J, V): upper end.
        grade: uint8 (N, J, V, S): a :class:`Grade`.
        confidence: float32 (N, J, V, S): probability of that grade.
        evidence_at: float64 (N,): newest good probe of its GPUs, Unix seconds; NaN where there is none. One of the
            host alone is none.
        since: float64 (N, J, V, S): Unix seconds at which the present grade began.
        gpu_start: int32 (N + 1,): GPUs of node i are rows ``gpu_start[i]:gpu_start[i + 1]``.
        gpu_index: int32 (G,): index on its node.
        gpu_uuid: UUIDs; empty where not known.
        gpu_slowdown: float32 (G, D): predicted; NaN where never measured.
        gpu_low: float32 (G, D).
        gpu_high: float32 (G, D).
        gpu_samples: int32 (G, D): samples behind the prediction.
        gpu_grade: uint8 (G, J, V, S).
        findings: of each node, worst first.
    """

    version: int
    at: float
    nodes: tuple[str, ...]
    row: Mapping[str, int]
    job_types: tuple[str, ...]
    slowdown: NDArray[np.float32]
    low: NDArray[np.float32]
    high: NDArray[np.float32]
    grade: NDArray[np.uint8]
    confidence: NDArray[np.float32]
    evidence_at: NDArray[np.float64]
    since: NDArray[np.float64]
    gpu_start: NDArray[np.int32]
    gpu_index: NDArray[np.int32]
    gpu_uuid: tuple[str, ...]
    gpu_slowdown: NDArray[np.float32]
    gpu_low: NDArray[np.float32]
    gpu_high: NDArray[np.float32]
    gpu_samples: NDArray[np.int32]
    gpu_grade: NDArray[np.uint8]
    findings: tuple[tuple[Finding, ...], ...]
