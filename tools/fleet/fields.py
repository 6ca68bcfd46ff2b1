"""DCGM fields that the emulated hostengine samples: id, names, and the live value."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tools.fleet.faults import KINDS, active, xid_of
from tools.fleet.inventory import Gpu
from tools.fleet.node import Machine
from tools.fleet.physics import Sensors


@dataclass(frozen=True, slots=True)
class Live:
    """One GPU at one moment, as the live fields read it."""

    machine: Machine
    gpu: Gpu
    sensors: Sensors
    at: float


@dataclass(frozen=True, slots=True)
class DcgmField:
    """One field.

    Attributes:
        number: its id, the same in all versions.
        tag: its name in the exporter of DCGM 4.5.
        short: its column in ``dcgmi dmon``.
        unit: printed below that.
        help: the exporter's help text.
        counter: whether the exporter calls it a counter.
        whole: whether it is an integer.
        live: what the driver says of it, in the field's own unit.
    """

    number: int
    tag: str
    short: str
    unit: str
    help: str
    counter: bool
    whole: bool
    live: Callable[[Live], float]


def _fault(number: int) -> Callable[[Live], float]:
    def live(now: Live) -> float:
        value = 0.0
        for fault in active(now.machine.faults, now.gpu.index, now.at):
            value = KINDS[fault.kind].counters.get(number, value)
        return value

    return live


def last_xid(now: Live) -> tuple[float, float]:
    """The last XID that the driver raised on a GPU since the hostengine started, and when; (0, 0) if none.

    The hostengine learns of XIDs by events: what came before its start it never hears of.
    """
    started = float(now.machine.state["dcgm"]["started"])
    for fault in reversed(active(now.machine.faults, now.gpu.index, now.at)):
        # Faults that the fleet began with are older than its first hostengine, which yet was there before.
        if xid_of(fault) and (fault.at >= started or started <= now.machine.facts.created):
            return float(xid_of(fault)), fault.at
    return 0.0, 0.0


def _limit(place: int) -> Callable[[Live], float]:
    return lambda now: now.machine.facts.product.power_w[place]


def _energy(now: Live) -> float:
    # Millijoules since boot. Drawn as if idle all the while: what matters is that it grows as time does.
    return round((now.at - now.machine.facts.created + 16 * 86400.0) * now.machine.facts.product.idle_w * 1000.0)


def _field(
    number: int, name: str, short: str, unit: str, words: str, live: Callable[[Live], float], kind: str = "gauge"
) -> DcgmField:
    return DcgmField(number, f"DCGM_FI_DEV_{name}", short, unit, words, kind == "counter", kind != "real", live)


COUNTER, REAL = "counter", "real"
REASONS_HELP = "Current clock throttle reasons (bitmask of DCGM_CLOCKS_THROTTLE_REASON_*)"
THROTTLED, TOTAL = "Throttling duration due to", "Total number of"
REMAPPED = "Number of remapped rows for"
NVLINK, COUNTS = "NVLINK_", "_ERROR_COUNT_TOTAL"


def _running() -> tuple[DcgmField, ...]:
    """Clocks, heat, power, load, and the last XID."""
    f = _field
    return (
        f(100, "SM_CLOCK", "SMCLK", "MHz", "SM clock frequency (in MHz).", lambda n: n.sensors.sm_mhz),
        f(101, "MEM_CLOCK", "MMCLK", "MHz", "Memory clock frequency (in MHz).", lambda n: n.sensors.mem_mhz),
        f(113, "MAX_SM_CLOCK", "MXSMC", "MHz", "Maximum supported SM clock for the device.", _max_clock),
        f(140, "MEMORY_TEMP", "MMTMP", "C", "Memory temperature (in C).", lambda n: n.sensors.memory_c),
        f(150, "GPU_TEMP", "TMPTR", "C", "GPU temperature (in C).", lambda n: n.sensors.gpu_c),
        f(155, "POWER_USAGE", "POWER", "W", "Power draw (in W).", lambda n: n.sensors.power_w, REAL),
        f(
            156,
            "TOTAL_ENERGY_CONSUMPTION",
            "TOTEC",
            "mJ",
            "Total energy consumption since boot (in mJ).",
            _energy,
            COUNTER,
        ),
        f(160, "POWER_MGMT_LIMIT", "PMLMT", "W", "Current power limit (in W).", _set_limit, REAL),
        f(161, "POWER_MGMT_LIMIT_MIN", "PMMIN", "W", "Minimum power limit (in W).", _limit(1), REAL),
        f(162, "POWER_MGMT_LIMIT_MAX", "PMMAX", "W", "Maximum power limit (in W).", _limit(2), REAL),
        f(163, "POWER_MGMT_LIMIT_DEF", "PMDEF", "W", "Default power limit (in W).", _limit(0), REAL),
        f(164, "ENFORCED_POWER_LIMIT", "EPLMT", "W", "Effective power limit (in W).", _set_limit, REAL),
        f(202, "PCIE_REPLAY_COUNTER", "PCIRC", "", "Total number of PCIe retries.", _none, COUNTER),
        f(203, "GPU_UTIL", "GPUTL", "%", "GPU utilization (in %).", lambda n: n.sensors.util),
        f(204, "MEM_COPY_UTIL", "MCUTL", "%", "Memory utilization (in %).", lambda n: n.sensors.mem_util),
        f(230, "XID_ERRORS", "XIDER", "", "Value of the last XID error encountered.", lambda n: last_xid(n)[0]),
        f(112, "CLOCK_THROTTLE_REASONS", "DVCTR", "", REASONS_HELP, lambda n: n.sensors.reasons),
        f(240, "POWER_VIOLATION", "PVIOL", "", f"{THROTTLED} power (in ns).", _none, COUNTER),
        f(241, "THERMAL_VIOLATION", "TVIOL", "", f"{THROTTLED} thermal constraints (in ns).", _none, COUNTER),
    )


def _memory_and_links() -> tuple[DcgmField, ...]:
    """Memory, its errors, PCIe and NVLink, and what is watched but not exported."""
    f = _field
    return (
        f(251, "FB_FREE", "FBFRE", "MB", "Framebuffer memory free (in MiB).", _free),
        f(252, "FB_USED", "FBUSD", "MB", "Framebuffer memory used (in MiB).", lambda n: n.sensors.used_mib),
        f(310, "ECC_SBE_VOL_TOTAL", "ESVTL", "", f"{TOTAL} single-bit volatile ECC errors.", _fault(310), COUNTER),
        f(311, "ECC_DBE_VOL_TOTAL", "EDVTL", "", f"{TOTAL} double-bit volatile ECC errors.", _fault(311), COUNTER),
        f(312, "ECC_SBE_AGG_TOTAL", "ESATL", "", f"{TOTAL} single-bit persistent ECC errors.", _fault(312), COUNTER),
        f(313, "ECC_DBE_AGG_TOTAL", "EDATL", "", f"{TOTAL} double-bit persistent ECC errors.", _fault(313), COUNTER),
        f(393, "UNCORRECTABLE_REMAPPED_ROWS", "URMPS", "", f"{REMAPPED} uncorrectable errors", _fault(393), COUNTER),
        f(394, "CORRECTABLE_REMAPPED_ROWS", "CRMPS", "", f"{REMAPPED} correctable errors", _fault(394), COUNTER),
        f(395, "ROW_REMAP_FAILURE", "RRF", "", "Whether remapping of rows has failed", _fault(395)),
        f(396, "ROW_REMAP_PENDING", "RRP", "", "Whether row remapping is pending", _fault(396)),
        f(235, "PCIE_MAX_LINK_GEN", "PCIMG", "", "PCIe max link generation.", _pcie_gen),
        f(236, "PCIE_MAX_LINK_WIDTH", "PCIMW", "", "PCIe max link width.", lambda _: 16.0),
        f(237, "PCIE_LINK_GEN", "PCILG", "", "PCIe current link generation.", lambda n: n.sensors.pcie_gen),
        f(238, "PCIE_LINK_WIDTH", "PCILW", "", "PCIe current link width.", lambda n: n.sensors.pcie_width),
        f(409, f"{NVLINK}CRC_FLIT{COUNTS}", "NFLCT", "", f"{TOTAL} NVLink flow-control CRC errors.", _none, COUNTER),
        f(419, f"{NVLINK}CRC_DATA{COUNTS}", "NDLCT", "", f"{TOTAL} NVLink data CRC errors.", _none, COUNTER),
        f(429, f"{NVLINK}REPLAY{COUNTS}", "NRLCT", "", f"{TOTAL} NVLink retries.", _none, COUNTER),
        f(439, f"{NVLINK}RECOVERY{COUNTS}", "NRECT", "", f"{TOTAL} NVLink recovery errors.", _none, COUNTER),
        f(449, f"{NVLINK}BANDWIDTH_TOTAL", "NBWLT", "", f"{TOTAL} NVLink bandwidth counters for all lanes.", _nvlink),
        f(170, "FABRIC_MANAGER_STATUS", "FMSTA", "", "The status of the fabric manager.", lambda _: 3.0),
        f(390, "RETIRED_SBE", "RPSBE", "", f"{TOTAL} retired pages due to single-bit errors.", _none),
        f(391, "RETIRED_DBE", "RPDBE", "", f"{TOTAL} retired pages due to double-bit errors.", _none),
        f(392, "RETIRED_PENDING", "RPPEN", "", f"{TOTAL} pages pending retirement.", _none),
    )


def _none(now: Live) -> float:
    """A counter that nothing in this fleet raises but an injection."""
    del now
    return 0.0


def _pcie_gen(now: Live) -> float:
    return now.machine.facts.product.pcie_gen


def _max_clock(now: Live) -> float:
    return now.machine.facts.product.max_sm_mhz


def _set_limit(now: Live) -> float:
    return now.machine.settings(now.gpu).power_limit


def _free(now: Live) -> float:
    return now.machine.facts.product.memory_mib - now.sensors.used_mib


def _nvlink(now: Live) -> float:
    # MB/s over all links, both ways: what heartbeats of an idle fabric move, or an all-reduce.
    product = now.machine.facts.product
    return round(now.sensors.util / 100.0 * product.nvlinks * product.nvlink_gbs * 2000.0 * 0.6)


FIELDS: Mapping[int, DcgmField] = {f.number: f for f in (*_running(), *_memory_and_links())}
TAGS: Mapping[str, int] = {f.tag.lower(): f.number for f in FIELDS.values()}
XID = 230
#: What the exporter serves, in its order; retired pages and the fabric manager are not in its list.
EXPORTED: tuple[int, ...] = tuple(n for n in FIELDS if n not in {113, 161, 162, 170, 390, 391, 392})


def text(field: DcgmField, value: float) -> str:
    """A value as the exporter and ``dmon`` write it."""
    return str(int(value)) if field.whole else f"{value:.3f}".rstrip("0").rstrip(".")
