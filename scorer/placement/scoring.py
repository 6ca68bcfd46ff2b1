"""From grades to verdicts, scores and costs, for all nodes at once."""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from scorer.model.grade import Grade, Sensitivity, Thresholds

#: The score of a node of which nothing can be said.
NEUTRAL = 50
#: A red node's score.
RED_SCORE = 0
#: Lowest scores of the bands. A band is BAND wide, so that no yellow node of a strict class outruns a green one.
GREEN_FLOOR = 70
YELLOW_FLOOR = 30
BELOW_YELLOW = 20
BAND = 30
#: Share of a strict class's band that goes to partial nodes: a tie-break, five points.
STRICT_PACKING = 5.0
#: Of a tolerant job's green band: how much for a node that the stricter job types cannot use, and for one that is in
#: use already. The scheduler's door tells only steps of ten apart, so each of them is worth one at least.
TOLERANT_SPOILT, TOLERANT_PARTIAL = 20.0, 10.0
#: Among nodes that are alike in that: how much for a slow one, and for a full one.
TOLERANT_SLOW, TOLERANT_FULL = 5.0, 3.0
#: How much a tolerant gang pays, in relative time, for taking the fastest node that suits it.
FAST_NODE_PRICE = 0.02


class Verdict(IntEnum):
    """Why a node passes or not. The value is its code in arrays."""

    PASS = 0
    TOO_SLOW = 1
    FAULT = 2
    UNKNOWN = 3
    OUTSIDE_DOMAIN = 4


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """What is computed of all nodes for one job type, shape variant and sensitivity.

    Attributes:
        code: uint8 (N,): a :class:`Verdict`.
        score: uint8 (N,): 0-100.
        cost: float32 (N,): relative time by which gangs are planned; infinite where the node must not be used.
    """

    code: NDArray[np.uint8]
    score: NDArray[np.uint8]
    cost: NDArray[np.float32]


def judge(
    grade: NDArray[np.uint8],
    slowdown: NDArray[np.float32],
    used: NDArray[np.float32],
    bounds: Thresholds,
    sensitivity: Sensitivity,
    spoilt: NDArray[np.float32],
    *,
    reject_unknown: bool,
) -> Columns:
    """Judge all nodes for one kind of job.

    A tolerant job goes where nobody else can: first to nodes that the stricter job types cannot use, then to those
    partly in use, then to slower ones. A node of unknown grade counts for it as a typical one.

    Args:
        grade: uint8 (N,): a :class:`Grade`.
        slowdown: float32 (N,): predicted relative time; NaN where not known.
        used: float32 (N,): share of the node's GPUs that are in use, 0-1.
        bounds: where yellow and red begin, and what unknown counts as.
        sensitivity: tolerant jobs are sent to slower nodes, the others to faster ones.
        spoilt: float32 (N,): how little a node is worth to stricter jobs: 0 all of them can use it well, 1 none can.
        reject_unknown: whether unknown nodes are to fail.
    """
    green, unknown, yellow, red = (grade == g for g in (Grade.GREEN, Grade.UNKNOWN, Grade.YELLOW, Grade.RED))
    time = np.where(np.isfinite(slowdown), slowdown, 1.0).astype(np.float64)
    best = _best(time, green)
    quality = _share(bounds.yellow - time, bounds.yellow - best)
    typical = float(_share(np.array([bounds.yellow - 1.0]), bounds.yellow - best)[0])
    in_yellow = _share(bounds.red - time, bounds.red - bounds.yellow)
    tolerant = sensitivity is Sensitivity.TOLERANT

    packing = STRICT_PACKING * used
    band = _tolerant_band(quality, spoilt, used) if tolerant else (BAND - STRICT_PACKING) * quality + packing
    score = np.full(len(grade), float(RED_SCORE))
    score[green] = GREEN_FLOOR + band[green]
    score[yellow] = (YELLOW_FLOOR + (BAND - STRICT_PACKING) * in_yellow + packing)[yellow]
    score[unknown] = _unknown_score(bounds)

    cost = np.full(len(grade), np.inf)
    cost[green] = (1.0 + FAST_NODE_PRICE * quality * (1.0 - spoilt) if tolerant else time)[green]
    cost[yellow] = np.maximum(time, bounds.yellow)[yellow]
    cost[unknown] = _unknown_cost(bounds)
    if tolerant and bounds.unknown_as is Grade.GREEN:
        score[unknown] = (
            GREEN_FLOOR + _tolerant_band(np.full(len(grade), typical), np.zeros_like(spoilt), used)[unknown]
        )
        cost[unknown] = 1.0 + FAST_NODE_PRICE * typical

    code = np.zeros(len(grade), np.uint8)
    code[red] = np.where(time[red] >= bounds.red, Verdict.TOO_SLOW, Verdict.FAULT)
    if reject_unknown:
        code[unknown] = Verdict.UNKNOWN
        cost[unknown] = np.inf
    return Columns(code, np.floor(score + 1e-6).astype(np.uint8), cost.astype(np.float32))


def _tolerant_band(
    quality: NDArray[np.float64], spoilt: NDArray[np.float32], used: NDArray[np.float32]
) -> NDArray[np.float64]:
    """What a tolerant job gives a green node above the floor of the band: float64 (N,)."""
    partial = np.where(used > 0, TOLERANT_PARTIAL, 0.0)
    alike = TOLERANT_SLOW * (1.0 - quality) + TOLERANT_FULL * used
    band: NDArray[np.float64] = np.minimum(TOLERANT_SPOILT * spoilt + partial + alike, BAND)
    return band


def _best(time: NDArray[np.float64], green: NDArray[np.bool_]) -> float:
    return float(time[green].min()) if green.any() else 0.0


def _share(part: NDArray[np.float64], whole: float) -> NDArray[np.float64]:
    """``part / whole`` within 0 and 1; where there is nothing to divide all are equally good."""
    return np.clip(part / whole, 0.0, 1.0) if whole > 0 else np.ones_like(part)


def _unknown_score(bounds: Thresholds) -> int:
    if bounds.unknown_as is None:
        return BELOW_YELLOW
    floors = {Grade.GREEN: GREEN_FLOOR, Grade.YELLOW: YELLOW_FLOOR}
    floor = floors.get(bounds.unknown_as)
    return RED_SCORE if floor is None else floor + BAND // 2


def _unknown_cost(bounds: Thresholds) -> float:
    """Unknown is planned as the middle of the grade that it counts as; below yellow is as red begins."""
    if bounds.unknown_as is Grade.GREEN:
        return 1.0
    return bounds.red if bounds.unknown_as is None else (bounds.yellow + bounds.red) / 2
