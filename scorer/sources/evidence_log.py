"""The evidence in memory: columns that grow, handed to the grader as immutable views."""

import threading
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scorer.model.evidence import (
    Evidence,
    GpuFacts,
    KernelMessage,
    Reading,
    Run,
    RunPhase,
    Sample,
    SampleColumns,
)
from scorer.sources.cluster import NodeRecord
from scorer.sources.columns import Columns, pick
from scorer.sources.inventory import DROPPED, WHOLE_NODE, Inventory, rows_of_keys, take_inventory

_DAY = 86_400.0
_KERNEL_PER_NODE = 1_000
#: An injection every half hour for three weeks.
_RUNS_PER_NODE = 1_000
_COMPACT_EVERY_S = 3_600.0
#: 15,000 nodes with 8 GPUs, measured on four dimensions a day, for three weeks.
_MAX_SAMPLES = 10_000_000
_PLAIN = -1


class EvidenceLog:
    """Accumulates evidence from any thread, and yields :class:`Evidence` cheaply: what did not change is reused."""

    def __init__(self, retention_s: float = 21 * _DAY, max_samples: int = _MAX_SAMPLES) -> None:
        """Keep the samples of some time.

        Args:
            retention_s: seconds.
            max_samples: above this the oldest tenth goes; each takes 34 bytes.
        """
        self._max_samples = max_samples
        self._retention_s = retention_s
        self._lock = threading.Lock()
        self._columns = Columns()
        self._keys: dict[tuple[str, int, str], int] = {}
        self._run_ids: dict[str, int] = {}
        self._runs: dict[str, Run] = {}
        self._runs_of: Counter[str] = Counter()
        self._kernel: dict[str, deque[KernelMessage]] = {}
        self._gpus: dict[str, tuple[GpuFacts, ...]] = {}
        self._suggested: dict[str, dict[int, GpuFacts]] = {}
        self._last: dict[str, float] = {}
        self._unordered = False
        self._compact_at = 0.0
        self._samples_cache: tuple[object, SampleColumns, dict[str, int]] | None = None
        self._inventory_cache: tuple[Mapping[str, NodeRecord], int, Inventory] | None = None
        self._rows_cache: (
            tuple[Inventory, dict[tuple[str, int, str], int], NDArray[np.int32], dict[int, tuple[int, int]]] | None
        ) = None
        self._inventory_version = 0
        self._kernel_cache: tuple[KernelMessage, ...] | None = ()
        self._runs_version = 0

    @property
    def samples(self) -> int:
        """Samples in memory."""
        return self._columns.size

    def add_samples(self, samples: Iterable[Sample]) -> None:
        """Add samples that are not known yet; the store tells which those are."""
        self.add_rows(
            [
                (s.node, s.gpu_index, s.gpu_uuid, int(s.dimension), s.at, s.value, int(s.status), s.run, s.sm_clock_mhz)
                for s in samples
            ]
        )

    def add_rows(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Add samples as rows of (node, gpu index, uuid, dimension, at, value or None, status, run, MHz or None)."""
        if not rows:
            return
        # In time order within the batch: a node's batches follow each other, so that nothing has to be sorted later.
        rows = sorted(rows, key=itemgetter(4))
        with self._lock:
            keys, runs = self._keys, self._run_ids
            key = [keys.setdefault((row[0], row[1], row[2]), len(keys)) for row in rows]
            run = [runs.setdefault(row[7], len(runs)) if row[7] else _PLAIN for row in rows]
            node, _, _, dimension, at, value, status, _, clock = zip(*rows, strict=True)
            for name, t in zip(node, at, strict=True):
                if t < self._last.get(name, t):
                    self._unordered = True
                else:
                    self._last[name] = t
            # None becomes NaN here.
            values = np.array(value, np.float64)
            clocks = np.array(clock, np.float32)
            self._columns.extend(
                key=key, dimension=dimension, at=at, value=values, status=status, run=run, sm_clock=clocks
            )

    def add_runs(self, runs: Iterable[Run]) -> None:
        """Add runs, or put their newest phase in place of what was known.

        Of each node the newest thousand are kept, active ones before others. The samples of one that went are left out,
        as they are of any run that is unknown.
        """
        with self._lock:
            for run in runs:
                if run.id not in self._runs:
                    self._runs_of[run.node] += 1
                self._runs[run.id] = run
                self._runs_version += 1
            for node in [node for node, count in self._runs_of.items() if count > _RUNS_PER_NODE]:
                known = [run for run in self._runs.values() if run.node == node]
                known.sort(key=lambda run: (run.phase is not RunPhase.REVERTED, run.started))
                for run in known[:-_RUNS_PER_NODE]:
                    self._forget_run(run)

    def _forget_run(self, run: Run) -> None:
        del self._runs[run.id]
        self._runs_of[run.node] -= 1
        self._runs_version += 1

    def add_kernel(self, messages: Iterable[KernelMessage]) -> None:
        """Add kernel messages; of each node the newest thousand are kept, so that no node drowns the others."""
        with self._lock:
            for message in messages:
                kept = self._kernel.get(message.node)
                if kept is None:
                    kept = self._kernel[message.node] = deque(maxlen=_KERNEL_PER_NODE)
                kept.append(message)
                self._kernel_cache = None

    def set_gpus(self, node: str, gpus: tuple[GpuFacts, ...]) -> None:
        """Put a node's inventory in place of what was known."""
        with self._lock:
            if self._gpus.get(node) != gpus:
                self._gpus[node] = gpus
                self._inventory_version += 1

    def suggest_gpus(self, node: str, gpus: Mapping[int, GpuFacts]) -> None:
        """Say what GPUs a node seems to have; its own report, where there is one, wins.

        A GPU that is missing this time stays known: what fell off the bus is still of the node.
        """
        with self._lock:
            known = self._suggested.get(node, {})
            merged = {**known, **gpus}
            if merged != known:
                self._suggested[node] = merged
                if node not in self._gpus:
                    self._inventory_version += 1

    def evidence(
        self,
        now: float,
        nodes: Mapping[str, NodeRecord],
        readings: tuple[Reading, ...] = (),
        scraped: Mapping[str, float] | None = None,
        dropped: Mapping[str, int] | None = None,
    ) -> Evidence:
        """All that is known of ``nodes``.

        Args:
            now: Unix seconds; samples older than the retention are left out from time to time.
            nodes: the cluster's nodes, in the order in which rows are numbered.
            readings: telemetry as it stands.
            scraped: Unix seconds of each node's last good scrape.
            dropped: counts of telemetry that was not used; counts of samples are added.

        Returns:
            A snapshot that never changes; columns that nothing was added to are the same objects as before.
        """
        with self._lock:
            self._compact(now)
            inventory = self._inventory(nodes)
            columns, lost = self._sample_columns(inventory)
            return Evidence(
                nodes=inventory.nodes,
                samples=columns,
                runs=tuple(self._runs.values()),
                readings=readings,
                kernel=self._kernel_messages(now),
                scraped=dict(scraped or {}),
                dropped={**(dropped or {}), **lost},
            )

    def _kernel_messages(self, now: float) -> tuple[KernelMessage, ...]:
        if self._kernel_cache is None:
            oldest = now - self._retention_s
            kept = [m for messages in self._kernel.values() for m in messages if m.at >= oldest]
            self._kernel_cache = tuple(sorted(kept, key=lambda m: m.at))
        return self._kernel_cache

    def _compact(self, now: float) -> None:
        """Drop what is too old, and put late arrivals in their place."""
        full = self._columns.size > self._max_samples
        late, old = self._unordered, full or now >= self._compact_at
        if not late and not old:
            return
        rows = np.argsort(self._columns["at"], kind="stable")
        if old:
            self._compact_at = now + _COMPACT_EVERY_S
            oldest = now - self._retention_s
            rows = rows[self._columns["at"][rows] >= oldest]
            if full:
                rows = rows[-int(0.9 * self._max_samples) :]
            # One that could not be taken back stays until it is: its effects do.
            for run in [r for r in self._runs.values() if r.phase is RunPhase.REVERTED and r.ended < oldest]:
                self._forget_run(run)
        self._columns.take(rows)
        self._unordered = False
        self._samples_cache = None
        self._renumber()

    def _renumber(self) -> None:
        """Forget GPUs and runs of which no sample is left, so that these tables stay bounded too."""
        columns = self._columns
        names = list(self._keys)
        used, key = np.unique(columns["key"], return_inverse=True)
        self._keys = {names[k]: i for i, k in enumerate(used.tolist())}
        columns.replace("key", key)
        runs = list(self._run_ids)
        used, run = np.unique(columns["run"], return_inverse=True)
        plain = int(len(used) > 0 and used[0] == _PLAIN)
        self._run_ids = {runs[r]: i for i, r in enumerate(used[plain:].tolist())}
        columns.replace("run", run - plain)

    def _inventory(self, nodes: Mapping[str, NodeRecord]) -> Inventory:
        cache = self._inventory_cache
        if cache is not None and cache[0] is nodes and cache[1] == self._inventory_version:
            return cache[2]
        found = take_inventory(nodes, self._gpus, self._suggested)
        self._inventory_cache = (nodes, self._inventory_version, found)
        return found

    def _sample_columns(self, inventory: Inventory) -> tuple[SampleColumns, dict[str, int]]:
        stamp = (inventory, self._columns.size, self._runs_version)
        cache = self._samples_cache
        if cache is not None and cache[0] == stamp:
            return cache[1], cache[2]
        rows, whole = self._cached_key_rows(inventory)
        keys, run_ids = self._columns["key"], self._columns["run"]
        gpu = rows[keys] if len(rows) else np.empty(0, np.int32)
        run = self._run_rows()[run_ids]  # -1 takes the last entry, which stands for plain
        lost = {
            "sample-of-unknown-gpu": int((gpu == DROPPED).sum()),
            "sample-of-unknown-run": int((run == DROPPED).sum()),
        }
        columns = self._select(gpu, run, whole)
        found = {reason: count for reason, count in lost.items() if count}
        self._samples_cache = (stamp, columns, found)
        return columns, found

    def _cached_key_rows(self, inventory: Inventory) -> tuple[NDArray[np.int32], dict[int, tuple[int, int]]]:
        """As :func:`rows_of_keys`; keys are only ever added until they are numbered afresh, in a new dictionary."""
        cache = self._rows_cache
        if cache is None or cache[0] is not inventory or cache[1] is not self._keys or len(cache[2]) != len(self._keys):
            cache = self._rows_cache = (inventory, self._keys, *rows_of_keys(self._keys, inventory))
        return cache[2], cache[3]

    def _run_rows(self) -> NDArray[np.int32]:
        rows = np.full(len(self._run_ids) + 1, DROPPED, np.int32)
        rows[-1] = _PLAIN
        place = {run_id: i for i, run_id in enumerate(self._runs)}
        for run_id, number in self._run_ids.items():
            rows[number] = place.get(run_id, DROPPED)
        return rows

    def _select(
        self, gpu: NDArray[np.int32], run: NDArray[np.int32], whole: Mapping[int, tuple[int, int]]
    ) -> SampleColumns:
        """The columns without what is dropped; a whole node's samples are repeated for each of its GPUs."""
        c = self._columns
        plain = SampleColumns(gpu, c["dimension"], c["at"], c["value"], c["status"], run, c["sm_clock"])
        if not whole and not (gpu == DROPPED).any() and not (run == DROPPED).any():
            return plain
        keep = (gpu >= 0) & (run != DROPPED)
        if not whole:
            return pick(plain, np.flatnonzero(keep))
        repeat = keep.astype(np.int64)
        keys = c["key"]
        spread = np.flatnonzero((gpu == WHOLE_NODE) & (run != DROPPED))
        repeat[spread] = [whole[k][1] - whole[k][0] for k in keys[spread].tolist()]
        picked = np.repeat(np.arange(len(gpu)), repeat)
        found = pick(plain, picked)
        rows = found.gpu.copy()
        starts = np.cumsum(repeat) - repeat
        for i in spread.tolist():
            low, high = whole[int(keys[i])]
            rows[starts[i] : starts[i] + high - low] = np.arange(low, high)
        return SampleColumns(rows, found.dimension, found.at, found.value, found.status, found.run, found.sm_clock)
