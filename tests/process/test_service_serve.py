"""The server as a real process: what was acknowledged stays, and what is broken is told."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from gpugrade.v1 import grading_pb2, grading_pb2_grpc, placement_pb2, placement_pb2_grpc
from gpugrade.v1 import probe_pb2 as pb
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from tests.process.service_server import PAGE, Running, command, report, serving
from tests.service_support import TOKEN, fleet_document, http_answer, pb_sample, raw_server, stamp, until, write_fleet


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("serve")) as running:
        yield running


def test_health_page_metrics_and_paths_that_are_not(server: Running) -> None:
    assert server.get("/livez") == (200, "ok\n")
    status, text = server.get("/readyz?verbose")
    assert status == 200
    assert all(f"[+]{name} " in text for name in ("board", "fold", "store", "fleet", "settings", "exporters"))
    status, page = server.get("/")
    assert status == 200
    assert page.lstrip().lower().startswith("<!doctype html>")
    assert "gpu-3" in page
    status, metrics = server.get("/metrics")
    assert 'gpugrade_node_grade{class="train-multi",grade="unknown",node="gpu-0"} 1.0' in metrics or (
        'gpugrade_node_grade{node="gpu-0",class="train-multi",grade="unknown"} 1.0' in metrics
    )
    assert "gpugrade_build_info" in metrics
    assert "_created" not in metrics
    assert server.get("/nowhere")[0] == 404
    assert server.get("/?" + "&".join("a" * 30)) == (400, "too many parameters\n")


def test_health_and_reflection_over_grpc(server: Running) -> None:
    with server.channel() as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answer = stub.Check(health_pb2.HealthCheckRequest(service="gpugrade.v1.Placement"), timeout=10)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        services = set(ProtoReflectionDescriptorDatabase(channel).get_services())
    assert {"gpugrade.v1.ProbeIngest", "gpugrade.v1.Grades", "gpugrade.v1.Placement"} <= services


def test_a_report_is_kept_once_and_wrong_records_are_told(server: Running) -> None:
    now = time.time()
    request = report(pb_sample("once", now), pb_sample("nan", now, value=float("nan")), pb_sample("neg", now, gpu=-7))
    first = server.report(request)
    assert (first.accepted, first.duplicates, [r.id for r in first.rejections]) == (2, 0, ["neg"])
    again = server.report(request)
    assert (again.accepted, again.duplicates) == (0, 2)
    assert server.metric('gpugrade_ingest_records_total{kind="sample",outcome="impossible"}') >= 1


@pytest.mark.parametrize(
    ("node", "token", "code", "says"),
    [
        ("", f"{TOKEN} 0", grpc.StatusCode.INVALID_ARGUMENT, "names no node"),
        ("gpu-99", f"{TOKEN} 0", grpc.StatusCode.NOT_FOUND, "no node 'gpu-99'"),
        ("gpu-0", None, grpc.StatusCode.UNAUTHENTICATED, "authorization: Bearer"),
        ("gpu-0", "wrong", grpc.StatusCode.PERMISSION_DENIED, "may not report for node 'gpu-0'"),
        ("gpu-1", f"{TOKEN} 0", grpc.StatusCode.PERMISSION_DENIED, "may not report for node 'gpu-1'"),
    ],
)
def test_who_may_report(server: Running, node: str, token: str | None, code: grpc.StatusCode, says: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        server.report(report(pb_sample("x", time.time()), node=node), token)
    error: Any = caught.value
    assert error.code() is code
    assert says in error.details()


def test_a_sample_of_another_node_is_refused_by_itself(server: Running) -> None:
    now = time.time()
    answer = server.report(report(pb_sample("mine", now), pb_sample("theirs", now, node="gpu-1")))
    assert answer.accepted == 1
    assert answer.rejections[0].id == "theirs"
    assert "may report only its own" in answer.rejections[0].reason


def test_a_batch_that_is_too_large(server: Running) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        server.report(report(*[pb_sample("x", time.time())] * 10_001))
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_the_other_doors_answer(server: Running) -> None:
    pod = {
        "metadata": {"name": "p", "uid": "u"},
        "spec": {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
    }
    body = {"Pod": pod, "NodeNames": ["gpu-0", "gpu-1"]}
    assert server.post("filter", body)["NodeNames"] == ["gpu-0", "gpu-1"]
    assert {row["Host"] for row in server.post("prioritize", body)} == {"gpu-0", "gpu-1"}
    with server.channel() as channel:
        stub = placement_pb2_grpc.PlacementStub(channel)
        scored = stub.Score(
            placement_pb2.ScoreRequest(pod_json=json.dumps(pod).encode(), node_names=["gpu-0"]), timeout=10
        )
        assert len(scored.scores) == 1
        grades = grading_pb2_grpc.GradesStub(channel)
        kinds = grades.ListJobTypes(grading_pb2.ListJobTypesRequest(), timeout=10)
        assert {job.name for job in kinds.job_types} >= {"train-multi", "infer-gpu"}
        told = grades.ExplainNode(grading_pb2.ExplainNodeRequest(node="gpu-2"), timeout=10)
        assert told.node.grade == grading_pb2.GRADE_UNKNOWN
        assert told.job_types[0].reasons
        for wrong, code in (
            ({"node": "none"}, grpc.StatusCode.NOT_FOUND),
            ({"node": "gpu-2", "job_type": "none"}, grpc.StatusCode.INVALID_ARGUMENT),
            ({"node": "gpu-2", "sensitivity": "none"}, grpc.StatusCode.INVALID_ARGUMENT),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                grades.ExplainNode(grading_pb2.ExplainNodeRequest(**wrong), timeout=10)
            error: Any = caught.value
            assert error.code() is code


def probe_fleet(server: Running, slow: int | None, nodes: int = 8, when: float = 0.0, name: str = "p") -> None:
    """Four rounds of each GPU; those of node ``slow`` take a third longer."""
    now = time.time() - 600 - when
    for i in range(nodes):
        samples = [
            pb_sample(f"{name}-{i}-{gpu}-{t}", now + t, gpu=gpu, value=(500.0 if i == slow else 700.0) + gpu + 0.1 * t)
            for t in range(4)
            for gpu in range(2)
        ]
        answer = server.report(report(*samples, node=f"gpu-{i}"), f"{TOKEN} {i}")
        assert answer.accepted == 8


def test_a_slow_node_is_graded_and_survives_kill_9(tmp_path: Path) -> None:
    write_fleet(tmp_path / "fleet.yaml", fleet_document(nodes=8))
    with serving(tmp_path) as first:
        probe_fleet(first, slow=2)
        run = pb.Run(id="r1", kind="gpu-throttle", phase=pb.RUN_PHASE_ACTIVE, started=stamp(time.time()))
        first.report(report(node="gpu-1", runs=[run]), f"{TOKEN} 1")
        until(lambda: first.nodes()["gpu-2"].grade == grading_pb2.GRADE_RED, f"the slow one is red: {first.nodes()}")
        before = first.nodes()
        assert before["gpu-1"].active_runs == ["r1"]
        version = first.metric("gpugrade_board_version")
        first.process.kill()
        first.process.wait(10)
    with serving(tmp_path) as second:
        # Ready means that the board came up from the store.
        after = second.nodes()
        assert {name: node.grade for name, node in after.items()} == {name: node.grade for name, node in before.items()}
        assert after["gpu-1"].active_runs == ["r1"]
        assert second.metric("gpugrade_board_version") > version
        assert second.metric("gpugrade_evidence_samples") == 64
        again = second.report(report(pb_sample("p-0-0-0", time.time()), node="gpu-0"))
        assert again.duplicates == 1


def test_a_fault_that_was_injected_counts_is_masked_and_a_clean_probe_brings_the_grade_back(tmp_path: Path) -> None:
    write_fleet(tmp_path / "fleet.yaml", fleet_document(nodes=8))
    with serving(tmp_path) as server:
        probe_fleet(server, slow=None)
        until(lambda: server.nodes()["gpu-3"].grade == grading_pb2.GRADE_GREEN, "the node is green")
        started = time.time()
        line = "NVRM: Xid (PCI:0000:18:00): 79, pid=1, name=x, GPU has fallen off the bus."
        residue = pb.Residue(surface="kmsg", code="xid:79", gpu_index=-1)
        run = pb.Run(id="r", kind="dcgm-inject", phase=pb.RUN_PHASE_ACTIVE, started=stamp(started), residues=[residue])
        message = pb.KernelMessage(at=stamp(started + 0.01), text=line)
        server.report(report(node="gpu-3", runs=[run], kernel_messages=[message]), f"{TOKEN} 3")
        until(lambda: server.nodes()["gpu-3"].grade == grading_pb2.GRADE_RED, "the fault is seen")
        run.phase = pb.RUN_PHASE_REVERTED
        run.ended.CopyFrom(stamp(time.time()))
        server.report(report(node="gpu-3", runs=[run]), f"{TOKEN} 3")
        until(lambda: any("clean probe" in r for r in server.nodes()["gpu-3"].reasons), "it waits for a clean probe")
        assert server.nodes()["gpu-3"].grade == grading_pb2.GRADE_RED
        clean = [pb_sample(f"clean-{gpu}", time.time() + 0.1, gpu=gpu) for gpu in range(2)]
        server.report(report(*clean, node="gpu-3"), f"{TOKEN} 3")
        until(lambda: server.nodes()["gpu-3"].grade == grading_pb2.GRADE_GREEN, "the grade returns")


def test_since_when_a_grade_holds_is_not_forgotten(tmp_path: Path) -> None:
    def since(server: Running) -> int:
        with server.channel() as channel:
            stub = grading_pb2_grpc.GradesStub(channel)
            told = stub.ExplainNode(grading_pb2.ExplainNodeRequest(node="gpu-2", job_type="train-node"), timeout=10)
        assert told.job_types[0].grade == grading_pb2.GRADE_RED
        return int(told.job_types[0].since.ToNanoseconds())

    write_fleet(tmp_path / "fleet.yaml", fleet_document(nodes=8))
    with serving(tmp_path) as first:
        probe_fleet(first, slow=2)
        until(lambda: first.nodes()["gpu-2"].grade == grading_pb2.GRADE_RED, "the slow one is red")
        before = since(first)
        first.process.send_signal(signal.SIGTERM)
        assert first.process.wait(20) == 0
    with serving(tmp_path) as second:
        assert since(second) == before


def test_a_second_grpc_server_never_shares_the_port(tmp_path: Path, server: Running) -> None:
    write_fleet(tmp_path / "fleet.yaml")
    arguments = command(tmp_path, "--grpc-port", str(server.ports["grpc"]))
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "cannot listen" in done.stderr


def test_the_settings_in_force_can_be_printed(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "apiVersion: config.gpugrade.dev/v1alpha1\nkind: Settings\ngrading: {minPeers: 5}\n"
    )
    arguments = command(tmp_path, "--config", str(tmp_path / "c.yaml"), "--mode", "advise", "--dump-config")
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=True)
    assert "minPeers: 5" in done.stdout
    assert "mode: advise" in done.stdout


def test_the_fleet_file_is_followed(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        path = tmp_path / "fleet.yaml"
        path.write_text("nodes: [")
        until(lambda: "[-]fleet" in server.get("/readyz?verbose")[1], "the bad file is told")
        assert server.get("/readyz")[0] == 200
        assert server.metric('gpugrade_config_refused{file="fleet"}') == 1
        assert len(server.nodes()) == 4
        write_fleet(path, fleet_document(nodes=7))
        until(lambda: len(server.nodes()) == 7, "the good file is taken")
        assert server.metric('gpugrade_config_refused{file="fleet"}') == 0
        write_fleet(path, fleet_document(nodes=2))
        until(lambda: len(server.nodes()) == 2, "nodes that left are gone")
        until(lambda: 'node="gpu-5"' not in server.get("/metrics")[1], "from the metrics too")


def test_exporters_are_scraped_and_bad_ones_counted(tmp_path: Path) -> None:
    with (
        raw_server(lambda peer: peer.sendall(http_answer(PAGE))) as good,
        raw_server(lambda peer: peer.sendall(http_answer(b"<html>", "Content-Type: text/html\r\n"))) as markup,
    ):
        document = fleet_document()
        document["nodes"][0]["exporter"] = good
        document["nodes"][1]["exporter"] = markup
        write_fleet(tmp_path / "fleet.yaml", document)
        with serving(tmp_path) as server:
            until(lambda: server.metric('gpugrade_exporter_scrapes_total{outcome="ok"}') >= 2, "good scrapes")
            until(lambda: server.metric('gpugrade_exporter_scrapes_total{outcome="not-metrics"}') >= 2, "bad scrapes")
            assert server.metric("gpugrade_exporters_failing") == 1
            status, text = server.get("/readyz?verbose")
            assert status == 200
            assert "[-]exporters 1 cannot be scraped" in text


@pytest.mark.skipif(os.geteuid() != 0, reason="a small file system can be mounted by root only")
def test_a_full_disk_refuses_reports_and_the_server_lives(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(small)]
    mounted = subprocess.run(mount, capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        write_fleet(tmp_path / "fleet.yaml", fleet_document(nodes=8))
        with serving(tmp_path, "--db", str(small / "s.db")) as server:
            probe_fleet(server, slow=2)
            until(lambda: server.nodes()["gpu-2"].grade == grading_pb2.GRADE_RED, "the slow one is red")
            ballast = small / "ballast"
            with pytest.raises(OSError, match="No space"):
                fill(ballast)
            now = time.time()
            with pytest.raises(grpc.RpcError) as caught:
                report_much(server)
            error: Any = caught.value
            assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "keep the batch" in error.details()
            assert server.get("/readyz")[0] == 200
            assert "[-]store" in server.get("/readyz?verbose")[1]
            assert server.metric("gpugrade_store_writable") == 0
            assert server.nodes()["gpu-2"].grade == grading_pb2.GRADE_RED
            ballast.unlink()
            until(lambda: server.metric("gpugrade_store_writable") == 1, "it finds out that there is room")
            assert server.report(report(pb_sample("after", now))).accepted == 1
    finally:
        subprocess.run(["umount", str(small)], check=True)


def report_much(server: Running) -> None:
    now = time.time()
    for k in range(20):
        server.report(report(*[pb_sample(f"big-{k}-{i}", now, detail="x" * 1000) for i in range(500)]))


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


def test_nodes_without_a_token_report_on_the_loopback_alone(tmp_path: Path) -> None:
    document = fleet_document()
    for node in document["nodes"]:
        del node["probeTokenSha256"]
    write_fleet(tmp_path / "fleet.yaml", document)
    with serving(tmp_path) as server:
        assert server.report(report(pb_sample("a", time.time())), None).accepted == 1
    with serving(tmp_path, "--listen-host", "0.0.0.0") as server:
        with pytest.raises(grpc.RpcError) as caught:
            server.report(report(pb_sample("b", time.time())), None)
        error: Any = caught.value
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED
        assert "probeTokenSha256" in error.details()
