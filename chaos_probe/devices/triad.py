"""Memory bandwidth of the host by NumPy: ``a = b + s * c`` over arrays that no cache holds.

Runs inside the probe, or by itself (``python -m chaos_probe.devices.triad``) so that ``numactl`` can pin it.
"""

import argparse
import json
import os
import statistics
import threading
import time
from collections.abc import Callable

import numpy as np

STREAMS = 5
"""Array passes of one round: read c, write a; read a, read b, write a."""


def measure_triad(
    seconds: float, threads: int, mib: int, stop: Callable[[], bool] = lambda: False
) -> tuple[float, int]:
    """Measure for that long and return GB/s (median over the rounds of all threads) and the number of rounds.

    Args:
        seconds: how long; at least two rounds are done.
        threads: workers, each with its own arrays; NumPy works outside the interpreter's lock.
        mib: size of all arrays together.
        stop: asked between rounds.
    """
    length = max(1024, (mib << 20) // (3 * 8 * threads))
    rates: list[list[float]] = [[] for _ in range(threads)]
    barrier = threading.Barrier(threads, timeout=30.0)

    def work(mine: list[float]) -> None:
        b, c = np.full(length, 1.0), np.full(length, 2.0)
        a = np.empty(length)
        barrier.wait()
        end = time.perf_counter() + seconds
        while True:
            start = time.perf_counter()
            np.multiply(c, 3.0, out=a)
            np.add(a, b, out=a)
            now = time.perf_counter()
            mine.append(STREAMS * 8 * length / (now - start) / 1e9)
            if (now >= end and len(mine) > 1) or stop():
                return

    workers = [threading.Thread(target=work, args=(mine,), daemon=True) for mine in rates]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    # The first round pays for the page faults of the destination.
    return sum(statistics.median(mine[1:] or mine) for mine in rates), sum(map(len, rates))


def main() -> None:
    """Measure and print ``{"gb_per_s", "rounds", "threads"}``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--mib", type=int, default=192)
    arguments = parser.parse_args()
    threads = len(os.sched_getaffinity(0))
    rate, rounds = measure_triad(arguments.seconds, threads, arguments.mib)
    print(json.dumps({"gb_per_s": rate, "rounds": rounds, "threads": threads}))


if __name__ == "__main__":
    main()
