"""The agent and the reports, against a real gRPC server in this process."""

import json
import shutil
import signal
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest
from gpugrade.kubelet import podresources_pb2, podresources_pb2_grpc
from gpugrade.v1 import probe_pb2, probe_pb2_grpc

from chaos_probe import wire
from chaos_probe.devices.kubelet import handed_out
from chaos_probe.errors import ToolError
from chaos_probe.records import RunPhase, RunRecord, Sample
from chaos_probe.report import Sender
from chaos_probe.settings import ReportSettings
from chaos_probe.spool import Spool
from tests.process.probe_node import Node, kill, stop, until

TOKEN = "t-1"


class Scorer(probe_pb2_grpc.ProbeIngestServicer):
    """Keeps what it is told; ``refuse`` is what it answers instead while it is set."""

    def __init__(self) -> None:
        self.requests: list[probe_pb2.ReportRequest] = []
        self.refuse: grpc.StatusCode | None = None
        self.lock = threading.Lock()
        self.heard = threading.Event()

    def Report(self, request: Any, context: grpc.ServicerContext) -> probe_pb2.ReportResponse:
        if self.refuse is not None:
            context.abort(self.refuse, "as the test wants it")
        if dict(context.invocation_metadata()).get("authorization") != f"Bearer {TOKEN}":
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "no token")
        with self.lock:
            self.requests.append(request)
        self.heard.set()
        bad = [s.id for s in request.samples if s.id == "bad"]
        return probe_pb2.ReportResponse(rejections=[probe_pb2.Rejection(id=i, reason="not good") for i in bad])

    def all(self, name: str) -> list[Any]:
        with self.lock:
            return [item for request in self.requests for item in getattr(request, name)]

    def serve(self, address: str = "127.0.0.1:0", credentials: grpc.ServerCredentials | None = None) -> grpc.Server:
        server = grpc.server(futures.ThreadPoolExecutor(2), options=[("grpc.so_reuseport", 0)])
        probe_pb2_grpc.add_ProbeIngestServicer_to_server(self, server)
        if credentials is None:
            self.port = server.add_insecure_port(address)
        else:
            self.port = server.add_secure_port(address, credentials)
        server.start()
        return server


@pytest.fixture
def scorer() -> Iterator[Scorer]:
    made = Scorer()
    server = made.serve()
    yield made
    server.stop(0).wait()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    made = Node(tmp_path)
    (tmp_path / "token").write_text(TOKEN + "\n")
    with made.settings.open("a") as file:
        file.write(
            "agent:\n  pause: 50ms\n  experiments:\n"
            "  - {kind: gpu-burn, every: 1h, params: {seconds: 1}}\n"
            "  - {kind: host-burn, every: 1h, params: {seconds: 0.05, mib: 6}}\n"
        )
    return made


def told(node: Node, scorer: Scorer) -> tuple[str, ...]:
    return ("--report-to", f"127.0.0.1:{scorer.port}", "--token-file", str(node.folder / "token"))


def sender_of(tmp_path: Path, port: int, node: str = "n1") -> tuple[Spool, Sender]:
    queue = Spool(tmp_path / "q.db", 100, 1 << 20)
    (tmp_path / "token").write_text(TOKEN)
    return queue, Sender(queue, node, ReportSettings(to=f"127.0.0.1:{port}", token_file=str(tmp_path / "token")))


def sample(name: str) -> Sample:
    return Sample(at=1.0, gpu=0, uuid="GPU-0", dimension="compute", value=1.0, id=name)


def test_a_round_tells_everything_once(node: Node, scorer: Scorer) -> None:
    log = node.folder / "kmsg"
    log.write_text("2026-06-01T10:00:00Z NVRM: Xid (PCI:0000:01:00): 79, pid=1\n2026-06-01T10:00:01Z usb 1-1: x\n")
    done = node.run("agent", "--once", "--kernel-log", str(log), *told(node, scorer))
    assert done.returncode == 0, done.stderr
    assert {r.node for r in scorer.requests} == {"n1"}
    assert [gpu.uuid for gpu in scorer.all("gpus")] == ["GPU-00000000", "GPU-00000001"]
    assert {gpu.default_power_limit_w for gpu in scorer.all("gpus")} == {700.0}
    assert [m.text for m in scorer.all("kernel_messages")] == ["NVRM: Xid (PCI:0000:01:00): 79, pid=1"]
    found = sorted((s.gpu_index, s.dimension, s.unit) for s in scorer.all("samples"))
    assert found == [
        (-1, "host", "GB/s"), (0, "compute", "TFLOP/s"), (0, "memory", "GB/s"), (1, "compute", "TFLOP/s"), (1, "memory", "GB/s"),
    ]  # fmt: skip
    assert all(not s.run for s in scorer.all("samples"))
    # The place in the log is kept: nothing is told twice.
    node.run("agent", "--once", "--kernel-log", str(log), *told(node, scorer))
    assert len(scorer.all("kernel_messages")) == 1


