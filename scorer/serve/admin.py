"""The door for people and machines that look after the server: health, metrics and the page."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

log = structlog.get_logger(__name__)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_TEXT = "text/plain; charset=utf-8"
_HTML = "text/html; charset=utf-8"
_SLOW = frozenset({"/", "/metrics"})


@dataclass(frozen=True, slots=True)
class Check:
    """One line of ``/readyz?verbose``.

    Attributes:
        name: of the check.
        good: whether all is well.
        detail: what is known.
        gates: whether the server is unready while it is not good. After the first board nothing gates: a server that
            has something to say goes on saying it.
    """

    name: str
    good: bool
    detail: str
    gates: bool = False


@dataclass(frozen=True, slots=True)
class AdminViews:
    """What the door shows.

    Attributes:
        checks: the state of the server now.
        page: makes the page for a job type (``None``: all).
        registry: of the metrics.
    """

    checks: Callable[[], Sequence[Check]]
    page: Callable[[str | None], bytes]
    registry: CollectorRegistry


def make_admin_app(views: AdminViews) -> App:
    """Make the ASGI application."""
    # Metrics and page of a large fleet take seconds: one at a time, beside the loop that answers for health.
    maker = ThreadPoolExecutor(1, thread_name_prefix="admin-maker")

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"this door speaks HTTP only, not {scope['type']}")
        del receive  # no request here has a body
        if scope["method"] not in {"GET", "HEAD"}:
            await _reply(send, scope, 405, _TEXT, b"only GET is answered here\n", ((b"allow", b"GET, HEAD"),))
            return
        try:
            query = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True, max_num_fields=20)
        except ValueError:
            await _reply(send, scope, 400, _TEXT, b"too many parameters\n")
            return
        try:
            if scope["path"] in _SLOW:
                loop = asyncio.get_running_loop()
                status, kind, body = await loop.run_in_executor(maker, _answer, views, scope["path"], query)
            else:
                status, kind, body = _answer(views, scope["path"], query)
        except Exception:
            log.exception("page failed", path=scope["path"])
            status, kind, body = 500, _TEXT, b"gpugrade failed; its log says why\n"
        await _reply(send, scope, status, kind, body)

    return app


def _answer(views: AdminViews, path: str, query: dict[str, list[str]]) -> tuple[int, str, bytes]:
    match path:
        case "/livez":
            return 200, _TEXT, b"ok\n"
        case "/readyz":
            return _ready(views.checks(), verbose="verbose" in query)
        case "/metrics":
            return 200, CONTENT_TYPE_PLAIN_0_0_4, generate_latest(views.registry)
        case "/":
            return 200, _HTML, views.page(query.get("job-type", [None])[0])
        case _:
            return 404, _TEXT, b"there are /, /livez, /readyz and /metrics\n"


def _ready(checks: Sequence[Check], *, verbose: bool) -> tuple[int, str, bytes]:
    ready = all(check.good for check in checks if check.gates)
    lines = [
        f"[{'+' if check.good else '-'}]{check.name} {check.detail}"
        for check in checks
        if verbose or (check.gates and not check.good)
    ]
    lines.append("ok" if ready else "not ready")
    return (200 if ready else 503), _TEXT, ("\n".join(lines) + "\n").encode()


async def _reply(
    send: Send, scope: Scope, status: int, kind: str, body: bytes, extra: tuple[tuple[bytes, bytes], ...] = ()
) -> None:
    headers = [
        (b"content-type", kind.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
        (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'; img-src data:"),
        *extra,
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
