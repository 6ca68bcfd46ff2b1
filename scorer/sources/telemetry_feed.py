"""Scrapes of all nodes, followed over time, for the fold to read at any moment."""

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import chain

from scorer.model.errors import InputError
from scorer.model.evidence import GpuFacts, Reading
from scorer.sources.exposition import parse_scrape
from scorer.sources.telemetry import TelemetryTracker


class TelemetryFeed:
    """One tracker a node. Scrapes come from many threads, the fold reads from another."""

    def __init__(
        self,
        changed: Callable[[], None],
        suggest_gpus: Callable[[str, Mapping[int, GpuFacts]], None],
    ) -> None:
        """Start with nothing known.

        Args:
            changed: called after each scrape that was taken in.
            suggest_gpus: gets what a scrape's labels say of a node's GPUs.
        """
        self._changed = changed
        self._suggest_gpus = suggest_gpus
        self._lock = threading.Lock()
        self._parsing = threading.Lock()
        self._trackers: dict[str, TelemetryTracker] = {}
        self._readings: dict[str, tuple[Reading, ...]] = {}
        self._dropped: dict[str, Mapping[str, int]] = {}
        self._awaited: dict[str, float] = {}

    def handle(self, node: str, page: str, at: float) -> None:
        """Take in a scrape.

        Args:
            node: whose exporter it was.
            page: the whole body.
            at: Unix seconds of the request.

        Raises:
            InputError: if it holds no series that is known.
        """
        # One at a time: parsing holds the interpreter's lock all along, so that more threads of it would not be
        # quicker, and a request that wants the lock would wait for each of them.
        with self._parsing:
            scrape = parse_scrape(page)
        if not scrape.series:
            raise InputError("there is no series of a GPU in it; does the exporter see its GPUs?")
        with self._lock:
            tracker = self._trackers.get(node)
            if tracker is None:
                tracker = self._trackers[node] = TelemetryTracker(node)
            self._readings[node] = tracker.update(at, scrape)
            self._dropped[node] = scrape.dropped
        self._suggest_gpus(node, scrape.gpus)
        self._changed()

    def restore(self, readings: Iterable[Reading], scraped: Mapping[str, float]) -> None:
        """Go on from what was kept, so that it is not forgotten since when a gauge says what it says.

        Args:
            readings: of all nodes.
            scraped: Unix seconds of each node's last good scrape.
        """
        by_node: dict[str, list[Reading]] = {node: [] for node in scraped}
        for reading in readings:
            if reading.node in by_node:
                by_node[reading.node].append(reading)
        with self._lock:
            for node, found in by_node.items():
                tracker = self._trackers[node] = TelemetryTracker(node)
                tracker.restore(found, scraped[node])
                self._readings[node] = tracker.readings

    def follow(self, nodes: Collection[str], now: float) -> None:
        """Say whose exporters are to be scraped; what is known of others is dropped, as nothing will correct it.

        Args:
            nodes: those that have one.
            now: Unix seconds. New ones are waited for since then: an exporter that never answered goes stale as one
                that stopped does, and the time before a start of ours is not held against any.
        """
        with self._lock:
            self._awaited = {node: self._awaited.get(node, now) for node in nodes}
            for node in [name for name in self._trackers if name not in self._awaited]:
                del self._trackers[node]
                self._readings.pop(node, None)
                self._dropped.pop(node, None)

    def standing(self) -> tuple[tuple[Reading, ...], dict[str, float], dict[str, int]]:
        """Readings as they stand, since when each node's exporter has said nothing, and counts of what was wasted.

        That time is the last good scrape's, or where that is later, when the exporter began to be followed.
        """
        with self._lock:
            readings = tuple(chain.from_iterable(self._readings.values()))
            scraped = dict(self._awaited)
            for node, tracker in self._trackers.items():
                scraped[node] = max(tracker.scraped, scraped.get(node, tracker.scraped))
            dropped: Counter[str] = Counter()
            for counts in self._dropped.values():
                dropped.update(counts)
        return readings, scraped, dict(dropped)
