"""DCGM through ``dcgmi``: injection into the host engine's cache, health, field values and the PCIe diagnosis."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chaos_probe.devices.tool import ToolResult, on_path, run_tool
from chaos_probe.errors import ToolError, ToolTimeoutError, ToolUnusableError
from chaos_probe.halt import Halt

TIMEOUT_S = 30.0
DIAG_TIMEOUT_S = 300.0
WATCH_LETTERS: Mapping[str, str] = {
    "PCIe": "p",
    "NVLINK": "n",
    "Memory": "m",
    "InfoROM": "i",
    "Thermal": "t",
    "Power": "t",
    "Driver": "d",
    "ConnectX": "x",
}
"""Letters of ``dcgmi health -s`` by the name under which ``-f`` lists a system; others cannot be set back.

No letter sets SM. DCGM 4.6 has a letter for ConnectX, yet does not list it: what is not listed cannot be restored.
"""

_BLANK_INT = 0x7FFFFFF0
_BLANK_FP = 140737488355328.0
_GPU_ROW = re.compile(r"^\|\s*(\d+)\s*\|")
_UUID_ROW = re.compile(r"Device UUID:\s*(\S+)")
_TO_HOST = re.compile(r"GPU to Host bandwidth:\s*([\d.]+)\s*GB/s")
_TO_GPU = re.compile(r"Host to GPU bandwidth:\s*([\d.]+)\s*GB/s")


@dataclass(slots=True)
class PcieDiagnosis:
    """What the PCIe test said of one GPU; bandwidths in GB/s where it gave any."""

    status: str = ""
    host_to_device: float | None = None
    device_to_host: float | None = None
    warnings: list[str] = field(default_factory=list)


def load_json(text: str) -> Any:  # noqa: ANN401 - the shape is the tool's
    """Read JSON that may have plain lines before it (``health -f -j`` prints one).

    Raises:
        ToolError: if there is no JSON in it.
    """
    start = text.find("{")
    try:
        return json.loads(text[start:]) if start >= 0 else None
    except ValueError as error:
        raise ToolError(f"dcgmi printed JSON that cannot be read: {error}") from error


def parse_discovery(text: str) -> dict[str, int]:
    """Return DCGM's GPU ids by UUID. They need not be the indices of ``nvidia-smi``."""
    ids: dict[str, int] = {}
    current: int | None = None
    for line in text.splitlines():
        if row := _GPU_ROW.match(line):
            current = int(row.group(1))
        if (uuid := _UUID_ROW.search(line)) and current is not None:
            ids[uuid.group(1)] = current
        if "NvSwitches found" in line:
            break
    return ids


def parse_watches(text: str) -> dict[str, bool]:
    """Return which health systems are watched, by their name."""
    data = load_json(text) or {}
    body = data.get("body", {}) if isinstance(data, dict) else {}
    return {name: entry.get("value") == "On" for name, entry in body.items() if isinstance(entry, dict)}


def parse_health(text: str) -> tuple[str, dict[int, dict[str, str]]]:
    """Return the overall verdict and, by GPU id and system, verdict and text.

    Raises:
        ToolError: health watches are not enabled, or there is no report.
    """
    data = load_json(text)
    body = data.get("body") if isinstance(data, dict) else None
    if not isinstance(body, dict) or "Overall Health" not in body:
        line = next((line.strip() for line in text.splitlines() if line.strip()), "no output")
        raise ToolError(f"dcgmi health gave no report: {line[:200]}")
    gpus: dict[int, dict[str, str]] = {}
    for gpu, entry in body.get("GPU", {}).get("children", {}).items():
        systems = entry.get("children", {}).get("Errors", {}).get("children", {})
        gpus[int(gpu)] = {
            system: ": ".join([str(found.get("value", "")), " ".join(found.get("overflow", []))]).rstrip(": ")
            for system, found in systems.items()
        }
    return str(body["Overall Health"].get("value", "")), gpus


def parse_dmon(text: str, fields: Sequence[int]) -> dict[int, dict[int, float | None]]:
    """Return the last row of each GPU: value by field id, ``None`` for N/A and DCGM's blank values."""
    rows: dict[int, dict[int, float | None]] = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) == len(fields) + 2 and words[0] == "GPU" and words[1].isdigit():
            rows[int(words[1])] = {f: _value(word) for f, word in zip(fields, words[2:], strict=True)}
    return rows


def _value(word: str) -> float | None:
    try:
        value = float(word)
    except ValueError:
        return None
    blank = value >= _BLANK_FP or (value.is_integer() and _BLANK_INT <= value <= _BLANK_INT + 0xF)
    return None if blank else value


