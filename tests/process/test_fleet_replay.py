"""The past as the agents would have sent it, to a real gRPC server; and the kubelet's socket."""

from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import pytest
from gpugrade.v1 import probe_pb2 as pb
from gpugrade.v1 import probe_pb2_grpc as rpc

from tools.fleet.create import create
from tools.fleet.history import BATCH, history
from tools.fleet.inventory import SILENT_S
from tools.fleet.node import Machine
from tools.fleet.podresources import RESOURCE, make_server
from tools.fleet.products import DIMENSIONS, UNITS
from tools.fleet.replay import replay
from tools.fleet.state import FleetDir, FleetError

NOW = 1_796_000_000.0
DAY = 86400.0
#: Starts a server and returns its address.
Serve: TypeAlias = Callable[["Scorer"], str]


@pytest.fixture
def fleet(tmp_path: Path) -> FleetDir:
    return create(tmp_path / "fleet", 1, 16, 8, NOW)


def at(sample: pb.Sample) -> float:
    return sample.at.ToMicroseconds() / 1e6


def test_history_has_rounds_of_all_dimensions_up_to_now(fleet: FleetDir) -> None:
    name = next(n.name for n in fleet.nodes() if not n.silent)
    reports = list(history(fleet, name, NOW - 14 * DAY, NOW))
    samples = [s for r in reports for s in r.samples]
    assert len(samples) == 28 * 8 * len(DIMENSIONS)
    assert all(len(r.samples) <= BATCH for r in reports)
    assert len({s.id for s in samples}) == len(samples)
    assert all(NOW - 14 * DAY <= at(s) < NOW for s in samples)
    assert NOW - max(map(at, samples)) < 3 * 3600
    assert [len(r.gpus) for r in reports] == [8] + [0] * (len(reports) - 1)
    assert {s.dimension: s.unit for s in samples} == dict(UNITS)
    for gpu in range(8):
        assert {s.dimension for s in samples if s.gpu_index == gpu} == set(DIMENSIONS)
    assert all(s.status == pb.SAMPLE_STATUS_OK and s.value > 0 for s in samples)
    assert all(s.context.sm_clock_mhz > 1000 for s in samples if s.dimension == "compute")


def test_the_same_history_is_the_same_to_the_byte(fleet: FleetDir) -> None:
    def once() -> list[bytes]:
        return [r.SerializeToString(deterministic=True) for r in history(fleet, fleet.names[3], NOW - 3 * DAY, NOW)]

    assert once() == once()


def test_history_agrees_with_the_live_tools(fleet: FleetDir) -> None:
    node = next(n for n in fleet.nodes() if not n.silent)
    sample = next(s for r in history(fleet, node.name, NOW - DAY, NOW) for s in r.samples if s.dimension == "memory")
    live = Machine(node, fleet.state(node.name)).measure(node.gpus[sample.gpu_index], "memory", at(sample))
    assert sample.value == pytest.approx(live, rel=1e-9)


def test_the_silent_node_has_no_recent_sample(fleet: FleetDir) -> None:
    silent = next(n for n in fleet.nodes() if n.silent)
    times = [at(s) for r in history(fleet, silent.name, NOW - 14 * DAY, NOW) for s in r.samples]
    assert times
    assert NOW - max(times) > SILENT_S - 600


def test_a_lost_gpu_fails_from_then_on_and_its_kernel_line_is_reported(fleet: FleetDir) -> None:
    name = next(n.name for n in fleet.nodes() if not n.silent)
    fleet.change(name, lambda state: state["faults"].append([2, "lost", NOW - 2 * DAY, 0.0]))
    fleet.log(name, ["2026-11-28T12:00:00.000000Z NVRM: Xid (PCI:0000:3a:00): 79, GPU has fallen off the bus."])
    reports = list(history(fleet, name, NOW - 7 * DAY, NOW))
    failed = [s for r in reports for s in r.samples if s.status == pb.SAMPLE_STATUS_FAILED]
    assert failed
    assert {s.gpu_index for s in failed} == {2}
    assert not any(s.HasField("value") for s in failed)
    assert min(map(at, failed)) >= NOW - 2 * DAY


def test_the_kernel_log_of_the_time_is_reported(fleet: FleetDir) -> None:
    broken = next(n for n in fleet.names if any(f[1] == "dbe" for f in fleet.state(n)["faults"]))
    messages = [m.text for r in history(fleet, broken, NOW - 7 * DAY, NOW) for m in r.kernel_messages]
    assert len(messages) == 1
    assert "Xid (PCI:" in messages[0]
    assert ": 48, " in messages[0]


