"""``dcgmi health``: verdicts after DCGM 4.6's rules."""

from collections.abc import Iterator
from dataclasses import dataclass

from tools.fleet.faults import XID_NAMES
from tools.fleet.fields import Live
from tools.fleet.hostengine import WINDOW_S, increase, latest, xid_history
from tools.fleet.inventory import Gpu
from tools.fleet.node import Machine

HEALTHY, WARNING, FAILURE = "Healthy", "Warning", "Failure"
RANK = {HEALTHY: 0, WARNING: 1, FAILURE: 2}
#: Letter of ``dcgmi health -s``: the systems that it watches, as the tool names them.
SYSTEMS = {
    "p": ("PCIe system",),
    "m": ("Memory system",),
    "i": ("InfoROM system",),
    "t": ("Thermal system", "Power system"),
    "n": ("NVLINK system",),
    "d": ("Driver system",),
    "x": ("ConnectX system",),
}
#: What ``a`` stands for. No letter sets the SM watch.
ALL = "pmitndx"
#: The tool has no name for the system of all watches, and prints this.
NO_NAME = "Internal error"
#: XIDs that fail whatever is watched; 94 warns.
ALWAYS = {48: FAILURE, 74: FAILURE, 79: FAILURE, 95: FAILURE, 119: FAILURE, 120: FAILURE, 140: FAILURE, 94: WARNING}
#: XIDs that count only for a watched system.
BY_SYSTEM: dict[str, dict[int, str]] = {
    "Memory system": {31: WARNING, 32: WARNING, 43: WARNING, 63: WARNING, 64: FAILURE},
    "PCIe system": dict.fromkeys((38, 39, 42), WARNING),
    "Thermal system": dict.fromkeys((60, 61, 62), WARNING),
    "Power system": dict.fromkeys((54, 56, 57, 58, 78), WARNING),
    "NVLINK system": dict.fromkeys((67, 73, 121, 137), WARNING),
}
#: PCIe replays a minute that are still well, by link generation at sixteen lanes.
REPLAYS = {3: 8, 4: 16, 5: 31}
#: Uncorrectable remaps that warn, retired pages that fail, NVLink CRC errors a second that fail.
MAX_REMAPS, MAX_RETIRED, MAX_CRC_RATE = 512, 63, 100.0
RESET = "Drain the GPU and reset it or reboot the node."


@dataclass(frozen=True, slots=True)
class Incident:
    """One thing that the health check found."""

    system: str
    verdict: str
    text: str


def watched(machine: Machine) -> list[str]:
    """The systems that are watched."""
    watches = machine.state["dcgm"]["watches"]
    return [] if watches is None else [s for letter in watches["systems"] for s in SYSTEMS[letter]]


def check(machine: Machine, gpu: Gpu, at: float) -> list[Incident]:
    """What is wrong with a GPU, for the systems that are watched.

    Args:
        machine: the node.
        gpu: which.
        at: Unix seconds.
    """
    live = Live(machine, gpu, machine.sensors(gpu, at), at)
    systems = watched(machine)
    found = [i for i in _incidents(machine, gpu, live) if i.system in systems]
    for xid in xid_history(machine, gpu, live):
        name = XID_NAMES.get(xid, "unknown error")
        text = f"GPU {gpu.index} had an XID error ({xid}: {name}). {RESET}"
        if xid in ALWAYS:
            found.append(Incident(NO_NAME, ALWAYS[xid], text))
        found += [Incident(s, codes[xid], text) for s, codes in BY_SYSTEM.items() if xid in codes and s in systems]
    return found


def _incidents(machine: Machine, gpu: Gpu, live: Live) -> Iterator[Incident]:
    yield from _memory(machine, gpu, live)
    yield from _counters(machine, gpu, live)
    if latest(machine, gpu, 170, live) in {1.0, 4.0}:
        text = f"The fabric manager of GPU {gpu.index} is not started or failed."
        yield Incident("NVLINK system", FAILURE, text)


def _memory(machine: Machine, gpu: Gpu, live: Live) -> Iterator[Incident]:
    """What is judged by its latest value."""

    def value(field: int) -> float:
        return latest(machine, gpu, field, live) or 0.0

    index, system = gpu.index, "Memory system"
    if (count := value(311)) > 0:
        yield Incident(
            system, FAILURE, f"Detected {count:.0f} volatile double-bit ECC error(s) in GPU {index}. {RESET}"
        )
    if value(395) > 0:
        yield Incident(system, FAILURE, f"GPU {index} had uncorrectable memory errors and row remapping failed.")
    if value(396) > 0:
        yield Incident(system, WARNING, f"GPU {index} had memory errors and row remappings are pending")
    if value(393) >= MAX_REMAPS:
        yield Incident(system, WARNING, f"GPU {index} had {value(393):.0f} uncorrectable row remappings.")
    if value(390) + value(391) >= MAX_RETIRED:
        yield Incident(system, FAILURE, f"GPU {index} had {MAX_RETIRED} or more retired pages.")


def _counters(machine: Machine, gpu: Gpu, live: Live) -> Iterator[Incident]:
    """What is judged by its growth within the window."""

    def grew(field: int) -> float:
        return increase(machine.state, gpu.index, field, live.at)

    index = gpu.index
    limit = REPLAYS[machine.facts.product.pcie_gen]
    if (grown := grew(202)) > limit:
        text = f"Detected more than {limit} PCIe replays per minute for GPU {index} : {grown:.0f}"
        yield Incident("PCIe system", WARNING, text)
    for field, system, cause in ((241, "Thermal system", "thermal"), (240, "Power system", "power")):
        if grew(field) > 0:
            yield Incident(system, WARNING, f"Detected clocks throttling due to {cause} violation in GPU {index}.")
    for field, name in ((429, "replay"), (439, "recovery")):
        if (grown := grew(field)) >= 1:
            text = f"Detected {grown:.0f} NVLink {name} error(s) on GPU {index}'s NVLinks. {RESET}"
            yield Incident("NVLINK system", FAILURE, text)
    for field, name in ((409, "flit"), (419, "data")):
        if (grown := grew(field)) >= 1:
            verdict = FAILURE if grown / WINDOW_S >= MAX_CRC_RATE else WARNING
            text = f"Detected {grown:.0f} NVLink CRC {name} error(s) on GPU {index}'s NVLinks."
            yield Incident("NVLINK system", verdict, text)


def worst(verdicts: list[str]) -> str:
    """The worst of some verdicts; healthy if there are none."""
    return max(verdicts, key=RANK.__getitem__, default=HEALTHY)
