"""The server as a real process: what was acknowledged stays, what is broken is told, and it ends when asked."""

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from gpugrade.v1 import grading_pb2, grading_pb2_grpc, placement_pb2, placement_pb2_grpc, probe_pb2_grpc
from gpugrade.v1 import probe_pb2 as pb
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from tests.service_support import TOKEN, fleet_document, http_answer, pb_sample, raw_server, stamp, until, write_fleet

PAGE = b'DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-a",modelName="NVIDIA H100 80GB HBM3"} 41\n'


@dataclass
class Running:
    """A server that runs."""

    process: subprocess.Popen[bytes]
    ports: dict[str, int]
    log: Path

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.ports['admin']}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def metric(self, line: str) -> float:
        for row in self.get("/metrics")[1].splitlines():
            if row.startswith(line + " "):
                return float(row.rpartition(" ")[2])
        return float("nan")

    @contextmanager
    def channel(self) -> Iterator[grpc.Channel]:
        with grpc.insecure_channel(f"127.0.0.1:{self.ports['grpc']}") as channel:
            yield channel

    def report(self, request: pb.ReportRequest, token: str | None = f"{TOKEN} 0") -> pb.ReportResponse:
        metadata = None if token is None else (("authorization", f"Bearer {token}"),)
        with self.channel() as channel:
            stub = probe_pb2_grpc.ProbeIngestStub(channel)
            answer: pb.ReportResponse = stub.Report(request, metadata=metadata, timeout=20)
            return answer

    def nodes(self) -> dict[str, grading_pb2.Node]:
        with self.channel() as channel:
            answer = grading_pb2_grpc.GradesStub(channel).ListNodes(grading_pb2.ListNodesRequest(), timeout=20)
        return {node.name: node for node in answer.nodes}

    def post(self, verb: str, body: object) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.ports['scheduler']}/scheduler/{verb}",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read())


def command(tmp_path: Path, *more: str) -> list[str]:
    return [
        sys.executable,
        *("-c", "from scorer.cli.main import main; main()", "serve"),
        *("--fleet", str(tmp_path / "fleet.yaml"), "--db", str(tmp_path / "s.db")),
        *("--scheduler-port", "0", "--grpc-port", "0", "--admin-port", "0"),
        *("--ports-file", str(tmp_path / "ports.json"), "--fold-interval", "0.1", "--scrape-interval", "0.3"),
        *more,
    ]


@contextmanager
def serving(tmp_path: Path, *more: str) -> Iterator[Running]:
    if not (tmp_path / "fleet.yaml").exists():
        write_fleet(tmp_path / "fleet.yaml")
    ports = tmp_path / "ports.json"
    ports.unlink(missing_ok=True)
    log = tmp_path / "log.txt"
    with log.open("ab") as file:
        process = subprocess.Popen(command(tmp_path, *more), stdout=file, stderr=file)
    try:
        until(lambda: ports.exists() or process.poll() is not None, f"ports are told: {log.read_text()}")
        assert process.poll() is None, log.read_text()
        running = Running(process, json.loads(ports.read_text()), log)
        until(lambda: running.get("/readyz")[0] == 200, "the server is ready", 30)
        yield running
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(10)


def report(*samples: pb.Sample, node: str = "gpu-0", **more: Any) -> pb.ReportRequest:
    return pb.ReportRequest(node=node, samples=samples, **more)


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


def test_sigterm_drains(tmp_path: Path) -> None:
    with serving(tmp_path, "--log-format", "json") as server:
        server.report(report(pb_sample("a", time.time())))
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(20) == 0
        lines = [json.loads(line) for line in server.log.read_text().splitlines() if line.startswith("{")]
        assert lines[-1]["event"] == "closed"
        assert "Traceback" not in server.log.read_text()


def test_a_request_under_way_is_finished_and_a_second_sigterm_does_not_wait(tmp_path: Path) -> None:
    body = json.dumps({"Pod": {"metadata": {"name": "p"}}, "NodeNames": ["gpu-0"]}).encode()
    head = b"POST /scheduler/filter HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    with serving(tmp_path) as server:
        address = ("127.0.0.1", server.ports["scheduler"])
        with socket.create_connection(address) as half:
            half.sendall(head + body[:10])
            server.get("/livez")
            server.process.send_signal(signal.SIGTERM)
            until(lambda: b"closing" in server.log.read_bytes(), "it is closing")
            half.sendall(body[10:])
            half.settimeout(10)
            assert half.recv(4096).startswith(b"HTTP/1.1 200")
        assert server.process.wait(20) == 0
    with serving(tmp_path) as server, socket.create_connection(("127.0.0.1", server.ports["scheduler"])) as half:
        half.sendall(head)
        server.get("/livez")
        offset = len(server.log.read_bytes())
        server.process.send_signal(signal.SIGTERM)
        until(lambda: b"closing" in server.log.read_bytes()[offset:], "it is closing")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(20) == 128 + signal.SIGTERM