@pytest.mark.parametrize(("start", "end", "every"), [(NOW, NOW, 3600.0), (NOW, NOW - 1, 3600.0), (NOW - DAY, NOW, 1.0)])
def test_times_that_make_no_history_are_refused(fleet: FleetDir, start: float, end: float, every: float) -> None:
    with pytest.raises(ValueError, match="start before its end"):
        list(history(fleet, fleet.names[0], start, end, every))


class Scorer(rpc.ProbeIngestServicer):
    """Keeps what it is sent; away for the first calls, and strict about tokens."""

    def __init__(self, tokens: dict[str, str], away: int = 0) -> None:
        self.tokens = tokens
        self.away = away
        self.ids: set[str] = set()
        self.calls = 0

    def Report(self, request: pb.ReportRequest, context: grpc.ServicerContext) -> pb.ReportResponse:
        self.calls += 1
        if self.calls <= self.away:
            context.abort(grpc.StatusCode.UNAVAILABLE, "starting")
        sent = dict(context.invocation_metadata()).get("authorization")
        if sent != f"Bearer {self.tokens[request.node]}":
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "a token that is not the node's")
        new = {s.id for s in request.samples} - self.ids
        self.ids |= new
        return pb.ReportResponse(accepted=len(new), duplicates=len(request.samples) - len(new))


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers: list[grpc.Server] = []

    def start(scorer: Scorer) -> str:
        server = grpc.server(futures.ThreadPoolExecutor(max_workers=2))
        rpc.add_ProbeIngestServicer_to_server(scorer, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        servers.append(server)
        return f"127.0.0.1:{port}"

    yield start
    for server in servers:
        server.stop(None).wait()


def test_replay_sends_all_and_twice_is_once(fleet: FleetDir, serve: Serve) -> None:
    scorer = Scorer({n: fleet.token(n) for n in fleet.names}, away=2)
    address = serve(scorer)
    seen: list[tuple[int, int]] = []
    first = replay(fleet, address, NOW - 2 * DAY, NOW, 12 * 3600.0, lambda done, total, _: seen.append((done, total)))
    assert seen == [(n, 16) for n in range(1, 17)]
    # Four rounds of each node but the silent one, whose agent was silent by then.
    assert first.accepted == len(scorer.ids) == 15 * 4 * 8 * len(DIMENSIONS)
    again = replay(fleet, address, NOW - 2 * DAY, NOW, 12 * 3600.0)
    assert (again.accepted, again.duplicates) == (0, first.accepted)
    assert not again.refused


def test_a_refused_report_ends_the_replay_with_the_reason(fleet: FleetDir, serve: Serve) -> None:
    address = serve(Scorer(dict.fromkeys(fleet.names, "another")))
    with pytest.raises(FleetError, match=r"UNAUTHENTICATED: a token"):
        replay(fleet, address, NOW - DAY, NOW, 12 * 3600.0)


def fields(raw: bytes) -> list[tuple[int, Any]]:
    """A protobuf message's fields, read by number: varints and length-delimited ones."""
    found: list[tuple[int, Any]] = []
    place = 0

    def varint() -> int:
        nonlocal place
        value = shift = 0
        while True:
            byte = raw[place]
            place += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return value

    while place < len(raw):
        key = varint()
        if key & 7 == 0:
            found.append((key >> 3, varint()))
        else:
            assert key & 7 == 2
            size = varint()
            found.append((key >> 3, raw[place : place + size]))
            place += size
    return found


def ask(channel: grpc.Channel, method: str) -> bytes:
    call: Any = channel.unary_unary(f"/v1.PodResourcesLister/{method}")
    return bytes(call(b"", timeout=10))


def test_podresources_lists_the_pods_that_hold_gpus(fleet: FleetDir, tmp_path: Path) -> None:
    name = fleet.names[0]
    node = fleet.node(name)
    pod = {"pid": 1, "name": "python3", "mib": 10, "pod": "ml/train-0"}
    fleet.change(name, lambda state: state["processes"].extend([{**pod, "gpu": 1}, {**pod, "gpu": 6}]))
    socket = tmp_path / "kubelet.sock"
    server = make_server(fleet, name, socket, lambda: NOW)
    server.start()
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        listed, offered = (ask(channel, method) for method in ("List", "GetAllocatableResources"))
    server.stop(None).wait()
    ((number, message),) = fields(listed)
    assert number == 1
    found = dict(fields(message))
    assert (found[1], found[2]) == (b"train-0", b"ml")
    devices = [dict(fields(value)) for number, value in fields(found[3]) if number == 2]
    assert [d[2].decode() for d in devices] == [node.gpus[1].uuid, node.gpus[6].uuid]
    assert all(d[1].decode() == RESOURCE for d in devices)
    assert fields(fields(devices[1][3])[0][1]) == [(1, 1)]
    assert len(fields(offered)) == 8
