"""A small board and its cluster, made by hand."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from scorer.model.board import Finding, GradeBoard
from scorer.model.cluster import ClusterView, TopologyTree
from scorer.model.dimension import Dimension
from scorer.model.grade import Grade, Sensitivity
from scorer.model.jobtype import DEFAULT_JOB_TYPES, VARIANTS

NOW = 1_796_119_200.0
GPUS = 8


def make_board(
    grades: Mapping[str, Mapping[str, Grade]],
    findings: Mapping[str, Sequence[Finding]] | None = None,
    bad_gpus: Mapping[str, Sequence[int]] | None = None,
    at: float = NOW - 20.0,
) -> GradeBoard:
    """A board on which each node has these grades by job type; a type left out is green at every sensitivity.

    A node's bad GPUs have the worst of its grades, its others are green. Unknown nodes were never probed.
    """
    names = tuple(grades)
    types = tuple(t.name for t in DEFAULT_JOB_TYPES)
    n, j, s, d = len(names), len(types), len(Sensitivity), len(Dimension)
    grade = np.zeros((n, j, VARIANTS, s), np.uint8)
    gpu_grade = np.zeros((n * GPUS, j, VARIANTS, s), np.uint8)
    slowdown = np.ones((n, j, VARIANTS), np.float32)
    evidence_at = np.full(n, NOW - 1500.0)
    for i, name in enumerate(names):
        for job_type, value in grades[name].items():
            column = types.index(job_type)
            grade[i, column] = value
            slowdown[i, column] = {Grade.RED: 1.186, Grade.YELLOW: 1.07}.get(value, 1.0)
            for gpu in (bad_gpus or {}).get(name, range(GPUS) if value is Grade.UNKNOWN else ()):
                gpu_grade[i * GPUS + gpu, column] = value
            if value is Grade.UNKNOWN:
                evidence_at[i] = math.nan
    shape = (n * GPUS, d)
    return GradeBoard(
        version=7,
        at=at,
        nodes=names,
        row={name: i for i, name in enumerate(names)},
        job_types=types,
        slowdown=slowdown,
        low=slowdown - np.float32(0.02),
        high=slowdown + np.float32(0.02),
        grade=grade,
        confidence=np.full(grade.shape, 0.9, np.float32),
        evidence_at=evidence_at,
        since=np.full(grade.shape, NOW - 4 * 3600.0),
        gpu_start=np.arange(n + 1, dtype=np.int32) * GPUS,
        gpu_index=np.tile(np.arange(GPUS, dtype=np.int32), n),
        gpu_uuid=tuple(f"GPU-{i}" for i in range(n * GPUS)),
        gpu_slowdown=np.ones(shape, np.float32),
        gpu_low=np.ones(shape, np.float32),
        gpu_high=np.ones(shape, np.float32),
        gpu_samples=np.full(shape, 14, np.int32),
        gpu_grade=gpu_grade,
        findings=tuple(tuple((findings or {}).get(name, ())) for name in names),
    )


def make_view(racks: Mapping[str, str | None], problems: tuple[str, ...] = ()) -> ClusterView:
    """A cluster of nodes with the rack that each stands in; ``None`` for a node without the label."""
    names = tuple(racks)
    known = tuple(dict.fromkeys(rack for rack in racks.values() if rack is not None))
    domain = np.array([[-1 if rack is None else known.index(rack) for rack in racks.values()]], np.int32)
    key = "example.dev/rack"
    return ClusterView(
        version=3,
        at=NOW,
        nodes=names,
        row={name: i for i, name in enumerate(names)},
        labels=tuple({} if rack is None else {key: rack} for rack in racks.values()),
        product=("NVIDIA H100 80GB HBM3",) * len(names),
        gpus=np.full(len(names), GPUS, np.int32),
        free=np.full(len(names), GPUS, np.int32),
        trees=(TopologyTree("fabric", (key,), domain, (known,)),),
        problems=problems,
    )


def worst_of(board: GradeBoard) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """The worst grade of each node over the job types, each at its own sensitivity and shape."""
    columns = [board.grade[:, k, t.shape.variant, t.sensitivity] for k, t in enumerate(DEFAULT_JOB_TYPES)]
    worst: np.ndarray[tuple[int], np.dtype[np.uint8]] = np.max(np.stack(columns), axis=0)
    return worst