def parse_pcie_diag(text: str) -> dict[int, PcieDiagnosis]:
    """Read ``dcgmi diag -r pcie -j`` of DCGM 3 or 4: what the PCIe test said, by GPU id.

    Raises:
        ToolError: the diagnosis did not run; with its reason.
    """
    data = load_json(text)
    root = (data.get("DCGM Diagnostic") or data.get("DCGM GPU Diagnostic")) if isinstance(data, dict) else None
    if not isinstance(root, dict):
        line = next((line.strip() for line in text.splitlines() if line.strip()), "no output")
        raise ToolUnusableError(f"dcgmi diag gave no result: {line[:200]}")
    if "runtime_error" in root:
        raise ToolUnusableError(f"dcgmi diag did not run: {root['runtime_error']}")
    found: dict[int, PcieDiagnosis] = {}
    tests = [test for category in root.get("test_categories", []) for test in category.get("tests", [])]
    for result in (r for t in tests if str(t.get("name", "")).lower() == "pcie" for r in t.get("results", [])):
        _take_pcie_result(result, found)
    return found


def _take_pcie_result(result: Mapping[str, Any], found: dict[int, PcieDiagnosis]) -> None:
    ids = [int(i) for i in str(result.get("gpu_ids", "")).split(",") if i.strip().isdigit()]
    if result.get("entity_group") == "GPU":
        ids.append(int(result["entity_id"]))
    info = result.get("info", "")
    text = info if isinstance(info, str) else " ".join(map(str, info))
    for gpu in ids:
        one = found.setdefault(gpu, PcieDiagnosis())
        one.status = str(result.get("status", "")).lower()
        if match := _TO_HOST.search(text):
            one.device_to_host = float(match.group(1))
        if match := _TO_GPU.search(text):
            one.host_to_device = float(match.group(1))
        one.warnings += [str(w.get("warning", w) if isinstance(w, dict) else w) for w in result.get("warnings", [])]


class Dcgm:
    """The ``dcgmi`` on PATH, talking to one host engine."""

    def __init__(self, path: str = "dcgmi", host: str = "") -> None:
        self._path = path
        self.host = host

    @classmethod
    def find(cls, host: str = "") -> "Dcgm | None":
        """Return the one on PATH, or ``None``. ``host`` is the host engine's address; empty for the local one."""
        path = on_path("dcgmi")
        return cls(path, host) if path else None

    def _run(self, *arguments: str, timeout_s: float = TIMEOUT_S, halt: Halt | None = None) -> ToolResult:
        where = ("--host", self.host) if self.host else ()
        return run_tool([self._path, arguments[0], *where, *arguments[1:]], timeout_s=timeout_s, halt=halt)

    def ids(self) -> dict[str, int]:
        """Return DCGM's GPU ids by UUID.

        Raises:
            ToolError: the host engine does not answer.
        """
        result = self._run("discovery", "-l")
        ids = parse_discovery(result.out)
        if not ids:
            raise ToolUnusableError(f"dcgmi finds no GPU ({result.complaint}); is nv-hostengine running?")
        return ids

    def watches(self) -> dict[str, bool]:
        """Return which health systems are watched."""
        return parse_watches(self._run("health", "-f", "-j").out)

    def set_watches(self, letters: str) -> None:
        """Watch exactly these health systems; none of them clears the watches.

        Raises:
            ToolError: the host engine refused.
        """
        result = self._run("health", "-s", letters) if letters else self._run("health", "--clear")
        if result.status != 0 or "Error" in result.out:
            raise ToolError(f"health watches cannot be set: {result.complaint}")

    def health(self) -> tuple[str, dict[int, dict[str, str]]]:
        """Return the overall verdict and the findings by GPU id.

        Raises:
            ToolError: watches are not enabled, or the host engine does not answer.
        """
        result = self._run("health", "-c", "-j")
        return parse_health(result.out + result.err)

    def read(self, gpu_id: int, fields: Sequence[int]) -> dict[int, float | None]:
        """Return the current values of these fields of one GPU; ``None`` where there is none."""
        argv = ("dmon", "-e", ",".join(map(str, fields)), "-i", str(gpu_id), "-c", "1")
        return parse_dmon(self._run(*argv).out, fields).get(gpu_id, dict.fromkeys(fields))

    def inject(self, gpu_id: int, field_id: int, value: float, offset_s: int = 1) -> None:
        """Write a value into the host engine's cache, dated ``offset_s`` seconds ahead.

        The GPU is always named: without it the program takes number 1. The value is a number here, because the
        program turns garbage into 0 without a word.

        Raises:
            ToolError: the host engine refused.
        """
        text = f"{value:.0f}" if float(value).is_integer() else f"{value:.6f}"
        result = self._run(
            *("test", "--inject", "--gpuid", str(gpu_id), "-f", str(field_id), "-v", text, "--offset", str(offset_s))
        )
        if result.status != 0 or "Successfully injected" not in result.out:
            raise ToolError(f"field {field_id} of GPU {gpu_id} cannot be injected: {result.complaint}")

    def pcie(self, gpu_ids: Sequence[int], halt: Halt | None = None) -> dict[int, PcieDiagnosis]:
        """Run the PCIe diagnosis on these GPUs.

        Raises:
            ToolError: it did not run.
        """
        argv = ("diag", "-r", "pcie", "-i", ",".join(map(str, gpu_ids)), "-j")
        try:
            result = self._run(*argv, timeout_s=DIAG_TIMEOUT_S, halt=halt)
        except ToolTimeoutError as error:
            raise ToolTimeoutError(f"{error} (dcgmi diag -r pcie)") from error
        return parse_pcie_diag(result.out or result.err)
