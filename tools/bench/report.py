"""Printing: the table of latencies, and how they stand to the bounds."""

from dataclasses import dataclass, field
from itertools import pairwise

from rich.console import Console
from rich.table import Table

from tools.bench.cells import Latency
from tools.bench.fleet import SIZES

#: Largest ratios to the reference (p50, p99) at BOUND_SIZE names.
BOUNDS = {"filter": (0.25, 0.35), "prioritize": (0.30, 0.40)}
BOUND_SIZE = 5_000
#: Largest ratio of the server time of gRPC Score to that of HTTP prioritize.
GRPC_BOUND = 1.5
#: p50 may grow by this factor more than the names do: noise of the machine.
GROWTH_SLACK = 1.15


@dataclass(slots=True)
class Report:
    """What was measured: latencies by (verb, names, connections)."""

    ours: dict[tuple[str, int, int], Latency] = field(default_factory=dict)
    reference: dict[tuple[str, int, int], Latency] = field(default_factory=dict)
    cpu: dict[int, tuple[float, float]] = field(default_factory=dict)
    """By names: server milliseconds of HTTP prioritize and of gRPC Score."""

    def show(self, console: Console) -> None:
        """Print the table and the verdicts."""
        table = Table("call", "names", "conn", "gpugrade p50 / p99", "reference p50 / p99", "ratio p50 / p99", box=None)
        for (verb, names, connections), ours in self.ours.items():
            theirs = self.reference.get((verb, names, connections))
            row = [verb, str(names), str(connections), f"{ours.p50:.2f} / {ours.p99:.2f}"]
            if theirs is not None:
                row += [
                    f"{theirs.p50:.2f} / {theirs.p99:.2f}",
                    f"{ours.p50 / theirs.p50:.2f} / {ours.p99 / theirs.p99:.2f}",
                ]
            table.add_row(*row)
        console.print("Latency in ms")
        console.print(table)
        for names, (http, rpc) in self.cpu.items():
            console.print(f"Server time at {names} names: prioritize {http:.2f} ms, gRPC Score {rpc:.2f} ms")
        console.print("\nBounds")
        for text, held in self.verdicts():
            console.print(f"{'holds ' if held else 'FAILS '} {text}")

    def verdicts(self) -> list[tuple[str, bool]]:
        """Each bound in words, and whether it holds."""
        found: list[tuple[str, bool]] = []
        for (verb, names, connections), theirs in self.reference.items():
            if names != BOUND_SIZE or verb not in BOUNDS:
                continue
            ours = self.ours[verb, names, connections]
            ratios = (ours.p50 / theirs.p50, ours.p99 / theirs.p99)
            for name, ratio, bound in zip(("p50", "p99"), ratios, BOUNDS[verb], strict=True):
                where = f"{verb}, {names} names, {connections} connections"
                found.append((f"{where}: {name} {ratio:.2f} x the reference, at most {bound:.2f}", ratio <= bound))
        if BOUND_SIZE in self.cpu:
            http, rpc = self.cpu[BOUND_SIZE]
            found.append(
                (
                    f"gRPC Score: {rpc / http:.2f} x the server time of HTTP, at most {GRPC_BOUND}",
                    rpc <= GRPC_BOUND * http,
                )
            )
        for verb in BOUNDS:
            for small, large in pairwise(SIZES):
                if (verb, large, 1) in self.ours:
                    growth = self.ours[verb, large, 1].p50 / self.ours[verb, small, 1].p50
                    text = f"{verb}: from {small} to {large} names p50 grows {growth:.1f} x"
                    found.append((text, growth <= large / small * GROWTH_SLACK))
        return found
