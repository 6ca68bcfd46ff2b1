"""Measuring: one cell is one size and number of connections on one server."""

import json
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc
from gpugrade.v1 import placement_pb2, placement_pb2_grpc

from tools.bench import load
from tools.bench.fleet import Job, body_of, orders, pod_object


@dataclass(frozen=True, slots=True)
class Latency:
    """Of one verb in one cell, in milliseconds."""

    p50: float
    p99: float

    @classmethod
    def of(cls, timings: load.Timings) -> "Latency":
        """The quantiles of what was measured."""
        return cls(timings.quantile(0.5), timings.quantile(0.99))


@dataclass(frozen=True, slots=True)
class Server:
    """A server under load."""

    pid: int
    port: int


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far; NaN where the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    except OSError:
        return math.nan
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def paired_requests(server: Server, names: int, job: Job) -> list[load.Request]:
    """What a scheduler sends: filter, then prioritize with the names that passed.

    Args:
        server: ours; it is asked once which names pass.
        names: of nodes.
        job: what is placed.

    Raises:
        RuntimeError: an answer leaves out a name.
    """
    pairs: list[load.Request] = []
    for order in orders(names):
        question = load.request_of("filter", body_of(job, order))
        answer = json.loads(load.ask(server.port, question))
        if len(answer["NodeNames"]) + len(answer["FailedAndUnresolvableNodes"]) != names:
            raise RuntimeError(f"filter did not answer all of {names} names: {answer['Error']}")
        pairs += [question, load.request_of("prioritize", body_of(job, answer["NodeNames"]))]
    return pairs


def measure(server: Server, requests: Sequence[load.Request], connections: int, seconds: float) -> dict[str, Latency]:
    """Latencies by verb."""
    return {verb: Latency.of(t) for verb, t in load.run(server.port, requests, connections, seconds).items()}


def http_cpu(server: Server, names: int, seconds: float) -> float:
    """Milliseconds of server time that a prioritize takes whose names the server has not just answered itself."""
    requests = [load.request_of("prioritize", body_of(Job(), order)) for order in orders(names)]
    before = cpu_seconds(server.pid)
    timings = load.run(server.port, requests, 1, seconds)["prioritize"]
    # The first tenth of the time is not in the timings.
    return (cpu_seconds(server.pid) - before) * 1e3 / (len(timings.seconds) / 0.9)


def grpc_score(server: Server, names: int, seconds: float) -> tuple[Latency, float]:
    """Latency of Score on one connection, the Python client included, and milliseconds of server time a call."""
    pod = json.dumps(pod_object(Job())).encode()
    requests = [placement_pb2.ScoreRequest(pod_json=pod, node_names=order) for order in orders(names)]
    timings = load.Timings()
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        stub = placement_pb2_grpc.PlacementStub(channel)
        stub.Score(requests[0], timeout=load.TIMEOUT)
        before, start = cpu_seconds(server.pid), time.perf_counter()
        while time.perf_counter() < start + seconds:
            began = time.perf_counter()
            stub.Score(requests[len(timings.seconds) % len(requests)], timeout=load.TIMEOUT)
            timings.seconds.append(time.perf_counter() - began)
        spent = cpu_seconds(server.pid) - before
    return Latency.of(timings), spent * 1e3 / len(timings.seconds)
