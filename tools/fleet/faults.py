"""Physical faults: what each kind does to a GPU, to its telemetry, and to the kernel log.

Unlike an injection into DCGM's cache these are real in the emulated world: every surface shows them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from tools.fleet.inventory import Fault, Gpu

#: What the exporter calls an XID (NVIDIA's catalogue of XID errors; only codes that a drill uses).
XID_NAMES: Mapping[int, str] = {
    0: "No Error",
    13: "Graphics Engine Exception",
    31: "GPU memory page fault",
    32: "Invalid or corrupted push buffer stream",
    38: "Driver firmware error",
    43: "GPU stopped processing",
    45: "Preemptive cleanup, due to previous errors",
    48: "Double Bit ECC Error",
    54: "Auxiliary power is not connected to the GPU board",
    61: "Internal micro-controller breakpoint/warning",
    62: "Internal micro-controller halt",
    63: "ECC page retirement or row remapping recording event",
    64: "ECC page retirement or row remapper recording failure",
    74: "NVLINK Error",
    79: "GPU has fallen off the bus",
    92: "High single-bit ECC error rate",
    94: "Contained ECC error",
    95: "Uncontained ECC error",
    109: "Context Switch Timeout Error",
    119: "GSP RPC Timeout",
    120: "GSP Error",
    136: "Link training failed",
    140: "Unrecovered ECC Error",
    143: "GPU Initialization Error",
    145: "NVLink: RLW error",
    149: "NVLink: NETIR error",
    154: "GPU recovery action changed",
}


@dataclass(frozen=True, slots=True)
class Kind:
    """What a kind of fault does.

    Attributes:
        summary: for people.
        xid: the XID that the driver raises, 0 for none, -1 for the fault's value.
        text: what the kernel log says after the XID.
        counters: DCGM field and the value that it then has.
        slow: relative time by dimension; ``nan`` stands for the fault's value.
        lost: whether the GPU no longer answers.
        valued: whether it needs a value, and what that is.
    """

    summary: str
    xid: int = 0
    text: str = ""
    counters: Mapping[int, float] = field(default_factory=dict)
    slow: Mapping[str, float] = field(default_factory=dict)
    lost: bool = False
    valued: str = ""


KINDS: Mapping[str, Kind] = {
    "xid": Kind("an XID alone; --value says which", xid=-1, text="injected by the fleet", valued="the XID"),
    "dbe": Kind(
        "an uncorrectable memory error, XID 48",
        xid=48,
        text="An uncorrectable double bit error (DBE) has been detected on GPU (0x00000000 0x0 0x0)",
        counters={311: 1.0, 313: 1.0},
    ),
    "remap-pending": Kind(
        "a row remapped, the remap pending until a reset, XID 63",
        xid=63,
        text="Row Remapper: New row marked for remapping, reset gpu to activate.",
        counters={393: 1.0, 396: 1.0},
    ),
    "remap-failure": Kind(
        "a row that could not be remapped, XID 64",
        xid=64,
        text="Row Remapper: Failed to remap row.",
        counters={393: 8.0, 395: 1.0},
    ),
    "pcie-x8": Kind("a PCIe link at half its width", counters={238: 8.0}, slow={"pcie": 2.0}),
    "lost": Kind("fallen off the bus, XID 79", xid=79, text="GPU has fallen off the bus.", lost=True),
    "slow": Kind("compute slower by --value, with no sign in telemetry", slow={"compute": 0.0}, valued="the slowdown"),
}


def active(faults: Sequence[Fault], gpu: int, at: float) -> list[Fault]:
    """The faults that a GPU has at Unix time ``at``, oldest first."""
    if not faults:
        return []
    return sorted((f for f in faults if f.gpu == gpu and f.at <= at), key=lambda fault: fault.at)


def xid_of(fault: Fault) -> int:
    """The XID that a fault raises; 0 for none."""
    xid = KINDS[fault.kind].xid
    return int(fault.value) if xid < 0 else xid


def factor(faults: Sequence[Fault], dimension: str) -> float:
    """Relative time that faults cost on one dimension."""
    product = 1.0
    for fault in faults:
        cost = KINDS[fault.kind].slow.get(dimension)
        if cost is not None:
            product *= cost or fault.value
    return product


def kernel_line(fault: Fault, gpu: Gpu) -> tuple[float, str] | None:
    """When and what the kernel log says of a fault; None if nothing."""
    xid = xid_of(fault)
    if not xid:
        return None
    text = KINDS[fault.kind].text
    return fault.at, f"NVRM: Xid (PCI:{gpu.kernel_bus_id}): {xid}, pid='<unknown>', name=<unknown>, {text}"


def stamped(at: float, text: str) -> str:
    """A line of the node's kernel log: RFC 3339 time, a space, the text."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%S.%fZ} {text}"
