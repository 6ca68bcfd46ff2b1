"""A server as a real process, for the tests that ask one."""

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from gpugrade.v1 import grading_pb2, grading_pb2_grpc, probe_pb2_grpc
from gpugrade.v1 import probe_pb2 as pb

from tests.service_support import TOKEN, until, write_fleet

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