def test_a_run_is_told_while_it_stands_and_when_it_is_over(node: Node, scorer: Scorer) -> None:
    process = node.start(
        "run", "gpu-throttle", "--gpu", "0", "--hold", "60s", "--param", "burn=1s", *told(node, scorer)
    )
    until(lambda: any(s.run for s in scorer.all("samples")))
    (active,) = scorer.all("runs")
    assert (active.phase, list(active.gpu_indices), active.HasField("ended")) == (1, [0], False)
    stop(process)
    assert process.returncode == 0
    assert [run.phase for run in scorer.all("runs")] == [1, 2]
    over = scorer.all("runs")[-1]
    assert over.started == active.started
    assert over.ended.ToNanoseconds() > over.started.ToNanoseconds()


def test_what_a_killed_agent_left_is_reverted_and_told_by_the_next(node: Node, scorer: Scorer) -> None:
    process = node.paused("run", "dcgm-inject", "--gpu", "0", *told(node, scorer), at="observe:seen")
    (file,) = node.open_files()
    kill(process)
    done = node.run("agent", "--once", *told(node, scorer))
    assert done.returncode == 0, done.stderr
    ends = [run for run in scorer.all("runs") if run.id == file.stem]
    assert ends[-1].phase == 2
    assert {residue.code for residue in ends[-1].residues} == {"xid:79", "field:230"}
    assert node.untouched()
    # Its dead-man goes: it saw that the run is closed, or was the first to revert it.
    log = node.state_dir / "journal" / "deadman.log"
    until(lambda: "the run was closed" in log.read_text() or "reverted, and read back" in log.read_text())


@pytest.mark.parametrize("at", ["inject:baseline", "revert"])
def test_a_killed_agent_is_cleaned_up_after_by_its_next_start(node: Node, scorer: Scorer, at: str) -> None:
    text = node.settings.read_text()
    node.settings.write_text(
        text.split("agent:")[0] + "agent:\n  pause: 50ms\n  allowInjection: true\n  experiments:\n"
        "  - {kind: dcgm-inject, every: 1h, hold: 10ms, params: {fault: nvlink}}\n"
    )
    process = node.paused("agent", *told(node, scorer), at=at)
    (file,) = node.open_files()
    assert not node.untouched()
    kill(process)
    node.settings.write_text(text)
    assert node.run("agent", "--once", *told(node, scorer)).returncode == 0
    assert node.untouched()
    assert node.open_files() == []
    assert [run.phase for run in scorer.all("runs") if run.id == file.stem][-1] == 2


def test_an_agent_tries_a_failed_revert_again_while_it_lives(node: Node, scorer: Scorer) -> None:
    process = node.paused("run", "gpu-throttle", "--gpu", "0", "--param", "burn=0", *told(node, scorer), at="observe")
    (file,) = node.open_files()
    kill(process)
    node.put(refuse=True)
    agent = node.start("agent", *told(node, scorer))

    def phases() -> list[int]:
        return [run.phase for run in scorer.all("runs") if run.id == file.stem]

    until(lambda: 3 in phases())
    assert not node.untouched()
    node.put(refuse=False)
    until(lambda: phases()[-1] == 2)
    assert node.untouched()
    stop(agent)
    assert agent.returncode == 0


def test_the_agent_measures_on_and_ends_well(node: Node, scorer: Scorer) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = node.start("agent", "--metrics-port", str(port), *told(node, scorer))
    until(lambda: len({(s.gpu_index, s.dimension) for s in scorer.all("samples")}) == 5)

    def metrics() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as page:
            return str(page.read(), "utf-8")

    until(lambda: 'chaos_probe_runs_total{kind="host-burn",result="good"} 1.0' in metrics())
    until(lambda: "chaos_probe_queue_records 0.0" in metrics())
    stop(process)
    assert process.returncode == 0


