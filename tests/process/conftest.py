"""An emulated fleet with a running server behind it: what the tests of the whole chain share."""

import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.conftest import ROOT
from tests.service_support import until
from tools.fleet.create import create
from tools.fleet.fleetfile import fleet_file
from tools.fleet.replay import replay
from tools.fleet.server import Exporters
from tools.fleet.state import FleetDir

DAY = 86400.0


@dataclass(frozen=True)
class WholeChain:
    """A fleet that was measured for two weeks, and the server that has graded it.

    Attributes:
        fleet: the emulator's state, which knows the truth.
        ports: of the server: scheduler, grpc, admin.
        env: for commands that ask the server or work on an emulated node.
        home: folder with ``fleet.yaml``.
    """

    fleet: FleetDir
    ports: dict[str, int]
    env: dict[str, str]
    home: Path


@pytest.fixture(scope="session")
def whole_chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeChain]:
    """Emulated fleet, exporters, server and two weeks of history, once for all tests that read them."""
    home = tmp_path_factory.mktemp("chain")
    fleet = create(home / "fleet", 7, 64, 8, time.time())
    with Exporters(fleet, ("127.0.0.1", 0)) as exporters:
        thread = threading.Thread(target=exporters.serve_forever, daemon=True)
        thread.start()
        base = f"http://127.0.0.1:{exporters.server_address[1]}"
        (home / "fleet.yaml").write_text(yaml.safe_dump(fleet_file(fleet, base)))
        path = f"{fleet.path / 'bin'}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        env = dict(os.environ) | {
            "PATH": path,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'proto'}",
            "GPUGRADE_FLEET": str(fleet.path),
            "GPUGRADE_FLEET_SPEED": "60",
            "NODE_NAME": "gpu-r01-n01",
        }
        with (home / "server.log").open("wb") as log:
            server = subprocess.Popen(
                [
                    *(sys.executable, "-m", "scorer.cli.main", "serve", "--mode", "enforce"),
                    *("--fleet", str(home / "fleet.yaml"), "--db", str(home / "gpugrade.db")),
                    *("--scheduler-port", "0", "--grpc-port", "0", "--admin-port", "0"),
                    *("--ports-file", str(home / "ports.json"), "--scrape-interval", "2"),
                ],
                env=env,
                stdout=log,
                stderr=log,
            )
        try:
            until(lambda: (home / "ports.json").exists() or server.poll() is not None, "the server's ports", 30)
            assert server.poll() is None, (home / "server.log").read_text()
            ports = json.loads((home / "ports.json").read_text())
            now = time.time()
            outcome = replay(fleet, f"127.0.0.1:{ports['grpc']}", now - 14 * DAY, now, DAY / 2)
            assert not outcome.refused
            settled = _BoardWatch(ports["admin"])
            until(settled, "a board of the whole history", 60)
            yield WholeChain(fleet, ports, env | {"GPUGRADE_SERVER": f"127.0.0.1:{ports['grpc']}"}, home)
        finally:
            server.terminate()
            server.wait(20)
            exporters.shutdown()
            thread.join(10)


class _BoardWatch:
    """True once two boards were folded after this watch began: the second one began after all evidence was in."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/metrics"
        self._first = self._version()

    def _version(self) -> float:
        with urllib.request.urlopen(self._url, timeout=10) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith("gpugrade_board_version "):
                    return float(line.split()[1])
        return float("nan")

    def __call__(self) -> bool:
        return self._version() >= self._first + 2
