"""The fields that ``nvidia-smi`` can be asked for, and how each is written."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from tools.fleet.faults import KINDS, active
from tools.fleet.inventory import Gpu
from tools.fleet.node import Machine
from tools.fleet.physics import Sensors
from tools.fleet.products import DRIVER


@dataclass(frozen=True, slots=True)
class Row:
    """One GPU at one moment, as the query fields read it."""

    machine: Machine
    gpu: Gpu
    sensors: Sensors
    at: float

    def counter(self, number: int) -> str:
        """A counter that physical faults may have raised."""
        value = 0.0
        for fault in active(self.machine.faults, self.gpu.index, self.at):
            value = KINDS[fault.kind].counters.get(number, value)
        return f"{value:.0f}"


Field = tuple[str, str, Callable[[Row], str]]


def _reason(bit: int) -> Callable[[Row], str]:
    return lambda row: "Active" if row.sensors.reasons & bit else "Not Active"


def _limit(place: int) -> Callable[[Row], str]:
    return lambda row: f"{row.machine.facts.product.power_w[place]:.2f}"


#: Field: the name in the header, its unit, its value. Names that are aliases have the header of the current name.
FIELDS: dict[str, Field] = {
    "timestamp": ("timestamp", "", lambda r: f"{datetime.fromtimestamp(r.at, UTC):%Y/%m/%d %H:%M:%S.%f}"[:-3]),
    "index": ("index", "", lambda r: str(r.gpu.index)),
    "count": ("count", "", lambda r: str(len(r.machine.facts.gpus))),
    "name": ("name", "", lambda r: r.machine.facts.product_name),
    "uuid": ("uuid", "", lambda r: r.gpu.uuid),
    "serial": ("serial", "", lambda r: r.gpu.serial),
    "driver_version": ("driver_version", "", lambda _: DRIVER),
    "pci.bus_id": ("pci.bus_id", "", lambda r: r.gpu.pci_bus_id),
    "pci.device_id": ("pci.device_id", "", lambda r: f"0x{r.machine.facts.product.device_id.upper()}10DE"),
    "persistence_mode": ("persistence_mode", "", lambda _: "Enabled"),
    "compute_mode": ("compute_mode", "", lambda _: "Default"),
    "mig.mode.current": ("mig.mode.current", "", lambda _: "Disabled"),
    "pstate": ("pstate", "", lambda _: "P0"),
    "pcie.link.gen.current": ("pcie.link.gen.current", "", lambda r: str(r.sensors.pcie_gen)),
    "pcie.link.gen.max": ("pcie.link.gen.max", "", lambda r: str(r.machine.facts.product.pcie_gen)),
    "pcie.link.width.current": ("pcie.link.width.current", "", lambda r: str(r.sensors.pcie_width)),
    "pcie.link.width.max": ("pcie.link.width.max", "", lambda _: "16"),
    "clocks_event_reasons.active": ("clocks_event_reasons.active", "", lambda r: f"0x{r.sensors.reasons:016x}"),
    "clocks_event_reasons.sw_power_cap": ("clocks_event_reasons.sw_power_cap", "", _reason(0x4)),
    "clocks_event_reasons.hw_slowdown": ("clocks_event_reasons.hw_slowdown", "", _reason(0x8)),
    "clocks_event_reasons.sw_thermal_slowdown": ("clocks_event_reasons.sw_thermal_slowdown", "", _reason(0x20)),
    "clocks_event_reasons.hw_thermal_slowdown": ("clocks_event_reasons.hw_thermal_slowdown", "", _reason(0x40)),
    "clocks.current.sm": ("clocks.current.sm", "MHz", lambda r: str(r.sensors.sm_mhz)),
    "clocks.current.graphics": ("clocks.current.graphics", "MHz", lambda r: str(r.sensors.sm_mhz)),
    "clocks.current.memory": ("clocks.current.memory", "MHz", lambda r: str(r.sensors.mem_mhz)),
    "clocks.max.sm": ("clocks.max.sm", "MHz", lambda r: str(r.machine.facts.product.max_sm_mhz)),
    "clocks.max.graphics": ("clocks.max.graphics", "MHz", lambda r: str(r.machine.facts.product.max_sm_mhz)),
    "clocks.max.memory": ("clocks.max.memory", "MHz", lambda r: str(r.machine.facts.product.mem_mhz)),
    "temperature.gpu": ("temperature.gpu", "", lambda r: str(r.sensors.gpu_c)),
    "temperature.memory": ("temperature.memory", "", lambda r: str(r.sensors.memory_c)),
    "temperature.gpu.tlimit": (
        "temperature.gpu.tlimit",
        "",
        lambda r: f"{r.machine.facts.product.slow_c - r.sensors.gpu_c:.0f}",
    ),
    "utilization.gpu": ("utilization.gpu", "%", lambda r: str(r.sensors.util)),
    "utilization.memory": ("utilization.memory", "%", lambda r: str(r.sensors.mem_util)),
    "power.draw": ("power.draw", "W", lambda r: f"{r.sensors.power_w:.2f}"),
    "power.limit": ("power.limit", "W", lambda r: f"{r.machine.settings(r.gpu).power_limit:.2f}"),
    "enforced.power.limit": ("enforced.power.limit", "W", lambda r: f"{r.machine.settings(r.gpu).power_limit:.2f}"),
    "power.default_limit": ("power.default_limit", "W", _limit(0)),
    "power.min_limit": ("power.min_limit", "W", _limit(1)),
    "power.max_limit": ("power.max_limit", "W", _limit(2)),
    "memory.total": ("memory.total", "MiB", lambda r: str(r.machine.facts.product.memory_mib)),
    "memory.used": ("memory.used", "MiB", lambda r: str(r.sensors.used_mib)),
    "memory.free": ("memory.free", "MiB", lambda r: str(r.machine.facts.product.memory_mib - r.sensors.used_mib)),
    "ecc.mode.current": ("ecc.mode.current", "", lambda _: "Enabled"),
    "ecc.errors.corrected.volatile.total": ("ecc.errors.corrected.volatile.total", "", lambda r: r.counter(310)),
    "ecc.errors.uncorrected.volatile.total": ("ecc.errors.uncorrected.volatile.total", "", lambda r: r.counter(311)),
    "ecc.errors.corrected.aggregate.total": ("ecc.errors.corrected.aggregate.total", "", lambda r: r.counter(312)),
    "ecc.errors.uncorrected.aggregate.total": ("ecc.errors.uncorrected.aggregate.total", "", lambda r: r.counter(313)),
}
_OLD = {name.replace("event", "throttle"): name for name in FIELDS if name.startswith("clocks_event_reasons")}
ALIASES: Mapping[str, str] = {
    **_OLD,
    "clocks.sm": "clocks.current.sm",
    "clocks.gr": "clocks.current.graphics",
    "clocks.mem": "clocks.current.memory",
    "clocks.current.gr": "clocks.current.graphics",
    "clocks.max.gr": "clocks.max.graphics",
    "clocks.max.mem": "clocks.max.memory",
    "gpu_name": "name",
    "gpu_uuid": "uuid",
    "gpu_serial": "serial",
    "gpu_bus_id": "pci.bus_id",
}
APP_FIELDS: dict[str, str] = {
    "gpu_name": "gpu_name",
    "gpu_uuid": "gpu_uuid",
    "gpu_bus_id": "gpu_bus_id",
    "gpu_serial": "gpu_serial",
    "pid": "pid",
    "process_name": "process_name",
    "name": "process_name",
    "used_gpu_memory": "used_gpu_memory [MiB]",
    "used_memory": "used_gpu_memory [MiB]",
}
