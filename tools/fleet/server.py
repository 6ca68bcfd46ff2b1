"""One HTTP server for the exporters of all nodes, at ``/node/<name>/metrics``. A node may be told to misbehave."""

import socket
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

from tools.fleet.exporter import render
from tools.fleet.node import Machine, now
from tools.fleet.state import FleetDir, State, write_whole

#: What an exporter may be told: answer well; never; with a login page; half; always the same; not at all.
MODES = ("ok", "hang", "html", "half", "frozen", "gone")
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PAGE = "<!DOCTYPE html>\n<html><head><title>Sign in</title></head><body><form action='/login'></form></body></html>\n"
#: A hanging exporter lets go after this; no client should wait so long.
HANG_S = 300.0
#: A connection that says nothing is closed.
IDLE_S = 60.0
FROZEN = "frozen.prom"


def break_exporter(fleet: FleetDir, node: str, mode: str) -> None:
    """Tell the exporter of a node how to behave.

    Raises:
        ValueError: for a mode that is not in :data:`MODES`.
    """
    if mode not in MODES:
        raise ValueError(f"an exporter can be told {', '.join(MODES)}, not {mode!r}")
    if mode == "frozen":
        write_whole(fleet.folder(node) / FROZEN, render(Machine(fleet.node(node), fleet.state(node)), now()))

    def tell(state: State) -> None:
        state["exporter"] = mode

    fleet.change(node, tell)


class Exporters(ThreadingHTTPServer):
    """Serves until :meth:`shutdown`; its address is in ``server_address``."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, fleet: FleetDir, address: tuple[str, int]) -> None:
        self.fleet = fleet
        self.stopping = threading.Event()
        self._machines: dict[str, tuple[tuple[int, int], Machine]] = {}
        super().__init__(address, _Handler)

    def machine(self, name: str) -> Machine:
        """The node as it stands; its files are read again only when they changed."""
        status = (self.fleet.folder(name) / "state.json").stat()
        stamp = (status.st_ino, status.st_mtime_ns)
        known = self._machines.get(name)
        if known is not None and known[0] == stamp:
            return known[1]
        facts = known[1].facts if known is not None else self.fleet.node(name)
        machine = Machine(facts, self.fleet.state(name))
        self._machines[name] = (stamp, machine)
        return machine

    def server_close(self) -> None:
        """Let hanging requests go, then close."""
        self.stopping.set()
        super().server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - the base class has it so
        """Clients that went away are no news; other errors are printed as the base class does."""
        import sys  # noqa: PLC0415 - only here

        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Head and body leave in one piece, so that no client waits for a delayed acknowledgement.
    wbufsize = -1
    disable_nagle_algorithm = True
    timeout = IDLE_S
    server: Exporters
    index: ClassVar[str] = "Emulated exporters: /node/<name>/metrics\n"

    def do_GET(self) -> None:
        parts = self.path.partition("?")[0].strip("/").split("/")
        if parts == [""]:
            self._answer(HTTPStatus.OK, "\n".join([self.index, *self.server.fleet.names]) + "\n")
            return
        if len(parts) != 3 or parts[0] != "node" or parts[2] != "metrics" or parts[1] not in self.server.fleet.names:
            self._answer(HTTPStatus.NOT_FOUND, self.index)
            return
        machine = self.server.machine(parts[1])
        match machine.state["exporter"]:
            case "hang":
                self.server.stopping.wait(HANG_S)
                self._drop()
            case "gone":
                self._drop()
            case "html":
                self._answer(HTTPStatus.OK, PAGE, "text/html")
            case "frozen":
                frozen = (self.server.fleet.folder(parts[1]) / FROZEN).read_text()
                self._answer(HTTPStatus.OK, frozen, METRICS_TYPE)
            case "half":
                self._answer(HTTPStatus.OK, render(machine, now()), METRICS_TYPE, share=0.5)
            case _:
                self._answer(HTTPStatus.OK, render(machine, now()), METRICS_TYPE)

    def _answer(self, status: HTTPStatus, text: str, kind: str = "text/plain", share: float = 1.0) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: int(len(body) * share)])
        if share < 1.0:
            self.wfile.flush()
            self._drop()

    def _drop(self) -> None:
        """End the connection without another word."""
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
        """Scrapes are no news."""
