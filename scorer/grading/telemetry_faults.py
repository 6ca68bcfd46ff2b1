"""Faults that telemetry shows: gauges and counters of dcgm-exporter and nvidia-smi."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scorer.grading import metrics as m
from scorer.grading.facts import NodeView, ago, gpu_list
from scorer.grading.kernel import XidEvent, xid_rule
from scorer.grading.masking import Masks
from scorer.grading.products import product_facts
from scorer.grading.xid import FOLLOWERS, look_up
from scorer.model.evidence import KernelMessage, Reading

#: The kernel's line and the exporter's gauge tell of one event when they are this close.
_SAME_EVENT_S = 15 * 60.0
#: Held by the power cap below this share of the limit: the limit is not what holds it.
_HELD_SHARE = 0.75
#: A GPU is under load from here on, in percent.
_BUSY = 80.0
#: A pulse that has not moved for so long, while scrapes went on, has stopped.
_FROZEN_S = 10 * 60.0
_FABRIC_NOT_STARTED = 1.0
_FABRIC_FAILED = 4.0

#: Source of the readings whose standing still means something.
EXPORTER = "dcgm-exporter"

#: One GPU's readings by field.
Gauges = Mapping[int, Reading]


@dataclass(frozen=True, slots=True)
class Standing:
    """A rule for a gauge that is wrong as long as it is above zero."""

    field: int
    rule: str
    what: str


STANDING: tuple[Standing, ...] = (
    Standing(m.REMAP_FAILURE, "remap-failed", "row remapping has failed"),
    Standing(m.REMAP_PENDING, "remap-pending", "a row remap is pending until the GPU is reset"),
    Standing(m.RETIRED_PENDING, "remap-pending", "a page retirement is pending until the GPU is reset"),
    Standing(m.DBE_VOLATILE, "uncorrectable", "uncorrectable (double-bit) ECC errors since driver load"),
)
#: Rules for counters that are wrong while they rise.
RISING: tuple[Standing, ...] = (
    Standing(m.HW_THERMAL_NS, "hw-slowdown", "time in hardware thermal slowdown is rising"),
    Standing(m.POWER_BRAKE_NS, "hw-slowdown", "time in power brake slowdown is rising"),
    Standing(m.THERMAL_VIOLATION, "hw-slowdown", "time lost to heat is rising"),
    Standing(m.NVLINK_REPLAY, "nvlink-errors", "NVLink replays are rising"),
    Standing(m.NVLINK_RECOVERY, "nvlink-errors", "NVLink recoveries are rising"),
)


#: What these say holds until a reset: an exporter that dies, as it may with its GPU, takes nothing back.
UNTIL_RESET = frozenset(s.field for s in STANDING)
#: Fields that some rule looks at; most of what exporters send is not among them.
RULE_FIELDS = frozenset(
    {s.field for s in (*STANDING, *RISING)}
    | {m.XID, m.EVENT_REASONS, m.POWER, m.ENERGY, m.ENFORCED_LIMIT, m.GPU_UTIL, m.FABRIC_STATUS}
    | {m.PCIE_WIDTH, m.PCIE_MAX_WIDTH}
)
#: Fields that explain a slowdown, and are no fault by themselves.
CAUSE_FIELDS = frozenset(
    {m.SM_CLOCK, m.TEMPERATURE, m.SLOWDOWN_POINT, m.POWER_LIMIT, m.DEFAULT_LIMIT, m.PCIE_GEN, m.PCIE_MAX_GEN}
)


def by_gpu(
    readings: Sequence[Reading], masks: Masks, oldest: float, *, followed: bool = False
) -> dict[int, dict[int, Reading]]:
    """Sort a node's readings by GPU and field, the newest of each.

    Args:
        readings: of one node.
        masks: its experiments; what a reverted one left standing is left out.
        oldest: Unix seconds; what was last seen before says nothing about now. The XID gauge is a memory and stays.
        followed: whether an exporter of the node is being followed. Then what holds until a reset stays while the
            exporter is silent.
    """
    table: dict[int, dict[int, Reading]] = {}
    last_word = max((r.at for r in readings if followed and r.source == EXPORTER), default=math.inf)
    for r in readings:
        stays = r.field == m.XID or (r.field in UNTIL_RESET and r.at >= last_word)
        if r.at < oldest and not stays:
            continue
        row = table.setdefault(r.gpu_index, {})
        before = row.get(r.field)
        if before is not None and not math.isnan(before.value) and (before.at > r.at or math.isnan(r.value)):
            continue
        if masks.runs and masks.hides_reading(r):
            continue
        row[r.field] = r
    return table


def judge_gauges(view: NodeView, table: Mapping[int, Gauges], masks: Masks, contained: frozenset[int]) -> None:
    """Judge gauges and counters of each GPU.

    Args:
        view: the node.
        table: readings by GPU and field.
        masks: the node's experiments.
        contained: GPUs with a contained memory error; it counts as one uncorrectable ECC error and explains it.
    """
    for gpu, gauges in table.items():
        for rule in STANDING:
            r = gauges.get(rule.field)
            if r is None or not r.value > 0 or (rule.rule == "uncorrectable" and gpu in contained):
                continue
            _note(view, rule, gpu, r, masks)
        for rule in RISING:
            r = gauges.get(rule.field)
            if r is not None and r.value > r.previous:  # NaN compares false: a first sight is no rise
                _note(view, rule, gpu, r, masks)
        _judge_reasons(view, gpu, gauges, masks)
        _judge_fabric_manager(view, gauges)


def _note(view: NodeView, rule: Standing, gpu: int, r: Reading, masks: Masks) -> None:
    view.add(
        rule.rule,
        gpu,
        f"GPU {gpu}: {rule.what} ({r.value:.0f})",
        evidence=f"{r.source} field {r.field} = {r.value:.0f}",
        source=r.source,
        first=r.since,
        last=r.since if rule in RISING else math.nan,
        run=masks.active_run(gpu, f"field:{r.field}"),
    )


def _judge_reasons(view: NodeView, gpu: int, gauges: Gauges, masks: Masks) -> None:
    """Judge why the clocks are what they are, and a power cap that holds a busy GPU far below its limit."""
    reasons = gauges.get(m.EVENT_REASONS)
    if reasons is None or math.isnan(reasons.value):
        return
    bits = int(reasons.value)
    run = masks.active_run(gpu, f"field:{m.EVENT_REASONS}")
    if bits & m.REASON_HW_SLOWDOWN:
        text = f"GPU {gpu}: the hardware slows its clocks (event reasons {bits:#x}: heat or power brake)"
        seen = f"{reasons.source} field {reasons.field} = {bits:#x}"
        view.add("hw-slowdown", gpu, text, evidence=seen, source=reasons.source, last=reasons.at, run=run)
    draw, limit, load = (value_of(gauges, f) for f in (m.POWER, m.ENFORCED_LIMIT, m.GPU_UTIL))
    if bits & m.REASON_SW_POWER_CAP and load >= _BUSY and draw < _HELD_SHARE * limit:
        text = f"GPU {gpu} is held at {draw:.0f} W by the power cap (sw_power_cap) although its limit is {limit:.0f} W"
        seen = f"{reasons.source} event reasons {bits:#x}, power {draw:.0f} W of {limit:.0f} W at {load:.0f} % load"
        view.add("power-held", gpu, text, evidence=seen, source=reasons.source, last=reasons.at, run=run)


def value_of(gauges: Gauges, field: int) -> float:
    """What a GPU's telemetry says of a field; NaN where it says nothing."""
    reading = gauges.get(field)
    return math.nan if reading is None else reading.value


