"""All that speaks against a node, rule by rule, merged so that one fault is one finding."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import numpy as np

from scorer.grading.baseline import Fleet
from scorer.grading.facts import NodeView, ago, gpu_list
from scorer.grading.kernel import judge_off_bus, judge_xids, port_states, xid_events
from scorer.grading.masking import Masks
from scorer.grading.predict import Prediction
from scorer.grading.series import Bools
from scorer.grading.state_faults import judge_admission, judge_health, judge_links, judge_offer, judge_probes
from scorer.grading.telemetry_faults import (
    CAUSE_FIELDS,
    RULE_FIELDS,
    Gauges,
    by_gpu,
    judge_gauges,
    judge_monitoring,
    judge_width,
    judge_xid_gauge,
)
from scorer.model.board import Finding, Reach
from scorer.model.dimension import Dimension
from scorer.model.evidence import Evidence, KernelMessage, LinkState, NodeFacts, Reading, Run, RunPhase, SampleStatus
from scorer.model.policy import GradingPolicy


class _OfNode(Protocol):
    @property
    def node(self) -> str: ...


T = TypeVar("T", bound=_OfNode)


@dataclass(frozen=True, slots=True, eq=False)
class ByNode:
    """Evidence of discrete kinds, sorted by node once."""

    readings: Mapping[str, Sequence[Reading]]
    kernel: Mapping[str, Sequence[KernelMessage]]
    links: Mapping[str, Sequence[LinkState]]
    runs: Mapping[str, Sequence[Run]]
    bad_probes: Mapping[int, Sequence[int]]

    def silent(self, row: int, facts: NodeFacts) -> bool:
        """Whether there is nothing discrete to judge of a node, as with most nodes of a big fleet."""
        tables = (self.readings, self.kernel, self.links, self.runs)
        return row not in self.bad_probes and not any(facts.name in t for t in tables)


@dataclass(frozen=True, slots=True)
class NodeFindings:
    """What was found of a node.

    Attributes:
        findings: worst first.
        withheld: indices of GPUs that the kubelet is taken not to offer: as many of the faulty ones as it withholds.
    """

    findings: tuple[Finding, ...]
    withheld: frozenset[int]


_FIELDS = RULE_FIELDS | CAUSE_FIELDS
#: Clocks that run ahead of ours by more than this are not believed.
_AHEAD_S = 60.0
_NOTHING = NodeFindings((), frozenset())


def _group(items: Iterable[T]) -> dict[str, list[T]]:
    table: dict[str, list[T]] = {}
    for item in items:
        table.setdefault(item.node, []).append(item)
    return table


def sort_by_node(evidence: Evidence, fleet: Fleet, current: Bools, now: float, policy: GradingPolicy) -> ByNode:
    """Sort evidence by node.

    Args:
        evidence: all of it.
        fleet: where the GPUs stand.
        current: bool (n,): samples that count at all (not of a reverted run).
        now: Unix seconds.
        policy: the fault window.
    """
    samples = evidence.samples
    recent = current & (samples.at >= now - policy.fault_window_s) & (samples.at <= now + _AHEAD_S)
    wrong = (samples.status != SampleStatus.OK) | ~(samples.value > 0)
    bad_probes: dict[int, list[int]] = {}
    if bool(np.any(recent & wrong)):
        node = fleet.node[samples.gpu]
        rows = np.flatnonzero(recent & np.isin(node, np.unique(node[recent & wrong])))
        for row in rows.tolist():
            bad_probes.setdefault(int(node[row]), []).append(row)
    readings = _group(_by_index(evidence))
    return ByNode(readings, _group(evidence.kernel), _group(evidence.links), _group(evidence.runs), bad_probes)


def _by_index(evidence: Evidence) -> Iterable[Reading]:
    """Readings with their GPU's present index: a UUID, where given, wins over an index that may be an old one."""
    index = {(n.name, g.uuid): g.index for n in evidence.nodes for g in n.gpus if g.uuid} if evidence.readings else {}
    named = {n for n, _ in index}
    for r in evidence.readings:
        if r.field not in _FIELDS:
            continue
        if not r.gpu_uuid or r.node not in named:
            yield r
            continue
        found = index.get((r.node, r.gpu_uuid))
        if found == r.gpu_index:
            yield r
        elif found is not None:
            yield replace(r, gpu_index=found)


