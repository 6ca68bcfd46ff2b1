"""From slowdowns by dimension to slowdowns by job: what each GPU would make of each type's step time."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scorer.grading.baseline import Fleet
from scorer.grading.chance import verdict
from scorer.grading.predict import UNMEASURED, Z90, Prediction
from scorer.grading.series import Bools, Floats
from scorer.model.grade import Grade, Sensitivity
from scorer.model.jobtype import VARIANTS
from scorer.model.policy import GradingPolicy


@dataclass(frozen=True, slots=True, eq=False)
class GpuJobs:
    """What each GPU is worth to each job.

    Attributes:
        point: float64 (G, J, V): predicted relative step time.
        low: float64 (G, J, V).
        high: float64 (G, J, V).
        grade: uint8 (G, J, V, S): by measurement alone.
        fresh: bool (G,): whether a good probe of any dimension is young enough.
    """

    point: Floats
    low: Floats
    high: Floats
    grade: NDArray[np.uint8]
    fresh: Bools


def weights(policy: GradingPolicy) -> Floats:
    """Return float64 (J, V, D): shares of the step time."""
    return np.array([[job.weights_for(v) for v in range(VARIANTS)] for job in policy.job_types])


def judge_gpus(prediction: Prediction, now: float, policy: GradingPolicy) -> GpuJobs:
    """Predict and grade each GPU for each job type, shape and sensitivity.

    A dimension that was never measured counts as typical and widens the interval; where nothing that a job needs has a
    probe that is young enough, the grade is unknown: a fresh look at the host says nothing of a job that computes.
    """
    share = weights(policy)
    jobs, variants, dims = share.shape
    flat = share.reshape(jobs * variants, dims).T
    measured = np.isfinite(prediction.slowdown)
    spread = np.expm1(Z90 * UNMEASURED)
    point_d = np.where(measured, prediction.slowdown, 1.0)
    up_d = np.where(measured, prediction.high - prediction.slowdown, spread)
    down_d = np.where(measured, prediction.slowdown - prediction.low, spread)
    shape = (-1, jobs, variants)
    point = (point_d @ flat).reshape(shape)
    high = point + np.sqrt(np.square(up_d) @ np.square(flat)).reshape(shape)
    low = point - np.sqrt(np.square(down_d) @ np.square(flat)).reshape(shape)

    fresh = now - prediction.newest_at <= policy.max_probe_age_s
    known = (((measured & fresh).astype(np.float64) @ flat) > 0).reshape(shape)
    grade = np.empty((*point.shape, len(Sensitivity)), np.uint8)
    for s in Sensitivity:
        found = verdict(point, low, high, policy.thresholds[s])
        grade[..., s] = np.where(known, found, Grade.UNKNOWN)
    return GpuJobs(point, low, high, grade, np.asarray(fresh.any(axis=1)))


def worst_of_node(values: Floats, fleet: Fleet, use: Bools, nothing: float) -> Floats:
    """Largest value among each node's GPUs.

    Args:
        values: (G, ...).
        fleet: where the GPUs stand.
        use: bool (G,): which GPUs count.
        nothing: the answer for nodes where none counts.

    Returns:
        (N, ...).
    """
    counts = np.diff(fleet.gpu_start)
    tail = values.shape[1:]
    out = np.full((counts.size, *tail), -np.inf)
    some = np.flatnonzero(counts > 0)
    if some.size:
        masked = np.where(use.reshape(-1, *([1] * len(tail))), values, -np.inf)
        out[some] = np.maximum.reduceat(masked, fleet.gpu_start[:-1][some], axis=0)
    return np.where(np.isfinite(out), out, nothing)
