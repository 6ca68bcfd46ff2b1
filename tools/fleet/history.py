"""What the agents of the fleet would have reported in the past: the same physics, asked for earlier times."""

import math
from collections.abc import Iterator
from datetime import UTC, datetime

from gpugrade.v1 import probe_pb2 as pb

from tools.fleet import physics
from tools.fleet.chance import unit
from tools.fleet.inventory import SILENT_S, Gpu, Node
from tools.fleet.node import Machine
from tools.fleet.products import DIMENSIONS, DRIVER, UNITS
from tools.fleet.state import FleetDir

AGENT_VERSION = "0.1.0"
#: Most samples of one report: some 200 KB, far below what gRPC takes.
BATCH = 1000
#: Rounds of a node begin this long after the grid of rounds at most, so that not all nodes burn at once.
JITTER_S = 2 * 3600.0
#: Seconds between the dimensions of a round, and between the GPUs within one.
DIMENSION_S, GPU_S = 35.0, 2.0
#: Which experiment measures a dimension, and what it says.
SOURCES = {
    "compute": ("gpu-burn", "bf16 gemm 8192"),
    "memory": ("gpu-burn", "device copy"),
    "pcie": ("pcie-bandwidth", "host to device, pinned"),
    "nvlink": ("nvlink-bandwidth", "all_reduce within the node, busbw"),
    "fabric": ("fabric-bandwidth", "all_reduce over 2 nodes, busbw"),
    "numa": ("numa-bandwidth", "host to device from remote / local node"),
    "host": ("host-burn", "memory triad"),
}


def rounds(node: Node, start: float, end: float, every: float) -> list[float]:
    """When a node's agent began its rounds of measurements: Unix seconds, ascending.

    The newest is within two hours and a little of ``end``, each earlier one ``every`` seconds before. The silent node
    has none after its agent fell silent.
    """
    newest = math.floor(end / 600.0) * 600.0 - math.floor(JITTER_S * unit(node.seed, "round", node.name)) - 600.0
    last = node.created - SILENT_S if node.silent else math.inf
    count = max(0, math.floor((newest - start) / every) + 1)
    return [at for k in reversed(range(count)) if (at := newest - k * every) <= last]


def inventory(node: Node) -> list[pb.Gpu]:
    """The GPUs of a node as its agent names them."""
    product = node.product
    return [
        pb.Gpu(
            index=gpu.index,
            uuid=gpu.uuid,
            product=product.name,
            pci_bus_id=gpu.pci_bus_id,
            memory_mib=product.memory_mib,
            default_power_limit_w=product.power_w[0],
            driver=DRIVER,
        )
        for gpu in node.gpus
    ]


def _round(machine: Machine, begun: float, end: float) -> Iterator[pb.Sample]:
    node = machine.facts
    settings = [physics.initial_settings(node, gpu) for gpu in node.gpus]
    for number, dimension in enumerate(DIMENSIONS):
        for gpu, mine in zip(node.gpus, settings, strict=True):
            at = begun + number * DIMENSION_S + gpu.index * GPU_S
            if at < end:
                yield _sample(machine, gpu, dimension, at, mine)


def _sample(machine: Machine, gpu: Gpu, dimension: str, at: float, settings: physics.Settings) -> pb.Sample:
    node = machine.facts
    source, detail = SOURCES[dimension]
    sample = pb.Sample(
        id=f"{node.name}/{gpu.index}/{dimension}/{at:.0f}",
        gpu_index=gpu.index,
        gpu_uuid=gpu.uuid,
        dimension=dimension,
        unit=UNITS[dimension],
        source=source,
        detail=detail,
    )
    sample.at.FromMicroseconds(round(at * 1e6))
    if machine.lost(gpu, at):
        sample.status = pb.SAMPLE_STATUS_FAILED
        sample.detail = "the GPU does not answer"
        return sample
    sample.status = pb.SAMPLE_STATUS_OK
    sample.value = physics.measure(node, gpu, dimension, at, settings, machine.faults)
    context = sample.context
    context.driver = DRIVER
    context.power_limit_w = settings.power_limit
    if dimension in {"compute", "memory"}:
        shown = physics.sensors(node, gpu, at, settings, 1.0, machine.faults)
        context.sm_clock_mhz = shown.sm_mhz
        context.temperature_c = shown.gpu_c
        context.power_w = shown.power_w
    return sample


def _kernel(fleet: FleetDir, name: str, start: float, end: float) -> Iterator[pb.KernelMessage]:
    for line in (fleet.folder(name) / "kmsg").read_text().splitlines():
        stamp, _, text = line.partition(" ")
        at = datetime.fromisoformat(stamp)
        if start <= at.timestamp() < end:
            message = pb.KernelMessage(text=text)
            message.at.FromDatetime(at.astimezone(UTC))
            yield message


def history(
    fleet: FleetDir, node: str, start: float, end: float, every: float = 12 * 3600.0
) -> Iterator[pb.ReportRequest]:
    """The reports of a node's agent over a time: its GPUs in the first, then rounds of all seven dimensions.

    Args:
        fleet: the state directory.
        node: node name.
        start: Unix seconds.
        end: Unix seconds; nothing is later.
        every: seconds between rounds.

    Yields:
        Reports of :data:`BATCH` samples at most, oldest first. Ids follow from node, GPU, dimension and time, so that
        the same history sent again changes nothing.

    Raises:
        ValueError: for times that make no history.
    """
    if not (start < end and every >= 60.0):
        raise ValueError("a history needs a start before its end, and rounds at least a minute apart")
    machine = Machine(fleet.node(node), fleet.state(node))
    report = pb.ReportRequest(node=node, agent_version=AGENT_VERSION, gpus=inventory(machine.facts))
    last = machine.facts.created - SILENT_S if machine.facts.silent else end
    report.kernel_messages.extend(_kernel(fleet, node, start, min(end, last)))
    for begun in rounds(machine.facts, start, end, every):
        samples = list(_round(machine, begun, end))
        if len(report.samples) + len(samples) > BATCH:
            yield report
            report = pb.ReportRequest(node=node, agent_version=AGENT_VERSION)
        report.samples.extend(samples)
    yield report
