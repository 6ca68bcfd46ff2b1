"""Why a GPU is slow, as far as its own telemetry shows it: joined to the slowdown that probes measured."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from scorer.grading import metrics as m
from scorer.grading.baseline import Fleet
from scorer.grading.findings import ByNode, NodeFindings
from scorer.grading.masking import Masks
from scorer.grading.predict import Prediction
from scorer.grading.rules import RULES
from scorer.grading.series import MAD_SCALE, Bools, Floats
from scorer.grading.telemetry_faults import Gauges, by_gpu, value_of
from scorer.model.board import Action, Finding
from scorer.model.dimension import Dimension
from scorer.model.evidence import Evidence, Reading
from scorer.model.grade import Grade
from scorer.model.policy import GradingPolicy

#: A GPU is under load from here on, and idle up to there, in percent; between them nothing is compared.
_BUSY, _IDLE = 80.0, 20.0
#: A limit or a clock below this share of the peers' is lowered.
_LOWERED = 0.97
#: A GPU is hot where it is so much hotter than its peers, in degrees and in their own spreads, or so near the point at
#: which the hardware slows it.
_HOTTER_C, _HOTTER_SPREADS, _NEAR_C = 8.0, 3.0, 5.0
#: Fewest other GPUs of the same node that can stand in for peers on other nodes.
_FEWEST = 3
#: Peers are read on so many nodes at most: a median of more says nothing else.
_PEER_NODES = 64

#: Where the SM clock under the newest compute probe stands among a GPU's readings.
_PROBED_CLOCK = -m.SM_CLOCK
_CLOCKED = frozenset({Dimension.COMPUTE, Dimension.MEMORY})
#: Findings of the same GPU that explain a slowdown: in which dimensions, and in which words.
_KNOWN: Mapping[str, tuple[frozenset[Dimension], str]] = {
    "hw-slowdown": (_CLOCKED, "the hardware slows its clocks"),
    "power-held": (_CLOCKED, "the power cap holds it far below its limit"),
    "nvlink-missing": (frozenset({Dimension.NVLINK}), ""),
    "nvlink-errors": (frozenset({Dimension.NVLINK}), "its NVLinks repeat what they send"),
}


@dataclass(frozen=True, slots=True)
class Cause:
    """One thing that explains a slowdown.

    Attributes:
        text: a clause, to stand after the slowdown.
        evidence: where it was seen.
        action: the remedy.
    """

    text: str
    evidence: str
    action: Action


def with_causes(
    slow: Mapping[int, Sequence[Finding]],
    faults: Sequence[NodeFindings],
    evidence: Evidence,
    parts: ByNode,
    fleet: Fleet,
    prediction: Prediction,
    current: Bools,
    now: float,
    policy: GradingPolicy,
) -> dict[int, list[Finding]]:
    """Say with each slowdown what the telemetry of the same GPU shows that explains it, and what to do about that.

    Args:
        slow: slowdowns by row of the node.
        faults: what else was found, by row of the node.
        evidence: all of it.
        parts: the same by node.
        fleet: where the GPUs stand.
        prediction: tells what a running experiment causes; that asks for no remedy.
        current: bool (n,): samples that count at all (not of a reverted run).
        now: Unix seconds.
        policy: how old telemetry may be, and how many peers are enough.
    """
    if not slow:
        return {}
    tables = _Tables(evidence, parts, fleet, now, policy, current)
    result: dict[int, list[Finding]] = {}
    for row, findings in slow.items():
        result[row] = []
        for f in findings:
            causes = list(_causes(f, row, faults[row].findings, tables))
            injected = _injected(f, row, evidence, fleet, prediction)
            result[row].append(_joined(f, causes, remedy=f.grade > Grade.GREEN and not injected))
    return result


def _joined(f: Finding, causes: Sequence[Cause], *, remedy: bool) -> Finding:
    if not causes:
        return f
    wanted = next((c.action for c in causes if c.action is not Action.NONE), f.action)
    return replace(
        f,
        text="; ".join([f.text, *dict.fromkeys(c.text for c in causes)]),
        evidence="; ".join([f.evidence, *dict.fromkeys(c.evidence for c in causes if c.evidence)]),
        action=wanted if remedy else f.action,
    )


def _injected(f: Finding, row: int, evidence: Evidence, fleet: Fleet, prediction: Prediction) -> bool:
    start = int(fleet.gpu_start[row])
    rows = [start + i for i, g in enumerate(evidence.nodes[row].gpus) if f.gpu_index in (g.index, -1)]
    return f.dimension is not None and bool(prediction.active[rows, f.dimension].any())


class _Tables:
    """Readings by node, and the clocks under which probes measured, made for the nodes that somebody asks about."""

    def __init__(
        self, evidence: Evidence, parts: ByNode, fleet: Fleet, now: float, policy: GradingPolicy, current: Bools
    ) -> None:
        self._evidence, self._parts, self._fleet, self._now, self._policy = evidence, parts, fleet, now, policy
        self._clocks = _probed_clocks(evidence, fleet, current, now - policy.max_probe_age_s)
        self._known: dict[int, dict[int, dict[int, Reading]]] = {}
        self._sampled: dict[int, frozenset[int]] = {}
        self._usual: dict[tuple[int, int, bool | None, int], tuple[float, float]] = {}

    def of(self, row: int) -> Mapping[int, Gauges]:
        """Readings of a node by GPU and field; what reverted experiments left and what is old are not among them."""
        if row not in self._known:
            name = self._evidence.nodes[row].name
            masks = Masks(tuple(self._parts.runs.get(name, ())))
            oldest = self._now - self._policy.stale_telemetry_s
            table = by_gpu(self._parts.readings.get(name, ()), masks, oldest)
            start = int(self._fleet.gpu_start[row])
            for at, g in enumerate(self._evidence.nodes[row].gpus, start):
                mhz = float(self._clocks[at])
                if mhz > 0:
                    r = Reading(name, g.index, g.uuid, m.SM_CLOCK, mhz, self._now, self._now, source="probe")
                    table.setdefault(g.index, {})[_PROBED_CLOCK] = r
            self._known[row] = table
        return self._known[row]

    def usual(self, row: int, gpu: int, field: int, busy: bool | None = None) -> tuple[float, float]:
        """Median of a field over GPUs of the same group on other nodes, or else on the same node, and their spread.

        Args:
            row: of the node.
            gpu: index of the GPU that is compared.
            field: DCGM field id.
            busy: only those that are (true) or are not (false) under load; ``None`` takes all.

        Returns:
            NaN twice where too few say.
        """
        at = self._place(row, gpu)
        group = int(self._fleet.group[at])
        nodes = self._nodes_of(group)
        key = (group, field, busy, row if row in nodes else -1)
        if key not in self._usual:
            found = [v for node in nodes if node != row for v in self._values(node, group, field, busy)]
            self._usual[key] = _middle(found, self._policy.min_peers)
        result = self._usual[key]
        if math.isnan(result[0]):
            result = _middle(self._values(row, group, field, busy, left_out=gpu), _FEWEST)
        return result

    def _place(self, row: int, gpu: int) -> int:
        start = int(self._fleet.gpu_start[row])
        return next(start + i for i, g in enumerate(self._evidence.nodes[row].gpus) if g.index == gpu)

    def _nodes_of(self, group: int) -> Collection[int]:
        """Rows of nodes with GPUs of a group, spread over the fleet where there are many."""
        if group not in self._sampled:
            nodes = np.unique(self._fleet.node[self._fleet.group == group])
            self._sampled[group] = frozenset(nodes[:: -(-nodes.size // _PEER_NODES)].tolist())
        return self._sampled[group]

    def _values(self, row: int, group: int, field: int, busy: bool | None, left_out: int = -1) -> list[float]:
        """What the GPUs of a node that are of a group say of a field."""
        start, table = int(self._fleet.gpu_start[row]), self.of(row)
        gpus = enumerate(self._evidence.nodes[row].gpus, start)
        there = table.keys() - {left_out}
        same = [table[g.index] for at, g in gpus if g.index in there and self._fleet.group[at] == group]
        found = [value_of(gauges, field) for gauges in same if busy is None or _load(gauges) is busy]
        return [v for v in found if not math.isnan(v)]

    def default_limit(self, row: int, gpu: int) -> float:
        """Watts that the product is made for; NaN where that is not known."""
        told = value_of(self.of(row).get(gpu, {}), m.DEFAULT_LIMIT)
        listed = next((g.default_power_limit_w for g in self._evidence.nodes[row].gpus if g.index == gpu), 0.0)
        return listed if math.isnan(told) and listed > 0 else told


def _causes(f: Finding, row: int, known: Sequence[Finding], tables: _Tables) -> Iterator[Cause]:
    """What explains a slowdown, the likeliest first; a low clock where nothing says why it is low."""
    explained = False
    for cause in _roots(f, row, known, tables):
        explained = True
        yield cause
    if not explained and f.dimension in _CLOCKED:
        yield from _low_clock(f.gpu_index, row, tables.of(row).get(f.gpu_index, {}), tables)


def _roots(f: Finding, row: int, known: Sequence[Finding], tables: _Tables) -> Iterator[Cause]:
    d = f.dimension
    gauges = tables.of(row).get(f.gpu_index, {})
    if d is Dimension.PCIE:
        yield from _narrow(gauges)
    if d in _CLOCKED and gauges:
        yield from _lowered_limit(f.gpu_index, row, gauges, tables)
        yield from _hot(f.gpu_index, row, gauges, tables)
    for other in known:
        dimensions, words = _KNOWN.get(other.rule, (frozenset[Dimension](), ""))
        if d in dimensions and f.gpu_index in (other.gpu_index, -1):
            told = words or other.text.removeprefix(f"GPU {f.gpu_index}: ")
            yield Cause(told, other.evidence, RULES[other.rule].action)


def _lowered_limit(gpu: int, row: int, gauges: Gauges, tables: _Tables) -> Iterator[Cause]:
    field = m.ENFORCED_LIMIT if m.ENFORCED_LIMIT in gauges else m.POWER_LIMIT
    limit, (usual, _), whose = value_of(gauges, field), tables.usual(row, gpu, field), "its peers'"
    if math.isnan(usual):
        usual, whose = tables.default_limit(row, gpu), "its default"
    if limit < _LOWERED * usual:
        text = f"its power limit is {limit:.0f} W, {whose} {usual:.0f} W"
        yield Cause(text, _seen(gauges, field), Action.CHECK_COOLING_POWER)


def _hot(gpu: int, row: int, gauges: Gauges, tables: _Tables) -> Iterator[Cause]:
    own, point, busy = value_of(gauges, m.TEMPERATURE), value_of(gauges, m.SLOWDOWN_POINT), _load(gauges)
    usual, spread = (math.nan, math.nan) if busy is None else tables.usual(row, gpu, m.TEMPERATURE, busy)
    if own - usual >= max(_HOTTER_C, _HOTTER_SPREADS * spread):
        text = f"it is at {own:.0f} C, its peers at {usual:.0f} C{'' if busy else ', all idle'}"
    elif own >= point - _NEAR_C:
        text = f"it is at {own:.0f} C, and slows down at {point:.0f} C"
    else:
        return
    yield Cause(text, _seen(gauges, m.TEMPERATURE), Action.CHECK_COOLING_POWER)


def _low_clock(gpu: int, row: int, gauges: Gauges, tables: _Tables) -> Iterator[Cause]:
    """Clocks say something under load alone; where they were set, no cooling and no power supply is to blame."""
    if _load(gauges):
        field, (usual, _) = m.SM_CLOCK, tables.usual(row, gpu, m.SM_CLOCK, busy=True)
    if not _load(gauges) or math.isnan(usual):
        field, (usual, _) = _PROBED_CLOCK, tables.usual(row, gpu, _PROBED_CLOCK)
    clock = value_of(gauges, field)
    if clock < _LOWERED * usual:
        reasons = value_of(gauges, m.EVENT_REASONS)
        held = not math.isnan(reasons) and bool(int(reasons) & m.REASON_CLOCKS_SETTING)
        text = f"its SM clock under load is {clock:.0f} MHz, its peers' {usual:.0f} MHz"
        action = Action.NONE if held else Action.CHECK_COOLING_POWER
        yield Cause(f"{text}, as somebody set it" if held else text, _seen(gauges, field), action)


def _probed_clocks(evidence: Evidence, fleet: Fleet, current: Bools, oldest: float) -> Floats:
    """SM clock under each GPU's newest compute probe: float64 (G,), NaN where none told."""
    clocks = np.full(fleet.node.size, np.nan)
    s = evidence.samples
    if s.sm_clock.size:
        told = current & (s.dimension == Dimension.COMPUTE) & (s.at >= oldest) & (s.sm_clock > 0)
        rows = np.flatnonzero(told)
        rows = rows[np.argsort(s.at[rows], kind="stable")]
        clocks[s.gpu[rows]] = s.sm_clock[rows]  # of several the last one stays
    return clocks


