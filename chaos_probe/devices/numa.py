"""NUMA nodes of the host: what there is, and memory bandwidth from the CPUs of one to the memory of another."""

import json
import re
import sys
from pathlib import Path

from chaos_probe.devices.tool import on_path, run_tool
from chaos_probe.errors import ToolError
from chaos_probe.halt import Halt

_START_MARGIN_S = 60.0


def numa_nodes(sysfs: Path = Path("/sys")) -> tuple[int, ...]:
    """Return the NUMA nodes that have both CPUs and memory, ascending."""
    found = []
    for folder in (sysfs / "devices/system/node").glob("node[0-9]*"):
        try:
            cpus = (folder / "cpulist").read_text().strip()
            memory = re.search(r"MemTotal:\s+(\d+) kB", (folder / "meminfo").read_text())
        except OSError:
            continue
        if cpus and memory and int(memory.group(1)) > 0:
            found.append(int(folder.name[4:]))
    return tuple(sorted(found))


def numa_node_of(pci_bus_id: str, sysfs: Path = Path("/sys")) -> int | None:
    """Return the NUMA node that a PCI device hangs on, or ``None`` where the platform does not say."""
    # sysfs writes four digits of domain, the driver eight.
    address = re.sub(r"^0{4}(?=[0-9a-f]{4}:)", "", pci_bus_id.lower())
    try:
        node = int((sysfs / "bus/pci/devices" / address / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def pin(cpu_node: int, memory_node: int) -> list[str]:
    """Return the words that pin a program to the CPUs of one node and the memory of another."""
    return [on_path("numactl") or "numactl", f"--cpunodebind={cpu_node}", f"--membind={memory_node}"]


def pinned_triad(cpu_node: int, memory_node: int, seconds: float, mib: int, halt: Halt | None = None) -> float:
    """Measure GB/s from the CPUs of one node to the memory of another.

    Raises:
        ToolError: ``numactl`` is absent or refused (a container needs the right to set memory policies).
    """
    argv = [*pin(cpu_node, memory_node), sys.executable, "-m", "chaos_probe.devices.triad"]
    argv += ["--seconds", str(seconds), "--mib", str(mib)]
    result = run_tool(argv, timeout_s=seconds + _START_MARGIN_S, halt=halt, check=True)
    try:
        return float(json.loads(result.out)["gb_per_s"])
    except (ValueError, KeyError) as error:
        raise ToolError(f"the pinned measurement printed no number: {result.out[:200]!r}") from error