def _judge_fabric_manager(view: NodeView, gauges: Gauges) -> None:
    status = value_of(gauges, m.FABRIC_STATUS)
    if status in (_FABRIC_NOT_STARTED, _FABRIC_FAILED) and product_facts(view.product).fabric_manager:
        word = "not started" if status == _FABRIC_NOT_STARTED else "failed"
        text = f"the fabric manager has {word}; this product needs it"
        view.add("fabric-manager", -1, text, evidence=f"field {m.FABRIC_STATUS} = {status:.0f}", source="dcgm-exporter")


def judge_xid_gauge(
    view: NodeView,
    table: Mapping[int, Gauges],
    events: Sequence[XidEvent],
    lines: Sequence[KernelMessage],
    masks: Masks,
) -> None:
    """Judge the exporter's XID gauge, which holds the last XID ever seen: only its change says when.

    The kernel log, where it is read, confirms it or shows that it is not so.
    """
    newest_line = max((x.at for x in lines), default=-math.inf)
    oldest_line = min((x.at for x in lines), default=math.inf)
    for gpu, gauges in table.items():
        r = gauges.get(m.XID)
        if r is None or not r.value > 0:
            continue
        code = int(r.value)
        rule, action = xid_rule(code)
        if rule is None or code in FOLLOWERS or any(e.code == code and e.gpu == gpu for e in events):
            continue
        dated = not math.isnan(r.previous)
        logged = oldest_line < r.since - view.policy.fault_window_s if not dated else oldest_line <= r.since
        if not dated and logged:
            continue  # stood there at first sight, and the log of the whole window knows nothing of it: old news
        sure = dated and not (logged and newest_line > r.since + _SAME_EVENT_S)
        text = f"XID {code} ({look_up(code).name}) on GPU {gpu}, seen {ago(view.now - r.since)} ago"
        run = masks.active_run(gpu, f"xid:{code}")
        seen = f"{r.source} field {m.XID} = {code}"
        if sure or run or rule == "xid-app":
            view.add(
                rule, gpu, text, evidence=seen, source=r.source, first=r.since, last=r.since, action=action, run=run
            )
        else:
            why = "the kernel log shows none" if dated else "it stood there when first seen"
            view.add("unconfirmed", gpu, f"{text}; {why}", evidence=seen, source=r.source, first=r.since, last=r.since)