def test_sigterm_in_the_middle_of_an_injection_reverts_and_ends_with_0(node: Node, scorer: Scorer) -> None:
    text = node.settings.read_text().split("agent:")[0]
    node.settings.write_text(
        text + "agent:\n  pause: 50ms\n  allowInjection: true\n  experiments:\n"
        "  - {kind: gpu-throttle, every: 1h, hold: 60s, params: {burn: 0}}\n"
    )
    process = node.start("agent", *told(node, scorer))
    until(lambda: any(gpu["lock"] for gpu in node.state["gpus"]))
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=30)[0]
    assert process.returncode == 0, said
    assert node.untouched()
    assert [run.phase for run in scorer.all("runs")][-1] == 2


def test_an_agent_injects_only_where_it_may(node: Node, scorer: Scorer) -> None:
    text = node.settings.read_text().split("agent:")[0]
    for item in ("kind: dcgm-inject", "kind: host-burn, params: {neighbours: 1}"):
        node.settings.write_text(text + f"agent: {{experiments: [{{{item}}}]}}\n")
        done = node.run("agent", "--once", *told(node, scorer))
        assert done.returncode == 2
        assert "agent.allowInjection" in done.stderr


def test_the_agent_must_know_whom_to_tell(node: Node) -> None:
    done = node.run("agent", "--once")
    assert done.returncode == 2
    assert "--report-to HOST:PORT" in done.stderr


def test_reports_wait_on_disk_while_the_scorer_is_away(node: Node) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        address = ("--report-to", f"127.0.0.1:{port}", "--token-file", str(node.folder / "token"))
        process = node.start("agent", "--once", *address)
        process.communicate(timeout=60)
    assert process.returncode == 0
    assert Spool(node.state_dir / "queue.db", 10, 1 << 20).level().records >= 5
    scorer = Scorer()
    server = scorer.serve(f"127.0.0.1:{port}")
    try:
        node.run("run", "host-burn", "--param", "seconds=0.05", "--param", "mib=6", *address)
        assert len(scorer.all("samples")) == 6
        assert Spool(node.state_dir / "queue.db", 10, 1 << 20).level().records == 0
    finally:
        server.stop(0).wait()


@pytest.mark.parametrize(
    "code",
    [
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNAVAILABLE,
    ],
)
def test_what_is_not_taken_stays(tmp_path: Path, scorer: Scorer, code: grpc.StatusCode) -> None:
    queue, sender = sender_of(tmp_path, scorer.port)
    wire.queue_sample(queue, sample("a"))
    scorer.refuse = code
    assert sender.flush(attempts=1) is False
    assert sender.counts.last_error == f"{code.name}: as the test wants it"
    assert queue.level().records == 1
    scorer.refuse = None
    assert sender.flush() is True
    assert [s.id for s in scorer.all("samples")] == ["a"]
    sender.close()


def test_a_record_that_nobody_takes_does_not_block_the_others(tmp_path: Path, scorer: Scorer) -> None:
    queue, sender = sender_of(tmp_path, scorer.port)
    wire.queue_run(queue, RunRecord("r", "x", (), RunPhase.ACTIVE, 1.0))
    for name in ("a", "bad", "c"):
        wire.queue_sample(queue, sample(name))
    assert sender.flush() is True
    assert (sender.counts.sent, sender.counts.refused) == (3, 1)
    wire.queue_sample(queue, sample("d"))
    wire.queue_sample(queue, sample("e"))
    scorer.refuse = grpc.StatusCode.INVALID_ARGUMENT
    assert sender.flush() is True
    assert queue.level().lost == {"sample": 2}
    sender.close()


def test_a_record_whose_bytes_are_spoiled_does_not_block_the_others(tmp_path: Path, scorer: Scorer) -> None:
    queue, sender = sender_of(tmp_path, scorer.port)
    wire.queue_sample(queue, sample("a"))
    queue.put("sample", "spoiled", b"\xff\xff\xff")
    wire.queue_sample(queue, sample("c"))
    assert sender.flush() is True
    assert [s.id for s in scorer.all("samples")] == ["a", "c"]
    assert queue.level().lost == {"sample": 1}
    assert sender.counts.refused == 1
    sender.close()


