"""The text that dcgm-exporter 4.5 would serve for a node: it reads the same hostengine as ``dcgmi``."""

from tools.fleet.faults import XID_NAMES
from tools.fleet.fields import EXPORTED, FIELDS, XID, Live, last_xid, text
from tools.fleet.hostengine import latest, samples_of
from tools.fleet.inventory import Gpu, Node
from tools.fleet.node import Machine
from tools.fleet.products import DRIVER

#: Window of the exporter's XID counts.
WINDOW_S = 300.0
XID_COUNT = "DCGM_EXP_XID_ERRORS_COUNT"
XID_COUNT_HELP = "Count of XID Errors within user-specified time window (see xid-count-window-size param)."
#: GPUs that the driver no longer reads are not in the exporter's list, but what DCGM cached of events stays.
CACHED = frozenset({XID})


def labels(node: Node, gpu: Gpu) -> str:
    """The labels of a GPU's series, in the exporter's order, without the closing brace."""
    return (
        f'{{gpu="{gpu.index}",UUID="{gpu.uuid}",pci_bus_id="{gpu.pci_bus_id}",device="nvidia{gpu.index}",'
        f'modelName="{node.product_name}",Hostname="{node.name}",DCGM_FI_DRIVER_VERSION="{DRIVER}"'
    )


def _counts(machine: Machine, live: Live) -> dict[int, int]:
    """How often each XID came within the window."""
    found: dict[int, int] = {}
    seen = [(v, at) for _, v, at in samples_of(machine.state, live.gpu.index, XID)] + [last_xid(live)]
    for xid, at in seen:
        if xid and at >= live.at - WINDOW_S:
            found[int(xid)] = found.get(int(xid), 0) + 1
    return found


def render(machine: Machine, at: float) -> str:
    """All series of a node at Unix time ``at``, as the exporter writes them."""
    node = machine.facts
    cached = machine.state["dcgm"]["cache"]
    lives = [Live(machine, gpu, machine.sensors(gpu, at), at) for gpu in node.gpus]
    heads = [labels(node, gpu) for gpu in node.gpus]
    lost = [machine.lost(gpu, at) for gpu in node.gpus]
    injected = [cached.get(str(gpu.index)) for gpu in node.gpus]
    lines: list[str] = []
    for number in EXPORTED:
        field = FIELDS[number]
        lines.append(f"# HELP {field.tag} {field.help}")
        lines.append(f"# TYPE {field.tag} {'counter' if field.counter else 'gauge'}")
        for live, head, gone, samples in zip(lives, heads, lost, injected, strict=True):
            if gone and number not in CACHED:
                continue
            value = latest(machine, live.gpu, number, live) if samples or number == XID else field.live(live)
            if value is None:
                continue
            extra = ""
            if number == XID:
                extra = f',err_code="{int(value)}",err_msg="{XID_NAMES.get(int(value), "Unknown Error")}"'
            lines.append(f"{field.tag}{head}{extra}}} {text(field, value)}")
    counts = [
        f'{XID_COUNT}{head},window_size_in_ms="300000",xid="{xid}"}} {count}'
        for live, head in zip(lives, heads, strict=True)
        for xid, count in _counts(machine, live).items()
    ]
    if counts:
        lines += [f"# HELP {XID_COUNT} {XID_COUNT_HELP}", f"# TYPE {XID_COUNT} gauge", *counts]
    return "\n".join(lines) + "\n"
