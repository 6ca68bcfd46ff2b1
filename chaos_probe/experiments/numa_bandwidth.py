"""``numa-bandwidth``: memory across NUMA nodes, of the host and between host and GPU."""

from typing import ClassVar, Literal

from chaos_probe.devices.cuda import Measured
from chaos_probe.devices.host import available_mib, cpus
from chaos_probe.devices.numa import numa_node_of, pin, pinned_triad
from chaos_probe.devices.triad import measure_triad
from chaos_probe.errors import RefusedError, ToolTimeoutError
from chaos_probe.experiments.base import Context, Experiment, Parameter, Plan, listed
from chaos_probe.machine import Machine
from chaos_probe.records import Figure, Gpu, Sample, SampleStatus


class NumaBandwidth(Experiment):
    """Bandwidth from the CPUs of each NUMA node to the memory of each; the sample is remote over local."""

    kind: ClassVar[str] = "numa-bandwidth"
    summary: ClassVar[str] = "Memory bandwidth across NUMA nodes: local, remote, and their ratio; GPU copies likewise"
    surfaces: ClassVar[tuple[str, ...]] = ("probe",)
    needs: ClassVar[tuple[str, ...]] = ("numactl where there are two NUMA nodes or more",)
    risk: ClassVar[Literal["load"]] = "load"
    scope: ClassVar[Literal["node"]] = "node"
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("seconds", 1.0, "per pair of nodes", low=0.05, high=600.0, unit="s"),
        Parameter("mib", 384, "size of the arrays; well above the caches", low=3, high=65536, unit="MiB"),
    )

    def missing(self, machine: Machine) -> list[str]:
        """See the base class."""
        return ["numactl"] if len(machine.numa) > 1 and not machine.numactl else []

    def plan(self, ctx: Context) -> Plan:
        """See the base class."""
        if available_mib() < 2 * ctx.params["mib"]:
            raise RefusedError(f"less than {2 * ctx.params['mib']} MiB of memory are free; give a smaller --param mib=")
        nodes = ctx.machine.numa
        if len(nodes) < 2:  # noqa: PLR2004 - a remote node needs two
            return Plan("this host has one NUMA node: only local bandwidth can be measured, there is no remote memory")
        return Plan(f"local and remote bandwidth between {len(nodes)} NUMA nodes, {len(ctx.gpus)} GPU(s)")

    def observe(self, ctx: Context) -> str:
        """See the base class."""
        seconds, mib = ctx.params["seconds"], ctx.params["mib"]
        nodes = ctx.machine.numa
        if len(nodes) < 2:  # noqa: PLR2004 - a remote node needs two
            rate, rounds = measure_triad(seconds, cpus(), mib, ctx.halt.told)
            ctx.halt.check()
            ctx.figures.append(Figure("local", rate, "GB/s"))
            return f"local {rate:.1f} GB/s in {rounds} rounds; one NUMA node, so no remote figure and no ratio"
        try:
            rates = {(c, m): pinned_triad(c, m, seconds, mib, ctx.halt) for c in nodes for m in nodes}
        except ToolTimeoutError as error:
            return listed([ctx.sample(None, "numa", Measured.failed(error))])
        for (cpu, memory), rate in rates.items():
            name = f"local-{cpu}" if cpu == memory else f"remote-{cpu}-{memory}"
            ctx.figures.append(Figure(name, rate, "GB/s"))
        ratio, pair = min((rates[c, m] / rates[c, c], (c, m)) for c, m in rates if c != m)
        words = f"slowest remote, CPUs of {pair[0]} to memory of {pair[1]}: {rates[pair]:.1f} GB/s"
        samples = [ctx.sample(None, "numa", Measured(ratio, SampleStatus.OK, words))]
        samples += [sample for gpu in ctx.gpus if (sample := self._gpu(ctx, gpu)) is not None]
        return listed(samples)

    def _gpu(self, ctx: Context, gpu: Gpu) -> Sample | None:
        """Compare copies to a GPU from its own NUMA node and from the farthest other; ``None`` where nothing can."""
        near = numa_node_of(gpu.pci_bus_id)
        if near is None or near not in ctx.machine.numa:
            return None
        rates: dict[int, float] = {}
        for node in ctx.machine.numa:
            measured = ctx.machine.cuda.pcie([gpu], ctx.params["seconds"], ctx.halt, pin(node, node))
            if measured is None:
                return None
            if measured[0].value is None:
                return ctx.sample(gpu, "numa", measured[0])
            rates[node] = measured[0].value
            ctx.figures.append(Figure(f"gpu-{gpu.index}-from-{node}", rates[node], "GB/s"))
        far = min(rate for node, rate in rates.items() if node != near)
        words = f"copies from NUMA node {near}: {rates[near]:.1f} GB/s, from the slowest other: {far:.1f} GB/s"
        return ctx.sample(gpu, "numa", Measured(far / rates[near], SampleStatus.OK, words))
