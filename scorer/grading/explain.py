"""Why a node has its grades, in plain words."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scorer.grading.facts import ago
from scorer.grading.reach import reaches
from scorer.model.board import Action, Finding, GradeBoard, Reach
from scorer.model.dimension import Dimension
from scorer.model.grade import Grade, Sensitivity, Thresholds
from scorer.model.jobtype import JobType, find_job_type
from scorer.model.policy import GradingPolicy


@dataclass(frozen=True, slots=True)
class JobGrade:
    """A node's grade for one job type.

    Attributes:
        job_type: name.
        sensitivity: the class it is graded for.
        grade: the verdict.
        slowdown: predicted relative time on the worst GPU; NaN where nothing was measured.
        low: lower end of its 90 % interval.
        high: upper end.
        confidence: probability of the grade.
        reasons: sentences, the weightiest first; never empty.
        since: Unix seconds at which the grade began.
    """

    job_type: str
    sensitivity: Sensitivity
    grade: Grade
    slowdown: float
    low: float
    high: float
    confidence: float
    reasons: tuple[str, ...]
    since: float


@dataclass(frozen=True, slots=True)
class DimensionFigure:
    """One GPU on one dimension: predicted slowdown, its interval, and the samples behind it."""

    slowdown: float
    low: float
    high: float
    samples: int


@dataclass(frozen=True, slots=True)
class GpuExplanation:
    """One GPU.

    Attributes:
        index: on its node.
        uuid: empty where not known.
        grades: by job type, at the type's own shape and the sensitivity asked for.
        dimensions: what was measured.
    """

    index: int
    uuid: str
    grades: dict[str, Grade]
    dimensions: dict[Dimension, DimensionFigure]


@dataclass(frozen=True, slots=True)
class NodeExplanation:
    """A node's grades and why.

    Attributes:
        node: name.
        at: Unix seconds of the board.
        jobs: one entry a job type.
        gpus: by index.
        findings: worst first.
        bad_gpus: indices of the GPUs to blame; not those that only follow.
        action: the remedy to advise.
        evidence: where it was seen, one line each.
    """

    node: str
    at: float
    jobs: tuple[JobGrade, ...]
    gpus: tuple[GpuExplanation, ...]
    findings: tuple[Finding, ...]
    bad_gpus: tuple[int, ...]
    action: Action
    evidence: tuple[str, ...]


def explain_node(
    board: GradeBoard,
    row: int,
    policy: GradingPolicy,
    job_type: str | None = None,
    sensitivity: Sensitivity | None = None,
) -> NodeExplanation:
    """Explain a node's grades.

    Args:
        board: as folded.
        row: the node's row.
        policy: the one it was folded with.
        job_type: only this one; all by default.
        sensitivity: the class to grade for; each type's own by default.

    Raises:
        ValueError: if no job type has that name; the text lists those there are.
    """
    asked = None if job_type is None else find_job_type(policy.job_types, job_type)
    types = [(j, t) for j, t in enumerate(policy.job_types) if asked in (None, t)]
    findings = board.findings[row]
    jobs = tuple(_job(board, row, j, t, policy, sensitivity) for j, t in types)
    start, stop = int(board.gpu_start[row]), int(board.gpu_start[row + 1])
    return NodeExplanation(
        node=board.nodes[row],
        at=board.at,
        jobs=jobs,
        gpus=tuple(_gpu(board, g, types, sensitivity) for g in range(start, stop)),
        findings=findings,
        bad_gpus=bad_gpus(findings),
        action=choose_action(findings),
        evidence=tuple(dict.fromkeys(f.evidence for f in findings if f.evidence)),
    )


def bad_gpus(findings: Sequence[Finding]) -> tuple[int, ...]:
    """Indices of the GPUs that findings of yellow or worse blame."""
    return tuple(
        sorted({f.gpu_index for f in findings if f.names_gpu and f.gpu_index >= 0 and f.grade >= Grade.YELLOW})
    )


def choose_action(findings: Sequence[Finding]) -> Action:
    """The most drastic remedy among the worst findings that have one; an experiment's own effects ask for none."""
    order = list(Action)
    for grade in sorted({f.grade for f in findings}, reverse=True):
        wanted = [f.action for f in findings if f.grade is grade and f.action is not Action.NONE and not f.run]
        if wanted:
            return max(wanted, key=order.index)
    return Action.NONE


def telling(findings: Sequence[Finding]) -> Sequence[Finding]:
    """Of a node's findings those that speak against it; where none does, all of them.

    A grade that is held, as after an experiment, is told by a finding that speaks against nothing by itself.
    """
    return [f for f in findings if f.grade is not Grade.GREEN] or findings


def untold(board: GradeBoard, row: int, grade: Grade) -> str:
    """Why a node without findings is not green."""
    if grade is not Grade.UNKNOWN:
        return "predicted to be slower than its peers"
    never = bool(np.isnan(board.evidence_at[row]))
    return "no good probe yet" if never else "the evidence is too old or too wide to tell"