def test_a_token_that_cannot_be_read_is_said_and_nothing_is_lost(tmp_path: Path, scorer: Scorer) -> None:
    queue, sender = sender_of(tmp_path, scorer.port)
    wire.queue_sample(queue, sample("a"))
    (tmp_path / "token").unlink()
    assert sender.flush() is False
    assert "token" in sender.counts.last_error
    (tmp_path / "token").write_text(TOKEN)
    assert sender.flush() is True
    sender.close()


def test_the_sender_works_by_itself_once_started(tmp_path: Path, scorer: Scorer) -> None:
    queue, sender = sender_of(tmp_path, scorer.port)
    sender.start()
    wire.queue_sample(queue, sample("a"))
    sender.wake()
    assert scorer.heard.wait(10)
    until(lambda: queue.level().records == 0)
    sender.close()


def test_doctor_and_reports_speak_tls_where_certificates_are_named(node: Node) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed: no certificate can be made")
    key, certificate = node.folder / "key.pem", node.folder / "certificate.pem"
    make = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    make += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(make, check=True, capture_output=True, timeout=60)
    scorer = Scorer()
    pair = [(key.read_bytes(), certificate.read_bytes())]
    server = scorer.serve("127.0.0.1:0", grpc.ssl_server_credentials(pair))
    told = ("--report-to", f"localhost:{scorer.port}", "--token-file", str(node.folder / "token"))

    def found(*more: str) -> tuple[str, str]:
        items = json.loads(node.run("doctor", *told, *more, "-o", "json").stdout)["items"]
        return next((item["status"], item["detail"]) for item in items if item["what"] == "scorer")

    try:
        assert found() == ("absent", f"localhost:{scorer.port} does not answer without TLS")
        assert found("--ca-file", str(certificate)) == ("ok", f"localhost:{scorer.port} answers with TLS")
        done = node.run("agent", "--once", *told, "--ca-file", str(certificate))
        assert done.returncode == 0, done.stderr
        assert len(scorer.all("samples")) == 5
    finally:
        server.stop(0).wait()


class Kubelet(podresources_pb2_grpc.PodResourcesListerServicer):
    def __init__(self, uuids: list[str], code: grpc.StatusCode | None = None) -> None:
        self._uuids, self._code = uuids, code

    def List(self, request: Any, context: grpc.ServicerContext) -> podresources_pb2.ListPodResourcesResponse:
        if self._code:
            context.abort(self._code, "no")
        devices = podresources_pb2.ContainerDevices(resource_name="nvidia.com/gpu", device_ids=self._uuids)
        other = podresources_pb2.ContainerDevices(resource_name="example.com/nic", device_ids=["7"])
        container = podresources_pb2.ContainerResources(devices=[devices, other])
        return podresources_pb2.ListPodResourcesResponse(
            pod_resources=[podresources_pb2.PodResources(containers=[container])]
        )


def kubelet_at(path: Path, *args: Any) -> grpc.Server:
    server = grpc.server(futures.ThreadPoolExecutor(1))
    podresources_pb2_grpc.add_PodResourcesListerServicer_to_server(Kubelet(*args), server)
    server.add_insecure_port(f"unix:{path}")
    server.start()
    return server


def test_a_gpu_that_a_pod_holds_is_left_alone(node: Node) -> None:
    server = kubelet_at(node.folder / "kubelet.sock", ["GPU-00000001"])
    try:
        outcome = node.json("run", "gpu-burn", "--param", "seconds=1", status=1)
        assert outcome["steps"][1]["detail"] == "GPU 1 is handed out to a pod; wait for it or drain the node"
        assert not any(call[0] == "gpu_burn" for call in node.state["calls"])
        node.json("run", "gpu-burn", "--gpu", "0", "--param", "seconds=1")
    finally:
        server.stop(0).wait()


def test_a_kubelet_that_does_not_answer_forbids(tmp_path: Path) -> None:
    assert handed_out(tmp_path / "none.sock") is None
    server = kubelet_at(tmp_path / "k.sock", [], grpc.StatusCode.PERMISSION_DENIED)
    try:
        with pytest.raises(ToolError, match="PERMISSION_DENIED"):
            handed_out(tmp_path / "k.sock")
    finally:
        server.stop(0).wait()


def test_a_job_on_the_gpu_forbids(node: Node) -> None:
    node.change_gpu(0, busy=True)
    outcome = node.json("run", "gpu-burn", "--param", "seconds=1", status=1)
    assert "GPU 0 has 1 compute process(es)" in outcome["steps"][1]["detail"]
    assert json.dumps(outcome["samples"]) == "[]"
