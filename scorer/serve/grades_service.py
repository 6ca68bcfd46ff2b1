"""The gRPC door of grades: nodes, reasons and job types, read from the newest board."""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping

import grpc
from google.protobuf.timestamp_pb2 import Timestamp
from gpugrade.v1 import grading_pb2 as pb
from gpugrade.v1 import grading_pb2_grpc as pb_grpc

from scorer.grading import explain_node, telling, untold
from scorer.grading.explain import GpuExplanation
from scorer.model.board import Finding, GradeBoard
from scorer.model.evidence import RunPhase
from scorer.model.grade import Grade, Sensitivity
from scorer.model.jobtype import find_job_type
from scorer.model.policy import GradingPolicy, Settings
from scorer.serve.folding import Graded
from scorer.sources.cluster import ClusterState

_GRADES: Mapping[Grade, pb.Grade] = {
    Grade.GREEN: pb.GRADE_GREEN,
    Grade.UNKNOWN: pb.GRADE_UNKNOWN,
    Grade.YELLOW: pb.GRADE_YELLOW,
    Grade.RED: pb.GRADE_RED,
}
#: Reasons of a node in a list; `explain` gives all.
_MAX_REASONS = 5


class GradesService(pb_grpc.GradesServicer):
    """Servicer of ``gpugrade.v1.Grades``."""

    def __init__(
        self,
        graded: Callable[[], Graded | None],
        cluster: Callable[[], ClusterState],
        settings: Callable[[], Settings],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Serve the newest board.

        Args:
            graded: gives it; ``None`` before the first fold.
            cluster: gives the nodes.
            settings: those in force where there is no board yet.
            clock: gives Unix seconds.
        """
        self._graded = graded
        self._cluster = cluster
        self._settings = settings
        self._clock = clock

    def ListNodes(self, request: pb.ListNodesRequest, context: grpc.ServicerContext) -> pb.ListNodesResponse:  # noqa: ARG002, N802 - the contract's name and signature
        """All nodes, by name."""
        graded, cluster = self._graded(), self._cluster()
        view = _View(graded, cluster, self._clock())
        response = pb.ListNodesResponse(nodes=[view.node(name) for name in sorted(cluster.nodes)])
        if graded is not None:
            response.board_version = graded.board.version
            response.board_at.CopyFrom(_stamp(graded.board.at))
        return response

    def ExplainNode(self, request: pb.ExplainNodeRequest, context: grpc.ServicerContext) -> pb.ExplainNodeResponse:  # noqa: N802 - the contract's name
        """One node with everything that is known."""
        graded, cluster = self._graded(), self._cluster()
        policy = (graded.settings if graded is not None else self._settings()).grading
        if request.node not in cluster.nodes:
            context.abort(grpc.StatusCode.NOT_FOUND, f"there is no node {request.node!r}; `gpugrade nodes` lists them")
        sensitivity: Sensitivity | None = None
        try:
            if request.job_type:
                find_job_type(policy.job_types, request.job_type)
            if request.sensitivity:
                sensitivity = Sensitivity.parse(request.sensitivity)
        except ValueError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        view = _View(graded, cluster, self._clock())
        response = pb.ExplainNodeResponse(node=view.node(request.node), action="none")
        if graded is None or (row := graded.board.row.get(request.node)) is None:
            return response
        _explain(response, graded.board, row, policy, request.job_type or None, sensitivity)
        return response

    def ListJobTypes(self, request: pb.ListJobTypesRequest, context: grpc.ServicerContext) -> pb.ListJobTypesResponse:  # noqa: ARG002, N802 - the contract's name and signature
        """What job types and sensitivity classes there are."""
        policy = self._settings().grading
        return pb.ListJobTypesResponse(
            job_types=[
                pb.JobType(
                    name=job.name,
                    chosen_when=job.chosen_when,
                    weights={dimension.label: share for dimension, share in job.weights.items()},
                    waits_for_slowest=job.waits_for_slowest,
                    sensitivity=job.sensitivity.label,
                )
                for job in policy.job_types
            ],
            sensitivities=[
                pb.SensitivityClass(
                    name=sensitivity.label,
                    yellow_from=bounds.yellow,
                    red_from=bounds.red,
                    unknown_scores_as="below-yellow" if bounds.unknown_as is None else bounds.unknown_as.label,
                )
                for sensitivity, bounds in sorted(policy.thresholds.items())
            ],
        )


class _View:
    """Nodes as messages, of one board and one cluster state."""

    def __init__(self, graded: Graded | None, cluster: ClusterState, now: float) -> None:
        self._graded = graded
        self._cluster = cluster
        self._now = now
        self._runs: defaultdict[str, list[str]] = defaultdict(list)
        if graded is not None and graded.evidence is not None:
            for run in graded.evidence.runs:
                if run.phase is RunPhase.ACTIVE:
                    self._runs[run.node].append(run.id)

    def node(self, name: str) -> pb.Node:
        """A node; one that the board does not know yet is unknown."""
        record, view = self._cluster.nodes[name], self._cluster.view
        message = pb.Node(
            name=name,
            grade=pb.GRADE_UNKNOWN,
            gpus=record.gpus,
            free=int(view.free[view.row[name]]),
            product=record.product,
            labels=record.labels,
            active_runs=self._runs.get(name, ()),
        )
        graded = self._graded
        row = None if graded is None else graded.board.row.get(name)
        if graded is None or row is None:
            message.reasons.append("not graded yet")
        else:
            self._grade(message, graded, row)
        return message

    def _grade(self, message: pb.Node, graded: Graded, row: int) -> None:
        board = graded.board
        overall = Grade(int(graded.overall[row]))
        message.grade = _GRADES[overall]
        for job in graded.settings.grading.job_types:
            if job.name not in board.job_types:
                continue
            j, v = board.job_types.index(job.name), job.shape.variant
            message.grades[job.name] = _GRADES[Grade(int(board.grade[row, j, v, job.sensitivity]))]
            slowdown = float(board.slowdown[row, j, v])
            if math.isfinite(slowdown):
                message.slowdowns[job.name] = slowdown
        at = float(board.evidence_at[row])
        if not math.isnan(at):
            message.age_s = max(0.0, self._now - at)
        message.reasons.extend(_reasons(board, row, overall))


def _reasons(board: GradeBoard, row: int, overall: Grade) -> list[str]:
    if overall is Grade.GREEN:
        return []
    found = list(dict.fromkeys(f.text for f in telling(board.findings[row])))
    return found[:_MAX_REASONS] or [untold(board, row, overall)]


def _explain(
    response: pb.ExplainNodeResponse,
    board: GradeBoard,
    row: int,
    policy: GradingPolicy,
    job_type: str | None,
    sensitivity: Sensitivity | None,
) -> None:
    found = explain_node(board, row, policy, job_type, sensitivity)
    response.at.CopyFrom(_stamp(board.at))
    response.action = str(found.action)
    response.bad_gpus.extend(found.bad_gpus)
    response.findings.extend(_finding(f) for f in board.findings[row])
    for job in found.jobs:
        message = response.job_types.add(
            job_type=job.job_type,
            sensitivity=job.sensitivity.label,
            grade=_GRADES[job.grade],
            slowdown=job.slowdown,
            low=job.low,
            high=job.high,
            confidence=job.confidence,
            reasons=job.reasons,
        )
        if not math.isnan(job.since):
            message.since.CopyFrom(_stamp(job.since))
    response.gpus.extend(_gpu(gpu) for gpu in found.gpus)


def _gpu(found: GpuExplanation) -> pb.GpuGrade:
    message = pb.GpuGrade(index=found.index, uuid=found.uuid)
    for job_type, grade in found.grades.items():
        message.grades[job_type] = _GRADES[grade]
    for dimension, figure in found.dimensions.items():
        message.slowdowns[dimension.label].CopyFrom(
            pb.Prediction(slowdown=figure.slowdown, low=figure.low, high=figure.high, samples=figure.samples)
        )
    return message


def _finding(found: Finding) -> pb.Finding:
    message = pb.Finding(
        rule=found.rule,
        grade=_GRADES[found.grade],
        reach=str(found.reach),
        gpu_index=found.gpu_index,
        text=found.text,
        evidence=found.evidence,
        source=found.source,
        action=str(found.action),
        run=found.run,
    )
    if not math.isnan(found.first_seen):
        message.first_seen.CopyFrom(_stamp(found.first_seen))
    if not math.isnan(found.last_seen):
        message.last_seen.CopyFrom(_stamp(found.last_seen))
    return message


def _stamp(at: float) -> Timestamp:
    seconds = math.floor(at)
    return Timestamp(seconds=seconds, nanos=int((at - seconds) * 1e9))
