"""Measures one GPU with CuPy or PyTorch. A process of its own: a driver that hangs hangs here, not in the probe.

``python -m chaos_probe.devices.cuda_worker --library torch --what compute --seconds 10`` with the GPU chosen by
``CUDA_VISIBLE_DEVICES``; prints one JSON object.
"""

import argparse
import json
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Measurement = dict[str, float]

MATRIX = 8192
COPY_BYTES = 256 << 20
BATCH_S = 0.25
"""Products are counted in batches of about this length, so that waiting for the end of each costs nothing."""


class Arrays(Protocol):
    """The few operations that the measurements need, each asynchronous until :meth:`finish`."""

    def matrices(self, size: int, precision: str) -> tuple[Any, Any, Any]:
        """Return two random square matrices and room for their product."""

    def multiply(self, a: Any, b: Any, out: Any) -> None:  # noqa: ANN401 - arrays of the library
        """Write the product of two matrices to a third."""

    def equal(self, a: Any, b: Any) -> bool:  # noqa: ANN401 - arrays of the library
        """Whether two arrays are the same, bit for bit, and finite."""

    def copy_of(self, a: Any) -> Any:  # noqa: ANN401 - arrays of the library
        """Return a copy on the GPU."""

    def buffers(self, size: int) -> tuple[Any, Any, Any]:
        """Return two buffers on the GPU and one pinned on the host, of so many bytes."""

    def copy(self, source: Any, destination: Any) -> None:  # noqa: ANN401 - arrays of the library
        """Copy one buffer onto another."""

    def finish(self) -> None:
        """Wait until the GPU has done all of it."""


class CupyArrays:
    """CuPy."""

    def __init__(self) -> None:
        import cupy  # noqa: PLC0415 - only on GPU nodes

        self._cp = cupy

    def matrices(self, size: int, precision: str) -> tuple[Any, Any, Any]:
        """See :class:`Arrays`. ``tensor`` is half precision here, which is as fast as bfloat16."""
        cp = self._cp
        kind = {"float": cp.float32, "double": cp.float64, "tensor": cp.float16}[precision]
        cp.random.seed(7)
        a, b = (cp.random.rand(size, size).astype(kind) for _ in range(2))
        return a, b, cp.empty((size, size), kind)

    def multiply(self, a: Any, b: Any, out: Any) -> None:  # noqa: ANN401 - arrays of the library
        """See :class:`Arrays`."""
        self._cp.matmul(a, b, out=out)

    def equal(self, a: Any, b: Any) -> bool:  # noqa: ANN401 - arrays of the library
        """See :class:`Arrays`."""
        return bool(self._cp.array_equal(a, b)) and bool(self._cp.isfinite(a).all())

    def copy_of(self, a: Any) -> Any:  # noqa: ANN401 - arrays of the library
        """See :class:`Arrays`."""
        return a.copy()

    def buffers(self, size: int) -> tuple[Any, Any, Any]:
        """See :class:`Arrays`."""
        import numpy as np  # noqa: PLC0415 - beside CuPy

        cp = self._cp
        pinned = np.frombuffer(cp.cuda.alloc_pinned_memory(size), np.uint8, size)
        pinned[:] = 1
        return cp.ones(size, cp.uint8), cp.empty(size, cp.uint8), pinned

    def copy(self, source: Any, destination: Any) -> None:  # noqa: ANN401 - arrays of the library
        """See :class:`Arrays`."""
        if isinstance(source, self._cp.ndarray) and isinstance(destination, self._cp.ndarray):
            self._cp.copyto(destination, source)
        elif isinstance(source, self._cp.ndarray):
            source.get(out=destination, blocking=False)
        else:
            destination.set(source)

    def finish(self) -> None:
        """See :class:`Arrays`."""
        self._cp.cuda.Device().synchronize()


