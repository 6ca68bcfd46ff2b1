"""``nvidia-smi``: what GPUs there are, their vital signs and processes, and the limits that can be set."""

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chaos_probe.devices.tool import on_path, run_tool
from chaos_probe.errors import ToolError
from chaos_probe.halt import Halt
from chaos_probe.records import Gpu, Vitals

TIMEOUT_S = 20.0

# Bits of clocks_event_reasons.active.
REASON_CLOCKS_SETTING = 0x2
REASON_HW_SLOWDOWN = 0x8
REASON_SW_THERMAL = 0x20
REASON_HW_THERMAL = 0x40
REASON_POWER_BRAKE = 0x80
THROTTLED = REASON_HW_SLOWDOWN | REASON_SW_THERMAL | REASON_HW_THERMAL | REASON_POWER_BRAKE
REASON_NAMES: Mapping[int, str] = {
    0x1: "idle",
    REASON_CLOCKS_SETTING: "clocks setting",
    0x4: "software power cap",
    REASON_HW_SLOWDOWN: "hardware slowdown",
    0x10: "sync boost",
    REASON_SW_THERMAL: "software thermal slowdown",
    REASON_HW_THERMAL: "hardware thermal slowdown",
    REASON_POWER_BRAKE: "power brake",
    0x100: "display clock setting",
}

_UNIT = re.compile(r"\s*\[[^\]]*\]$")
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class PowerLimits:
    """What ``-pl`` accepts and what is set, watts."""

    now: float
    lowest: float
    highest: float


def reason_words(bits: int) -> str:
    """Name the reasons that are set."""
    return ", ".join(name for bit, name in REASON_NAMES.items() if bits & bit) or "none"


def parse_csv(text: str) -> list[dict[str, str]]:
    """Read ``--format=csv`` output with its header; units are stripped from the heads.

    A field that the driver does not know (``[N/A]``, ``[Unknown Error]``, ``[Not Supported]``) is left out of its row.

    Raises:
        ToolError: if there is no header.
    """
    rows = [[cell.strip() for cell in row] for row in csv.reader(text.splitlines()) if row]
    if not rows or not rows[0] or not re.match(r"[a-z]", rows[0][0]):
        raise ToolError(f"nvidia-smi printed no table but {text.strip()[:200]!r}; check the driver with nvidia-smi")
    heads = [_UNIT.sub("", head) for head in rows[0]]
    known = []
    for row in rows[1:]:
        pairs = zip(heads, row, strict=False)
        known.append({head: cell for head, cell in pairs if cell and not cell.startswith("[") and cell != "N/A"})
    return known


def number(row: Mapping[str, str], name: str) -> float | None:
    """Return a number of a row without its unit, or ``None`` where the driver did not say."""
    found = _NUMBER.match(row.get(name, ""))
    return float(found.group()) if found else None


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """Read the inventory. A GPU that answers nothing but its index is still one."""
    gpus = []
    for row in parse_csv(text):
        index = number(row, "index")
        if index is None:
            continue
        gpus.append(
            Gpu(
                index=int(index),
                uuid=row.get("uuid", ""),
                product=row.get("name", ""),
                pci_bus_id=row.get("pci.bus_id", ""),
                memory_mib=int(number(row, "memory.total") or 0),
                default_power_limit_w=number(row, "power.default_limit") or 0.0,
                driver=row.get("driver_version", ""),
            )
        )
    return tuple(sorted(gpus, key=lambda gpu: gpu.index))


def parse_vitals(text: str) -> dict[int, Vitals]:
    """Read vital signs by GPU index."""
    vitals = {}
    for row in parse_csv(text):
        index = number(row, "index")
        if index is None:
            continue
        bits = row.get("clocks_event_reasons.active", row.get("clocks_throttle_reasons.active", ""))
        vitals[int(index)] = Vitals(
            temperature_c=number(row, "temperature.gpu"),
            power_w=number(row, "power.draw"),
            power_limit_w=number(row, "power.limit"),
            sm_clock_mhz=number(row, "clocks.current.sm") or number(row, "clocks.sm"),
            reasons=int(bits, 16) if re.fullmatch(r"0x[0-9a-fA-F]+", bits) else None,
        )
    return vitals


