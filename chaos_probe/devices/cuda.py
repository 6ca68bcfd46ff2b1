"""Measurements on a GPU: by CuPy or PyTorch where there is one, else by ``gpu_burn`` and ``nvbandwidth``."""

import importlib.util
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from chaos_probe.devices.gpu_burn import BurnReading, GpuBurn
from chaos_probe.devices.nvbandwidth import DEVICE_TO_HOST, HOST_TO_DEVICE, LOCAL_COPY, NvBandwidth
from chaos_probe.devices.tool import run_tool, visible
from chaos_probe.errors import ToolError, ToolTimeoutError, ToolUnusableError
from chaos_probe.halt import Halt
from chaos_probe.records import Gpu, SampleStatus

WORKER_MARGIN_S = 120.0


@dataclass(frozen=True, slots=True)
class Measured:
    """What a measurement of one GPU gave: a value, or why there is none."""

    value: float | None
    status: SampleStatus
    detail: str

    @classmethod
    def failed(cls, error: Exception) -> "Measured":
        """Return the failure that an error is: of the GPU, unless the means itself is unusable.

        Raises:
            ToolUnusableError: the error is one: it says nothing of the GPU, and must not be held against it.
        """
        if isinstance(error, ToolUnusableError):
            raise error
        timeout = isinstance(error, ToolTimeoutError)
        return cls(None, SampleStatus.TIMEOUT if timeout else SampleStatus.FAILED, str(error))


LOST = Measured(None, SampleStatus.FAILED, "the driver has lost this GPU: it does not tell its UUID")


def cuda_library() -> str | None:
    """Return the Python library that can use a GPU, ``cupy`` or ``torch``; it is looked for, not loaded."""
    return next((name for name in ("cupy", "torch") if importlib.util.find_spec(name)), None)


@dataclass(frozen=True, slots=True)
class Cuda:
    """The means to measure that this machine has; the first that there is serves."""

    library: str | None
    burn: GpuBurn | None
    copies: NvBandwidth | None

    @classmethod
    def find(cls) -> "Cuda":
        """Look for them."""
        return cls(cuda_library(), GpuBurn.find(), NvBandwidth.find())

    def compute(self, gpus: Sequence[Gpu], seconds: float, precision: str, halt: Halt) -> list[Measured]:
        """Measure TFLOP/s of each of these GPUs: one after the other by a library, at once by ``gpu_burn``.

        Args:
            gpus: which.
            seconds: per burn.
            precision: ``float``, ``double`` or ``tensor``.
            halt: ends it early.

        Raises:
            ToolError: there is nothing to burn with.
        """
        if self.library:
            return [self._compute_worker(gpu, seconds, precision, halt) if gpu.uuid else LOST for gpu in gpus]
        if self.burn is None:
            raise ToolError("nothing here can burn a GPU; install CuPy, PyTorch or gpu_burn")
        burn = self.burn

        def together(seen: Sequence[Gpu]) -> list[Measured]:
            readings = burn.burn(seen, seconds, precision, halt)
            if len(readings) != len(seen):
                # Whose is whose cannot be told.
                raise ToolError(f"gpu_burn shows {len(readings)} GPUs instead of {len(seen)}")
            return [_judge(reading, precision) for reading in readings]

        return _attributed(gpus, together)

    def _compute_worker(self, gpu: Gpu, seconds: float, precision: str, halt: Halt) -> Measured:
        try:
            found = self._worker(gpu, "compute", seconds, halt, precision)
        except ToolError as error:
            return Measured.failed(error)
        if found.get("errors", 1) or not found.get("tflops", 0.0) > 0.0:
            return Measured(None, SampleStatus.FAILED, f"{found.get('errors')} batches of products came out wrong")
        return Measured(
            found["tflops"], SampleStatus.OK, f"{self.library}, {precision}, {found['rounds']:.0f} products"
        )

    def memory(self, gpus: Sequence[Gpu], seconds: float, halt: Halt) -> list[Measured] | None:
        """Measure GB/s of copies within each GPU; ``None`` where nothing here can."""
        if self.library:
            return [self._memory_worker(gpu, seconds, halt) if gpu.uuid else LOST for gpu in gpus]
        if self.copies is None:
            return None
        copies = self.copies
        words = f"nvbandwidth {LOCAL_COPY}, read and written"

        def together(seen: Sequence[Gpu]) -> list[Measured]:
            rates = copies.measure(LOCAL_COPY, seen, halt)
            # The program counts the bytes copied; each is read and written, and the memory moves both.
            moved = [None if rate is None else 2.0 * rate for rate in (rates[gpu.index] for gpu in seen)]
            return [_positive(rate, words) for rate in moved]

        return _attributed(gpus, together)

    def _memory_worker(self, gpu: Gpu, seconds: float, halt: Halt) -> Measured:
        try:
            found = self._worker(gpu, "memory", seconds, halt)
        except ToolError as error:
            return Measured.failed(error)
        return _positive(found.get("gb_per_s"), f"{self.library}, copy within the GPU, read and written")

    def pcie(
        self, gpus: Sequence[Gpu], seconds: float, halt: Halt, prefix: Sequence[str] = ()
    ) -> list[Measured] | None:
        """Measure GB/s between host and GPU, the slower direction; ``None`` where nothing here can.

        Args:
            gpus: which.
            seconds: per GPU, where the means can be told.
            halt: ends it early.
            prefix: words that pin the program to CPUs and memory.
        """
        if self.library:
            return [self._pcie_worker(gpu, seconds, halt, prefix) if gpu.uuid else LOST for gpu in gpus]
        if self.copies is None:
            return None
        copies = self.copies

        def together(seen: Sequence[Gpu]) -> list[Measured]:
            to_gpu = copies.measure(HOST_TO_DEVICE, seen, halt, prefix)
            to_host = copies.measure(DEVICE_TO_HOST, seen, halt, prefix)
            return [both_ways(to_gpu[gpu.index], to_host[gpu.index], "nvbandwidth") for gpu in seen]

        return _attributed(gpus, together)

    def _pcie_worker(self, gpu: Gpu, seconds: float, halt: Halt, prefix: Sequence[str]) -> Measured:
        try:
            found = self._worker(gpu, "pcie", seconds, halt, prefix=prefix)
        except ToolError as error:
            return Measured.failed(error)
        return both_ways(found.get("host_to_device"), found.get("device_to_host"), f"{self.library}, pinned memory")

    def _worker(
        self, gpu: Gpu, what: str, seconds: float, halt: Halt, precision: str = "tensor", prefix: Sequence[str] = ()
    ) -> Mapping[str, float]:
        argv = [*prefix, sys.executable, "-m", "chaos_probe.devices.cuda_worker", "--library", str(self.library)]
        argv += ["--what", what, "--seconds", str(seconds), "--precision", precision]
        result = run_tool(argv, timeout_s=seconds + WORKER_MARGIN_S, halt=halt, env=visible([gpu]))
        try:
            found = json.loads(result.out)
        except ValueError:
            raise ToolError(result.complaint) from None
        if "unusable" in found:
            raise ToolUnusableError(
                f"{self.library} cannot be used: {found['unusable']}; install it anew, or remove it"
            )
        if "error" in found:
            raise ToolError(f"{self.library} on GPU {gpu.index}: {found['error']}")
        return {str(key): float(value) for key, value in found.items()}


