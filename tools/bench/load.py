"""A closed-loop load generator on raw sockets: it sends the next request when the answer is there, and little else."""

import selectors
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

HEAD_LIMIT = 16 * 1024
TIMEOUT = 20.0


@dataclass(slots=True)
class Timings:
    """Latencies of one cell.

    Attributes:
        seconds: of each request, from its first byte sent to its last byte received.
    """

    seconds: list[float] = field(default_factory=list)

    def quantile(self, q: float) -> float:
        """Milliseconds below which the share ``q`` of the requests lies."""
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(q * len(ordered)))] * 1e3


class _Connection:
    """One keep-alive connection with one request under way."""

    def __init__(self, port: int, requests: Sequence["Request"], first: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._requests, self._next = requests, first
        self._buffer = bytearray(4 * 1024 * 1024)
        self._view = memoryview(self._buffer)
        self._filled, self._wanted = 0, 0
        self.began = 0.0
        self.verb = ""

    def send(self) -> None:
        request = self._requests[self._next % len(self._requests)]
        self._next += 1
        self.verb = request.verb
        self._filled = self._wanted = 0
        self.began = time.perf_counter()
        self.socket.sendall(request.data)

    def receive(self) -> bool:
        """Read what is there.

        Returns:
            Whether the answer is complete.

        Raises:
            RuntimeError: the server closed, or answered with another status than 200.
        """
        got = self.socket.recv_into(self._view[self._filled :])
        if not got:
            raise RuntimeError("the server closed a connection that it was to keep")
        self._filled += got
        if not self._wanted:
            end = self._buffer.find(b"\r\n\r\n", 0, min(self._filled, HEAD_LIMIT))
            if end < 0:
                return False
            head = bytes(self._buffer[:end]).lower()
            if not head.startswith(b"http/1.1 200"):
                raise RuntimeError(f"the server answered {bytes(self._buffer[: self._filled])[:500]!r}")
            length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
            self._wanted = end + 4 + int(length.split(b":")[1])
        return self._filled >= self._wanted

    def answer(self) -> bytes:
        """The body of the last answer."""
        return bytes(self._buffer[self._buffer.find(b"\r\n\r\n") + 4 : self._wanted])

    def close(self) -> None:
        self.socket.close()


@dataclass(frozen=True, slots=True)
class Request:
    """One request and the verb under which its latency is counted."""

    verb: str
    data: bytes


def request_of(verb: str, body: bytes) -> Request:
    """A whole HTTP request, as kube-scheduler's client writes it."""
    head = (
        f"POST /scheduler/{verb} HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: Go-http-client/1.1\r\n"
        f"Content-Length: {len(body)}\r\nContent-Type: application/json\r\nAccept-Encoding: gzip\r\n\r\n"
    )
    return Request(verb, head.encode() + body)


def ask(port: int, request: Request) -> bytes:
    """The body of the answer to one request."""
    with closing(_Connection(port, [request], 0)) as connection:
        connection.send()
        while not connection.receive():
            pass
        return connection.answer()


def run(port: int, requests: Sequence[Request], connections: int, seconds: float) -> dict[str, Timings]:
    """Load a server.

    Args:
        port: on this machine.
        requests: sent in turn; each connection begins at another place, always an even one, so that pairs stay pairs.
        connections: keep-alive connections, each with one request under way.
        seconds: how long; the first tenth warms up and is not counted.

    Returns:
        The latencies by verb.
    """
    timings = {request.verb: Timings() for request in requests}
    step = max(2, len(requests) // connections // 2 * 2)
    with ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        pool = [stack.enter_context(closing(_Connection(port, requests, i * step))) for i in range(connections)]
        for connection in pool:
            selector.register(connection.socket, selectors.EVENT_READ, connection)
            connection.send()
        start = time.perf_counter()
        counted, end = start + seconds / 10, start + seconds
        busy = len(pool)
        while busy:
            ready = selector.select(TIMEOUT)
            if not ready:
                raise RuntimeError(f"no answer within {TIMEOUT:.0f} s")
            for key, _ in ready:
                connection = key.data
                if not connection.receive():
                    continue
                now = time.perf_counter()
                if connection.began >= counted:
                    timings[connection.verb].seconds.append(now - connection.began)
                if now < end:
                    connection.send()
                else:
                    busy -= 1
                    selector.unregister(connection.socket)
    return timings
