"""The two doors give the same answer for the same request."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import grpc
import grpc_testing
import pytest
from gpugrade.v1 import placement_pb2 as pb
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from scorer.model.grade import Grade
from scorer.model.policy import Mode
from scorer.placement import PodFacts, World
from scorer.serve.extender import make_extender_app
from scorer.serve.names import NameMemory
from scorer.serve.placement_service import PlacementService
from scorer.serve.state import RING, ServingState
from tests.placement_servers import state_of
from tests.placement_worlds import NOW, gang_facts, pod_facts, pod_json, racks, world_of

SERVICE = pb.DESCRIPTOR.services_by_name["Placement"]


def ask(state: ServingState, path: str, body: bytes, method: str = "POST") -> tuple[int, dict[str, str], Any]:
    """Call the ASGI application without a server."""
    sent: list[Mapping[str, Any]] = []

    async def receive() -> Mapping[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Mapping[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "path": path, "method": method, "headers": []}

    async def one_call() -> None:
        await make_extender_app(state)(scope, receive, send)

    asyncio.run(one_call())
    start, content = sent
    headers = {k.decode(): v.decode() for k, v in start["headers"]}
    assert headers["content-length"] == str(len(content["body"]))
    return start["status"], headers, json.loads(content["body"])


def call(state: ServingState, method: str, request: Any) -> tuple[Any, grpc.StatusCode, str]:
    """Call the servicer through grpcio-testing."""
    server = grpc_testing.server_from_dictionary({SERVICE: PlacementService(state)}, grpc_testing.strict_real_time())
    rpc = server.invoke_unary_unary(SERVICE.methods_by_name[method], (), request, None)
    response, _, code, details = rpc.termination()
    return response, code, details


def args(facts: PodFacts, names: list[str]) -> bytes:
    return json.dumps({"Pod": pod_json(facts), "Nodes": None, "NodeNames": names}, separators=(",", ":")).encode()


LABELS = racks(3, 2)
pods = st.one_of(
    st.builds(
        pod_facts,
        st.sampled_from([0, 1, 8]),
        st.fixed_dictionaries(
            {},
            optional={
                "gpugrade.dev/sensitivity": st.sampled_from(["A", "B", "critical", "wrong"]),
                "gpugrade.dev/job-type": st.sampled_from(["batch-io", "train-multi", "wrong"]),
            },
        ),
    ),
    st.builds(gang_facts, st.integers(2, 4), st.integers(0, 3), st.sampled_from([4, 8])),
)


@settings(max_examples=80)
@given(
    speed=st.lists(st.sampled_from([0.95, 1.0, 1.03, 1.1, 1.4, float("nan")]), min_size=6, max_size=6),
    faulty=st.sets(st.sampled_from(sorted(LABELS)), max_size=2),
    mode=st.sampled_from(list(Mode)),
    facts=pods,
    names=st.lists(st.sampled_from([*LABELS, "stranger-1", "stranger-2"]), unique=True),
    as_bytes=st.booleans(),
)
def test_http_and_grpc_agree(
    speed: list[float], faulty: set[str], mode: Mode, facts: PodFacts, names: list[str], as_bytes: bool
) -> None:
    grades = dict.fromkeys(faulty, Grade.RED)
    state = state_of(world_of(dict(zip(LABELS, speed, strict=True)), mode=mode, labels=LABELS, grades=grades))
    if as_bytes:
        # Short lists are looked up as long ones are.
        state.snapshot = replace(state.snapshot, names=NameMemory(tuple(LABELS), shortest=0))
    body, pod = args(facts, names), json.dumps(pod_json(facts)).encode()

    status, headers, filtered = ask(state, "/scheduler/filter", body)
    answer, code, _ = call(state, "Filter", pb.FilterRequest(pod_json=pod, node_names=names))
    assert (status, filtered["Error"], code) == (200, "", grpc.StatusCode.OK)
    assert headers["x-gpugrade-decision"] == answer.decision_id
    assert filtered["NodeNames"] == [n for n, v in zip(names, answer.verdicts, strict=True) if not v]
    assert filtered["FailedAndUnresolvableNodes"] == {
        n: answer.reasons[v - 1].text for n, v in zip(names, answer.verdicts, strict=True) if v
    }
    assert set(filtered["NodeNames"]) | set(filtered["FailedAndUnresolvableNodes"]) == set(names)

    status, headers, scored = ask(state, "/scheduler/prioritize", body)
    answer, code, _ = call(state, "Score", pb.ScoreRequest(pod_json=pod, node_names=names))
    assert (status, code, headers["x-gpugrade-decision"]) == (200, grpc.StatusCode.OK, answer.decision_id)
    assert len(scored) == len(names)
    assert {e["Host"]: e["Score"] for e in scored} == {n: s // 10 for n, s in zip(names, answer.scores, strict=True)}
    assert all(0 <= entry["Score"] <= 10 for entry in scored)


def test_what_filter_passed_is_scored_the_same_from_memory() -> None:
    speed = {f"node-{i:04d}": 1.3 if i % 7 == 0 else 1.0 + i % 11 / 200 for i in range(3000)}
    state = state_of(world_of(speed))
    kept = ask(state, "/scheduler/filter", args(pod_facts(8), list(speed)))[2]["NodeNames"]
    assert kept == [n for n, s in speed.items() if s < 1.15]
    body = args(pod_facts(8), kept)
    remembered = ask(state, "/scheduler/prioritize", body)
    fresh = ask(state_of(world_of(speed)), "/scheduler/prioritize", body)
    assert remembered[2] == fresh[2]
    assert remembered[1]["x-gpugrade-decision"] == fresh[1]["x-gpugrade-decision"]
    twice = ask(state, "/scheduler/filter", args(pod_facts(8), [*speed, "node-0007"]))[2]
    assert "'node-0007' is given twice" in twice["Error"]


@pytest.fixture
def state() -> ServingState:
    return state_of(world_of({"good": 1.0, "slow": 1.3}, mode=Mode.ENFORCE))


def test_every_decision_can_be_explained(state: ServingState) -> None:
    _, headers, _ = ask(state, "/scheduler/filter", args(pod_facts(8), ["slow", "good", "stranger"]))
    told, code, _ = call(
        state, "ExplainDecision", pb.ExplainDecisionRequest(decision_id=headers["x-gpugrade-decision"])
    )
    assert code is grpc.StatusCode.OK
    assert (told.verb, told.pod, told.job_type, told.mode) == ("filter", "ml/train", "train-node", "enforce")
    assert (told.board_version, told.view_version) == (7, 3)
    assert [(n.node, n.passed) for n in told.nodes] == [("slow", False), ("good", True), ("stranger", True)]
    assert told.nodes[0].reason == "red, slowdown 1.300, gpugrade: GPUs too slow for train-node (sensitive)"
    assert "not a node of the cluster" in told.nodes[2].reason

    _, headers, _ = ask(state, "/scheduler/prioritize", args(gang_facts(2, 0), ["good"]))
    told, _, _ = call(state, "ExplainDecision", pb.ExplainDecisionRequest(decision_id=headers["x-gpugrade-decision"]))
    assert (told.verb, told.nodes[0].score > 50) == ("score", True)


def test_the_ring_forgets_the_oldest(state: ServingState) -> None:
    ids = [
        ask(state, "/scheduler/filter", args(pod_facts(8, name=f"p{i}"), ["good"]))[1]["x-gpugrade-decision"]
        for i in range(RING + 1)
    ]
    assert state.decision(ids[0]) is None
    assert state.decision(ids[1]) is not None
    _, code, details = call(state, "ExplainDecision", pb.ExplainDecisionRequest(decision_id=ids[0]))
    assert code is grpc.StatusCode.NOT_FOUND
    assert ids[0] in details


def test_what_was_answered_about_a_pod_is_listed_newest_first(state: ServingState) -> None:
    body = args(pod_facts(8, {"gpugrade.dev/sensitivity": "critical"}), ["slow", "stranger", "good"])
    _, first, _ = ask(state, "/scheduler/filter", body)
    ask(state, "/scheduler/filter", args(pod_facts(8, name="other"), ["good"]))
    _, second, _ = ask(state, "/scheduler/prioritize", body)
    told, code, _ = call(state, "ListDecisions", pb.ListDecisionsRequest(pod="ml/train"))
    assert code is grpc.StatusCode.OK
    score, filtered = told.decisions
    ids = [first["x-gpugrade-decision"], second["x-gpugrade-decision"]]
    assert [filtered.decision_id, score.decision_id] == ids
    assert (filtered.verb, filtered.asked, filtered.passed) == ("filter", 3, 2)
    assert [(r.reason, r.nodes) for r in filtered.refused] == [("gpugrade: GPUs too slow for train-node (critical)", 1)]
    assert (score.verb, score.asked, score.passed, score.refused[:]) == ("score", 3, 3, [])
    assert [n.node for n in score.best] == ["good", "stranger", "slow"]
    assert score.best[0].reason == "green, slowdown 1.000"
    assert (score.sensitivity, score.job_type, score.mode) == ("critical", "train-node", "enforce")
    assert score.at.seconds == told.now.seconds == int(NOW)
    told, _, _ = call(state, "ListDecisions", pb.ListDecisionsRequest(pod="ml/train", limit=1))
    assert [d.decision_id for d in told.decisions] == ids[1:]


def test_a_pod_of_which_nothing_is_remembered_names_those_of_which_something_is(state: ServingState) -> None:
    _, code, details = call(state, "ListDecisions", pb.ListDecisionsRequest(pod="train"))
    assert (code, "default/train" in details, "there is none yet" in details) == (grpc.StatusCode.NOT_FOUND, True, True)
    ask(state, "/scheduler/filter", args(pod_facts(8), ["good"]))
    _, code, details = call(state, "ListDecisions", pb.ListDecisionsRequest(pod="train"))
    assert code is grpc.StatusCode.NOT_FOUND
    assert details.endswith("the newest are about ml/train")


def test_a_gist_holds_few_nodes_however_many_were_asked() -> None:
    names = [f"n{i:03}" for i in range(300)]
    state = state_of(world_of(dict.fromkeys(names, 1.0)))
    for i in range(30):
        ask(state, "/scheduler/prioritize", args(pod_facts(8), names[i:]))
    told, _, _ = call(state, "ListDecisions", pb.ListDecisionsRequest(pod="ml/train"))
    assert [d.asked for d in told.decisions] == list(range(271, 281))
    assert {len(d.best) for d in told.decisions} == {5}
    assert len(told.SerializeToString()) < 10_000


@pytest.mark.parametrize("method", ["Filter", "Score"])
def test_grpc_refuses_bad_requests(state: ServingState, method: str) -> None:
    request = {"Filter": pb.FilterRequest, "Score": pb.ScoreRequest}[method]
    pod = json.dumps(pod_json(pod_facts(8))).encode()
    for bad, text in [
        (request(pod_json=b"{", node_names=["good"]), "not JSON"),
        (request(pod_json=b"", node_names=["good"]), "not JSON"),
        (request(pod_json=b"{}", node_names=["good"]), "no pod"),
        (request(pod_json=pod, node_names=["good", "good"]), "'good' is given twice"),
    ]:
        _, code, details = call(state, method, bad)
        assert (code, text in details) == (grpc.StatusCode.INVALID_ARGUMENT, True)


def test_place_over_grpc(state: ServingState) -> None:
    told, code, _ = call(state, "Place", pb.PlaceRequest(gpus=8, pods=1, sensitivity="B"))
    assert code is grpc.StatusCode.OK
    assert [(a.node, a.pods, a.grade) for a in told.assignments] == [("good", 1, "green")]
    assert (told.job_type, told.sensitivity, told.level) == ("train-node", "sensitive", "node")
    assert told.predicted_relative_time == 1.0 < told.blind_relative_time < 1.3
    again, _, _ = call(state, "Place", pb.PlaceRequest(gpus=8, pods=1, sensitivity="B"))
    assert again == told
    told, _, _ = call(state, "Place", pb.PlaceRequest(gpus=8, pods=1, exclude=["good"], job_type="oops"))
    assert "not red for train-node (sensitive)" in told.infeasible
    assert (len(told.warnings), told.predicted_relative_time) == (1, 0.0)


def test_metrics_count_what_fails_open() -> None:
    registry = CollectorRegistry()
    state = ServingState(registry, clock=lambda: NOW)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, labels)

    wrong = pod_facts(8, {"gpugrade.dev/job-type": "oops"})
    ask(state, "/scheduler/filter", args(wrong, ["good", "other"]))
    assert value("gpugrade_extender_fail_open_total", reason="no-board") == 1
    assert value("gpugrade_pod_label_errors_total", label="gpugrade.dev/job-type") == 1
    assert value("gpugrade_extender_unknown_names_total") == 2
    assert value("gpugrade_extender_request_duration_seconds_count", verb="filter", code="200") == 1

    world: World = world_of({"good": 1.0, "slow": 1.3}, mode=Mode.OBSERVE)
    state.replace(world)
    ask(state, "/scheduler/filter", args(pod_facts(8), ["good", "slow"]))
    assert value("gpugrade_extender_unfit_nodes_total", reason="too_slow", mode="observe") == 1
    assert value("gpugrade_extender_board_version") == 7
    ask(state, "/scheduler/prioritize", b"{")
    assert value("gpugrade_extender_fail_open_total", reason="bad-request") == 1
    assert value("gpugrade_extender_request_duration_seconds_count", verb="prioritize", code="400") == 1


def test_preempt_drops_red_nodes_only_where_enforced() -> None:
    victims = {"good": {"Pods": [{"UID": "x"}], "NumPDBViolations": 1}, "slow": {"Pods": [{"UID": "y"}]}}
    body = json.dumps({"Pod": pod_json(pod_facts(8)), "NodeNameToMetaVictims": victims}).encode()
    for mode, kept in ((Mode.ENFORCE, {"good"}), (Mode.ADVISE, {"good", "slow"}), (Mode.OBSERVE, {"good", "slow"})):
        state = state_of(world_of({"good": 1.0, "slow": 1.3}, mode=mode))
        status, _, answer = ask(state, "/scheduler/preempt", body)
        assert (status, set(answer["NodeNameToMetaVictims"])) == (200, kept)
        assert answer["NodeNameToMetaVictims"]["good"] == {"Pods": [{"UID": "x"}], "NumPDBViolations": 1}


@pytest.mark.parametrize("victims", [None, {}])
def test_preempt_without_victims_is_answered(state: ServingState, victims: object) -> None:
    body = json.dumps({"Pod": pod_json(pod_facts(8)), "NodeNameToVictims": victims, "NodeNameToMetaVictims": None})
    assert ask(state, "/scheduler/preempt", body.encode())[2] == {"NodeNameToMetaVictims": {}}


def test_a_fault_of_ours_is_told_and_does_not_stop_scheduling(state: ServingState) -> None:
    def broken_clock() -> float:
        raise OSError("no clock")

    state.clock = broken_clock
    status, _, answer = ask(state, "/scheduler/filter", args(pod_facts(8), ["good"]))
    assert (status, answer["Error"]) == (200, "gpugrade failed; its log says why")
    assert ask(state, "/scheduler/prioritize", args(pod_facts(8), ["good"]))[0] == 500


def test_paths_and_methods(state: ServingState) -> None:
    status, headers, answer = ask(state, "/scheduler/filter", b"", "GET")
    assert (status, headers["allow"], "POST" in answer["error"]) == (405, "POST", True)
    status, _, answer = ask(state, "/scheduler/bind", b"{}")
    assert (status, "/scheduler/filter" in answer["error"]) == (404, True)
