"""Gets one page of metrics: bounded in time and size, and never a part of a page from a broken answer."""

import threading
import time
from dataclasses import dataclass
from socket import SHUT_RDWR, socket
from typing import Any

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.response import BaseHTTPResponse

from scorer.model.errors import UnavailableError

_CHUNK = 64 * 1024
_OK = 200
#: Every outcome there is, so that a counter of each can be shown from the start.
OUTCOMES = (
    "ok",
    "timeout",
    "connect",
    "status",
    "redirect",
    "too-large",
    "truncated",
    "encoding",
    "not-metrics",
    "protocol",
)


class ScrapeError(UnavailableError):
    """A scrape that gave nothing; ``outcome`` is one of :data:`OUTCOMES`."""

    def __init__(self, outcome: str, text: str) -> None:
        super().__init__(text)
        self.outcome = outcome


@dataclass(frozen=True, slots=True)
class ScrapeLimits:
    """Bounds of every scrape."""

    interval_s: float = 15.0
    """Between scrapes of one node."""
    connect_s: float = 2.0
    """To connect."""
    read_s: float = 5.0
    """Between two pieces of the answer."""
    total_s: float = 8.0
    """For all of it: an exporter that drips a byte a second must not hold a worker."""
    max_bytes: int = 8 * 1024 * 1024
    """After decompression. Eight GPUs with every field are 200 KB."""
    workers: int = 16
    """Scrapes under way at once."""


class Watch:
    """The deadline of one scrape. The scraper's thread cuts the connection of an overdue one."""

    def __init__(self, deadline: float) -> None:
        """Set the deadline, in seconds of the monotonic clock."""
        self.deadline = deadline
        self.overdue = False
        self.sock: socket | None = None

    def cut(self) -> None:
        """End the scrape: what it waits for comes back at once."""
        self.overdue = True
        if self.sock is not None:
            try:
                self.sock.shutdown(SHUT_RDWR)
            except OSError:
                # It was closed meanwhile, which is what was wanted.
                return


_active = threading.local()


class _WatchedMixin:
    """A connection whose socket the current scrape's watch can cut, while headers are awaited too."""

    sock: socket | None

    def getresponse(self) -> Any:  # noqa: ANN401 - as declared by urllib3
        watch: Watch | None = getattr(_active, "watch", None)
        if watch is not None:
            watch.sock = self.sock
        return super().getresponse()  # type: ignore[misc]  # the connection classes beside this one have it


class _WatchedHTTP(_WatchedMixin, HTTPConnection):
    pass


class _WatchedHTTPS(_WatchedMixin, HTTPSConnection):
    pass


class _HTTPPool(HTTPConnectionPool):
    ConnectionCls = _WatchedHTTP


class _HTTPSPool(HTTPSConnectionPool):
    ConnectionCls = _WatchedHTTPS


def make_pool(limits: ScrapeLimits) -> urllib3.PoolManager:
    """Connections for :func:`fetch`."""
    pool = urllib3.PoolManager(
        num_pools=4 * limits.workers,
        maxsize=limits.workers,
        retries=False,
        timeout=urllib3.Timeout(connect=limits.connect_s, read=limits.read_s),
    )
    pool.pool_classes_by_scheme = {"http": _HTTPPool, "https": _HTTPSPool}
    return pool


def fetch(pool: urllib3.PoolManager, url: str, limits: ScrapeLimits, watch: Watch | None = None) -> str:
    """Get a page of metrics.

    Args:
        pool: from :func:`make_pool`.
        url: http or https.
        limits: bounds.
        watch: the deadline; ``None`` begins one now.

    Raises:
        ScrapeError: whatever was wrong; a partial page is never returned.
    """
    watch = watch or Watch(time.monotonic() + limits.total_s)
    _active.watch = watch
    response: BaseHTTPResponse | None = None
    try:
        response = pool.request(
            "GET",
            url,
            headers={"Accept": "text/plain;version=0.0.4", "Accept-Encoding": "gzip", "User-Agent": "gpugrade"},
            redirect=False,
            preload_content=False,
        )
        _check_head(response)
        text = _text(_body(response, limits, watch))
        response.release_conn()
    except ScrapeError:
        raise
    except Exception as error:  # noqa: BLE001 - urllib3, http.client and ssl each raise their own; all are told apart
        raise _classify(error, watch) from None
    finally:
        _active.watch = None
        watch.sock = None
        if response is not None:
            # Closes only what was not read to its end and released.
            response.close()
    return text


def _check_head(response: BaseHTTPResponse) -> None:
    if 300 <= response.status < 400:  # noqa: PLR2004 - the class of redirects
        raise ScrapeError("redirect", "it redirects elsewhere; name the final address in the fleet file")
    if response.status != _OK:
        raise ScrapeError("status", f"it answers with status {response.status}")
    kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if kind in {"text/html", "application/json", "application/xhtml+xml"}:
        raise ScrapeError("not-metrics", f"it sends {kind}, not metrics; is the address right?")


def _body(response: BaseHTTPResponse, limits: ScrapeLimits, watch: Watch) -> bytes:
    declared = response.headers.get("Content-Length", "")
    if declared.isdecimal() and int(declared) > limits.max_bytes:
        raise ScrapeError("too-large", f"it declares {declared} bytes; at most {limits.max_bytes} are read")
    parts: list[bytes] = []
    size = 0
    # read1 gives what has come and decompresses no further than asked: a slow or an exploding body is seen early.
    while part := response.read1(_CHUNK, decode_content=True):
        parts.append(part)
        size += len(part)
        if size > limits.max_bytes:
            raise ScrapeError("too-large", f"it sends more than {limits.max_bytes} bytes")
        if watch.overdue or time.monotonic() > watch.deadline:
            raise ScrapeError("timeout", f"it takes more than {limits.total_s:g} s")
    if watch.overdue:
        raise ScrapeError("timeout", f"it takes more than {limits.total_s:g} s")
    return b"".join(parts)


def _text(body: bytes) -> str:
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        raise ScrapeError("encoding", "it sends bytes that are not UTF-8") from None
    if text.lstrip()[:1] == "<":
        raise ScrapeError("not-metrics", "it sends markup, not metrics; is the address right?")
    if text and not text.endswith("\n"):
        raise ScrapeError("truncated", "its last line has no end: the answer broke off")
    return text


def _classify(error: Exception, watch: Watch) -> ScrapeError:
    told = f"{type(error).__name__}: {error}"[:300]
    if watch.overdue or isinstance(error, urllib3.exceptions.ReadTimeoutError | TimeoutError):
        return ScrapeError("timeout", f"no answer in time ({told})")
    if isinstance(error, urllib3.exceptions.ConnectTimeoutError | urllib3.exceptions.NewConnectionError):
        return ScrapeError("connect", f"no connection ({told})")
    if isinstance(error, urllib3.exceptions.DecodeError):
        return ScrapeError("encoding", f"its compression is damaged ({told})")
    if "IncompleteRead" in told or "InvalidChunkLength" in told:
        return ScrapeError("truncated", f"the answer broke off ({told})")
    return ScrapeError("protocol", f"it does not speak HTTP as it should ({told})")