def find_faults(
    row: int, evidence: Evidence, parts: ByNode, fleet: Fleet, prediction: Prediction, now: float, policy: GradingPolicy
) -> NodeFindings:
    """Find everything that discrete evidence says of one node.

    Args:
        row: the node's row.
        evidence: all of it.
        parts: the same by node.
        fleet: where the GPUs stand.
        prediction: for which GPUs the PCIe speed is known.
        now: Unix seconds.
        policy: windows.
    """
    facts = evidence.nodes[row]
    quiet = facts.name not in evidence.health and facts.name not in evidence.scraped and parts.silent(row, facts)
    if quiet and (facts.offered is None or facts.offered >= (facts.expected or len(facts.gpus))):
        return _NOTHING
    view = NodeView(facts, now, policy)
    runs = tuple(parts.runs.get(facts.name, ()))
    masks = Masks(runs)
    lines = [x for x in parts.kernel.get(facts.name, ()) if x.at <= now + _AHEAD_S]
    health = evidence.health.get(facts.name, {})

    readings, scraped = parts.readings.get(facts.name, ()), evidence.scraped.get(facts.name)
    table = by_gpu(readings, masks, now - policy.stale_telemetry_s, followed=scraped is not None)
    _judge_signals(view, lines, table, masks, _pcie_known(row, fleet, prediction, view))
    judge_monitoring(view, readings, scraped)
    judge_health(view, health, masks)
    if row in parts.bad_probes:
        judge_probes(view, int(fleet.gpu_start[row]), evidence.samples, parts.bad_probes[row])
    judge_links(view, [*parts.links.get(facts.name, ()), *port_states(facts.name, lines)])
    judge_admission(view, health)
    withheld = judge_offer(view)
    _judge_runs(view, runs)
    findings = _merge(view.findings)
    return NodeFindings(findings, _withheld(findings, withheld))


def _judge_signals(
    view: NodeView,
    lines: Sequence[KernelMessage],
    table: Mapping[int, Gauges],
    masks: Masks,
    pcie_known: frozenset[int],
) -> None:
    """Judge kernel log and telemetry together: each confirms, explains or denies what the other says."""
    events = xid_events(view, lines)
    judge_xids(view, events, masks)
    judge_off_bus(view, lines, masks)
    contained = frozenset(f.gpu_index for f in view.findings if f.rule == "contained")
    judge_xid_gauge(view, table, events, lines, masks)
    judge_gauges(view, table, masks, contained)
    judge_width(view, table, pcie_known)


def _pcie_known(row: int, fleet: Fleet, prediction: Prediction, view: NodeView) -> frozenset[int]:
    """Indices of the GPUs whose PCIe speed recent probes tell."""
    start, stop = int(fleet.gpu_start[row]), int(fleet.gpu_start[row + 1])
    at = prediction.newest_at[start:stop, Dimension.PCIE]
    recent = view.now - at <= view.policy.max_probe_age_s
    known = recent & np.isfinite(prediction.slowdown[start:stop, Dimension.PCIE])
    return frozenset(view.facts.gpus[i].index for i in np.flatnonzero(known).tolist())


def _judge_runs(view: NodeView, runs: Sequence[Run]) -> None:
    """Say which experiments act on the node, and which could not be taken back."""
    for r in runs:
        where = gpu_list(r.gpus) if r.gpus else "the whole node"
        if r.phase is RunPhase.ACTIVE:
            text = f"experiment {r.kind} acts on {where} since {ago(view.now - r.started)}"
            view.add("experiment", -1, text, evidence=f"run {r.id}", source="experiment", first=r.started, run=r.id)
        elif r.phase is RunPhase.FAILED_REVERT:
            for gpu in r.gpus or (-1,):
                text = f"experiment {r.kind} on {where} could not be reverted; its effects stay"
                view.add(
                    "revert-failed", gpu, text, evidence=f"run {r.id}", source="experiment", first=r.started, run=r.id
                )


def _merge(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Make one finding of those of one rule on one GPU: the first tells, the others are further evidence."""
    kept: dict[tuple[str, int, Reach, str], Finding] = {}
    for f in findings:
        # Several XIDs, ports, systems, or cards without an index are several facts; several sources of one are not.
        fact = f.text if f.rule in _SEVERAL or f.gpu_index < 0 else ""
        key = (f.rule, f.gpu_index, f.reach, fact)
        old = kept.get(key)
        if old is None:
            kept[key] = f
        elif f.evidence and f.evidence not in old.evidence:
            kept[key] = replace(
                old,
                evidence=f"{old.evidence}; {f.evidence}",
                first_seen=_least(old.first_seen, f.first_seen),
                last_seen=_most(old.last_seen, f.last_seen),
            )
    return tuple(sorted(kept.values(), key=lambda f: (-int(f.grade), f.gpu_index, f.rule, f.text)))


_SEVERAL = frozenset({"xid-fatal", "xid-warn", "xid-app", "health-warning", "ib-flapping", "ib-flapped", "coverage"})


def _least(a: float, b: float) -> float:
    return float(np.fmin(a, b))


def _most(a: float, b: float) -> float:
    return float(np.fmax(a, b))


#: For these a device plugin takes a GPU out of the offer: it reads XIDs, and sees a GPU that cannot be read. Of a slow,
#: hot or badly linked one it knows nothing.
_TAKEN_OUT_FOR = frozenset(
    {
        "off-bus",
        "gpu-unreadable",
        "xid-fatal",
        "uncorrectable",
        "remap-failed",
        "health-failure",
        "remap-pending",
        "contained",
        "xid-warn",
        "unconfirmed",
    }
)


def _withheld(findings: Sequence[Finding], count: int) -> frozenset[int]:
    """Which GPUs the kubelet withholds: it does not say, so the worst of those it has a reason to are taken to be."""
    suspects = [f.gpu_index for f in findings if f.rule in _TAKEN_OUT_FOR and f.names_gpu and f.gpu_index >= 0]
    return frozenset(list(dict.fromkeys(suspects))[: max(count, 0)])
