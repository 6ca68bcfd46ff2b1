"""The gRPC door on a real port, with health and reflection."""

import json

import grpc
import pytest
from gpugrade.v1 import placement_pb2 as pb
from gpugrade.v1 import placement_pb2_grpc as pb_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.placement_servers import DEADLINE, placement_server, state_of
from tests.placement_worlds import pod_facts, pod_json, world_of

POD = json.dumps(pod_json(pod_facts(8))).encode()


def test_questions_health_and_reflection() -> None:
    with placement_server(state_of(world_of({"good": 1.0, "slow": 1.3}))) as channel:
        stub = pb_grpc.PlacementStub(channel)
        answer = stub.Filter(pb.FilterRequest(pod_json=POD, node_names=["slow", "good"]), timeout=DEADLINE)
        assert (list(answer.verdicts), len(answer.reasons)) == ([1, 0], 1)
        scores = stub.Score(pb.ScoreRequest(pod_json=POD, node_names=["slow", "good"]), timeout=DEADLINE).scores
        assert (scores[0], scores[1] >= 70) == (0, True)
        told = stub.ExplainDecision(pb.ExplainDecisionRequest(decision_id=answer.decision_id), timeout=DEADLINE)
        assert [n.passed for n in told.nodes] == [False, True]

        check = health_pb2.HealthCheckRequest(service="gpugrade.v1.Placement")
        status = health_pb2_grpc.HealthStub(channel).Check(check, timeout=DEADLINE).status
        assert status == health_pb2.HealthCheckResponse.SERVING
        ask = reflection_pb2.ServerReflectionRequest(list_services="")
        replies = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([ask]), timeout=DEADLINE)
        services = {s.name for s in next(replies).list_services_response.service}
        assert "gpugrade.v1.Placement" in services


def test_errors_arrive_as_status_and_text() -> None:
    with placement_server(state_of(world_of({"good": 1.0}))) as channel:
        stub = pb_grpc.PlacementStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            stub.Score(pb.ScoreRequest(pod_json=POD, node_names=["good", "good"]), timeout=DEADLINE)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "'good' is given twice" in str(caught.value.details())