@pytest.mark.parametrize("which", ["scheduler", "grpc", "admin"])
def test_a_port_in_use(tmp_path: Path, which: str) -> None:
    write_fleet(tmp_path / "fleet.yaml")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            command(tmp_path, f"--{which}-port", str(port)), capture_output=True, text=True, timeout=60, check=False
        )
    assert done.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr
    assert f"--{which}-port" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_second_grpc_server_never_shares_the_port(tmp_path: Path, server: Running) -> None:
    write_fleet(tmp_path / "fleet.yaml")
    arguments = command(tmp_path, "--grpc-port", str(server.ports["grpc"]))
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "cannot listen" in done.stderr


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda path: (path / "s.db").write_text("not a database at all"), "not a SQLite database"),
        (lambda path: (path / "fleet.yaml").write_text("nodes: ["), "fleet.yaml: is not YAML"),
        (lambda path: (path / "fleet.yaml").unlink(), "cannot be read"),
    ],
    ids=["database", "fleet", "missing"],
)
def test_bad_files_at_the_start(tmp_path: Path, spoil: Any, says: str) -> None:
    write_fleet(tmp_path / "fleet.yaml")
    spoil(tmp_path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    done = subprocess.run(command(tmp_path), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert {name: (tmp_path / name).read_bytes() for name in before} == before


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--db", ""), "not a regular file; name another one with --db"),
        (("--db", "pipe"), "not a regular file; name another one with --db"),
        (("--ports-file", "nowhere/ports"), "name another file with --ports-file"),
        (("--listen-host", "192.0.2.1"), "give --listen-host one that is"),
        (("--listen-host", "no.such.host.invalid"), "give --listen-host an address"),
        (("--scrape-interval", "nan"), "nan is not a number"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_arguments_are_named_with_what_to_do(tmp_path: Path, arguments: tuple[str, str], says: str) -> None:
    write_fleet(tmp_path / "fleet.yaml")
    os.mkfifo(tmp_path / "pipe")
    done = subprocess.run(
        command(tmp_path, *arguments), cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


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


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates of this test")
def test_the_schedulers_door_with_client_certificates(tmp_path: Path) -> None:
    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=tmp_path, check=True, capture_output=True)

    new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    # Python 3.13 and later insist on the use that a CA's key is for.
    usage = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")
    openssl("req", "-x509", *new, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca", *usage)
    for name in ("server", "scheduler"):
        openssl("req", *new[:-2], "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        (tmp_path / "ext").write_text("subjectAltName=IP:127.0.0.1\nauthorityKeyIdentifier=keyid\n")
        sign = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "ext")
        openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *sign)
    files = [
        f"--tls-cert={tmp_path}/server.pem",
        f"--tls-key={tmp_path}/server.key",
        f"--tls-client-ca={tmp_path}/ca.pem",
    ]
    with serving(tmp_path, *files) as server:
        url = f"https://127.0.0.1:{server.ports['scheduler']}/scheduler/filter"
        body = json.dumps({"Pod": {"metadata": {"name": "p"}}, "NodeNames": ["gpu-0"]}).encode()
        nobody = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        with pytest.raises(OSError, match=r"(?i)certificate|alert|reset|eof|closed"):
            urllib.request.urlopen(url, body, timeout=10, context=nobody)
        known = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        known.load_cert_chain(tmp_path / "scheduler.pem", tmp_path / "scheduler.key")
        with urllib.request.urlopen(url, body, timeout=10, context=known) as answer:
            assert json.loads(answer.read())["NodeNames"] == ["gpu-0"]
    arguments = command(tmp_path, f"--tls-cert={tmp_path}/fleet.yaml", f"--tls-key={tmp_path}/server.key")
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "--tls-cert" in done.stderr


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate of this test")
def test_tokens_and_questions_travel_by_tls_where_the_grpc_door_has_a_certificate(tmp_path: Path) -> None:
    make = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    name = ("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost")
    subprocess.run(
        [*make, *name, "-keyout", "key.pem", "-out", "cert.pem"], cwd=tmp_path, check=True, capture_output=True
    )
    files = (f"--grpc-tls-cert={tmp_path}/cert.pem", f"--grpc-tls-key={tmp_path}/key.pem")
    with serving(tmp_path, *files) as server:
        target = f"127.0.0.1:{server.ports['grpc']}"
        authority = grpc.ssl_channel_credentials((tmp_path / "cert.pem").read_bytes())
        with grpc.secure_channel(target, authority) as channel:
            message = report(pb_sample("a", time.time()))
            metadata = (("authorization", f"Bearer {TOKEN} 0"),)
            stub = probe_pb2_grpc.ProbeIngestStub(channel)
            assert stub.Report(message, metadata=metadata, timeout=20).accepted == 1

        def ask(*options: str) -> subprocess.CompletedProcess[str]:
            argv = [sys.executable, "-m", "scorer.cli.main", "--server", target, "nodes", "-o", "name", *options]
            return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)

        known = ask("--ca-file", str(tmp_path / "cert.pem"))
        assert "gpu-0" in known.stdout, known.stderr
        assert ask().returncode == 2
        missing = ask("--ca-file", "nowhere.pem")
        assert missing.returncode == 2
        assert "nowhere.pem cannot be read" in missing.stderr
    wrong = command(tmp_path, f"--grpc-tls-cert={tmp_path}/fleet.yaml", f"--grpc-tls-key={tmp_path}/key.pem")
    done = subprocess.run(wrong, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "--grpc-tls-cert" in done.stderr


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