class TorchArrays:
    """PyTorch."""

    def __init__(self) -> None:
        import torch  # noqa: PLC0415 - only on GPU nodes

        self._torch = torch
        # Plain single precision, so that the figure means the same on every machine.
        torch.backends.cuda.matmul.allow_tf32 = False

    def matrices(self, size: int, precision: str) -> tuple[Any, Any, Any]:
        """See :class:`Arrays`. ``tensor`` is bfloat16 here."""
        torch = self._torch
        kind = {"float": torch.float32, "double": torch.float64, "tensor": torch.bfloat16}[precision]
        torch.manual_seed(7)
        a, b = (torch.rand(size, size, device="cuda").to(kind) for _ in range(2))
        return a, b, torch.empty(size, size, device="cuda", dtype=kind)

    def multiply(self, a: Any, b: Any, out: Any) -> None:  # noqa: ANN401 - arrays of the library
        """See :class:`Arrays`."""
        self._torch.matmul(a, b, out=out)

    def equal(self, a: Any, b: Any) -> bool:  # noqa: ANN401 - arrays of the library
        """See :class:`Arrays`."""
        return bool(self._torch.equal(a, b)) and bool(self._torch.isfinite(a).all())

    def copy_of(self, a: Any) -> Any:  # noqa: ANN401 - arrays of the library
        """See :class:`Arrays`."""
        return a.clone()

    def buffers(self, size: int) -> tuple[Any, Any, Any]:
        """See :class:`Arrays`."""
        torch = self._torch
        pinned = torch.ones(size, dtype=torch.uint8, pin_memory=True)
        return (
            torch.ones(size, dtype=torch.uint8, device="cuda"),
            torch.empty(size, dtype=torch.uint8, device="cuda"),
            pinned,
        )

    def copy(self, source: Any, destination: Any) -> None:  # noqa: ANN401 - arrays of the library
        """See :class:`Arrays`."""
        destination.copy_(source, non_blocking=True)

    def finish(self) -> None:
        """See :class:`Arrays`."""
        self._torch.cuda.synchronize()


def measure_compute(arrays: Arrays, seconds: float, precision: str = "tensor", size: int = MATRIX) -> Measurement:
    """Multiply matrices for that long, comparing each batch's result with the first, bit for bit.

    Half precision would overflow at this size; its operands are scaled by their range, [0, 1), and sums stay below the
    largest half (about 2,050 at size 8192).

    Returns:
        ``{"tflops", "rounds", "errors"}``: the median rate in TFLOP/s and how many batches gave another result.
    """
    a, b, out = arrays.matrices(size, precision)
    arrays.multiply(a, b, out)
    arrays.finish()
    first = arrays.copy_of(out)
    start = time.perf_counter()
    arrays.multiply(a, b, out)
    arrays.finish()
    batch = max(1, int(BATCH_S / max(time.perf_counter() - start, 1e-4)))
    rates: list[float] = []
    errors = 0 if arrays.equal(out, first) else 1
    end = time.perf_counter() + seconds
    while not rates or time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(batch):
            arrays.multiply(a, b, out)
        arrays.finish()
        rates.append(batch * 2.0 * size**3 / (time.perf_counter() - start) / 1e12)
        errors += 0 if arrays.equal(out, first) else 1
    return {"tflops": statistics.median(rates), "rounds": batch * len(rates), "errors": errors}


def _rate(arrays: Arrays, source: object, destination: object, moved: int, seconds: float) -> float:
    arrays.copy(source, destination)
    arrays.finish()
    rates: list[float] = []
    end = time.perf_counter() + seconds
    while not rates or time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(8):
            arrays.copy(source, destination)
        arrays.finish()
        rates.append(8 * moved / (time.perf_counter() - start) / 1e9)
    return statistics.median(rates)


def measure_memory(arrays: Arrays, seconds: float, size: int = COPY_BYTES) -> Measurement:
    """Copy within the GPU; every byte is read and written, so both count. Returns ``{"gb_per_s"}``."""
    one, other, _ = arrays.buffers(size)
    return {"gb_per_s": _rate(arrays, one, other, 2 * size, seconds)}


def measure_pcie(arrays: Arrays, seconds: float, size: int = COPY_BYTES) -> Measurement:
    """Copy between pinned host memory and the GPU. Returns ``{"host_to_device", "device_to_host"}`` in GB/s."""
    device, _, pinned = arrays.buffers(size)
    return {
        "host_to_device": _rate(arrays, pinned, device, size, seconds / 2),
        "device_to_host": _rate(arrays, device, pinned, size, seconds / 2),
    }


def main() -> int:
    """Measure what was asked for and print it; a failure as ``{"error"}``, a broken library as ``{"unusable"}``."""
    libraries: Mapping[str, Callable[[], Arrays]] = {"cupy": CupyArrays, "torch": TorchArrays}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", choices=libraries, required=True)
    parser.add_argument("--what", choices=("compute", "memory", "pcie"), required=True)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--precision", choices=("float", "double", "tensor"), default="tensor")
    arguments = parser.parse_args()
    try:
        arrays = libraries[arguments.library]()
        if arguments.what == "compute":
            found = measure_compute(arrays, arguments.seconds, arguments.precision)
        elif arguments.what == "memory":
            found = measure_memory(arrays, arguments.seconds)
        else:
            found = measure_pcie(arrays, arguments.seconds)
    except ImportError as error:
        print(json.dumps({"unusable": str(error)[:500]}))
        return 1
    except Exception as error:  # noqa: BLE001 - whatever the driver does is the answer
        print(json.dumps({"error": f"{type(error).__name__}: {error}"[:500]}))
        return 1
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
