"""Faults that the kernel log tells of: XIDs, GPUs that fall off the bus without one, InfiniBand ports."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from scorer.grading.facts import NodeView, ago
from scorer.grading.masking import Masks
from scorer.grading.rules import XID_RULES
from scorer.grading.xid import FOLLOWERS, NVLINK5, Severity, look_up
from scorer.model.board import Action
from scorer.model.evidence import KernelMessage, LinkState

_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)\b,?\s*(.*)", re.DOTALL)
#: What a line says of the job is nobody's business here.
_PROCESS = re.compile(r"\b(?:pid|name)=[^,]*,?\s*")
_CAUSED = re.compile(r"caused by previous Xid (\d+)")
_OFF_BUS = re.compile(r"fallen\s+off\s+the\s+bus", re.IGNORECASE)
_ADDRESS = re.compile(r"\b([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)\b")
_DRIVER_LOAD = re.compile(r"NVRM: loading NVIDIA UNIX")
_PORT = re.compile(r"mlx5_core \S+ (mlx5_\d+): Port: (\d+) Link (DOWN|ACTIVE)")

#: The driver prints its banner after it has probed the cards: what is this close before it belongs to that load.
_SAME_LOAD_S = 60.0
#: Lines of one message follow each other within this time.
_ONE_MESSAGE_S = 5.0
#: How many lines one message may run over.
_ONE_MESSAGE_LINES = 3


@dataclass(frozen=True, slots=True)
class XidEvent:
    """An XID as the kernel told it.

    Attributes:
        at: Unix seconds of the newest line of this code on this GPU.
        first: Unix seconds of the first one.
        gpu: index, or -1 where the address is no GPU's that is known.
        address: PCI address as written.
        code: the XID.
        text: the rest of the line.
        caused_by: the XID that brought it about, or 0.
        count: lines.
    """

    at: float
    first: float
    gpu: int
    address: str
    code: int
    text: str
    caused_by: int
    count: int = 1


def xid_events(view: NodeView, lines: Sequence[KernelMessage]) -> list[XidEvent]:
    """Read the XIDs out of a node's kernel lines: one event a code and card, without what a driver load cured."""
    load = max((m.at for m in lines if _DRIVER_LOAD.search(m.text)), default=float("-inf"))
    found: dict[tuple[str, int], XidEvent] = {}
    for m in lines:
        match = _XID.search(m.text)
        if not match or m.at < load - _SAME_LOAD_S or m.at > view.now + _SAME_LOAD_S:
            continue
        address, code, text = match.group(1), int(match.group(2)), _PROCESS.sub("", match.group(3)).strip()
        cause = _CAUSED.search(text)
        key = (address, code)
        before = found.get(key)
        found[key] = XidEvent(
            at=m.at,
            first=before.first if before else m.at,
            gpu=view.gpu_at(address),
            address=address,
            code=code,
            text=text,
            caused_by=int(cause.group(1)) if cause else 0,
            count=before.count + 1 if before else 1,
        )
    return list(found.values())


def judge_xids(view: NodeView, events: Sequence[XidEvent], masks: Masks) -> None:
    """Turn XID events into findings; followers and what a reverted experiment left behind yield none."""
    for e in events:
        if e.code in FOLLOWERS or e.caused_by or masks.hides_event(e.gpu, f"xid:{e.code}", e.at):
            continue
        rule, action = xid_rule(e.code, e.text)
        if rule is None:
            continue
        row = look_up(e.code)
        who = f"GPU {e.gpu}" if e.gpu >= 0 else f"the card at {e.address}"
        times = f", {e.count} times" if e.count > 1 else ""
        view.add(
            rule,
            e.gpu,
            f"XID {e.code} ({row.name}) on {who} {ago(view.now - e.at)} ago{times}",
            evidence=f"kernel log: Xid {e.code} at {e.address}: {e.text[:120]}",
            source="kmsg",
            first=e.first,
            last=e.at,
            action=action,
            run=masks.active_run(e.gpu, f"xid:{e.code}"),
        )


def xid_rule(code: int, text: str = "") -> tuple[str | None, Action | None]:
    """Return the rule of an XID, and its remedy where that is not the rule's; no rule for mere information."""
    if code in XID_RULES:
        return XID_RULES[code], None
    row = look_up(code)
    if row.severity is Severity.FATAL and code in NVLINK5 and "Nonfatal" in text:
        return "xid-warn", Action.NONE
    if row.severity is Severity.FATAL:
        return "xid-fatal", row.action
    if row.severity is Severity.APPLICATION:
        return "xid-app", None
    if row.severity is Severity.INFO:
        return None, None
    return "xid-warn", row.action


def judge_off_bus(view: NodeView, lines: Sequence[KernelMessage], masks: Masks) -> None:
    """Find GPUs that fell off the bus without an XID; the message may run over several lines."""
    load = max((m.at for m in lines if _DRIVER_LOAD.search(m.text)), default=float("-inf"))
    told: set[str] = set()
    for i, m in enumerate(lines):
        joined = " ".join(
            other.text
            for other in lines[max(0, i - _ONE_MESSAGE_LINES + 1) : i + 1]
            if m.at - other.at <= _ONE_MESSAGE_S
        )
        if not _OFF_BUS.search(joined) or "Xid" in m.text or m.at < load - _SAME_LOAD_S:
            continue
        if "bus" not in m.text.lower():
            continue
        addresses = _ADDRESS.findall(m.text) or _ADDRESS.findall(joined)
        address = addresses[-1] if addresses else "an unknown address"
        gpu = view.gpu_at(address)
        if address in told or masks.hides_event(gpu, "xid:79", m.at):
            continue
        told.add(address)
        who = f"GPU {gpu}" if gpu >= 0 else "a GPU"
        view.add(
            "off-bus",
            gpu,
            f"{who} at {address} has fallen off the bus {ago(view.now - m.at)} ago",
            evidence=f"kernel log: {joined[:160]}",
            source="kmsg",
            first=m.at,
            last=m.at,
            run=masks.active_run(gpu, "xid:79"),
        )


def port_states(node: str, lines: Sequence[KernelMessage]) -> list[LinkState]:
    """Read changes of InfiniBand ports out of kernel lines."""
    states = []
    for m in lines:
        match = _PORT.search(m.text)
        if match:
            states.append(
                LinkState(
                    node, m.at, -1, f"{match.group(1)}:{match.group(2)}", "ib", match.group(3).lower(), "kernel log"
                )
            )
    return states
