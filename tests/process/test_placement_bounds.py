"""The scheduler's door and clients without manners: heads without end, silence, requests in line, crowds."""

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from scorer.model.policy import Mode, PlacementPolicy
from scorer.serve.http_protocol import MAX_HEAD_BYTES, MAX_PIPELINED, BoundedProtocol
from scorer.serve.state import ServingState
from tests.placement_servers import DEADLINE, client, extender, state_of
from tests.placement_worlds import pod_facts, pod_json, world_of

GOOD = json.dumps({"Pod": pod_json(pod_facts(8)), "Nodes": None, "NodeNames": ["good", "slow"]}).encode()
REQUEST = b"POST /scheduler/filter HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(GOOD) + GOOD


class Hasty(BoundedProtocol):
    head_timeout_s = 0.3


class Narrow(BoundedProtocol):
    max_connections = 3


@pytest.fixture(scope="module")
def state() -> ServingState:
    return state_of(world_of({"good": 1.0, "slow": 1.3}, policy=PlacementPolicy(mode=Mode.ENFORCE)))


@pytest.fixture
def port(state: ServingState) -> Iterator[int]:
    with extender(state) as found:
        yield found


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=DEADLINE)


def ask(connection: http.client.HTTPConnection) -> object:
    connection.request("POST", "/scheduler/filter", GOOD)
    return json.loads(connection.getresponse().read())["NodeNames"]


def flood(raw: socket.socket, data: bytes, times: int) -> None:
    for _ in range(times):
        raw.sendall(data)


def is_closed(raw: socket.socket) -> bool:
    """Whether the other side ends the connection without a word."""
    try:
        return raw.recv(1) == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (b"POST /", b"a" * 1000),
        (b"POST / HTTP/1.1\r\nX: ", b"a" * 1000),
        (b"POST / HTTP/1.1\r\n", b"X-Many: 1\r\n" * 90),
    ],
    ids=["address", "one header", "many headers"],
)
def test_a_head_without_end_is_cut_and_others_are_answered(port: int, begin: bytes, more: bytes) -> None:
    with closing(connect(port)) as raw, client(port) as other:
        raw.sendall(begin)
        with pytest.raises(ConnectionError):
            flood(raw, more, 100 * MAX_HEAD_BYTES // len(more))
        assert ask(other) == ["good"]


@pytest.mark.parametrize("first", [b"", b"PO", REQUEST + b"POST /sch"], ids=["silence", "a piece", "a second piece"])
def test_a_head_that_does_not_come_is_not_awaited_for_ever(state: ServingState, first: bytes) -> None:
    with extender(state, protocol=Hasty) as port, closing(connect(port)) as raw:
        raw.sendall(first)
        if first.startswith(REQUEST):
            response = http.client.HTTPResponse(raw)
            response.begin()
            assert json.loads(response.read())["NodeNames"] == ["good"]
            raw.sendall(b"eduler")
        assert is_closed(raw)


def test_a_connection_that_rests_between_requests_lives(state: ServingState) -> None:
    with extender(state, protocol=Hasty) as port, client(port) as resting, closing(connect(port)) as silent:
        assert ask(resting) == ["good"]
        first = resting.sock
        # The wait for a head has run out for the one that never sent one, so it has for the other, were it running.
        assert is_closed(silent)
        assert ask(resting) == ["good"]
        assert resting.sock is first


def test_requests_in_line_are_answered_in_order_up_to_the_bound(port: int) -> None:
    with closing(connect(port)) as raw:
        raw.sendall(REQUEST * MAX_PIPELINED)
        with raw.makefile("rb") as answers:
            for _ in range(MAX_PIPELINED):
                assert answers.readline() == b"HTTP/1.1 200 OK\r\n"
                headers = dict(line.split(b": ") for line in iter(answers.readline, b"\r\n"))
                assert json.loads(answers.read(int(headers[b"content-length"])))["NodeNames"] == ["good"]


def test_a_line_without_end_is_cut(port: int) -> None:
    with closing(connect(port)) as raw, client(port) as other:
        with pytest.raises(ConnectionError):
            flood(raw, REQUEST * 10 * MAX_PIPELINED, 20)
        assert ask(other) == ["good"]


def test_a_crowd_does_not_push_out_those_who_came_before(state: ServingState) -> None:
    with extender(state, protocol=Narrow) as port, client(port) as first:
        assert ask(first) == ["good"]
        crowd = [connect(port) for _ in range(6)]
        try:
            assert sum(is_closed(raw) for raw in crowd[2:]) == 4
            assert ask(first) == ["good"]
        finally:
            for raw in crowd:
                raw.close()
