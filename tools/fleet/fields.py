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
    number: int, name: str, short: str, help_text: str, live: Callable[[Live], float], unit: str = "", kind: str = "gauge"
) -> DcgmField:
    return DcgmField(number, f"DCGM_FI_DEV_{name}", short, unit, help_text, kind == "counter", kind != "real", live)


def _table() -> tuple[DcgmField, ...]:
    f = _field
    return (
        f(100, "SM_CLOCK", "SMCLK", "SM clock frequency (in MHz).", lambda n: n.sensors.sm_mhz, "MHz"),
        f(101, "MEM_CLOCK", "MMCLK", "Memory clock frequency (in MHz).", lambda n: n.sensors.mem_mhz, "MHz"),
        f(113, "MAX_SM_CLOCK", "MXSMC", "Maximum supported SM clock for the device.", _max_clock, "MHz"),
        f(140, "MEMORY_TEMP", "MMTMP", "Memory temperature (in C).", lambda n: n.sensors.memory_c, "C"),
        f(150, "GPU_TEMP", "TMPTR", "GPU temperature (in C).", lambda n: n.sensors.gpu_c, "C"),
        f(155, "POWER_USAGE", "POWER", "Power draw (in W).", lambda n: n.sensors.power_w, "W", "real"),
        f(
            156,
            "TOTAL_ENERGY_CONSUMPTION",
            "TOTEC",
            "Total energy consumption since boot (in mJ).",
            _energy,
            "mJ",
            "counter",
        ),
        f(160, "POWER_MGMT_LIMIT", "PMLMT", "Current power limit (in W).", _set_limit, "W", "real"),
        f(161, "POWER_MGMT_LIMIT_MIN", "PMMIN", "Minimum power limit (in W).", _limit(1), "W", "real"),
        f(162, "POWER_MGMT_LIMIT_MAX", "PMMAX", "Maximum power limit (in W).", _limit(2), "W", "real"),
        f(163, "POWER_MGMT_LIMIT_DEF", "PMDEF", "Default power limit (in W).", _limit(0), "W", "real"),
        f(164, "ENFORCED_POWER_LIMIT", "EPLMT", "Effective power limit (in W).", _set_limit, "W", "real"),
        f(202, "PCIE_REPLAY_COUNTER", "PCIRC", "Total number of PCIe retries.", lambda _: 0.0, "", "counter"),
        f(203, "GPU_UTIL", "GPUTL", "GPU utilization (in %).", lambda n: n.sensors.util, "%"),
        f(204, "MEM_COPY_UTIL", "MCUTL", "Memory utilization (in %).", lambda n: n.sensors.mem_util, "%"),
        f(230, "XID_ERRORS", "XIDER", "Value of the last XID error encountered.", lambda n: last_xid(n)[0]),
        f(
            112,
            "CLOCK_THROTTLE_REASONS",
            "DVCTR",
            "Current clock throttle reasons (bitmask of DCGM_CLOCKS_THROTTLE_REASON_*)",
            lambda n: n.sensors.reasons,
        ),
        f(240, "POWER_VIOLATION", "PVIOL", "Throttling duration due to power (in ns).", lambda _: 0.0, "", "counter"),
        f(
            241,
            "THERMAL_VIOLATION",
            "TVIOL",
            "Throttling duration due to thermal constraints (in ns).",
            lambda _: 0.0,
            "",
            "counter",
        ),
        f(251, "FB_FREE", "FBFRE", "Framebuffer memory free (in MiB).", _free, "MB"),
        f(252, "FB_USED", "FBUSD", "Framebuffer memory used (in MiB).", lambda n: n.sensors.used_mib, "MB"),
        f(310, "ECC_SBE_VOL_TOTAL", "ESVTL", "Total number of single-bit volatile ECC errors.", _fault(310), "", "counter"),
        f(311, "ECC_DBE_VOL_TOTAL", "EDVTL", "Total number of double-bit volatile ECC errors.", _fault(311), "", "counter"),
        f(312, "ECC_SBE_AGG_TOTAL", "ESATL", "Total number of single-bit persistent ECC errors.", _fault(312), "", "counter"),
        f(313, "ECC_DBE_AGG_TOTAL", "EDATL", "Total number of double-bit persistent ECC errors.", _fault(313), "", "counter"),
        f(
            393,
            "UNCORRECTABLE_REMAPPED_ROWS",
            "URMPS",
            "Number of remapped rows for uncorrectable errors",
            _fault(393),
            "",
            "counter",
        ),
        f(
            394,
            "CORRECTABLE_REMAPPED_ROWS",
            "CRMPS",
            "Number of remapped rows for correctable errors",
            _fault(394),
            "",
            "counter",
        ),
        f(395, "ROW_REMAP_FAILURE", "RRF", "Whether remapping of rows has failed", _fault(395)),
        f(396, "ROW_REMAP_PENDING", "RRP", "Whether row remapping is pending", _fault(396)),
        f(235, "PCIE_MAX_LINK_GEN", "PCIMG", "PCIe max link generation.", lambda n: n.machine.facts.product.pcie_gen),
        f(236, "PCIE_MAX_LINK_WIDTH", "PCIMW", "PCIe max link width.", lambda _: 16.0),
        f(237, "PCIE_LINK_GEN", "PCILG", "PCIe current link generation.", lambda n: n.sensors.pcie_gen),
        f(238, "PCIE_LINK_WIDTH", "PCILW", "PCIe current link width.", lambda n: n.sensors.pcie_width),
        f(
            409,
            "NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
            "NFLCT",
            "Total number of NVLink flow-control CRC errors.",
            lambda _: 0.0,
            "",
            "counter",
        ),
        f(
            419,
            "NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",
            "NDLCT",
            "Total number of NVLink data CRC errors.",
            lambda _: 0.0,
            "",
            "counter",
        ),
        f(
            429,
            "NVLINK_REPLAY_ERROR_COUNT_TOTAL",
            "NRLCT",
            "Total number of NVLink retries.",
            lambda _: 0.0,
            "",
            "counter",
        ),
        f(
            439,
            "NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
            "NRECT",
            "Total number of NVLink recovery errors.",
            lambda _: 0.0,
            "",
            "counter",
        ),
        f(449, "NVLINK_BANDWIDTH_TOTAL", "NBWLT", "Total number of NVLink bandwidth counters for all lanes.", _nvlink),
        f(170, "FABRIC_MANAGER_STATUS", "FMSTA", "The status of the fabric manager.", lambda _: 3.0),
        f(390, "RETIRED_SBE", "RPSBE", "Total number of retired pages due to single-bit errors.", lambda _: 0.0),
        f(391, "RETIRED_DBE", "RPDBE", "Total number of retired pages due to double-bit errors.", lambda _: 0.0),
        f(392, "RETIRED_PENDING", "RPPEN", "Total number of pages pending retirement.", lambda _: 0.0),
    )


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


FIELDS: Mapping[int, DcgmField] = {f.number: f for f in _table()}
TAGS: Mapping[str, int] = {f.tag.lower(): f.number for f in FIELDS.values()}
XID = 230
#: What the exporter serves, in its order; retired pages and the fabric manager are not in its list.
EXPORTED: tuple[int, ...] = tuple(n for n in FIELDS if n not in {113, 161, 162, 170, 390, 391, 392})


def text(field: DcgmField, value: float) -> str:
    """A value as the exporter and ``dmon`` write it."""
    return str(int(value)) if field.whole else f"{value:.3f}".rstrip("0").rstrip(".")