class NvidiaSmi:
    """The ``nvidia-smi`` on PATH."""

    def __init__(self, path: str = "nvidia-smi") -> None:
        self._path = path

    @classmethod
    def find(cls) -> "NvidiaSmi | None":
        """Return the one on PATH, or ``None``."""
        path = on_path("nvidia-smi")
        return cls(path) if path else None

    def _query(self, fields: Sequence[str], *, gpu: str | None = None, what: str = "gpu") -> str:
        argv = [self._path, f"--query-{what}={','.join(fields)}", "--format=csv,nounits"]
        if gpu is not None:
            argv += ["-i", gpu]
        result = run_tool(argv, timeout_s=TIMEOUT_S)
        # A lost GPU makes the status non-zero although the others answered: the table decides.
        if result.status != 0 and "," not in result.out:
            raise ToolError(result.complaint)
        return result.out

    def gpus(self) -> tuple[Gpu, ...]:
        """Return what GPUs there are, by index.

        Raises:
            ToolError: the driver does not answer.
        """
        fields = ("index", "uuid", "name", "pci.bus_id", "memory.total", "power.default_limit", "driver_version")
        return parse_gpus(self._query(fields))

    def vitals(self) -> dict[int, Vitals]:
        """Return the vital signs of every GPU by index.

        Raises:
            ToolError: the driver does not answer.
        """
        fields = ("index", "temperature.gpu", "power.draw", "power.limit", "clocks.sm")
        try:
            return parse_vitals(self._query((*fields, "clocks_event_reasons.active")))
        except ToolError as error:
            if "not a valid field" not in str(error):
                raise
            # Drivers before 535 know the field by its old name only.
            return parse_vitals(self._query((*fields, "clocks_throttle_reasons.active")))

    def busy(self) -> dict[str, int]:
        """Return how many compute processes each GPU has, by UUID; GPUs with none are left out.

        Raises:
            ToolError: the driver does not answer.
        """
        counts: dict[str, int] = {}
        argv = [self._path, "--query-compute-apps=gpu_uuid,pid", "--format=csv,nounits"]
        text = run_tool(argv, timeout_s=TIMEOUT_S, check=True).out
        if not text.strip() or text.lower().startswith("no "):
            return counts
        for row in parse_csv(text):
            uuid = row.get("gpu_uuid", "")
            if uuid:
                counts[uuid] = counts.get(uuid, 0) + 1
        return counts

    def power_limits(self, gpu: Gpu) -> PowerLimits | None:
        """Return the power limit that is set and its range, or ``None`` where the GPU does not say."""
        rows = parse_csv(self._query(("index", "power.limit", "power.min_limit", "power.max_limit"), gpu=selector(gpu)))
        row = rows[0] if rows else {}
        now, low, high = (number(row, name) for name in ("power.limit", "power.min_limit", "power.max_limit"))
        if now is None or low is None or high is None:
            return None
        return PowerLimits(now, low, high)

    def max_sm_clock(self, gpu: Gpu) -> float | None:
        """Return the highest SM clock in MHz, or ``None`` where the GPU does not say."""
        rows = parse_csv(self._query(("index", "clocks.max.sm"), gpu=selector(gpu)))
        return number(rows[0], "clocks.max.sm") if rows else None

    def set_power_limit(self, gpu: str, watts: float, halt: Halt | None = None) -> None:
        """Set the power limit of the GPU with that UUID or index.

        Raises:
            ToolError: the driver refused, most often for lack of rights.
        """
        self._set(["-i", gpu, "-pl", f"{watts:.2f}"], halt)

    def lock_clocks(self, gpu: str, low_mhz: int, high_mhz: int, halt: Halt | None = None) -> None:
        """Lock the SM clock of a GPU to a range.

        Raises:
            ToolError: the driver refused.
        """
        self._set(["-i", gpu, "-lgc", f"{low_mhz},{high_mhz}"], halt)

    def reset_clocks(self, gpu: str) -> None:
        """Take every lock of the SM clock away.

        Raises:
            ToolError: the driver refused.
        """
        self._set(["-i", gpu, "-rgc"], None)

    def _set(self, arguments: Sequence[str], halt: Halt | None) -> None:
        result = run_tool([self._path, *arguments], timeout_s=TIMEOUT_S, halt=halt)
        if result.status != 0:
            raise ToolError(f"{result.complaint} (nvidia-smi {' '.join(arguments)}; setting limits needs root)")


def selector(gpu: Gpu) -> str:
    """Return how ``-i`` names this GPU: by UUID where there is one, for an index may move after a reset."""
    return gpu.uuid or str(gpu.index)
