"""What the fleet consists of: racks, nodes, GPUs, and which of them were built slow or have a fault."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from tools.fleet.chance import hexes, unit
from tools.fleet.products import A100, DRIVER, H100, PRODUCTS, Product
from tools.fleet.quality import HIDDEN_SHARE, SLOW_RANGE, SLOW_SHARE

#: PCI bus numbers of the GPUs of a node, in order.
BUSES = ("18", "2A", "3A", "5D", "9A", "AB", "BA", "DB")
#: Most GPUs in a node.
MAX_GPUS = len(BUSES)
#: The signs that a slow GPU may show in telemetry; ``hidden`` shows none.
SIGNS = ("clocks", "heat", "power-limit")
#: What init breaks, as (kind, age in seconds): one GPU each, on nodes without a slow GPU, in fleets of 16 nodes up.
INITIAL_FAULTS = (("dbe", 5 * 3600.0), ("remap-pending", 30 * 3600.0), ("pcie-x8", 9 * 86400.0))
#: The node whose agent fell silent, so that its grade is unknown, has had no probe for this long when the fleet begins.
SILENT_S = 4.5 * 86400.0


@dataclass(frozen=True, slots=True)
class Slow:
    """A GPU that is slow for ever.

    Attributes:
        dimension: where.
        slowdown: relative time there.
        sign: what telemetry shows of it: one of :data:`SIGNS`, or ``hidden``.
    """

    dimension: str
    slowdown: float
    sign: str


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU: its place, its names, and whether it is slow."""

    index: int
    uuid: str
    pci_bus_id: str
    serial: str
    slow: Slow | None = None

    @property
    def kernel_bus_id(self) -> str:
        """The bus id as the kernel log writes it: four digits of domain, no function."""
        return self.pci_bus_id.lower()[4:].removesuffix(".0")


@dataclass(frozen=True, slots=True)
class Node:
    """One node and what never changes about it.

    Attributes:
        seed: of the fleet.
        created: Unix seconds at which the fleet began.
        name: node name.
        rack: such as ``r01``.
        position: place in the rack, 0 at the bottom, where the air is coolest.
        leaf: leaf switch.
        spine: spine switch.
        zone: availability zone.
        product_name: GPU model.
        gpus: in order of their index.
        silent: whether its agent fell silent before the fleet began.
    """

    seed: int
    created: float
    name: str
    rack: str
    position: int
    leaf: str
    spine: str
    zone: str
    product_name: str
    gpus: tuple[Gpu, ...]
    silent: bool = False

    @property
    def product(self) -> Product:
        """The GPU model."""
        return PRODUCTS[self.product_name]

    def labels(self) -> dict[str, str]:
        """The node's Kubernetes labels."""
        product = self.product
        return {
            "kubernetes.io/hostname": self.name,
            "topology.kubernetes.io/zone": self.zone,
            "network.topology.nvidia.com/leaf": self.leaf,
            "network.topology.nvidia.com/spine": self.spine,
            "example.dev/rack": self.rack,
            "nvidia.com/gpu.present": "true",
            "nvidia.com/gpu.count": str(len(self.gpus)),
            "nvidia.com/gpu.product": product.name.replace(" ", "-"),
            "nvidia.com/gpu.memory": str(product.memory_mib),
            "nvidia.com/gpu.deploy.dcgm-exporter": "true",
            "nvidia.com/cuda.driver-version.full": DRIVER,
            "nvidia.com/mig.capable": "true",
        }


@dataclass(frozen=True, slots=True)
class Fault:
    """A physical fault of one GPU.

    Attributes:
        gpu: its index.
        kind: see :mod:`tools.fleet.faults`.
        at: Unix seconds of its beginning.
        value: for kinds that have one: the XID, the slowdown.
    """

    gpu: int
    kind: str
    at: float
    value: float = 0.0


def build(seed: int, nodes: int, gpus: int, created: float) -> tuple[list[Node], dict[str, list[Fault]]]:
    """Make a fleet.

    Args:
        seed: decides everything that chance decides.
        nodes: how many, over up to 8 racks; five racks in eight hold H100, the others A100.
        gpus: GPUs of each node, 1 to 8.
        created: Unix seconds.

    Returns:
        The nodes in order, and the faults by node that they begin with.

    Raises:
        ValueError: for counts that make no fleet.
    """
    if nodes < 1 or not 1 <= gpus <= MAX_GPUS:
        raise ValueError(f"a fleet has at least one node and 1 to {MAX_GPUS} GPUs each, not {nodes} x {gpus}")
    racks = min(8, nodes)
    per_rack = -(-nodes // racks)
    slow = dict(_slow(seed, nodes, gpus))
    spare = [n for n in range(nodes) if not any((n, g) in slow for g in range(gpus))]
    random.Random(f"{seed}/faults").shuffle(spare)
    faults: dict[str, list[Fault]] = {}
    taken = iter(spare if nodes >= 16 else ())
    silent = next(taken, None)
    h100_racks = -(-racks * 5 // 8)
    made = []
    for n in range(nodes):
        rack, position = divmod(n, per_rack)
        product = H100 if rack < h100_racks else A100
        mine = [slow.get((n, g)) for g in range(gpus)]
        made.append(_node(seed, created, rack, position, product, mine, silent=n == silent))
    for (kind, age), n in zip(INITIAL_FAULTS, taken, strict=False):
        gpu = int(unit(seed, "fault", kind) * gpus)
        faults[made[n].name] = [Fault(gpu, kind, created - age)]
    return made, faults


def _node(
    seed: int, created: float, rack: int, position: int, product: Product, slow: list[Slow | None], silent: bool
) -> Node:
    name = f"gpu-r{rack + 1:02d}-n{position + 1:02d}"
    return Node(
        seed=seed,
        created=created,
        name=name,
        rack=f"r{rack + 1:02d}",
        position=position,
        leaf=f"l{rack // 2 + 1:02d}",
        spine=f"s{rack // 4 + 1}",
        zone=f"z{rack // 4 + 1}",
        product_name=product.name,
        gpus=tuple(_gpu(seed, name, index, mine) for index, mine in enumerate(slow)),
        silent=silent,
    )


def _gpu(seed: int, node: str, index: int, slow: Slow | None) -> Gpu:
    h = hexes(32, seed, "uuid", node, index)
    uuid = f"GPU-{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"
    serial = f"{int(hexes(10, seed, 'serial', node, index), 16) % 10**13:013d}"
    return Gpu(index, uuid, f"00000000:{BUSES[index]}:00.0", serial, slow)


def _slow(seed: int, nodes: int, gpus: int) -> Iterator[tuple[tuple[int, int], Slow]]:
    """Choose the slow GPUs: a fixed count, on nodes apart, their slowdowns spread over the whole range."""
    count = min(round(SLOW_SHARE * nodes * gpus), nodes)
    chosen = random.Random(f"{seed}/slow")
    homes = chosen.sample(range(nodes), count)
    hidden = -(-count * HIDDEN_SHARE // 1)
    low, high = SLOW_RANGE
    ranks = chosen.sample(range(count), count)
    for k, (node, rank) in enumerate(zip(homes, ranks, strict=True)):
        slowdown = low + (high - low) * (rank + unit(seed, "slow", rank)) / count
        sign = "hidden" if k < hidden else SIGNS[k % len(SIGNS)]
        # Clocks, heat and power slow the compute units; what shows no sign may also be the memory or a link.
        dimension = "compute" if sign != "hidden" or k % 4 else ("memory", "pcie", "nvlink")[k // 4 % 3]
        yield (node, chosen.randrange(gpus)), Slow(dimension, round(slowdown, 4), sign)
