"""The ``nvbandwidth`` program: copies between host and GPU, and within a GPU."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from chaos_probe.devices.tool import on_path, run_tool, visible
from chaos_probe.errors import ToolError
from chaos_probe.halt import Halt
from chaos_probe.records import Gpu

HOST_TO_DEVICE = "host_to_device_memcpy_ce"
DEVICE_TO_HOST = "device_to_host_memcpy_ce"
LOCAL_COPY = "device_local_copy"
TIMEOUT_S = 120.0

_DEVICE = re.compile(r"^Device (\d+): .*\(([0-9A-Fa-f:.]+)\)\s*$")
_HEAD = re.compile(r"^\s*\d+(?:\s+\d+)*\s*$")
_ROW = re.compile(r"^\s*\d+((?:\s+(?:\d+(?:\.\d+)?|N/A))+)\s*$")


@dataclass(frozen=True, slots=True)
class Bandwidths:
    """One test's row of numbers.

    Attributes:
        buses: PCI bus of each device where printed, in its order.
        gb_per_s: GB/s of each device; ``None`` where the test did not apply.
    """

    buses: tuple[str, ...]
    gb_per_s: tuple[float | None, ...]

    def of(self, gpu: Gpu, position: int) -> float | None:
        """Return a GPU's figure: by PCI bus where it was printed, else by position."""
        wanted = _bus(gpu.pci_bus_id)
        if wanted and wanted in self.buses:
            position = self.buses.index(wanted)
        return self.gb_per_s[position] if position < len(self.gb_per_s) else None


def _bus(text: str) -> str:
    """Return a PCI address in one spelling: lower case, eight digits of domain, no function."""
    parts = text.lower().split(".")[0].split(":")
    return ":".join([parts[0].rjust(8, "0"), *parts[1:]]) if len(parts) == 3 else ""  # noqa: PLR2004 - domain:bus:device


def parse_nvbandwidth(text: str) -> Bandwidths:
    """Read the matrix of one test. Tests with one row give a number per device.

    Raises:
        ToolError: if there is no matrix in it (the test failed or was waived).
    """
    buses: list[str] = []
    values: list[float | None] = []
    in_matrix = False
    for line in text.splitlines():
        if device := _DEVICE.match(line):
            buses.append(_bus(device.group(2)))
        elif "bandwidth (GB/s)" in line:
            in_matrix = True
        elif in_matrix and not values and _HEAD.match(line):
            continue
        elif in_matrix and (row := _ROW.match(line)):
            cells = row.group(1).split()
            values = [None if cell == "N/A" else float(cell) for cell in cells]
            break
    if not values:
        last = next((line for line in reversed(text.splitlines()) if line.strip()), "no output")
        raise ToolError(f"nvbandwidth printed no bandwidth: {last.strip()[:200]}")
    return Bandwidths(tuple(buses), tuple(values))


class NvBandwidth:
    """The ``nvbandwidth`` on PATH."""

    def __init__(self, path: str) -> None:
        self._path = path

    @classmethod
    def find(cls) -> "NvBandwidth | None":
        """Return the one on PATH, or ``None``."""
        path = on_path("nvbandwidth")
        return cls(path) if path else None

    def measure(
        self, test: str, gpus: Sequence[Gpu], halt: Halt | None = None, prefix: Sequence[str] = ()
    ) -> dict[int, float | None]:
        """Run one test over these GPUs and return GB/s by index.

        Args:
            test: such as ``host_to_device_memcpy_ce``.
            gpus: the only ones it may touch.
            halt: ends it early.
            prefix: put before the program, such as ``numactl`` and its arguments.

        Raises:
            ToolTimeoutError: it did not come back.
            ToolError: it printed no numbers.
        """
        argv = [*prefix, self._path, "-t", test]
        result = run_tool(argv, timeout_s=TIMEOUT_S, halt=halt, env=visible(gpus))
        table = parse_nvbandwidth(result.out + "\n" + result.err)
        return {gpu.index: table.of(gpu, position) for position, gpu in enumerate(gpus)}
