"""The exporters' server over a real port: well, and as it is told to misbehave."""

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from tools.fleet.create import create
from tools.fleet.node import now
from tools.fleet.server import Exporters, break_exporter
from tools.fleet.state import FleetDir

#: Opens a connection to the server.
Connect: TypeAlias = Callable[..., http.client.HTTPConnection]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def fleet(tmp_path: Path) -> FleetDir:
    return create(tmp_path / "fleet", 1, 4, 8, now())


@pytest.fixture
def server(fleet: FleetDir) -> Iterator[Exporters]:
    server = Exporters(fleet, ("127.0.0.1", 0))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join(10)
    assert not thread.is_alive()


@pytest.fixture
def connect(server: Exporters) -> Iterator[Connect]:
    opened: list[http.client.HTTPConnection] = []

    def make(timeout: float = 10.0) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=timeout)
        opened.append(connection)
        return connection

    yield make
    for connection in opened:
        connection.close()


def get(connection: http.client.HTTPConnection, path: str) -> tuple[int, str, str]:
    connection.request("GET", path)
    response = connection.getresponse()
    body = response.read()
    assert int(response.headers["Content-Length"]) == len(body)
    return response.status, str(response.headers["Content-Type"]), body.decode()


def metrics(connection: http.client.HTTPConnection, node: str) -> tuple[int, str, str]:
    return get(connection, f"/node/{node}/metrics")


def test_every_node_on_one_connection(fleet: FleetDir, connect: Connect) -> None:
    connection = connect()
    for name in fleet.names:
        status, kind, body = metrics(connection, name)
        assert status == 200
        assert kind.startswith("text/plain; version=0.0.4")
        assert body.count(f'Hostname="{name}"') > 200
        assert len(set(re.findall(r'gpu="(\d)"', body))) == 8
    assert get(connection, "/")[0] == 200


@pytest.mark.parametrize("path", ["/node/nobody/metrics", "/metrics", "/node/../fleet.json/metrics", "/node"])
def test_other_paths_are_not_found(connect: Connect, path: str) -> None:
    assert get(connect(), path)[0] == 404


def test_a_change_shows_at_the_next_scrape(fleet: FleetDir, connect: Connect) -> None:
    connection, name = connect(), fleet.names[0]
    assert 'DCGM_FI_DEV_ENFORCED_POWER_LIMIT{gpu="0"' in metrics(connection, name)[2]
    assert re.search(r'ENFORCED_POWER_LIMIT\{gpu="0".*\} 700\n', metrics(connection, name)[2])
    fleet.change(name, lambda state: state["gpus"]["0"].update(power_limit=450.0))
    assert re.search(r'ENFORCED_POWER_LIMIT\{gpu="0".*\} 450\n', metrics(connection, name)[2])


def test_a_login_page(fleet: FleetDir, connect: Connect) -> None:
    break_exporter(fleet, fleet.names[0], "html")
    status, kind, body = metrics(connect(), fleet.names[0])
    assert (status, kind) == (200, "text/html")
    assert "<html>" in body


def test_half_an_answer(fleet: FleetDir, connect: Connect) -> None:
    break_exporter(fleet, fleet.names[0], "half")
    connection = connect()
    connection.request("GET", f"/node/{fleet.names[0]}/metrics")
    with pytest.raises(http.client.IncompleteRead) as cut:
        connection.getresponse().read()
    assert len(cut.value.partial) > 1000
    assert metrics(connect(), fleet.names[1])[0] == 200


def test_no_answer_while_others_are_served(fleet: FleetDir, server: Exporters, connect: Connect) -> None:
    break_exporter(fleet, fleet.names[0], "hang")
    hanging = connect(timeout=0.3)
    hanging.request("GET", f"/node/{fleet.names[0]}/metrics")
    with pytest.raises(TimeoutError):
        hanging.getresponse()
    assert metrics(connect(), fleet.names[1])[0] == 200
    break_exporter(fleet, fleet.names[0], "ok")
    assert metrics(connect(), fleet.names[0])[0] == 200


def test_gone(fleet: FleetDir, connect: Connect) -> None:
    break_exporter(fleet, fleet.names[0], "gone")
    connection = connect()
    connection.request("GET", f"/node/{fleet.names[0]}/metrics")
    with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
        connection.getresponse()


def test_frozen(fleet: FleetDir, connect: Connect) -> None:
    connection, name = connect(), fleet.names[0]
    break_exporter(fleet, name, "frozen")
    first = metrics(connection, name)
    fleet.change(name, lambda state: state["gpus"]["0"].update(power_limit=450.0))
    assert metrics(connection, name) == first
    break_exporter(fleet, name, "ok")
    assert metrics(connection, name) != first


def test_a_mode_that_does_not_exist(fleet: FleetDir) -> None:
    with pytest.raises(ValueError, match="hang"):
        break_exporter(fleet, fleet.names[0], "explode")


def test_the_command_serves_and_ends_on_sigterm(fleet: FleetDir) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tools.fleet", "serve", "--state", str(fleet.path), "--port", "0"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        said = re.search(r":(\d+)/", process.stdout.readline())
        assert said is not None
        port = int(said.group(1))
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        assert metrics(connection, fleet.names[0])[0] == 200
        connection.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


def test_a_port_in_use_is_said(fleet: FleetDir) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        result = subprocess.run(
            [
                sys.executable,
                "-m",
                "tools.fleet",
                "serve",
                "--state",
                fleet.path,
                "--port",
                str(taken.getsockname()[1]),
            ],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    assert result.returncode == 2
    assert "cannot listen" in result.stderr
