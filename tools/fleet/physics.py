"""The physical model: what a GPU is worth at a time, and what its sensors then show.

Everything is a function of (seed, GPU, dimension, time) and of the settings in force, with no state of its own: history
is replayed with the same functions that the live tools ask.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tools.fleet import faults as fault_kinds
from tools.fleet.chance import normal
from tools.fleet.episodes import episode_at
from tools.fleet.inventory import Fault, Gpu, Node
from tools.fleet.quality import NOISE, quality

#: How much a dimension follows the SM clock: 1 is in proportion. HBM and links run on clocks of their own.
CLOCK_SHARE = {"compute": 1.0, "memory": 0.08, "nvlink": 0.03}
#: Draw above idle grows with clocks to this power: frequency times the square of a voltage that grows a little with it.
POWER_EXPONENT = 2.2
#: Compute lost for each degree above the model's typical load temperature: leakage eats into the power limit.
HEAT_COST = 0.0005
#: Air warms from the bottom of a rack to its top, for each position, and along the airflow in the chassis. Degrees.
RACK_WARMING = 0.5
SLOT_WARMING = (0.0, 1.5, 0.5, 2.0, 0.0, 1.5, 0.5, 2.0)
INLET_C = 22.0
#: What rack and slot add on the average.
MIDDLE_WARMING = 2.75
#: How much hotter a GPU with a bad thermal contact runs, idle and loaded.
HOT_IDLE_C = 11.0
HOT_LOAD_C = 27.0
# Bits of the clock event reasons.
IDLE, CLOCKS_SETTING, SW_POWER_CAP, SW_THERMAL, HW_THERMAL = 0x1, 0x2, 0x4, 0x20, 0x40


@dataclass(frozen=True, slots=True)
class Settings:
    """What somebody set on a GPU.

    Attributes:
        lock: lowest and highest SM clock, MHz, or None.
        power_limit: watts.
    """

    lock: tuple[float, float] | None
    power_limit: float


@dataclass(frozen=True, slots=True)
class Sensors:
    """What a GPU's sensors show at one moment. Clocks in MHz, temperatures in C, power in W, sizes in MiB."""

    sm_mhz: int
    mem_mhz: int
    gpu_c: int
    memory_c: int
    power_w: float
    util: int
    mem_util: int
    reasons: int
    pcie_gen: int
    pcie_width: int
    used_mib: int


def lowered_limit(node: Node, slowdown: float) -> float:
    """The power limit, in whole watts, at which clocks under load fall by ``slowdown``."""
    default, lowest, _ = node.product.power_w
    idle = node.product.idle_w
    return max(lowest, float(round(idle + (default - idle) / slowdown**POWER_EXPONENT)))


def initial_settings(node: Node, gpu: Gpu) -> Settings:
    """The settings that a GPU had before anybody touched the fleet."""
    limit = node.product.power_w[0]
    if gpu.slow is not None and gpu.slow.sign == "power-limit":
        limit = lowered_limit(node, gpu.slow.slowdown)
    return Settings(None, limit)


def _own_clock_ratio(gpu: Gpu) -> float:
    """How far a visible defect holds the clocks down, beside what is set."""
    if gpu.slow is not None and gpu.slow.sign in {"clocks", "heat"}:
        return 1.0 / gpu.slow.slowdown
    return 1.0


def clock_ratio(node: Node, gpu: Gpu, settings: Settings) -> float:
    """SM clock under full load over the one that a middling GPU would reach."""
    product = node.product
    default = product.power_w[0]
    ratio = _own_clock_ratio(gpu)
    if settings.power_limit < default:
        share = max(settings.power_limit - product.idle_w, 1.0) / (default - product.idle_w)
        ratio = min(ratio, share ** (1.0 / POWER_EXPONENT))
    if settings.lock is not None:
        ratio = min(ratio, settings.lock[1] / product.load_sm_mhz)
    return ratio


def temperature(node: Node, gpu: Gpu, at: float, load: float) -> float:
    """Degrees Celsius of the GPU at a load between 0 and 1."""
    inlet = INLET_C + RACK_WARMING * node.position + 1.5 * math.sin(2 * math.pi * at / 86400.0)
    inlet += SLOT_WARMING[gpu.index]
    own = 1.2 * normal(node.seed, "heat", node.name, gpu.index)
    hot = gpu.slow is not None and gpu.slow.sign == "heat"
    idle = inlet + 8.0 + own + (HOT_IDLE_C if hot else 0.0)
    full = inlet + node.product.load_c - INLET_C + own + (HOT_LOAD_C if hot else 0.0)
    return idle + (full - idle) * load


