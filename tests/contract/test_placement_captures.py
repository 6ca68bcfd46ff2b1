"""Bodies that a real kube-scheduler sent, replayed through a real server by a real client."""

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scorer.model.policy import Mode
from tests.placement_servers import client, extender, state_of
from tests.placement_worlds import world_of

#: The five fake nodes of the captures; the fourth is red for a pod of two GPUs.
NODES = {"gpu-node-0": 1.0, "gpu-node-1": 0.96, "gpu-node-2": 1.03, "gpu-node-3": 1.4, "gpu-node-4": float("nan")}


@pytest.fixture(scope="module")
def connection() -> Iterator[http.client.HTTPConnection]:
    with extender(state_of(world_of(NODES, mode=Mode.ENFORCE))) as port, client(port) as found:
        yield found


def replay(connection: http.client.HTTPConnection, verb: str, body: bytes) -> Any:
    headers = {"Content-Type": "application/json", "User-Agent": "Go-http-client/1.1", "Accept-Encoding": "gzip"}
    connection.request("POST", f"/scheduler/{verb}", body, headers)
    response = connection.getresponse()
    answer = response.read()
    assert response.status == 200
    assert response.getheader("Content-Length") == str(len(answer))
    assert len(response.getheader("X-Gpugrade-Decision", "")) == 16
    return json.loads(answer)


def test_filter_by_names(shared: Path, connection: http.client.HTTPConnection) -> None:
    body = (shared / "captures" / "filter_nodecache_true.request.json").read_bytes()
    answer = replay(connection, "filter", body)
    asked = json.loads(body)["NodeNames"]
    assert answer["NodeNames"] == [n for n in asked if n != "gpu-node-3"]
    assert list(answer["FailedAndUnresolvableNodes"]) == ["gpu-node-3"]
    assert (answer["Nodes"], answer["FailedNodes"], answer["Error"]) == (None, {}, "")


def test_filter_by_whole_nodes_returns_them_unchanged(shared: Path, connection: http.client.HTTPConnection) -> None:
    body = (shared / "captures" / "filter_nodecache_false.request.json").read_bytes()
    answer = replay(connection, "filter", body)
    asked = json.loads(body)["Nodes"]["items"]
    assert answer["Nodes"]["items"] == [n for n in asked if n["metadata"]["name"] != "gpu-node-3"]
    assert list(answer["FailedAndUnresolvableNodes"]) == ["gpu-node-3"]
    assert answer["NodeNames"] is None


@pytest.mark.parametrize("kind", ["true", "false"])
def test_prioritize_ranks_every_asked_node(shared: Path, connection: http.client.HTTPConnection, kind: str) -> None:
    body = (shared / "captures" / f"prioritize_nodecache_{kind}.request.json").read_bytes()
    answer = replay(connection, "prioritize", body)
    asked = json.loads(body)
    names = asked["NodeNames"] or [n["metadata"]["name"] for n in asked["Nodes"]["items"]]
    assert [entry["Host"] for entry in answer] == names
    scores = {entry["Host"]: entry["Score"] for entry in answer}
    assert all(type(score) is int and 0 <= score <= 10 for score in scores.values())
    best = sorted((n for n in names if n != "gpu-node-4"), key=lambda n: NODES[n])
    assert [scores[n] for n in best] == sorted((scores[n] for n in best), reverse=True)
    assert scores[best[0]] > scores["gpu-node-4"]


def test_preempt_keeps_the_victims_of_nodes_that_may_be_used(
    shared: Path, connection: http.client.HTTPConnection
) -> None:
    body = (shared / "captures" / "preempt_nodecache_true.request.json").read_bytes()
    answer = replay(connection, "preempt", body)
    # Node 3 is not among the candidates, so all are kept as given.
    assert answer == {"NodeNameToMetaVictims": json.loads(body)["NodeNameToMetaVictims"]}


def test_one_connection_serves_all(shared: Path) -> None:
    captures = shared / "captures"
    with extender(state_of(world_of(NODES))) as port, client(port) as connection:
        connection.connect()
        first = connection.sock
        for _ in range(5):
            for verb in ("filter", "prioritize"):
                for kind in ("true", "false"):
                    replay(connection, verb, (captures / f"{verb}_nodecache_{kind}.request.json").read_bytes())
        assert connection.sock is first
