"""The scheduler's door on a real port: what clients of every sort do to it."""

import http.client
import json
import socket
from collections.abc import Iterator

import pytest

from scorer.model.policy import Mode, PlacementPolicy
from scorer.serve.state import ServingState
from tests.placement_servers import DEADLINE, client, extender, state_of
from tests.placement_worlds import pod_facts, pod_json, world_of

LIMIT = 1024 * 1024
GOOD = json.dumps({"Pod": pod_json(pod_facts(8)), "Nodes": None, "NodeNames": ["good", "slow"]}).encode()


@pytest.fixture(scope="module")
def state() -> ServingState:
    policy = PlacementPolicy(mode=Mode.ENFORCE, max_body_bytes=LIMIT)
    return state_of(world_of({"good": 1.0, "slow": 1.3}, policy=policy))


@pytest.fixture(scope="module")
def port(state: ServingState) -> Iterator[int]:
    with extender(state) as found:
        yield found


def post(connection: http.client.HTTPConnection, verb: str, body: bytes) -> tuple[int, dict[str, object]]:
    connection.request("POST", f"/scheduler/{verb}", body)
    response = connection.getresponse()
    return response.status, json.loads(response.read())


def works(connection: http.client.HTTPConnection) -> bool:
    return post(connection, "filter", GOOD)[1]["NodeNames"] == ["good"]


BAD = {
    "truncated": GOOD[: len(GOOD) // 2],
    "wrong types": b'{"Pod":{"metadata":{"name":"p"}},"NodeNames":{"a":1}}',
    "no pod": b'{"Pod":null,"Nodes":null,"NodeNames":["good"]}',
    "no nodes": b'{"Pod":{"metadata":{"name":"p"}},"Nodes":null,"NodeNames":null}',
    "empty": b"",
    "duplicate": b'{"Pod":{"metadata":{"name":"p"}},"Nodes":null,"NodeNames":["good","good"]}',
}


@pytest.mark.parametrize("body", BAD.values(), ids=BAD)
def test_bad_bodies_are_told_where_the_scheduler_reads_and_the_connection_lives(port: int, body: bytes) -> None:
    with client(port) as connection:
        status, answer = post(connection, "filter", body)
        assert (status, answer["NodeNames"], answer["Nodes"]) == (200, None, None)
        assert answer["Error"]
        first = connection.sock
        status, answer = post(connection, "prioritize", body)
        assert (status, list(answer)) == (400, ["error"])
        assert works(connection)
        assert connection.sock is first


def test_bad_preempt_gets_an_error_status(port: int) -> None:
    with client(port) as connection:
        assert post(connection, "preempt", b'{"Pod":')[0] == 400
        assert works(connection)


@pytest.mark.parametrize(("verb", "status"), [("filter", 200), ("prioritize", 400), ("preempt", 413)])
def test_a_hundred_mebibytes_are_refused_and_the_connection_lives(port: int, verb: str, status: int) -> None:
    size = 100 * 1024 * 1024
    with client(port) as connection:
        connection.putrequest("POST", f"/scheduler/{verb}")
        connection.putheader("Content-Length", str(size))
        connection.endheaders()
        piece = b" " * LIMIT
        for _ in range(size // LIMIT):
            connection.send(piece)
        response = connection.getresponse()
        told = json.loads(response.read())
        assert response.status == status
        assert f"the body has {size} bytes; at most {LIMIT}" in (told.get("Error") or told["error"])
        assert works(connection)


def test_a_declared_length_above_the_limit_is_refused_unread(port: int) -> None:
    with client(port) as connection:
        connection.putrequest("POST", "/scheduler/filter")
        connection.putheader("Content-Length", str(LIMIT + 1))
        connection.endheaders()
        # Not one byte of the body was sent.
        assert "at most" in json.loads(connection.getresponse().read())["Error"]


def chunks(total: int) -> Iterator[bytes]:
    for _ in range(total // 65536):
        yield b" " * 65536


def test_a_chunked_body_above_the_limit_is_refused(port: int) -> None:
    with client(port) as connection:
        connection.request("POST", "/scheduler/prioritize", chunks(LIMIT + 65536), encode_chunked=True)
        response = connection.getresponse()
        assert response.status == 400
        assert f"more than {LIMIT} bytes" in json.loads(response.read())["error"]
    with client(port) as connection:
        assert works(connection)


def send_for_ever(raw: socket.socket, piece: bytes) -> None:
    for _ in range(100_000):
        raw.sendall(piece)


def test_an_endless_chunked_body_is_cut(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE) as raw:
        raw.sendall(b"POST /scheduler/filter HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        piece = b"10000\r\n" + b" " * 65536 + b"\r\n"
        with pytest.raises(ConnectionError):
            send_for_ever(raw, piece)
    with client(port) as connection:
        assert works(connection)


def test_a_good_chunked_body_is_answered(port: int) -> None:
    with client(port) as connection:
        parts = (GOOD[i : i + 50] for i in range(0, len(GOOD), 50))
        connection.request("POST", "/scheduler/filter", parts, encode_chunked=True)
        assert json.loads(connection.getresponse().read())["NodeNames"] == ["good"]


def test_a_client_that_leaves_midway_harms_nobody(state: ServingState, port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE) as raw:
        raw.sendall(b"POST /scheduler/filter HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
    with client(port) as connection:
        assert works(connection)


def test_a_body_that_never_comes_is_given_up() -> None:
    with (
        extender(state_of(world_of({"good": 1.0})), patience=0.05) as port,
        socket.create_connection(("127.0.0.1", port), timeout=DEADLINE) as raw,
    ):
        raw.sendall(b"POST /scheduler/prioritize HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
        answer = b""
        while piece := raw.recv(4096):
            answer += piece
        assert answer.startswith(b"HTTP/1.1 400")
        assert b"the body did not arrive within 0.05 s" in answer


def test_methods_and_paths(port: int) -> None:
    with client(port) as connection:
        connection.request("GET", "/scheduler/filter")
        response = connection.getresponse()
        assert (response.status, response.getheader("Allow")) == (405, "POST")
        response.read()
        assert post(connection, "bind", b"{}")[0] == 404
        assert works(connection)


def test_a_new_world_is_served_from_the_next_request_on() -> None:
    state = state_of(world_of({"good": 1.0, "slow": 1.3}))
    with extender(state) as port, client(port) as connection:
        assert works(connection)
        state.replace(world_of({"good": 1.3, "slow": 1.0}))
        assert post(connection, "filter", GOOD)[1]["NodeNames"] == ["slow"]
