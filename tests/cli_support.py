"""A real gRPC server with canned answers, for tests of the command line."""

import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.timestamp_pb2 import Timestamp
from gpugrade.v1 import grading_pb2 as g
from gpugrade.v1 import grading_pb2_grpc, placement_pb2_grpc, probe_pb2, probe_pb2_grpc
from gpugrade.v1 import placement_pb2 as p

AT = 1_796_119_200  # 2026-12-01T10:00:00Z

GREEN, UNKNOWN, YELLOW, RED = g.GRADE_GREEN, g.GRADE_UNKNOWN, g.GRADE_YELLOW, g.GRADE_RED


def _grades(multi: int, node: int, infer: int, batch: int) -> dict[str, Any]:
    return {"train-multi": multi, "train-node": node, "infer-gpu": infer, "batch-io": batch}


def _nodes() -> list[g.Node]:
    product = "NVIDIA H100 80GB HBM3"
    return [
        g.Node(
            name="gpu-r01-n01",
            grade=GREEN,
            grades=_grades(GREEN, GREEN, GREEN, GREEN),
            gpus=8,
            free=8,
            age_s=720.0,
            product=product,
            labels={"example.dev/rack": "r01"},
            slowdowns={"train-multi": 1.011, "train-node": 1.012, "infer-gpu": 1.0, "batch-io": 1.0},
        ),
        g.Node(
            name="gpu-r01-n02",
            grade=RED,
            grades=_grades(RED, RED, GREEN, GREEN),
            gpus=8,
            free=0,
            age_s=60.0,
            product=product,
            labels={"example.dev/rack": "r01"},
            reasons=["GPU 3 takes 31 % longer on compute than its peers", "HW slowdown seen"],
            slowdowns={"train-multi": 1.186, "train-node": 1.2015, "infer-gpu": 1.124, "batch-io": 1.06},
            active_runs=["run-7"],
        ),
        g.Node(
            name="gpu-r02-n01",
            grade=UNKNOWN,
            grades=_grades(UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN),
            gpus=8,
            free=4,
            product=product,
            reasons=["no good probe yet"],
        ),
        g.Node(
            name="gpu-r02-n02",
            grade=YELLOW,
            grades=_grades(YELLOW, GREEN, GREEN, GREEN),
            gpus=4,
            free=4,
            age_s=200_000.0,
            product=product,
            reasons=["row remap pending on GPU 0"],
            slowdowns={"train-multi": 1.06},
        ),
    ]


def _job_types() -> g.ListJobTypesResponse:
    def job(name: str, when: str, waits: bool, sensitivity: str, **weights: float) -> g.JobType:
        return g.JobType(name=name, chosen_when=when, weights=weights, waits_for_slowest=waits, sensitivity=sensitivity)

    return g.ListJobTypesResponse(
        job_types=[
            job(
                "train-multi",
                "gang of several pods",
                True,
                "sensitive",
                fabric=0.10,
                compute=0.60,
                memory=0.15,
                nvlink=0.10,
                pcie=0.05,
            ),
            job(
                "train-node",
                "one pod, several GPUs",
                True,
                "sensitive",
                compute=0.65,
                memory=0.15,
                nvlink=0.15,
                pcie=0.05,
            ),
            job("infer-gpu", "one pod, one GPU or a slice", False, "tolerant", compute=0.40, memory=0.55, pcie=0.05),
            job("batch-io", "by label only", False, "tolerant", pcie=0.50, host=0.20, numa=0.10, compute=0.20),
        ],
        sensitivities=[
            g.SensitivityClass(name="critical", yellow_from=1.02, red_from=1.05, unknown_scores_as="below-yellow"),
            g.SensitivityClass(name="sensitive", yellow_from=1.05, red_from=1.15, unknown_scores_as="yellow"),
            g.SensitivityClass(name="tolerant", yellow_from=1.25, red_from=2.0, unknown_scores_as="green"),
        ],
    )


def _explained(node: g.Node, job_type: str) -> g.ExplainNodeResponse:
    bad = node.grade == RED
    job_types = [
        g.JobTypeGrade(
            job_type=name,
            sensitivity="sensitive" if name.startswith("train") else "tolerant",
            grade=node.grades[name],
            slowdown=node.slowdowns[name],
            low=node.slowdowns[name] - 0.01,
            high=node.slowdowns[name] + 0.02,
            confidence=0.97,
            reasons=node.reasons[:1] if node.grades[name] == RED else [],
            since=Timestamp(seconds=AT - 3 * 3600),
        )
        for name in ("train-multi", "train-node", "infer-gpu", "batch-io")
        if job_type in {"", name} and name in node.slowdowns
    ]
    gpus = [
        g.GpuGrade(
            index=i,
            uuid=f"GPU-0000-{i}",
            grades={"train-multi": RED if bad and i == 3 else GREEN, "infer-gpu": GREEN},
            slowdowns={
                "memory": g.Prediction(slowdown=1.002, low=0.99, high=1.01, samples=14),
                "compute": g.Prediction(
                    slowdown=1.31 if bad and i == 3 else 1.0,
                    low=0.99,
                    high=1.33 if bad and i == 3 else 1.01,
                    samples=14,
                ),
            },
        )
        for i in range(2, 4)
    ]
    finding = g.Finding(
        rule="slow",
        grade=RED,
        reach="slowdown",
        gpu_index=3,
        text="GPU 3 takes 31 % longer on compute than its peers",
        evidence="gpu-burn 701 TFLOP/s, peers 918",
        source="probe",
        action="check_cooling_power",
        first_seen=Timestamp(seconds=AT - 3 * 3600),
        last_seen=Timestamp(seconds=AT - 60),
    )
    return g.ExplainNodeResponse(
        node=node,
        at=Timestamp(seconds=AT),
        job_types=job_types,
        gpus=gpus,
        findings=[finding] if bad else [],
        bad_gpus=[3] if bad else [],
        action="check_cooling_power" if bad else "none",
    )