def _narrow(gauges: Gauges) -> Iterator[Cause]:
    """Width counts always; the generation falls when a GPU idles, so that it counts under load alone."""
    links = ((m.PCIE_WIDTH, m.PCIE_MAX_WIDTH, "x", "x"), (m.PCIE_GEN, m.PCIE_MAX_GEN, "generation ", ""))
    for field, most, word, unit in links:
        have, full = value_of(gauges, field), value_of(gauges, most)
        if 0 < have < full and (field == m.PCIE_WIDTH or _load(gauges)):
            text = f"its PCIe runs at {word}{have:.0f} of {unit}{full:.0f}"
            yield Cause(text, _seen(gauges, field), Action.CHECK_CABLING)


def _load(gauges: Gauges) -> bool | None:
    """Whether a GPU is busy (true) or idle (false); ``None`` between, and where it does not say."""
    used = value_of(gauges, m.GPU_UTIL)
    return True if used >= _BUSY else False if used <= _IDLE else None


def _seen(gauges: Gauges, field: int) -> str:
    r = gauges[field]
    return f"{r.source} field {r.field} = {r.value:.0f}"


def _middle(values: Sequence[float], fewest: int) -> tuple[float, float]:
    """Median and spread, the latter as a standard deviation; NaN twice where the values are too few."""
    if len(values) < fewest:
        return math.nan, math.nan
    middle = float(np.median(values))
    return middle, MAD_SCALE * float(np.median(np.abs(np.asarray(values) - middle)))
