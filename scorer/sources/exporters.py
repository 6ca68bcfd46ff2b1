"""Scrapes dcgm-exporters: bounded in time, size and number, and never a wrong value from a broken answer."""

import heapq
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from socket import SHUT_RDWR, socket
from typing import Any

import structlog
import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.response import BaseHTTPResponse

from scorer.model.errors import InputError, UnavailableError

log = structlog.get_logger(__name__)

_CHUNK = 64 * 1024
_TICK_S = 0.1
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


class _Watch:
    """The deadline of one scrape. The scraper's thread cuts the connection of an overdue one."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.overdue = False
        self.sock: socket | None = None

    def cut(self) -> None:
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
        watch: _Watch | None = getattr(_active, "watch", None)
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


def fetch(pool: urllib3.PoolManager, url: str, limits: ScrapeLimits, watch: _Watch | None = None) -> str:
    """Get a page of metrics.

    Args:
        pool: from :func:`make_pool`.
        url: http or https.
        limits: bounds.
        watch: the deadline; ``None`` begins one now.

    Raises:
        ScrapeError: whatever was wrong; a partial page is never returned.
    """
    watch = watch or _Watch(time.monotonic() + limits.total_s)
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


def _body(response: BaseHTTPResponse, limits: ScrapeLimits, watch: _Watch) -> bytes:
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


def _classify(error: Exception, watch: _Watch) -> ScrapeError:
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


class Scraper:
    """Scrapes each node's exporter at its interval, spread evenly, with a bounded number under way."""

    def __init__(
        self,
        handle: Callable[[str, str, float], None],
        limits: ScrapeLimits | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """Make a scraper; nothing is sent before :meth:`start`.

        Args:
            handle: takes (node, page, Unix seconds) of a good scrape, from a worker thread; raises
                :class:`~scorer.model.errors.InputError` if the page holds no metrics.
            limits: bounds.
            rng: for the jitter.
        """
        self._handle = handle
        self._limits = limits or ScrapeLimits()
        self._rng = rng or random.Random()  # noqa: S311 - spreads load
        self._pool = make_pool(self._limits)
        self._executor = ThreadPoolExecutor(self._limits.workers, thread_name_prefix="scrape")
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = False
        self._targets: dict[str, str] = {}
        self._due: list[tuple[float, str]] = []
        self._queued: set[str] = set()
        self._watches: dict[str, _Watch] = {}
        self._problems: dict[str, str] = {}
        self.outcomes: Counter[str] = Counter(dict.fromkeys(OUTCOMES, 0))
        self._thread = threading.Thread(target=self._run, name="scraper", daemon=True)

    @property
    def problems(self) -> Mapping[str, str]:
        """What was wrong with the last scrape, by node; nodes whose last scrape was good are absent."""
        with self._lock:
            return dict(self._problems)

    def set_targets(self, targets: Mapping[str, str]) -> None:
        """Scrape these from now on: URL by node."""
        with self._lock:
            self._targets = dict(targets)
            now = time.monotonic()
            for node in targets:
                if node not in self._queued:
                    self._queued.add(node)
                    # First scrapes soon, but not all at once.
                    spread = min(self._limits.interval_s, 0.005 * len(targets))
                    heapq.heappush(self._due, (now + self._rng.uniform(0, spread), node))
            for node in self._problems.keys() - targets.keys():
                del self._problems[node]
        self._wake.set()

    def start(self) -> None:
        """Begin to scrape."""
        self._thread.start()

    def stop(self) -> None:
        """Cut what is under way and end."""
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        with self._lock:
            for watch in self._watches.values():
                watch.cut()
        self._executor.shutdown(wait=True, cancel_futures=True)
        self._pool.clear()

    def scrape(self, node: str, url: str) -> str:
        """Scrape once, now, and return the outcome; it is counted and, where good, handled."""
        watch = _Watch(time.monotonic() + self._limits.total_s)
        with self._lock:
            self._watches[node] = watch
        try:
            # The time of the request, not of the answer: nothing in the page is newer.
            at = time.time()
            self._handle(node, fetch(self._pool, url, self._limits, watch), at)
            outcome, problem = "ok", ""
        except ScrapeError as error:
            outcome, problem = error.outcome, str(error)
        except InputError as error:
            outcome, problem = "not-metrics", str(error)
        finally:
            with self._lock:
                self._watches.pop(node, None)
        self._note(node, url, outcome, problem)
        return outcome

    def _note(self, node: str, url: str, outcome: str, problem: str) -> None:
        with self._lock:
            self.outcomes[outcome] += 1
            before = self._problems.pop(node, "")
            if problem and node in self._targets:
                self._problems[node] = problem
        # Once at each change, not at every scrape.
        if problem and not before:
            log.warning("exporter cannot be scraped", node=node, url=url, outcome=outcome, error=problem)
        elif before and not problem:
            log.info("exporter is scraped again", node=node, url=url)

    def _run(self) -> None:
        while not self._stopping:
            wait = self._step(time.monotonic())
            self._wake.wait(wait)
            self._wake.clear()

    def _step(self, now: float) -> float:
        """Cut the overdue, send the due; seconds until the next look."""
        with self._lock:
            for watch in self._watches.values():
                if now > watch.deadline and not watch.overdue:
                    watch.cut()
            while self._due and self._due[0][0] <= now:
                _, node = heapq.heappop(self._due)
                url = self._targets.get(node)
                if url is None:
                    self._queued.discard(node)
                else:
                    self._executor.submit(self._work, node, url, now)
            wait = self._due[0][0] - now if self._due else 1.0
            return min(wait, _TICK_S if self._watches else 1.0)

    def _work(self, node: str, url: str, due: float) -> None:
        try:
            self.scrape(node, url)
        except Exception:
            # A fault of ours: said, and the node is scraped again.
            log.exception("scrape failed", node=node)
        interval = self._limits.interval_s
        # Counted from when it was due: the time that a scrape takes does not stretch the interval.
        later = max(due + interval * self._rng.uniform(0.9, 1.1), time.monotonic() + 0.1 * interval)
        with self._lock:
            if node in self._targets:
                heapq.heappush(self._due, (later, node))
            else:
                self._queued.discard(node)
        self._wake.set()