def _placed(request: p.PlaceRequest) -> p.PlaceResponse:
    if request.pods * request.gpus > 64:
        return p.PlaceResponse(
            job_type="train-multi", sensitivity="sensitive", infeasible="128 GPUs wanted, 16 are free on usable nodes"
        )
    names = [n for n in ("gpu-r01-n01", "gpu-r02-n02") if n not in request.exclude]
    return p.PlaceResponse(
        assignments=[
            p.Assignment(node=names[0], pods=request.pods, slowdown=1.011, grade="green", reasons=["whole gang in r01"])
        ],
        predicted_relative_time=1.011,
        blind_relative_time=1.264,
        level="rack",
        domain="r01",
        locality_factor=1.0,
        job_type=request.job_type or "train-multi",
        sensitivity=request.sensitivity or "sensitive",
        warnings=["free GPUs are a hint"],
    )


@dataclass
class Canned(grading_pb2_grpc.GradesServicer, placement_pb2_grpc.PlacementServicer, probe_pb2_grpc.ProbeIngestServicer):
    """Canned answers; a test may change them, or make every call run ``before`` first."""

    nodes: list[g.Node] = field(default_factory=_nodes)
    before: Callable[[grpc.ServicerContext], None] = lambda _: None
    seen: list[Any] = field(default_factory=list)
    asked: threading.Condition = field(default_factory=threading.Condition)
    address: str = ""

    def _note(self, request: Any, context: grpc.ServicerContext) -> None:
        with self.asked:
            self.seen.append(request)
            self.asked.notify_all()
        self.before(context)

    def ListNodes(self, request: g.ListNodesRequest, context: grpc.ServicerContext) -> g.ListNodesResponse:
        self._note(request, context)
        return g.ListNodesResponse(board_version=7, board_at=Timestamp(seconds=AT), nodes=self.nodes)

    def ExplainNode(self, request: g.ExplainNodeRequest, context: grpc.ServicerContext) -> g.ExplainNodeResponse:
        self._note(request, context)
        for node in self.nodes:
            if node.name == request.node:
                return _explained(node, request.job_type)
        context.abort(grpc.StatusCode.NOT_FOUND, f"no node {request.node}")
        raise AssertionError

    def ListJobTypes(self, request: g.ListJobTypesRequest, context: grpc.ServicerContext) -> g.ListJobTypesResponse:
        self._note(request, context)
        return _job_types()

    def Place(self, request: p.PlaceRequest, context: grpc.ServicerContext) -> p.PlaceResponse:
        self._note(request, context)
        return _placed(request)

    def ExplainDecision(
        self, request: p.ExplainDecisionRequest, context: grpc.ServicerContext
    ) -> p.ExplainDecisionResponse:
        self._note(request, context)
        if request.decision_id != "d-42":
            context.abort(grpc.StatusCode.NOT_FOUND, "gone")
        return p.ExplainDecisionResponse(
            decision_id="d-42",
            verb="score",
            pod="ml/train-0",
            job_type="train-multi",
            sensitivity="critical",
            mode="advise",
            board_version=7,
            view_version=3,
            nodes=[
                p.NodeDecision(node="gpu-r01-n01", passed=True, score=97, reason="green, in the gang's rack"),
                p.NodeDecision(node="gpu-r02-n02", passed=True, score=0, reason="yellow"),
            ],
            warnings=["gpugrade.dev/sensitivity: no sensitivity is called 'hot'"],
        )

    def ListDecisions(self, request: p.ListDecisionsRequest, context: grpc.ServicerContext) -> p.ListDecisionsResponse:
        self._note(request, context)
        if request.pod != "ml/train-0":
            context.abort(grpc.StatusCode.NOT_FOUND, f"no decision is about pod {request.pod!r}")
        kind: dict[str, Any] = {"job_type": "train-multi", "sensitivity": "critical", "mode": "enforce", "asked": 3}
        score = p.DecisionSummary(
            decision_id="d-42",
            verb="score",
            at=Timestamp(seconds=AT - 60),
            passed=3,
            best=[p.NodeDecision(node="gpu-r01-n01", passed=True, score=97, reason="green, in the gang's rack")],
            warnings=["gpugrade.dev/sensitivity: no sensitivity is called 'hot'"],
            **kind,
        )
        refused = [p.Refusal(reason="gpugrade: GPUs too slow for train-multi (critical)", nodes=2)]
        before = Timestamp(seconds=AT - 61)
        filtered = p.DecisionSummary(decision_id="d-41", verb="filter", at=before, passed=1, refused=refused, **kind)
        return p.ListDecisionsResponse(pod=request.pod, now=Timestamp(seconds=AT), decisions=[score, filtered])

    def Report(self, request: probe_pb2.ReportRequest, context: grpc.ServicerContext) -> probe_pb2.ReportResponse:
        self._note(request, context)
        return probe_pb2.ReportResponse()


@contextmanager
def running(canned: Canned) -> Iterator[Canned]:
    """Serve canned answers on a free port of the loopback interface."""
    server = grpc.server(futures.ThreadPoolExecutor(4))
    grading_pb2_grpc.add_GradesServicer_to_server(canned, server)
    placement_pb2_grpc.add_PlacementServicer_to_server(canned, server)
    probe_pb2_grpc.add_ProbeIngestServicer_to_server(canned, server)
    canned.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield canned
    finally:
        server.stop(None).wait()
