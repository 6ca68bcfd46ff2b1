"""What the story asks of the running server, by gRPC."""

from dataclasses import dataclass

import grpc
from gpugrade.v1 import grading_pb2 as g
from gpugrade.v1 import grading_pb2_grpc, placement_pb2, placement_pb2_grpc

TIMEOUT_S = 10


@dataclass(frozen=True, slots=True)
class Verdict:
    """One node's grade for one job type.

    Attributes:
        grade: as in ``gpugrade.v1.Grade``.
        slowdown: for that job type.
        reason: the first one.
    """

    grade: int
    slowdown: float
    reason: str


class Server:
    """A client of the doors that people use.

    Args:
        target: HOST:PORT of the gRPC door.
    """

    def __init__(self, target: str) -> None:
        channel = grpc.insecure_channel(target)
        self._grades = grading_pb2_grpc.GradesStub(channel)
        self._placement = placement_pb2_grpc.PlacementStub(channel)

    def nodes(self) -> list[g.Node]:
        """All nodes, by name."""
        return list(self._grades.ListNodes(g.ListNodesRequest(), timeout=TIMEOUT_S).nodes)

    def answers(self, count: int) -> bool:
        """Whether the server is there and knows that many nodes."""
        try:
            return len(self.nodes()) == count
        except grpc.RpcError:
            return False

    def verdict(self, node: str, job_type: str, sensitivity: str = "") -> Verdict:
        """A node's grade for a job type; the type's own sensitivity if none is named."""
        request = g.ExplainNodeRequest(node=node, job_type=job_type, sensitivity=sensitivity)
        told = self._grades.ExplainNode(request, timeout=TIMEOUT_S).job_types[0]
        return Verdict(told.grade, told.slowdown, told.reasons[0] if told.reasons else "")

    def why(self, decision: str, node: str) -> str:
        """What an earlier answer of the extender said of a node."""
        request = placement_pb2.ExplainDecisionRequest(decision_id=decision)
        told = self._placement.ExplainDecision(request, timeout=TIMEOUT_S)
        return next((entry.reason for entry in told.nodes if entry.node == node), "")

    def dry_run(
        self, gpus: int, pods: int, job_type: str, sensitivity: str, product: str
    ) -> placement_pb2.PlaceResponse:
        """Where would this job go?"""
        request = placement_pb2.PlaceRequest(
            gpus=gpus, pods=pods, job_type=job_type, sensitivity=sensitivity, product=product
        )
        plan: placement_pb2.PlaceResponse = self._placement.Place(request, timeout=TIMEOUT_S)
        return plan
