"""Ports, HTTP threads and the gRPC server: how the doors open and close."""

import asyncio
import errno
import socket
import ssl
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import structlog
import uvicorn
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from scorer.model.errors import ConfigError, UnavailableError
from scorer.serve.http_protocol import BoundedProtocol

log = structlog.get_logger(__name__)

_BACKLOG = 512
#: The scheduler keeps idle connections for 90 s; closing first would race with its next call.
_KEEP_ALIVE_S = 120
_DRAIN_S = 5
_START_S = 30.0
#: 10,000 samples are 3 MB, 15,000 names with a pod 0.6 MB.
_MAX_RECEIVE = 16 * 1024 * 1024
#: 15,000 nodes with their reasons are some 8 MB.
_MAX_SEND = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Tls:
    """Files for a door.

    Attributes:
        certificate: PEM, chain included.
        key: PEM.
        client_ca: PEM; where given, callers must show a certificate that it signed.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None


def listen(host: str, port: int, what: str) -> socket.socket:
    """Open a listening port.

    Args:
        host: address or name to listen on.
        port: 0 lets the system choose.
        what: named in errors.

    Raises:
        UnavailableError: if the port is in use or may not be opened.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except socket.gaierror as error:
        raise UnavailableError(
            f"{what}: cannot listen on {host}: {error.strerror}; give --listen-host an address of this machine"
        ) from None
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            raise UnavailableError(
                f"{what}: {host} is no address of this machine; give --listen-host one that is"
            ) from None
        raise UnavailableError(
            f"{what}: cannot listen on {host}:{port}: {error.strerror or error}; stop what listens there or choose "
            f"another with --{what}-port"
        ) from None


class HttpDoor:
    """One ASGI application on one port, in a thread and an event loop of its own: no door waits for another."""

    def __init__(self, name: str, app: Callable[..., Any], sock: socket.socket, tls: Tls | None = None) -> None:
        """Make a door.

        Raises:
            ConfigError: if the files for TLS cannot be used.
        """
        self._name = name
        self._sock = sock
        config = uvicorn.Config(
            app,
            loop="uvloop",
            http=BoundedProtocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            access_log=False,
            log_config=None,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_DRAIN_S,
            ssl_certfile=tls.certificate if tls else None,
            ssl_keyfile=tls.key if tls else None,
            ssl_ca_certs=str(tls.client_ca) if tls and tls.client_ca else None,
            ssl_cert_reqs=ssl.CERT_REQUIRED if tls and tls.client_ca else ssl.CERT_NONE,
        )
        try:
            config.load()
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"the files for TLS cannot be used: {error}; look at --tls-cert, --tls-key and --tls-client-ca"
            ) from None
        self._server = uvicorn.Server(config)
        self._up = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"door-{name}", daemon=True)

    def start(self) -> None:
        """Begin to answer; returns once it does.

        Raises:
            UnavailableError: if it does not come up.
        """
        self._thread.start()
        if not self._up.wait(_START_S) or not self._server.started:
            raise UnavailableError(f"the door {self._name} did not come up")

    def stop(self) -> None:
        """Finish the requests under way and close."""
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(_DRAIN_S + 5)
        self._sock.close()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=self._server.config.get_loop_factory()) as runner:
                runner.run(self._serve())
        except Exception:
            log.exception("door failed", door=self._name)
        finally:
            self._up.set()

    async def _serve(self) -> None:
        serving = asyncio.ensure_future(self._server.serve(sockets=[self._sock]))
        while not self._server.started and not serving.done():  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.005)
        self._up.set()
        await serving


def _credentials(tls: Tls) -> grpc.ServerCredentials:
    """Credentials for the gRPC door; gRPC itself would only log what is wrong with the files."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tls.certificate, tls.key)
        pair = (tls.key.read_bytes(), tls.certificate.read_bytes())
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"the files for TLS cannot be used: {error}; look at --grpc-tls-cert and --grpc-tls-key"
        ) from None
    return grpc.ssl_server_credentials([pair])


class GrpcDoor:
    """The gRPC server with health and reflection."""

    def __init__(
        self, host: str, port: int, *, with_reflection: bool, tls: Tls | None = None, workers: int = 16
    ) -> None:
        """Bind the port; services are added to :attr:`server` before :meth:`start`.

        Raises:
            ConfigError: if the files for TLS cannot be used.
            UnavailableError: if the port is in use or may not be opened.
        """
        credentials = None if tls is None else _credentials(tls)
        self.server = grpc.server(
            ThreadPoolExecutor(workers, thread_name_prefix="grpc"),
            options=[
                # Without this a second server would share the port and take half of the calls.
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", _MAX_RECEIVE),
                ("grpc.max_send_message_length", _MAX_SEND),
            ],
            maximum_concurrent_rpcs=256,
        )
        self._with_reflection = with_reflection
        self._health = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.server)
        self._services: list[str] = [health.SERVICE_NAME]
        self._started = False
        # gRPC's own message does not say why; this does, and gives the port back at once.
        listen(host, port, "grpc").close()
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if credentials is None:
                self.port = self.server.add_insecure_port(address)
            else:
                self.port = self.server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise UnavailableError(
                f"grpc: cannot listen on {host}:{port}: {error}; choose another with --grpc-port"
            ) from None

    def add(self, name: str, register: Callable[[grpc.Server], None]) -> None:
        """Add a service.

        Args:
            name: its full name, for health and reflection.
            register: adds it to the server.
        """
        register(self.server)
        self._services.append(name)

    def start(self) -> None:
        """Begin to answer."""
        if self._with_reflection:
            reflection.enable_server_reflection([*self._services, reflection.SERVICE_NAME], self.server)
        for name in ("", *self._services):
            self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        self.server.start()
        self._started = True

    def stop(self) -> None:
        """Say that it is closing, finish the calls under way and close."""
        self._health.enter_graceful_shutdown()
        if self._started:
            self.server.stop(_DRAIN_S).wait()
