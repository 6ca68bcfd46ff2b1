"""Faults that states show: links, health reports, the kubelet's offer, and probes that did not end well."""

import re
from collections.abc import Mapping, Sequence

import numpy as np

from scorer.grading.facts import NodeView, ago, gpu_list
from scorer.grading.kernel import xid_rule
from scorer.grading.masking import Masks
from scorer.grading.products import product_facts
from scorer.grading.rules import RULES
from scorer.model.board import Action
from scorer.model.dimension import Dimension
from scorer.model.evidence import LinkState, SampleColumns, SampleStatus
from scorer.model.grade import Grade
from scorer.model.words import counted

#: Keys of the health map that other sources than ``dcgmi health`` use.
KUBELET = "kubelet"
NVIDIA_SMI = "nvidia-smi"

#: Dimensions that several GPUs measure together: what is slow or hangs there has no single owner.
COLLECTIVE = (Dimension.NVLINK, Dimension.FABRIC)

_XID = re.compile(r"\bXID\s*(\d+)", re.IGNORECASE)
_FATAL_WORDS = re.compile(r"double-bit|uncontained|uncorrectable|fallen off|remap\w* fail", re.IGNORECASE)
_PENDING_WORDS = re.compile(r"remap\w*\s+(are|is)\s+pending|pending", re.IGNORECASE)
_NVLINK_WORDS = re.compile(r"nvlink", re.IGNORECASE)
_TWICE = 2
_MIN_OTHERS = 2


def judge_health(view: NodeView, health: Mapping[int, Mapping[str, str]], masks: Masks) -> None:
    """Judge what ``dcgmi health`` and its like say; a system of unknown name is judged by its text all the same."""
    for gpu, systems in health.items():
        for system, verdict in systems.items():
            if system == KUBELET or masks.hides_health(gpu, verdict):
                continue
            rule, action = _health_rule(system, verdict)
            if rule is None:
                continue
            source = NVIDIA_SMI if system == NVIDIA_SMI else "dcgmi-health"
            text = f"GPU {gpu}: {system}: {verdict}"
            code = _XID.search(verdict)
            run = masks.active_run(gpu, f"xid:{code.group(1)}") if code else ""
            view.add(rule, gpu, text, evidence=f"{source}: {verdict[:160]}", source=source, action=action, run=run)


def _health_rule(system: str, verdict: str) -> tuple[str | None, Action | None]:
    code = _XID.search(verdict)
    if code:
        rule, action = xid_rule(int(code.group(1)), verdict)
        # The report carries no time: an application's XID in it may be old news.
        return (None if rule is None or RULES[rule].grade is Grade.GREEN else rule), action
    failed = verdict.lower().startswith("fail")
    rows = (
        (system == NVIDIA_SMI, "gpu-unreadable"),
        (bool(_PENDING_WORDS.search(verdict)), "remap-pending"),
        (failed and bool(_FATAL_WORDS.search(verdict)), "health-failure"),
        (bool(_NVLINK_WORDS.search(system)), "nvlink-errors"),
        (failed or verdict.lower().startswith(("warn", "internal")), "health-warning"),
    )
    return next((rule for hit, rule in rows if hit), None), None


def judge_links(view: NodeView, links: Sequence[LinkState]) -> None:
    """Judge NVLinks against the product's count, and InfiniBand ports by what they did lately."""
    latest: dict[tuple[str, int, str], LinkState] = {}
    downs: dict[str, list[float]] = {}
    for s in sorted(links, key=lambda s: s.at):
        latest[s.kind, s.gpu_index, s.link] = s
        if s.kind == "ib" and s.state == "down":
            seen = downs.setdefault(s.link, [])
            if not seen or s.at - seen[-1] > 1.0:  # the kernel and the port's counter tell of one event twice
                seen.append(s.at)
    _judge_nvlinks(view, [s for s in latest.values() if s.kind == "nvlink"])
    for (kind, _, port), s in latest.items():
        if kind == "ib":
            _judge_port(view, port, s, downs.get(port, []))


def _judge_nvlinks(view: NodeView, states: Sequence[LinkState]) -> None:
    expected = product_facts(view.product).nvlinks
    for gpu in sorted({s.gpu_index for s in states if s.gpu_index >= 0}) if expected else ():
        mine = [s for s in states if s.gpu_index == gpu]
        active = sum(s.state == "active" for s in mine)
        if active >= expected:
            continue
        out = ", ".join(s.link for s in mine if s.state != "active")
        text = f"GPU {gpu}: {active} of {expected} NVLinks active (inactive: link {out or 'not listed'})"
        view.add("nvlink-missing", gpu, text, evidence=text, source="nvlink")


