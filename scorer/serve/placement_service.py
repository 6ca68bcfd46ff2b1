"""The gRPC door of placement: the same questions and the same answers as the extender's, 0 to 100."""

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b

import grpc
import numpy as np
from gpugrade.v1 import placement_pb2 as pb
from gpugrade.v1 import placement_pb2_grpc as pb_grpc

from scorer.model.errors import RequestError
from scorer.placement import filter_nodes, job_request, place, request_of, score_nodes
from scorer.serve import wire
from scorer.serve.decisions import name_of, node_decisions, stamp, summary
from scorer.serve.state import RING, ServingState

#: Nodes that Place may be told to leave out; more is a slip.
MAX_EXCLUDED = 50_000
#: Decisions of one pod that are listed, and other pods that are named where it has none.
MAX_DECISIONS = 10
MAX_OTHERS = 5


class PlacementService(pb_grpc.PlacementServicer):
    """Servicer of ``gpugrade.v1.Placement``."""

    def __init__(self, state: ServingState) -> None:
        """Serve the worlds of a state.

        Args:
            state: shared with the HTTP door.
        """
        self._state = state

    def Filter(self, request: pb.FilterRequest, context: grpc.ServicerContext) -> pb.FilterResponse:  # noqa: N802  the name of the contract
        """Say which nodes a pod may use."""
        world = self._state.world
        with _invalid_argument(context):
            pod = request_of(world, wire.decode_pod(request.pod_json))
            answer = filter_nodes(world, pod, list(request.node_names), self._state.clock())
        self._state.record(world, pod, answer)
        return pb.FilterResponse(
            verdicts=answer.codes.tolist(),
            reasons=[pb.Reason(text=reason.text, unresolvable=reason.unresolvable) for reason in answer.reasons],
            decision_id=answer.asked.decision_id,
            warnings=pod.warnings,
        )

    def Score(self, request: pb.ScoreRequest, context: grpc.ServicerContext) -> pb.ScoreResponse:  # noqa: N802  the name of the contract
        """Say how good each node is for a pod."""
        world = self._state.world
        with _invalid_argument(context):
            pod = request_of(world, wire.decode_pod(request.pod_json))
            answer = score_nodes(world, pod, list(request.node_names), self._state.clock())
        self._state.record(world, pod, answer)
        return pb.ScoreResponse(
            scores=answer.scores.tolist(), decision_id=answer.asked.decision_id, warnings=pod.warnings
        )

    def Place(self, request: pb.PlaceRequest, context: grpc.ServicerContext) -> pb.PlaceResponse:  # noqa: N802  the name of the contract
        """Place a job on paper."""
        world, now = self._state.world, self._state.clock()
        with _invalid_argument(context):
            if len(request.exclude) > MAX_EXCLUDED:
                raise RequestError(f"{len(request.exclude)} nodes to leave out; at most {MAX_EXCLUDED} are taken")
            job = job_request(request.gpus, request.pods, request.job_type, request.sensitivity, world.grading)
        # Seeded by snapshot and request, so that every replica draws the same.
        seed = repr((world.board_version, world.view.version, request.SerializeToString(deterministic=True)))
        rng = np.random.default_rng(int.from_bytes(blake2b(seed.encode(), digest_size=8).digest(), "big"))
        outcome = place(world, job, request.exclude, rng=rng, now=now, product=request.product)
        return pb.PlaceResponse(
            assignments=[
                pb.Assignment(node=a.node, pods=a.pods, slowdown=a.slowdown, grade=a.grade.label, reasons=a.reasons)
                for a in outcome.assignments
            ],
            predicted_relative_time=_figure(outcome.relative_time),
            blind_relative_time=_figure(outcome.blind_relative_time),
            level=outcome.level,
            domain=outcome.domain,
            locality_factor=_figure(outcome.locality_factor),
            job_type=job.job_type,
            sensitivity=job.sensitivity.label,
            infeasible=outcome.infeasible,
            warnings=outcome.warnings,
        )

    def ExplainDecision(  # noqa: N802  the name of the contract
        self, request: pb.ExplainDecisionRequest, context: grpc.ServicerContext
    ) -> pb.ExplainDecisionResponse:
        """Say why an earlier answer was as it was."""
        decision = self._state.decision(request.decision_id)
        if decision is None:
            context.abort(
                grpc.StatusCode.NOT_FOUND,
                f"decision {request.decision_id[:40]!r} is not among the most recent ones; ask sooner",
            )
        return pb.ExplainDecisionResponse(
            decision_id=request.decision_id,
            verb=decision.verb,
            pod=name_of(decision),
            job_type=decision.pod.job_type,
            sensitivity=decision.pod.sensitivity.label,
            mode=str(decision.mode),
            board_version=decision.board_version,
            view_version=decision.view_version,
            nodes=node_decisions(decision, range(len(decision.rows))),
            warnings=decision.pod.warnings,
        )

    def ListDecisions(  # noqa: N802  the name of the contract
        self, request: pb.ListDecisionsRequest, context: grpc.ServicerContext
    ) -> pb.ListDecisionsResponse:
        """Say what was answered about a pod lately."""
        pod = request.pod if "/" in request.pod else f"default/{request.pod}"
        recent = self._state.recent()
        about = [(name, decision) for name, decision in recent if name_of(decision) == pod]
        if not about:
            others = list(dict.fromkeys(name_of(decision) for _, decision in recent))
            told = f"the newest are about {', '.join(others[:MAX_OTHERS])}" if others else "there is none yet"
            context.abort(
                grpc.StatusCode.NOT_FOUND, f"none of the {RING} latest decisions is about pod {pod[:200]!r}; {told}"
            )
        limit = min(request.limit or MAX_DECISIONS, MAX_DECISIONS)
        return pb.ListDecisionsResponse(
            pod=pod, now=stamp(self._state.clock()), decisions=[summary(name, each) for name, each in about[:limit]]
        )


def _figure(number: float) -> float:
    """Where nothing fits there is no figure: the field is left out."""
    return number if np.isfinite(number) else 0.0


@contextmanager
def _invalid_argument(context: grpc.ServicerContext) -> Iterator[None]:
    try:
        yield
    except RequestError as error:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
