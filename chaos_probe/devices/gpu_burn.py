"""The ``gpu_burn`` program: heats GPUs with matrix products and compares the results with each other.

It ends with 0 whatever happens and says "OK" of a GPU that did nothing: only work done and errors found count.
"""

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from chaos_probe.devices.tool import on_path, run_tool, visible
from chaos_probe.errors import ToolError, ToolUnusableError
from chaos_probe.halt import Halt
from chaos_probe.records import Gpu

START_MARGIN_S = 60.0
PRECISION_FLAGS = {"float": (), "double": ("-d",), "tensor": ("-tc",)}

_KERNEL_FILES = ("compare.fatbin", "compare.ptx")
_NO_KERNEL = "couldn't find compare kernel"
_PROGRESS = re.compile(r"%\s+proc'd:(?P<work>.*?)errors:(?P<errors>.*?)temps:(?P<temps>.*)$")
_WORK = re.compile(r"(-?\d+)\s*\((\d+(?:\.\d+)?) Gflop/s\)")
_ERRORS = re.compile(r"(-?\d+)\s*(\(DIED!\)|\(WARNING!\))?")
_VERDICT = re.compile(r"^\s+GPU (\d+): (\S+)")


@dataclass(slots=True)
class BurnReading:
    """What ``gpu_burn`` showed of one GPU.

    Attributes:
        work: products done, as last shown.
        gflops: rate at each progress line that shows one.
        faults: whether wrong results were counted.
        died: whether its worker died.
        verdict: the closing word (``OK``, ``FAULTY``), or empty.
    """

    work: int = 0
    gflops: list[float] = field(default_factory=list)
    faults: bool = False
    died: bool = False
    verdict: str = ""

    @property
    def problem(self) -> str:
        """Why this reading is no measurement; empty where it is one."""
        if self.died:
            return "the burn's worker died on this GPU"
        if self.faults or (self.verdict and self.verdict != "OK"):
            return "the burn found wrong results on this GPU"
        if self.work <= 0 or not any(rate > 0 for rate in self.gflops):
            return "the burn did no work on this GPU"
        return ""

    @property
    def tflops(self) -> float:
        """Median rate in TFLOP/s; only meaningful where there is no problem."""
        return statistics.median(rate for rate in self.gflops if rate > 0) / 1000.0


def parse_burn(text: str) -> list[BurnReading]:
    """Read all that ``gpu_burn`` printed: one reading per GPU, in its own order; empty where it got nowhere."""
    readings: list[BurnReading] = []

    def at(position: int) -> BurnReading:
        while len(readings) <= position:
            readings.append(BurnReading())
        return readings[position]

    for line in re.split(r"[\r\n]+", text):
        if progress := _PROGRESS.search(line):
            for position, (work, rate) in enumerate(_WORK.findall(progress.group("work"))):
                reading = at(position)
                reading.work = int(work)
                reading.gflops.append(float(rate))
            for position, (errors, mark) in enumerate(_ERRORS.findall(progress.group("errors"))):
                reading = at(position)
                reading.faults = reading.faults or int(errors) != 0
                reading.died = reading.died or mark == "(DIED!)"
        elif verdict := _VERDICT.match(line):
            at(int(verdict.group(1))).verdict = verdict.group(2)
    return readings


class GpuBurn:
    """The ``gpu_burn`` (or ``gpu-burn``) on PATH."""

    def __init__(self, path: str) -> None:
        self._path = path

    @classmethod
    def find(cls) -> "GpuBurn | None":
        """Return the one on PATH, or ``None``."""
        path = on_path("gpu_burn", "gpu-burn")
        return cls(path) if path else None

    def _home(self) -> Path | None:
        """Return the folder that it must run in: it looks for its kernel file where it was started."""
        folder = Path(self._path).resolve().parent
        return folder if any((folder / name).is_file() for name in _KERNEL_FILES) else None

    def burn(
        self, gpus: Sequence[Gpu], seconds: float, precision: str = "tensor", halt: Halt | None = None
    ) -> list[BurnReading]:
        """Burn these GPUs at once and return what was shown, one reading for each in their order.

        The program is shown nothing else, and it is not asked for a number (``-i``): what a number means changes when a
        GPU is lost.

        Args:
            gpus: which.
            seconds: how long.
            precision: a key of :data:`PRECISION_FLAGS`.
            halt: ends it early.

        Raises:
            ToolTimeoutError: it did not come back.
            ToolUnusableError: its kernel file is missing.
            ToolError: it printed no progress at all.
        """
        argv = [self._path, *PRECISION_FLAGS[precision], str(max(1, round(seconds)))]
        timeout = seconds + START_MARGIN_S
        result = run_tool(argv, timeout_s=timeout, halt=halt, env=visible(gpus), cwd=self._home())
        if _NO_KERNEL in result.out + result.err:
            raise ToolUnusableError(
                f"{self._path} does not find its kernel file; put compare.fatbin or compare.ptx of its build beside it"
            )
        readings = parse_burn(result.out + "\n" + result.err)
        if not readings:
            raise ToolError(result.complaint)
        return readings
