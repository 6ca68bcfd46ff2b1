"""From a prediction with its interval to a grade with its probability."""

import numpy as np
from numpy.typing import NDArray

from scorer.grading.predict import Z90
from scorer.grading.series import Floats
from scorer.model.grade import Grade, Thresholds

_LEAST_SCALE = 1e-6


def normal_cdf(x: Floats) -> Floats:
    """Distribution function of the standard normal, to 1.5e-7 (Abramowitz and Stegun 7.1.26); NumPy has none."""
    t = 1.0 / (1.0 + 0.3275911 * np.abs(x) / np.sqrt(2.0))
    poly = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    tail = 0.5 * poly * np.exp(-0.5 * x * x)
    result: Floats = np.where(x >= 0, 1.0 - tail, tail)
    return result


def _below(bound: float, point: Floats, low: Floats, high: Floats) -> Floats:
    """Probability of a slowdown below ``bound``: half a normal on either side of the point."""
    side = np.where(bound >= point, high - point, point - low)
    scale = np.maximum(side / Z90, _LEAST_SCALE)
    return normal_cdf((bound - point) / scale)


def grade_of(point: Floats, low: Floats, high: Floats, bounds: Thresholds) -> tuple[NDArray[np.uint8], Floats]:
    """Grade predictions of any shape.

    The grade follows the point; its probability is the confidence. Where the interval spans from green to red nothing
    can be said: unknown.

    Args:
        point: predicted relative time.
        low: lower end of the 90 % interval.
        high: upper end.
        bounds: from which slowdown it is yellow, and red.

    Returns:
        grades and confidences, of the shape of ``point``.
    """
    green_chance = _below(bounds.yellow, point, low, high)
    red_chance = 1.0 - _below(bounds.red, point, low, high)
    yellow_chance = np.clip(1.0 - green_chance - red_chance, 0.0, 1.0)
    grade = np.select([point >= bounds.red, point >= bounds.yellow], [Grade.RED, Grade.YELLOW], Grade.GREEN)
    chance = np.select([grade == Grade.RED, grade == Grade.YELLOW], [red_chance, yellow_chance], green_chance)
    spans = (low < bounds.yellow) & (high >= bounds.red)
    best = np.maximum(np.maximum(green_chance, yellow_chance), red_chance)
    return np.where(spans, Grade.UNKNOWN, grade).astype(np.uint8), np.where(spans, 1.0 - best, chance)
