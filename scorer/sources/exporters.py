"""Scrapes the exporters of all nodes: spread over time, bounded in number, each outcome counted."""

import heapq
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import structlog

from scorer.model.errors import InputError
from scorer.sources.fetching import OUTCOMES, ScrapeError, ScrapeLimits, Watch, fetch, make_pool

log = structlog.get_logger(__name__)

_TICK_S = 0.1


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
        self._watches: dict[str, Watch] = {}
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
        watch = Watch(time.monotonic() + self._limits.total_s)
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
