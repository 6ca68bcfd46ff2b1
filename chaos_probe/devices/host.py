"""The host itself: CPU speed, memory, and processes that a run started as a noisy neighbour."""

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

RUN_MARK = "CHAOS_PROBE_RUN"
"""Environment variable that marks the processes of a run, so that any later process can find and end them."""

_GONE_WITHIN_S = 5.0


def cpus() -> int:
    """Return how many CPUs this process may use."""
    return len(os.sched_getaffinity(0))


def file_system(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """Return the type of the file system that a path lies on, such as ``ext4``; empty where it cannot be told."""
    found, longest = "", -1
    with suppress(OSError):
        for line in mounts.read_text(encoding="utf-8", errors="replace").splitlines():
            left, _, right = line.partition(" - ")
            point, kind = left.split()[4:5], right.split()[:1]
            # Of two mounts at one place the later one is what is seen.
            if point and kind and path.resolve().is_relative_to(point[0]) and len(point[0]) >= longest:
                found, longest = kind[0], len(point[0])
    return found


def available_mib(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Return the memory that can be had without swapping, MiB."""
    for line in meminfo.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) >> 10
    return 0


def measure_gflops(
    seconds: float, size: int = 768, stop: Callable[[], bool] = lambda: False
) -> tuple[float, int, bool]:
    """Multiply matrices of doubles with all the threads that NumPy's BLAS takes.

    Returns:
        GFLOP/s (median over the rounds), the number of rounds, and whether all rounds gave the same result.
    """
    rng = np.random.default_rng(7)
    a, b = rng.random((size, size)), rng.random((size, size))
    expected = a @ b
    product = np.empty_like(expected)
    rates: list[float] = []
    same = True
    end = time.perf_counter() + seconds
    while not rates or (time.perf_counter() < end and not stop()):
        start = time.perf_counter()
        np.matmul(a, b, out=product)
        rates.append(2.0 * size**3 / (time.perf_counter() - start) / 1e9)
        same = same and bool(np.allclose(product, expected, rtol=1e-12, atol=0.0))
    return statistics.median(rates), len(rates), same


def start_neighbours(run: str, workers: int, seconds: float, mib: int) -> list[subprocess.Popen[bytes]]:
    """Start processes that load the memory; each has a session of its own and ends by itself after that time."""
    argv = [sys.executable, "-m", "chaos_probe.devices.triad", "--seconds", str(seconds), "--mib", str(mib)]
    return [
        subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, RUN_MARK: run},
        )
        for _ in range(workers)
    ]


def marked(run: str, proc: Path = Path("/proc")) -> list[int]:
    """Return the live processes that carry the mark of this run."""
    mark = f"{RUN_MARK}={run}".encode()
    found = []
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def end_marked(run: str) -> int:
    """End every process that carries the mark of this run and wait until they are gone.

    Returns:
        How many there were. Those still there afterwards are found by :func:`marked`.
    """
    ended: set[int] = set()
    deadline = time.monotonic() + _GONE_WITHIN_S
    while (left := marked(run)) and time.monotonic() < deadline:
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            ended.add(pid)
        time.sleep(0.02)
    return len(ended)