def overall(board: GradeBoard, policy: GradingPolicy) -> NDArray[np.uint8]:
    """Return uint8 (N,): each node's worst grade over job types, at each type's own shape and sensitivity."""
    columns = [board.grade[:, j, t.shape.variant, t.sensitivity] for j, t in enumerate(policy.job_types)]
    return np.max(np.stack(columns), axis=0) if columns else np.full(len(board.nodes), Grade.UNKNOWN, np.uint8)


def _job(
    board: GradeBoard, row: int, j: int, job: JobType, policy: GradingPolicy, sensitivity: Sensitivity | None
) -> JobGrade:
    s = job.sensitivity if sensitivity is None else sensitivity
    v = job.shape.variant
    start, stop = int(board.gpu_start[row]), int(board.gpu_start[row + 1])
    measured = bool(np.isfinite(board.gpu_slowdown[start:stop]).any())
    grade = Grade(int(board.grade[row, j, v, s]))
    figures = [float(a[row, j, v]) if measured else float("nan") for a in (board.slowdown, board.low, board.high)]
    return JobGrade(
        job_type=job.name,
        sensitivity=s,
        grade=grade,
        slowdown=figures[0],
        low=figures[1],
        high=figures[2],
        confidence=float(board.confidence[row, j, v, s]),
        reasons=_reasons(board, row, job, v, grade, policy.thresholds[s], figures),
        since=float(board.since[row, j, v, s]),
    )


def _reasons(
    board: GradeBoard, row: int, job: JobType, variant: int, grade: Grade, bounds: Thresholds, figures: Sequence[float]
) -> tuple[str, ...]:
    point = figures[0]
    against: list[str] = []
    notes: list[str] = []
    for f in board.findings[row]:
        if f.reach is Reach.SLOWDOWN:
            concerned = f.dimension is not None and job.weights_for(variant)[f.dimension] > 0
            if concerned and (point >= bounds.yellow or grade is Grade.UNKNOWN):
                against.append(f.text)
        elif f.reach is Reach.WHOLE_NODE:
            if reaches(f.reach, job, variant, 0) and grade >= f.grade:
                against.append(f.text)
        elif reaches(f.reach, job, variant, 0):
            (against if f.grade > Grade.GREEN else notes).append(f.text)
    if grade is Grade.UNKNOWN and not any(
        f.grade is Grade.UNKNOWN and f.reach is Reach.ALL for f in board.findings[row]
    ):
        against.append(_why_unknown(board, row, job, variant, figures, bounds))
    if not against and (grade is Grade.GREEN or not notes):
        age = ago(board.at - float(board.evidence_at[row]))
        predicted = f"slowdown {point:.2f} ({figures[1]:.2f} to {figures[2]:.2f}), newest probe {age} ago"
        against.append(predicted if point >= bounds.yellow else f"nothing speaks against it: {predicted}")
    # A grade that is held has its reason in the wait, whatever else speaks against the node.
    held = [f.text for f in board.findings[row] if f.rule == "waiting" and grade > Grade.GREEN]
    return tuple(dict.fromkeys(held + against + notes))


def _why_unknown(
    board: GradeBoard, row: int, job: JobType, variant: int, figures: Sequence[float], bounds: Thresholds
) -> str:
    point, low, high = figures
    if not _measured(board, row, job, variant):
        return "nothing that this job type needs was ever measured"
    if low < bounds.yellow and high >= bounds.red:
        return f"slowdown {point:.2f} ({low:.2f} to {high:.2f}) spans from green to red: more probes are needed"
    return "no recent probe of anything that this job type needs"


def _measured(board: GradeBoard, row: int, job: JobType, variant: int) -> bool:
    """Whether every GPU of a node was measured in something that the job type needs."""
    needed = job.weights_for(variant) > 0
    figures = board.gpu_slowdown[int(board.gpu_start[row]) : int(board.gpu_start[row + 1]), needed]
    return bool(np.isfinite(figures).any(axis=1).all())


def _gpu(
    board: GradeBoard, gpu: int, types: Sequence[tuple[int, JobType]], sensitivity: Sensitivity | None
) -> GpuExplanation:
    grades = {
        t.name: Grade(
            int(board.gpu_grade[gpu, j, t.shape.variant, t.sensitivity if sensitivity is None else sensitivity])
        )
        for j, t in types
    }
    figures = {
        d: DimensionFigure(
            float(board.gpu_slowdown[gpu, d]),
            float(board.gpu_low[gpu, d]),
            float(board.gpu_high[gpu, d]),
            int(board.gpu_samples[gpu, d]),
        )
        for d in Dimension
        if np.isfinite(board.gpu_slowdown[gpu, d])
    }
    return GpuExplanation(int(board.gpu_index[gpu]), board.gpu_uuid[gpu], grades, figures)
