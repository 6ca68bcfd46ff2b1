"""NVML, the driver's own library: vital signs and processes without starting a program."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from chaos_probe.devices.nvidia_smi import NvidiaSmi
from chaos_probe.errors import ToolError
from chaos_probe.records import Vitals

T = TypeVar("T")

UNKNOWN = -1
"""Number of processes of a GPU that does not tell them."""


class Telemetry(Protocol):
    """Whoever can tell how the GPUs are."""

    def vitals(self) -> dict[int, Vitals]:
        """Return vital signs by GPU index."""

    def busy(self) -> dict[str, int]:
        """Return the number of compute processes by GPU UUID, idle ones left out; :data:`UNKNOWN` where not told."""


class Nvml:
    """The library, loaded and initialised once."""

    def __init__(self, library: Any) -> None:  # noqa: ANN401 - the module has no types
        self._nvml = library

    @classmethod
    def find(cls) -> "Nvml | None":
        """Return it, or ``None`` where the package or the driver's library is absent."""
        try:
            import pynvml  # noqa: PLC0415 - an extra of GPU nodes
        except ImportError:
            return None
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            return None
        return cls(pynvml)

    def _maybe(self, call: Callable[[], T]) -> T | None:
        """Return what a query says, or ``None`` where this GPU does not support it or is lost."""
        try:
            return call()
        except self._nvml.NVMLError:
            return None

    def _handles(self) -> dict[int, Any]:
        try:
            count = self._nvml.nvmlDeviceGetCount()
        except self._nvml.NVMLError as error:
            raise ToolError(f"NVML does not answer: {error}") from error
        found: dict[int, Any] = {}
        for index in range(count):
            with suppress(self._nvml.NVMLError):
                found[index] = self._nvml.nvmlDeviceGetHandleByIndex(index)
        return found

    def uuids(self) -> dict[int, str]:
        """Return the UUIDs of the GPUs that answer, by index."""
        named = {index: self._uuid(handle) for index, handle in self._handles().items()}
        return {index: uuid for index, uuid in named.items() if uuid}

    def _uuid(self, handle: Any) -> str | None:  # noqa: ANN401 - an opaque handle
        return self._maybe(lambda: str(self._nvml.nvmlDeviceGetUUID(handle)))

    def _processes(self, handle: Any) -> int:  # noqa: ANN401 - an opaque handle
        try:
            return len(self._nvml.nvmlDeviceGetComputeRunningProcesses(handle))
        except self._nvml.NVMLError as error:
            # A lost GPU has no process. Of any other that does not say, nobody may take it that it has none.
            return 0 if getattr(error, "value", None) == self._nvml.NVML_ERROR_GPU_IS_LOST else UNKNOWN

    def vitals(self) -> dict[int, Vitals]:
        """Return vital signs by GPU index.

        Raises:
            ToolError: the library does not answer.
        """
        return {index: self._vitals(handle) for index, handle in self._handles().items()}

    def _vitals(self, handle: Any) -> Vitals:  # noqa: ANN401 - an opaque handle
        lib = self._nvml
        temperature = self._maybe(lambda: lib.nvmlDeviceGetTemperature(handle, lib.NVML_TEMPERATURE_GPU))
        power_mw = self._maybe(lambda: lib.nvmlDeviceGetPowerUsage(handle))
        limit_mw = self._maybe(lambda: lib.nvmlDeviceGetPowerManagementLimit(handle))
        return Vitals(
            temperature_c=temperature,
            power_w=None if power_mw is None else power_mw / 1000.0,
            power_limit_w=None if limit_mw is None else limit_mw / 1000.0,
            sm_clock_mhz=self._maybe(lambda: lib.nvmlDeviceGetClockInfo(handle, lib.NVML_CLOCK_SM)),
            reasons=self._maybe(lambda: lib.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
        )

    def busy(self) -> dict[str, int]:
        """Return the number of compute processes by GPU UUID, idle ones left out; :data:`UNKNOWN` where not told."""
        counts: dict[str, int] = {}
        for handle in self._handles().values():
            uuid, processes = self._uuid(handle), self._processes(handle)
            if uuid and processes:
                counts[uuid] = processes
        return counts


def find_telemetry(smi: NvidiaSmi | None, nvml: Nvml | None) -> Telemetry | None:
    """Return NVML where it sees the same GPUs as ``nvidia-smi``, else ``nvidia-smi``, else nothing.

    Where the two disagree the program wins: limits are set through it, so what it sees is what a run touches.
    """
    if smi is None:
        return None
    if nvml is not None:
        seen = {gpu.index: gpu.uuid for gpu in smi.gpus() if gpu.uuid}
        if seen and seen == nvml.uuids():
            return nvml
    return smi
