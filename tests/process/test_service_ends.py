"""How the server begins and ends: signals, ports in use, bad files, wrong arguments."""

import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.process.service_server import command, report, serving
from tests.service_support import pb_sample, until, write_fleet


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
