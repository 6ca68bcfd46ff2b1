"""``host-burn``: CPU and memory speed of the host, alone or beside a noisy neighbour. Needs no GPU."""

import time
from collections.abc import Mapping
from typing import ClassVar, Literal

from chaos_probe.devices.cuda import Measured
from chaos_probe.devices.host import available_mib, cpus, measure_gflops, start_neighbours
from chaos_probe.devices.triad import measure_triad
from chaos_probe.errors import RefusedError
from chaos_probe.experiments.base import Context, Experiment, Parameter, Plan, Value, listed
from chaos_probe.records import Figure, SampleStatus
from chaos_probe.revert import end_processes

NEIGHBOUR_MIB = 96
_SPARE_S = 20.0


class HostBurn(Experiment):
    """Really measures the machine that it runs on."""

    kind: ClassVar[str] = "host-burn"
    summary: ClassVar[str] = "Measure this host's memory (GB/s) and CPU (GFLOP/s), beside a noisy neighbour if wanted"
    surfaces: ClassVar[tuple[str, ...]] = ("probe", "host")
    needs: ClassVar[tuple[str, ...]] = ()
    risk: ClassVar[Literal["load"]] = "load"
    scope: ClassVar[Literal["node"]] = "node"
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("seconds", 2.0, "per measurement", low=0.05, high=600.0, unit="s"),
        Parameter("mib", 384, "size of the arrays; well above the caches", low=3, high=65536, unit="MiB"),
        Parameter("neighbours", 0, "processes that load the memory meanwhile: a reversible fault", low=0, high=256),
    )

    def injects_with(self, params: Mapping[str, Value]) -> bool:
        """See the base class."""
        return params["neighbours"] != 0

    def plan(self, ctx: Context) -> Plan:
        """See the base class."""
        seconds, mib, neighbours = (ctx.params[name] for name in ("seconds", "mib", "neighbours"))
        needed = 2 * mib + neighbours * (NEIGHBOUR_MIB + 64)
        if available_mib() < needed:
            raise RefusedError(f"less than {needed} MiB of memory are free; give a smaller --param mib=")
        words = f"{seconds:g} s of memory and of products on {cpus()} CPUs"
        if not neighbours:
            return Plan(words)
        bound = ctx.hold_s + 2 * seconds + _SPARE_S
        return Plan(
            f"{neighbours} noisy neighbour(s), which end by themselves after {bound:.0f} s; {words}",
            reverts=(end_processes(ctx.run),),
            bound_s=bound,
        )

    def inject(self, ctx: Context) -> str:
        """See the base class."""
        neighbours = ctx.params["neighbours"]
        if not neighbours:
            return super().inject(ctx)
        bound = ctx.plan.bound_s if ctx.plan is not None else _SPARE_S
        ctx.children += start_neighbours(ctx.run, neighbours, bound, NEIGHBOUR_MIB)
        return f"{neighbours} process(es) load the memory"

    def observe(self, ctx: Context) -> str:
        """See the base class."""
        seconds = ctx.params["seconds"]
        end = time.monotonic() + (ctx.hold_s if ctx.active else 0.0)
        rate, rounds = measure_triad(seconds, cpus(), ctx.params["mib"], ctx.halt.told)
        ctx.halt.check()
        gflops, products, same = measure_gflops(seconds, stop=ctx.halt.told)
        ctx.halt.check()
        ctx.figures += [Figure("cpu", gflops, "GFLOP/s"), Figure("memory", rate, "GB/s")]
        words = f"triad on {cpus()} CPUs, {rounds} rounds; CPU {gflops:.1f} GFLOP/s in {products} products"
        status = SampleStatus.OK if same else SampleStatus.FAILED
        found = Measured(rate if same else None, status, words if same else "the CPU gave different results: see to it")
        sample = ctx.sample(None, "host", found)
        ctx.halt.sleep(end - time.monotonic())
        return f"{listed([sample])}, CPU {gflops:.1f} GFLOP/s"
