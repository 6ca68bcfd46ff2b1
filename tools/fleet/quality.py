"""How much GPUs of one model differ: the published distributions, as percentiles.

Sources. Percentiles were computed from the per-GPU medians (relative time, 1 is the median of the cluster, above it is
slower) of the PAL artifact, hal-uw/blox-pal branch ``artifact`` at 8a590708 (MIT, Zenodo 10.5281/zenodo.12575031);
the shares from its single runs. SC22 "Not All GPUs Are Created Equal" (arXiv 2208.11035v3) gives 8 % average and 22 %
largest variation and outliers of 1.5 times the median. Greyhound (ATC'25, arXiv 2410.12588) gives the rarity of compute
fail-slow against communication fail-slow.
"""

from collections.abc import Mapping
from functools import lru_cache

from tools.fleet.chance import normal, quantile, unit

#: Longhorn, V100, SGEMM, 392 GPUs. The tail beyond the 99th percentile (one GPU at 1.2007) is left to the slow GPUs.
COMPUTE = (
    (0.0, 0.9508),
    (1.0, 0.9619),
    (5.0, 0.9722),
    (10.0, 0.9774),
    (25.0, 0.9864),
    (50.0, 0.9983),
    (75.0, 1.0095),
    (90.0, 1.0189),
    (95.0, 1.0253),
    (99.0, 1.0482),
    (100.0, 1.0482),
)
#: Frontera, RTX 5000, BERT, 276 GPUs: memory bound. Two whole nodes stand beyond the 95th percentile, left out here.
MEMORY = (
    (0.0, 0.9913),
    (1.0, 0.9919),
    (5.0, 0.9937),
    (10.0, 0.9956),
    (25.0, 0.9975),
    (50.0, 1.0001),
    (75.0, 1.0031),
    (90.0, 1.0047),
    (95.0, 1.0062),
    (100.0, 1.0062),
)
#: Dimensions whose spread nobody published by GPU take the narrow memory distribution.
SPREAD: Mapping[str, tuple[tuple[float, float], ...]] = {"compute": COMPUTE, "memory": MEMORY}
#: These belong to the node much more than to the GPU: one draw for the node, and a small one for the GPU.
NODE_WIDE = frozenset({"fabric", "numa", "host"})
#: Standard deviation of one measurement. Robust spread of repeats: Longhorn SGEMM 0.001, Frontera ResNet-50 0.006.
NOISE: Mapping[str, float] = {
    "compute": 0.004,
    "memory": 0.004,
    "pcie": 0.006,
    "nvlink": 0.006,
    "fabric": 0.010,
    "numa": 0.006,
    "host": 0.008,
}
#: Share of GPUs slower than 1.08: Longhorn ResNet-50 3.9 %, SGEMM 0.3 %; Frontera ResNet-50 4.1 %, others none.
SLOW_SHARE = 0.018
#: How slow those are: from what one notices to beyond the slowest persistent GPU of the data (1.2007).
SLOW_RANGE = (1.08, 1.30)
#: Share of the slow GPUs with no sign in telemetry. At least 30 % must be so; clocks explain 0.87 of SGEMM only.
HIDDEN_SHARE = 0.40
#: Share of time that a node spends in a transient episode: 20 of 1,404 Longhorn ResNet-50 runs, on three whole nodes.
EPISODE_SHARE = 0.014
#: How slow it then is: the runs above 1.15 of the same, cut at 2.8.
EPISODE_SLOWDOWN = ((0.0, 1.15), (10.0, 1.169), (25.0, 1.189), (50.0, 1.237), (75.0, 2.54), (90.0, 2.79), (100.0, 2.8))
#: Mean length of an episode, seconds. Greyhound: 10 min in compute, 24 min in communication, up to 10 h.
EPISODE_MEAN_S = 45 * 60.0


@lru_cache(maxsize=65536)
def quality(seed: int, node: str, gpu: int, dimension: str) -> float:
    """Relative time that the chip itself takes, for ever: 1 is the median of its model.

    Dimensions are drawn apart: on the same GPU the rank correlation between applications is about zero (Frontera,
    228 GPUs: 0.08 and -0.01).
    """
    table = SPREAD.get(dimension, MEMORY)
    if dimension not in NODE_WIDE:
        return quantile(table, unit(seed, "quality", node, gpu, dimension))
    whole = quantile(table, unit(seed, "quality", node, dimension))
    return whole * (1.0 + 0.001 * normal(seed, "quality", node, gpu, dimension))
