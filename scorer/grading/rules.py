"""The rules by which faults decide, as data: what each matches, its grade, whom it reaches, remedy, window, basis."""

from collections.abc import Mapping
from dataclasses import dataclass

from scorer.model.board import Action, Reach
from scorer.model.grade import Grade

HOUR = 3600.0
#: Stands for :attr:`GradingPolicy.fault_window_s`.
FAULT_WINDOW = -1.0
#: As long as it stands.
STANDING = float("inf")


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    Attributes:
        id: short name; findings carry it.
        matches: what evidence it fires on, for people.
        grade: what it gives to the jobs it reaches.
        reach: which jobs those are.
        action: the remedy.
        window_s: for how long after it was last seen an event counts; :data:`STANDING` for a state.
        basis: why so.
        names_gpu: whether the GPU it is seen on is the one to blame.
        lingers: whether what it fires on comes and goes by the minute; it then counts for the whole window after it was
            last seen, so that the grade does not come and go with it.
    """

    id: str
    matches: str
    grade: Grade
    reach: Reach
    action: Action
    window_s: float
    basis: str
    names_gpu: bool = True
    lingers: bool = False


_G, _U, _Y, _R = Grade.GREEN, Grade.UNKNOWN, Grade.YELLOW, Grade.RED
_ALL, _MULTI, _GANG, _WHOLE = Reach.ALL, Reach.MULTI_GPU, Reach.GANG, Reach.WHOLE_NODE

_TABLE: tuple[Rule, ...] = (
    Rule(
        "off-bus",
        "XID 79, or the kernel's words without one",
        _R,
        _ALL,
        Action.REBOOT,
        FAULT_WINDOW,
        "XID catalogue: 79",
    ),
    Rule(
        "gpu-unreadable", "nvidia-smi cannot read the GPU", _R, _ALL, Action.REBOOT, STANDING, "driver: Unknown Error"
    ),
    Rule(
        "xid-fatal", "an XID that the catalogue calls fatal", _R, _ALL, Action.RESET_GPU, FAULT_WINDOW, "XID catalogue"
    ),
    Rule(
        "uncorrectable",
        "double-bit ECC errors since driver load",
        _R,
        _ALL,
        Action.RESET_GPU,
        STANDING,
        "DCGM health: any DBE fails",
    ),
    Rule(
        "remap-failed", "row remap failure, XID 64", _R, _ALL, Action.RMA, STANDING, "XID catalogue: 64; DCGM field 395"
    ),
    Rule(
        "health-failure",
        "dcgmi health says Failure and names a fatal error",
        _R,
        _ALL,
        Action.RESET_GPU,
        STANDING,
        "DCGM health",
    ),
    Rule(
        "probe-timeouts",
        "two probes of one GPU met their deadline",
        _R,
        _ALL,
        Action.RESET_GPU,
        FAULT_WINDOW,
        "a hung GPU shows nothing else",
    ),
    Rule(
        "collective-timeouts",
        "collectives of two GPUs met their deadline",
        _R,
        _MULTI,
        Action.REBOOT,
        FAULT_WINDOW,
        "a wedged fabric hangs any pair",
        names_gpu=False,
    ),
    Rule(
        "admission",
        "pods rejected on two or more other GPUs",
        _R,
        _ALL,
        Action.RESTART_DEVICE_PLUGIN,
        FAULT_WINDOW,
        "the device plugin fails for every pod",
        names_gpu=False,
    ),
    Rule(
        "not-offered",
        "the kubelet offers fewer GPUs than expected",
        _R,
        _WHOLE,
        Action.RESTART_DEVICE_PLUGIN,
        STANDING,
        "a whole-node job cannot start",
        names_gpu=False,
    ),
    Rule(
        "fabric-manager",
        "fabric manager not started or failed on a product that needs it",
        _R,
        _ALL,
        Action.START_FABRIC_MANAGER,
        STANDING,
        "DCGM field 170",
        names_gpu=False,
    ),
    Rule(
        "nvlink-missing",
        "fewer active NVLinks than the product has",
        _R,
        _MULTI,
        Action.RESET_GPU,
        STANDING,
        "link count by product",
    ),
    Rule(
        "ib-flapping",
        "an InfiniBand port is down, or went down twice within the hour",
        _R,
        _GANG,
        Action.CHECK_CABLING,
        HOUR,
        "gangs stall",
        names_gpu=False,
    ),
    Rule(
        "ib-flapped",
        "an InfiniBand port went down within the day",
        _Y,
        _GANG,
        Action.CHECK_CABLING,
        24 * HOUR,
        "usual windows are 3 to 24 h",
        names_gpu=False,
    ),
    Rule(
        "pcie-narrow",
        "PCIe width below the card's, speed not measured",
        _R,
        Reach.PCIE_HEAVY,
        Action.CHECK_CABLING,
        STANDING,
        "half the width is half the speed",
    ),
    Rule(
        "pcie-narrow-light", "the same, for the other jobs", _Y, _ALL, Action.CHECK_CABLING, STANDING, "as pcie-narrow"
    ),
    Rule(
        "pcie-narrow-measured",
        "PCIe width below the card's; the measured speed decides",
        _G,
        _ALL,
        Action.CHECK_CABLING,
        STANDING,
        "measurement first",
    ),
    Rule(
        "remap-pending",
        "a row remap or page retirement waits for a reset, XID 63",
        _Y,
        _ALL,
        Action.RESET_GPU,
        STANDING,
        "DCGM field 396; XID 63",
    ),
    Rule(
        "contained",
        "XID 94: contained, the application restarts",
        _Y,
        _ALL,
        Action.RESTART_APP,
        FAULT_WINDOW,
        "XID catalogue: 94",
    ),
    Rule(
        "xid-warn",
        "an XID that asks for more than an application's restart",
        _Y,
        _ALL,
        Action.NONE,
        FAULT_WINDOW,
        "XID catalogue",
    ),
    Rule(
        "xid-app",
        "an XID of the application's own making",
        _G,
        _ALL,
        Action.RESTART_APP,
        HOUR,
        "XID catalogue: restart the application",
        names_gpu=False,
    ),
    Rule(
        "hw-slowdown",
        "the hardware slows its clocks: heat, power brake",
        _Y,
        _ALL,
        Action.CHECK_COOLING_POWER,
        HOUR,
        "clock event reasons 0x8, 0x40, 0x80",
        lingers=True,
    ),
    Rule(
        "power-held",
        "held by the power cap far below its limit under load",
        _Y,
        _ALL,
        Action.CHECK_COOLING_POWER,
        HOUR,
        "chassis, power supply or BMC; it shows under load alone",
        lingers=True,
    ),
    Rule(
        "nvlink-errors",
        "NVLink replays or recoveries are rising",
        _Y,
        _MULTI,
        Action.CHECK_CABLING,
        HOUR,
        "DCGM health: any fails NVLink",
    ),
    Rule(
        "health-warning",
        "dcgmi health or diag complains of something less",
        _Y,
        _ALL,
        Action.NONE,
        STANDING,
        "DCGM health",
    ),
    Rule(
        "unconfirmed",
        "one source reports a fatal fault, another that would show it does not",
        _Y,
        _ALL,
        Action.NONE,
        FAULT_WINDOW,
        "sources that disagree",
    ),
    Rule(
        "probe-failures",
        "two probes of one GPU failed",
        _Y,
        _ALL,
        Action.NONE,
        FAULT_WINDOW,
        "a failed probe measures nothing",
    ),
    Rule(
        "revert-failed", "an experiment could not be taken back", _Y, _ALL, Action.RESET_GPU, STANDING, "never masked"
    ),
    Rule(
        "telemetry-frozen",
        "the exporter repeats old values",
        _U,
        _ALL,
        Action.REPAIR_MONITORING,
        STANDING,
        "frozen is not fine",
        names_gpu=False,
    ),
    Rule(
        "telemetry-gone",
        "the exporter has not answered",
        _U,
        _ALL,
        Action.REPAIR_MONITORING,
        STANDING,
        "silence is not fine",
        names_gpu=False,
    ),
    Rule(
        "coverage",
        "a series that monitors rely on is no longer exported",
        _G,
        _ALL,
        Action.REPAIR_MONITORING,
        STANDING,
        "absent is not zero",
        names_gpu=False,
    ),
    Rule(
        "stale-probes",
        "no good probe within the time allowed",
        _U,
        _ALL,
        Action.NONE,
        STANDING,
        "nothing says what it is now",
        names_gpu=False,
    ),
    Rule(
        "no-reference",
        "too few peers to compare with",
        _U,
        _ALL,
        Action.NONE,
        STANDING,
        "a figure without peers is no grade",
        names_gpu=False,
    ),
    Rule("experiment", "an experiment runs", _G, _ALL, Action.NONE, STANDING, "for information", names_gpu=False),
    Rule(
        "waiting",
        "an experiment was reverted and no clean probe has come since",
        _G,
        _ALL,
        Action.NONE,
        STANDING,
        "the last grade stands",
        names_gpu=False,
    ),
    Rule(
        "rise-held",
        "a GPU looks faster than before in one probe only",
        _G,
        _ALL,
        Action.NONE,
        STANDING,
        "a grade rises on repeated evidence",
        names_gpu=False,
    ),
    Rule("slow", "predicted slowdown", _G, Reach.SLOWDOWN, Action.NONE, STANDING, "measurement"),
)

RULES: Mapping[str, Rule] = {r.id: r for r in _TABLE}

#: XIDs with a rule of their own; the others go by the catalogue's severity.
XID_RULES: Mapping[int, str] = {
    48: "uncorrectable",
    63: "remap-pending",
    64: "remap-failed",
    79: "off-bus",
    94: "contained",
}
