"""Slowdowns in words: which GPU is slow in what, by how much, how surely."""

import numpy as np

from scorer.grading.baseline import Fleet
from scorer.grading.facts import ago
from scorer.grading.jobs import GpuJobs, weights
from scorer.grading.predict import Prediction
from scorer.model.board import Finding, Reach
from scorer.model.dimension import Dimension
from scorer.model.evidence import NodeFacts
from scorer.model.grade import Grade, Sensitivity
from scorer.model.policy import GradingPolicy

#: A dimension is to blame when it brings at least this share of the excess time.
_SHARE = 0.25
#: Below this slowdown a dimension is not called slow.
_SLOW = 1.02
#: What is slow on at least this share of a node's GPUs is the node's, in dimensions that are shared.
_COMMON = 0.5
_SHARED = (Dimension.NVLINK, Dimension.FABRIC, Dimension.HOST)


def own_grades(jobs: GpuJobs, policy: GradingPolicy) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    """Return uint8 (G, J): each GPU's grade by measurement, at each type's own shape and sensitivity."""
    columns = [jobs.grade[:, j, t.shape.variant, t.sensitivity] for j, t in enumerate(policy.job_types)]
    return np.stack(columns, axis=1)


def slow_findings(
    nodes: tuple[NodeFacts, ...], fleet: Fleet, prediction: Prediction, jobs: GpuJobs, now: float, policy: GradingPolicy
) -> dict[int, list[Finding]]:
    """Describe every slowdown that costs a grade, by row of the node.

    One that costs a grade only in the most demanding class is described too, but is green at the type's own class, and
    blames nobody.
    """
    grades = own_grades(jobs, policy)
    share = np.stack([weights(policy)[j, t.shape.variant] for j, t in enumerate(policy.job_types)])
    strict = np.stack(
        [jobs.grade[:, j, t.shape.variant, Sensitivity.CRITICAL] for j, t in enumerate(policy.job_types)], axis=1
    )
    bad = ((grades > Grade.GREEN) | (strict >= Grade.YELLOW)) & jobs.fresh[:, None]
    excess = np.maximum(np.nan_to_num(prediction.slowdown, nan=1.0) - 1.0, 0.0)
    found: dict[int, list[Finding]] = {}
    told: set[tuple[int, int]] = set()
    for gpu in np.flatnonzero(bad.any(axis=1)).tolist():
        node = int(fleet.node[gpu])
        part = share[bad[gpu]] * excess[gpu]
        blamed = (part >= _SHARE * part.sum(axis=1, keepdims=True)).any(axis=0) & (prediction.slowdown[gpu] >= _SLOW)
        grade = Grade(int(grades[gpu].max()))
        for d in np.flatnonzero(blamed).tolist():
            dimension = Dimension(d)
            common = dimension in _SHARED and _is_common(prediction, fleet, node, d)
            if common and (node, d) in told:
                continue
            told.add((node, d))
            index = -1 if common else nodes[node].gpus[gpu - int(fleet.gpu_start[node])].index
            found.setdefault(node, []).append(_describe(prediction, gpu, dimension, index, grade, now))
    return found


def _is_common(prediction: Prediction, fleet: Fleet, node: int, d: int) -> bool:
    column = prediction.slowdown[int(fleet.gpu_start[node]) : int(fleet.gpu_start[node + 1]), d]
    return column.size > 1 and float(np.mean(column >= _SLOW)) >= _COMMON


def _describe(p: Prediction, gpu: int, dimension: Dimension, index: int, grade: Grade, now: float) -> Finding:
    d = int(dimension)
    slowdown, count = float(p.slowdown[gpu, d]), int(p.samples[gpu, d])
    newest, oldest = float(p.newest_at[gpu, d]), float(p.oldest_at[gpu, d])
    who = f"GPU {index}" if index >= 0 else "the node's GPUs together:"
    probes = f"in {count} probes over {ago(newest - oldest)}" if count > 1 else "in one probe"
    under = ", under a running experiment" if p.active[gpu, d] else ""
    text = (
        f"{who} {dimension.label} {slowdown:.2f}x slower than {int(p.peers[gpu, d])} peers {probes}, "
        f"last {ago(now - newest)} ago{under}"
    )
    evidence = f"{dimension.label} {slowdown:.3f} ({p.low[gpu, d]:.3f} to {p.high[gpu, d]:.3f}) of {count} probes"
    return Finding(
        rule="slow",
        grade=grade,
        reach=Reach.SLOWDOWN,
        gpu_index=index,
        text=text,
        evidence=evidence,
        source="probe",
        first_seen=oldest,
        last_seen=newest,
        names_gpu=index >= 0,
        dimension=dimension,
        slowdown=slowdown,
    )
