"""HTTP with bounds where uvicorn has none: on a request's head, the wait for it, requests in line and connections.

Bodies are the applications' matter. A head is kept in memory as it comes, and its address in time that grows with the
square of its length, so one client without manners could stop a door for minutes.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import structlog
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

log = structlog.get_logger(__name__)

#: The scheduler's are 300 bytes; browsers send some 2 KiB. What comes in one piece (256 KiB at most) is let through.
MAX_HEAD_BYTES = 64 * 1024
#: For a whole head to come, from a connection's beginning or from the head's first byte.
HEAD_TIMEOUT_S = 30.0
#: Requests sent before the answer to the first was read. Go's client never does that.
MAX_PIPELINED = 64
#: Of one door: a scheduler keeps a hundred at most. Each costs a file descriptor that the store needs too.
MAX_CONNECTIONS = 400


class BoundedProtocol(HttpToolsProtocol):
    """One connection. What is beyond a bound is told in the log and its connection closed."""

    head_timeout_s = HEAD_TIMEOUT_S
    max_connections = MAX_CONNECTIONS

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - as uvicorn gives them
        super().__init__(*args, **kwargs)
        self._head_bytes = 0
        self._in_head = False
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as the base class has it
        """Take a connection, or close it where there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            self._refuse("too many connections", most=self.max_connections)
        else:
            self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._got_head()
        self.pipeline.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take in what came, unless it makes the head too long."""
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete:
            # It begins a head, or belongs to a body that nobody waits for: neither may go on for ever.
            self._expect_head()
        before = self._in_head
        super().data_received(data)
        self._head_bytes = self._head_bytes + len(data) if before and self._in_head else 0
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse("the head of a request is too long", most=MAX_HEAD_BYTES)

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP, where somebody still listens."""
        if not self.transport.is_closing():
            super().send_400_response(msg)

    def on_message_begin(self) -> None:
        """A head begins."""
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self._in_head = False
        self._got_head()
        if len(self.pipeline) >= MAX_PIPELINED:
            self._refuse("too many requests in line", most=MAX_PIPELINED)
            return
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The body is whole."""
        self._got_head()
        super().on_message_complete()

    def _expect_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_timeout_s, self._overdue)

    def _got_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _overdue(self) -> None:
        self._head_timer = None
        # Nothing has come at all from most of these: a probe of the port, a connection kept in reserve.
        self._refuse("no whole request in time", log.debug, seconds=self.head_timeout_s)

    def _refuse(self, why: str, say: Callable[..., Any] = log.warning, **told: float) -> None:
        if not self.transport.is_closing():
            say("connection closed", why=why, client=self.client[0] if self.client else "", **told)
            self.transport.abort()
