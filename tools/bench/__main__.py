"""``python -m tools.bench [--quick]``: p50 and p99 of the extender beside a reference server, and how they stand."""

import argparse
import json
import os
import platform
import sys
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from tools.bench import cells, reference_server
from tools.bench.fleet import SIZES, Job
from tools.bench.report import Report

CONNECTIONS = (1, 8)
REFERENCE = Path(".cache/bench/reference")
SECONDS, QUICK_SECONDS = 6.0, 1.0


def measure_size(report: Report, names: int, seconds: float, *, with_reference: bool) -> None:
    """Measure all cells of one size, ours and the reference's in turn."""
    with ExitStack() as stack:
        command = [sys.executable, "-m", "tools.bench.server", str(names)]
        process, line = stack.enter_context(reference_server.started(command))
        ports = json.loads(line)
        ours = cells.Server(process.pid, ports["http"])
        reference = None
        if with_reference:
            other, line = stack.enter_context(reference_server.started([str(REFERENCE.resolve())]))
            reference = cells.Server(other.pid, int(line))
        pairs = cells.paired_requests(ours, names, Job())
        for connections in CONNECTIONS:
            for verb, latency in cells.measure(ours, pairs, connections, seconds).items():
                report.ours[verb, names, connections] = latency
            if reference is not None:
                for verb, latency in cells.measure(reference, pairs, connections, seconds).items():
                    report.reference[verb, names, connections] = latency
        gang = cells.measure(ours, cells.paired_requests(ours, names, Job(8, members=4)), 1, seconds / 2)
        report.ours["prioritize, gang of 4 x 8", names, 1] = gang["prioritize"]
        http = cells.http_cpu(ours, names, seconds / 2)
        latency, rpc = cells.grpc_score(cells.Server(process.pid, ports["grpc"]), names, seconds / 2)
        report.ours["gRPC Score", names, 1] = latency
        report.cpu[names] = (http, rpc)


def main() -> int:
    """Run all cells; the exit status says whether they ran, not whether they were quick."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short cells: a rough picture in half a minute")
    seconds = QUICK_SECONDS if parser.parse_args().quick else SECONDS
    console = Console(highlight=False, soft_wrap=True)
    console.print(
        f"Python {platform.python_version()}, {os.cpu_count()} cores that servers and load generator share, "
        f"{seconds:g} s a cell. Each connection asks filter and then prioritize with the names that passed."
    )
    absent = reference_server.build(REFERENCE)
    if absent:
        console.print(f"Reference skipped, so ratios cannot be told: {absent}.")
    else:
        console.print(
            "Reference: Go net/http with the types of k8s.io/kube-scheduler and encoding/json. It decodes the whole "
            "pod, of which gpugrade reads only what it needs, and echoes the names."
        )
    report = Report()
    for names in SIZES:
        measure_size(report, names, seconds, with_reference=not absent)
    report.show(console)
    return 0


if __name__ == "__main__":
    sys.exit(main())
