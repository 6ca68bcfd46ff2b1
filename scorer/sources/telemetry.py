"""A node's telemetry over time: since when a series says what it says, and which series have stopped."""

import math
from collections.abc import Iterable
from dataclasses import replace

from scorer.model.evidence import Reading
from scorer.sources.exposition import MAX_GPUS, Scrape

#: A series that stopped is remembered, as a gap, for so long.
FORGET_S = 24 * 3600.0

_NAN = float("nan")


class TelemetryTracker:
    """Follows one node's scrapes and keeps one reading for each GPU and field.

    A reading's value is NaN where the series is no longer exported although its GPU is: absent is not zero.
    """

    def __init__(self, node: str, source: str = "dcgm-exporter") -> None:
        """Start with nothing known.

        Args:
            node: the node's name; that of the labels may be another (a pod's).
            source: what readings name as their source.
        """
        self._node = node
        self._source = source
        self._state: dict[tuple[int, str, int], Reading] = {}
        self.scraped = _NAN
        """Unix seconds of the newest scrape; NaN before the first."""

    @property
    def readings(self) -> tuple[Reading, ...]:
        """All readings as they stand."""
        return tuple(self._state.values())

    def restore(self, readings: Iterable[Reading], scraped: float) -> None:
        """Go on from readings that were kept elsewhere over a restart.

        Args:
            readings: of this node, as :attr:`readings` gave them.
            scraped: Unix seconds of its newest scrape then.
        """
        self._state = {(r.gpu_index, r.gpu_uuid, r.field): r for r in readings}
        self.scraped = scraped

    def update(self, at: float, scrape: Scrape) -> tuple[Reading, ...]:
        """Take in a scrape and return the readings as they stand.

        Args:
            at: Unix seconds; a scrape no newer than the last one changes nothing.
            scrape: what it said.
        """
        if at <= self.scraped:
            return self.readings
        self.scraped = at
        present = set()
        for s in scrape.series:
            key = (s.gpu_index, s.gpu_uuid, s.field)
            present.add(key)
            old = self._state.get(key)
            if math.isnan(s.value):
                continue  # a blank says nothing: the last value stands with its own time
            if old is not None and old.value == s.value:
                self._state[key] = replace(old, at=at)
            else:
                previous = _NAN if old is None else old.previous if math.isnan(old.value) else old.value
                self._state[key] = Reading(
                    self._node, s.gpu_index, s.gpu_uuid, s.field, s.value, at, at, previous, self._source
                )
        self._mark_gone(at, present)
        self._forget_longest_absent()
        return self.readings

    def _forget_longest_absent(self) -> None:
        """An exporter that makes up new GPUs at each scrape must not fill the memory."""
        last: dict[tuple[int, str], float] = {}
        for (index, uuid, _), reading in self._state.items():
            last[index, uuid] = max(last.get((index, uuid), -math.inf), reading.at)
        if len(last) > MAX_GPUS:
            kept = set(sorted(last, key=lambda gpu: -last[gpu])[:MAX_GPUS])
            self._state = {key: reading for key, reading in self._state.items() if key[:2] in kept}

    def _mark_gone(self, at: float, present: set[tuple[int, str, int]]) -> None:
        """Note which series have stopped; a GPU that is wholly absent is another matter and merely ages."""
        alive = {(index, uuid) for index, uuid, _ in present}
        for key, old in list(self._state.items()):
            if key in present:
                continue
            if at - old.at > FORGET_S and key[:2] not in alive:
                del self._state[key]
            elif key[:2] in alive:
                gone = math.isnan(old.value)  # since an earlier scrape
                if gone and at - old.since > FORGET_S:
                    del self._state[key]
                else:
                    since = old.since if gone else at
                    previous = old.previous if gone else old.value
                    self._state[key] = replace(old, value=_NAN, at=at, since=since, previous=previous)