def slowdown(
    node: Node, gpu: Gpu, dimension: str, at: float, settings: Settings, faults: Sequence[Fault] = ()
) -> float:
    """True relative time of a GPU on a dimension, without measurement noise: 1 is the median of its model.

    Args:
        node: where it is.
        gpu: which.
        dimension: see ``products.DIMENSIONS``.
        at: Unix seconds.
        settings: clock lock and power limit in force.
        faults: the node's physical faults.
    """
    value = quality(node.seed, node.name, gpu.index, dimension)
    if gpu.slow is not None and gpu.slow.sign == "hidden" and gpu.slow.dimension == dimension:
        value *= gpu.slow.slowdown
    share = CLOCK_SHARE.get(dimension, 0.0)
    if share:
        value *= clock_ratio(node, gpu, settings) ** -share
    if dimension == "compute":
        excess = temperature(node, gpu, at, 1.0) - node.product.load_c - MIDDLE_WARMING
        # A GPU with bad thermal contact already pays through its clocks.
        if gpu.slow is None or gpu.slow.sign != "heat":
            value *= 1.0 + HEAT_COST * excess
    episode = episode_at(node.seed, node.name, at)
    if episode is not None:
        value *= episode.factor(dimension)
    if faults:
        value *= fault_kinds.factor(fault_kinds.active(faults, gpu.index, at), dimension)
    return value


def measure(node: Node, gpu: Gpu, dimension: str, at: float, settings: Settings, faults: Sequence[Fault] = ()) -> float:
    """One measurement, in the dimension's unit: the true value with the noise of measuring."""
    true = node.product.typical[dimension] / slowdown(node, gpu, dimension, at, settings, faults)
    noise = NOISE[dimension] * normal(node.seed, "noise", node.name, gpu.index, dimension, round(at * 1000))
    return true * math.exp(noise)


def sensors(
    node: Node, gpu: Gpu, at: float, settings: Settings, load: float, faults: Sequence[Fault] = (), used_mib: int = 0
) -> Sensors:
    """What the sensors show.

    Args:
        node: where the GPU is.
        gpu: which.
        at: Unix seconds.
        settings: clock lock and power limit in force.
        load: 0 idle to 1 a matrix product on all of it.
        faults: the node's physical faults.
        used_mib: memory that processes hold.
    """
    product = node.product
    flicker = normal(node.seed, "flicker", node.name, gpu.index, int(at))
    hot = temperature(node, gpu, at, load)
    width = 16
    for fault in fault_kinds.active(faults, gpu.index, at):
        width = int(fault_kinds.KINDS[fault.kind].counters.get(238, width))
    if load > 0.05:
        clock, power = _loaded(node, gpu, settings, load, 1.0 + 0.004 * flicker)
        reasons = _reasons(gpu, settings, clock, product.load_sm_mhz)
        gen, util = product.pcie_gen, round(98 * load + flicker)
    else:
        clock = max(float(product.idle_sm_mhz), settings.lock[0] if settings.lock else 0.0)
        power, reasons, gen, util = product.idle_w * (1.0 + 0.01 * flicker), IDLE, 1, 0
    return Sensors(
        sm_mhz=round(clock / 15) * 15,
        mem_mhz=product.mem_mhz,
        gpu_c=round(hot),
        memory_c=round(hot + 3 + 6 * load),
        power_w=math.floor(power * 1000) / 1000,
        util=max(0, min(100, util)),
        mem_util=round(45 * load),
        reasons=reasons,
        pcie_gen=gen,
        pcie_width=width,
        used_mib=used_mib,
    )


def _loaded(node: Node, gpu: Gpu, settings: Settings, load: float, flicker: float) -> tuple[float, float]:
    """SM clock in MHz and draw in W under a load."""
    product = node.product
    clock = product.load_sm_mhz * clock_ratio(node, gpu, settings) * flicker
    if settings.lock is not None:
        clock = min(max(clock, settings.lock[0]), settings.lock[1])
    clock = min(clock, product.max_sm_mhz)
    # What a lock, heat or the chassis takes from the clocks is not drawn; at a lowered limit the limit is.
    draw = (product.power_w[0] - product.idle_w) * min(clock / product.load_sm_mhz, 1.0) ** POWER_EXPONENT
    return clock, min((product.idle_w + draw * load) * flicker, settings.power_limit)


def _reasons(gpu: Gpu, settings: Settings, clock: float, usual: float) -> int:
    if settings.lock is not None and settings.lock[1] <= clock + 15 and settings.lock[1] < usual:
        return CLOCKS_SETTING
    if gpu.slow is not None and gpu.slow.sign == "heat":
        return SW_THERMAL | (HW_THERMAL if gpu.slow.slowdown > 1.2 else 0)
    return SW_POWER_CAP