def _judge_port(view: NodeView, port: str, state: LinkState, downs: Sequence[float]) -> None:
    recent = [t for t in downs if view.now - t <= view.window("ib-flapping")]
    if state.state in ("down", "error") or len(recent) >= _TWICE:
        what = (
            f"is {state.state}"
            if state.state in ("down", "error")
            else f"went down {len(recent)} times within the hour"
        )
        view.add("ib-flapping", -1, f"InfiniBand port {port} {what}", evidence=f"{port} {state.state}", source="link")
    elif downs:
        text = f"InfiniBand port {port} went down {ago(view.now - downs[-1])} ago and has been up since"
        view.add("ib-flapped", -1, text, evidence=f"{port} down", source="link", first=downs[0], last=downs[-1])


def judge_admission(view: NodeView, health: Mapping[int, Mapping[str, str]]) -> None:
    """Judge pods that the kubelet rejected: on two GPUs other than the faulty ones the whole node rejects."""
    faulty = {f.gpu_index for f in view.findings if f.grade is Grade.RED and f.gpu_index >= 0}
    rejected = {gpu: systems[KUBELET] for gpu, systems in health.items() if KUBELET in systems}
    others = sorted(set(rejected) - faulty)
    if len(others) >= _MIN_OTHERS:
        text = f"pods are rejected at admission on {gpu_list(others)} too, not only on a faulty one"
        view.add("admission", -1, text, evidence=rejected[others[0]][:160], source="kubelet")


def judge_offer(view: NodeView) -> int:
    """Judge how many GPUs the kubelet offers of those the node should have.

    Returns:
        how many it withholds.
    """
    facts = view.facts
    expected = facts.expected if facts.expected is not None else len(facts.gpus)
    if facts.offered is None or facts.offered >= expected:
        return 0
    broken = any(f.rule in ("off-bus", "gpu-unreadable") for f in view.findings)
    present = len(facts.gpus) >= expected
    action = Action.RESTART_DEVICE_PLUGIN if present and not broken else Action.NONE
    text = f"{facts.offered} of {counted(expected, 'GPU')} {'is' if expected == 1 else 'are'} allocatable"
    everything = facts.offered == 0
    view.add(
        "not-offered",
        -1,
        text,
        evidence=f"kubelet: allocatable {facts.offered}, expected {expected}",
        source="kubelet",
        action=action,
        reach=None if not everything else RULES["admission"].reach,
    )
    return expected - facts.offered


def judge_probes(view: NodeView, first_row: int, samples: SampleColumns, keep: Sequence[int]) -> None:
    """Judge probes that met their deadline, failed, or returned what cannot be.

    Args:
        view: the node.
        first_row: GPU row of its first GPU.
        samples: all samples.
        keep: rows of ``samples`` that are this node's, within the fault window, and not masked.
    """
    rows = np.asarray(keep, np.int64)
    if rows.size == 0:
        return
    gpu, at, status = samples.gpu[rows] - first_row, samples.at[rows], samples.status[rows]
    collective = np.isin(samples.dimension[rows], [int(d) for d in COLLECTIVE])
    good = (status == SampleStatus.OK) & np.isfinite(samples.value[rows]) & (samples.value[rows] > 0)
    late = status == SampleStatus.TIMEOUT
    bad = ~good & ~late
    for i, facts in enumerate(view.facts.gpus):
        mine = (gpu == i) & ~collective
        last_good = max(at[mine & good], default=-np.inf)
        for rule, which, what in (
            ("probe-timeouts", late, "timed out (no completion within the deadline)"),
            ("probe-failures", bad, "failed"),
        ):
            hits = at[mine & which & (at > last_good)]
            if hits.size >= _TWICE:
                text = f"GPU {facts.index}: {hits.size} probes {what}, last {ago(view.now - hits.max())} ago"
                seen = f"{hits.size} probes without a good one since"
                view.add(rule, facts.index, text, evidence=seen, source="probe", first=hits.min(), last=hits.max())
    last_good = max(at[collective & good], default=-np.inf)
    hung = collective & late & (at > last_good)
    if np.unique(gpu[hung]).size >= _TWICE:
        who = gpu_list(view.facts.gpus[i].index for i in np.unique(gpu[hung]))
        text = f"collectives over NVLink or fabric hang: probes from {who} timed out"
        view.add(
            "collective-timeouts", -1, text, evidence=text, source="probe", first=at[hung].min(), last=at[hung].max()
        )