def judge_width(view: NodeView, table: Mapping[int, Gauges], measured: frozenset[int]) -> None:
    """Judge PCIe width, which unlike the generation does not fall when a GPU idles.

    Args:
        view: the node.
        table: readings.
        measured: GPUs whose PCIe speed is known from recent probes: that decides then.
    """
    for gpu, gauges in table.items():
        width, full = value_of(gauges, m.PCIE_WIDTH), value_of(gauges, m.PCIE_MAX_WIDTH)
        if not 0 < width < full:
            continue
        text = f"GPU {gpu}: PCIe runs at x{width:.0f} of x{full:.0f}"
        seen = f"field {m.PCIE_WIDTH} = {width:.0f}, field {m.PCIE_MAX_WIDTH} = {full:.0f}"
        rules = ("pcie-narrow-measured",) if gpu in measured else ("pcie-narrow", "pcie-narrow-light")
        for rule in rules:
            view.add(rule, gpu, text, evidence=seen, source=gauges[m.PCIE_WIDTH].source)


def judge_monitoring(view: NodeView, readings: Sequence[Reading], scraped: float | None) -> None:
    """Judge whether the telemetry can be believed: silent, frozen, or without the series that matter."""
    if scraped is None:
        return
    age = view.now - scraped
    if age > view.policy.stale_telemetry_s:
        text = f"telemetry is gone: no good scrape for {ago(age)}"
        view.add("telemetry-gone", -1, text, evidence="exporter does not answer", source="monitoring")
        return
    pulses: dict[int, Reading] = {}
    gone = set()
    for r in readings:
        if r.field in m.WATCHED and math.isnan(r.value):
            gone.add(m.WATCHED[r.field])
        elif r.field in m.PULSE and r.source == EXPORTER and r.value > 0:
            old = pulses.get(r.gpu_index)
            if old is None or m.PULSE.index(r.field) < m.PULSE.index(old.field):
                pulses[r.gpu_index] = r
    frozen = [gpu for gpu, r in pulses.items() if r.at - r.since > _FROZEN_S]
    if frozen:
        text = f"telemetry is frozen on {gpu_list(frozen)}: energy or power has not moved for over {ago(_FROZEN_S)}"
        view.add("telemetry-frozen", -1, text, evidence="dcgm-exporter repeats old values", source="monitoring")
    if gone:
        names = ", ".join(sorted(gone))
        text = f"coverage has shrunk: the exporter no longer has the series {names}; absent is not zero"
        view.add("coverage", -1, text, evidence="series missing from the newest scrape", source="monitoring")