def _attributed(gpus: Sequence[Gpu], together: Callable[[Sequence[Gpu]], list[Measured]]) -> list[Measured]:
    """Measure GPUs at once; where that fails, each alone: one that is broken must not speak for its neighbours.

    Args:
        gpus: which; those that the driver has lost are not touched.
        together: measures some and gives a result for each in order, or raises ``ToolError``.

    Raises:
        ToolUnusableError: the means cannot work here.
    """
    seen = [gpu for gpu in gpus if gpu.uuid]
    found: dict[int, Measured] = {}
    try:
        if seen:
            found = {gpu.index: one for gpu, one in zip(seen, together(seen), strict=True)}
    except ToolError as error:
        failed = Measured.failed(error)
        for gpu in seen:
            found[gpu.index] = failed if len(seen) == 1 else _attributed([gpu], together)[0]
    return [found.get(gpu.index, LOST) for gpu in gpus]


def _judge(reading: BurnReading, precision: str) -> Measured:
    if reading.problem:
        return Measured(None, SampleStatus.FAILED, reading.problem)
    return Measured(reading.tflops, SampleStatus.OK, f"gpu_burn, {precision}, {reading.work} products")


def _positive(rate: float | None, detail: str) -> Measured:
    if rate is None or not rate > 0.0:
        return Measured(None, SampleStatus.FAILED, f"{detail} gave no bandwidth")
    return Measured(rate, SampleStatus.OK, detail)


def both_ways(to_gpu: float | None, to_host: float | None, detail: str) -> Measured:
    """Return the slower direction: a copy that a step waits for goes through it."""
    known = [rate for rate in (to_gpu, to_host) if rate is not None]
    if not known or not min(known) > 0.0:
        return Measured(None, SampleStatus.FAILED, f"{detail} gave no bandwidth")
    words = [f"{name} {rate:.1f}" for name, rate in (("to GPU", to_gpu), ("to host", to_host)) if rate is not None]
    return Measured(min(known), SampleStatus.OK, f"{detail}: {', '.join(words)} GB/s")
