"""What the service's tests share: a deadline helper, a small fleet, reports, and misbehaving exporters."""

import hashlib
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from google.protobuf.timestamp_pb2 import Timestamp
from gpugrade.v1 import probe_pb2 as pb

from scorer.model.dimension import Dimension
from scorer.model.evidence import Sample

TOKEN = "correct horse battery staple"


def until(condition: Callable[[], object], what: str, seconds: float = 20.0) -> object:
    """Poll until ``condition`` is true; fail with ``what`` at the deadline."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds} s: {what}")


def fleet_document(nodes: int = 4, gpus: int = 2, **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": "config.gpugrade.dev/v1alpha1",
        "kind": "Fleet",
        "nodes": [
            {
                "name": f"gpu-{i}",
                "labels": {"example.dev/rack": f"r{i // 2}"},
                "gpus": gpus,
                "product": "NVIDIA H100 80GB HBM3",
                "probeTokenSha256": hashlib.sha256(f"{TOKEN} {i}".encode()).hexdigest(),
            }
            for i in range(nodes)
        ],
        "topology": [{"name": "fabric", "keys": ["example.dev/rack"]}],
        **more,
    }


def write_fleet(path: Path, document: dict[str, Any] | None = None) -> Path:
    path.write_text(yaml.safe_dump(document or fleet_document()))
    return path


def stamp(at: float) -> Timestamp:
    seconds = math.floor(at)
    return Timestamp(seconds=seconds, nanos=round((at - seconds) * 1e9))


def pb_sample(name: str, when: float, gpu: int = 0, **more: Any) -> pb.Sample:
    fields: dict[str, Any] = {
        "id": name,
        "at": stamp(when),
        "gpu_index": gpu,
        "dimension": "compute",
        "value": 700.0,
        "unit": "TFLOP/s",
        "status": pb.SAMPLE_STATUS_OK,
        "source": "gpu-burn",
    }
    return pb.Sample(**{key: v for key, v in {**fields, **more}.items() if v is not None})


def sample(name: str, at: float, node: str = "gpu-0", gpu: int = 0, value: float = 700.0, **more: Any) -> Sample:
    return Sample(name, at, node, gpu, "", Dimension.COMPUTE, value, **more)


@contextmanager
def raw_server(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """A TCP server that reads a request and then does what ``answer`` does; yields its URL."""
    server = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []

    def serve(peer: socket.socket) -> None:
        with peer:
            peer.settimeout(10)
            try:
                data = b""
                while b"\r\n\r\n" not in data:
                    piece = peer.recv(4096)
                    if not piece:
                        return
                    data += piece
                answer(peer)
            except OSError:
                return

    def accept() -> None:
        while True:
            try:
                peer, _ = server.accept()
            except OSError:
                return
            thread = threading.Thread(target=serve, args=(peer,), daemon=True)
            thread.start()
            threads.append(thread)

    acceptor = threading.Thread(target=accept, daemon=True)
    acceptor.start()
    try:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/metrics"
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        acceptor.join(5)
        for thread in threads:
            thread.join(10)


def http_answer(body: bytes, head: str = "", status: str = "200 OK", length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return f"HTTP/1.1 {status}\r\nContent-Length: {size}\r\nConnection: close\r\n{head}\r\n".encode() + body
