"""The two GPU products of the fleet, and what is typical of them."""

from collections.abc import Mapping
from dataclasses import dataclass

#: What is measured, in the order and with the units that the probes use. Higher is faster for each.
UNITS: Mapping[str, str] = {
    "compute": "TFLOP/s",
    "memory": "GB/s",
    "pcie": "GB/s",
    "nvlink": "GB/s",
    "fabric": "GB/s",
    "numa": "ratio",
    "host": "GB/s",
}
DIMENSIONS: tuple[str, ...] = tuple(UNITS)


@dataclass(frozen=True, slots=True)
class Product:
    """One GPU model.

    Attributes:
        name: as the driver prints it.
        device_id: PCI device id, four hexadecimal digits.
        memory_mib: as the driver prints it.
        cuda_mb: megabytes that a CUDA program sees as total, and as free on an idle GPU.
        typical: value of each dimension on a middling GPU, in :data:`UNITS`.
        fp32: TFLOP/s of a plain SGEMM, where ``typical["compute"]`` is the tensor cores'.
        fp64: TFLOP/s of a DGEMM.
        power_w: default, lowest and highest power limit.
        idle_w: draw of an idle GPU, and what of the draw does not depend on clocks.
        max_sm_mhz: highest SM clock.
        load_sm_mhz: SM clock that a middling GPU settles at under a matrix product at its power limit.
        idle_sm_mhz: SM clock of an idle GPU.
        min_sm_mhz: lowest SM clock that may be locked.
        mem_mhz: memory clock.
        load_c: GPU temperature under load in a 22 C inlet, position at the bottom of the rack.
        slow_c: temperature at which the driver slows the clocks.
        pcie_gen: link generation.
        nvlinks: links of one GPU.
        nvlink_gbs: GB/s of one link and direction.
    """

    name: str
    device_id: str
    memory_mib: int
    cuda_mb: tuple[int, int]
    typical: Mapping[str, float]
    fp32: float
    fp64: float
    power_w: tuple[float, float, float]
    idle_w: float
    max_sm_mhz: int
    load_sm_mhz: int
    idle_sm_mhz: int
    min_sm_mhz: int
    mem_mhz: int
    load_c: float
    slow_c: float
    pcie_gen: int
    nvlinks: int
    nvlink_gbs: float


# Typical values are plausible, not vendor figures: H100 compute is a tuned bf16 GEMM (about 780 of 989 TFLOP/s), memory
# a device copy with reads and writes counted, pcie pinned host to device, nvlink and fabric the bus bandwidth of an
# all-reduce (Azure asks 460 of eight H100 and 228 of eight A100), numa remote over local, host a memory triad.
H100 = Product(
    name="NVIDIA H100 80GB HBM3",
    device_id="2330",
    memory_mib=81559,
    cuda_mb=(81089, 80400),
    typical={
        "compute": 781.0,
        "memory": 2904.0,
        "pcie": 50.6,
        "nvlink": 466.0,
        "fabric": 372.0,
        "numa": 0.624,
        "host": 411.0,
    },
    fp32=48.1,
    fp64=58.0,
    power_w=(700.0, 200.0, 700.0),
    idle_w=71.0,
    max_sm_mhz=1980,
    load_sm_mhz=1665,
    idle_sm_mhz=345,
    min_sm_mhz=210,
    mem_mhz=2619,
    load_c=58.0,
    slow_c=87.0,
    pcie_gen=5,
    nvlinks=18,
    nvlink_gbs=26.562,
)
A100 = Product(
    name="NVIDIA A100-SXM4-80GB",
    device_id="20b2",
    memory_mib=81920,
    cuda_mb=(81155, 80610),
    typical={
        "compute": 250.0,
        "memory": 1550.0,
        "pcie": 24.5,
        "nvlink": 228.0,
        "fabric": 180.0,
        "numa": 0.70,
        "host": 300.0,
    },
    fp32=18.9,
    fp64=18.4,
    power_w=(400.0, 100.0, 400.0),
    idle_w=58.0,
    max_sm_mhz=1410,
    load_sm_mhz=1305,
    idle_sm_mhz=210,
    min_sm_mhz=210,
    mem_mhz=1593,
    load_c=55.0,
    slow_c=85.0,
    pcie_gen=4,
    nvlinks=12,
    nvlink_gbs=25.0,
)
PRODUCTS: Mapping[str, Product] = {product.name: product for product in (H100, A100)}
DRIVER = "570.158.01"
#: Major times 1000 plus minor times 10, as CUDA counts.
CUDA_VERSION = 12080
