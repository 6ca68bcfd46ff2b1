"""From a prediction with its interval to a grade with its probability."""

import numpy as np
from numpy.typing import NDArray

from scorer.grading.predict import Z90
from scorer.grading.series import Bools, Floats
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


def verdict(point: Floats, low: Floats, high: Floats, bounds: Thresholds) -> NDArray[np.uint8]:
    """Grade predictions of any shape: by the point, and unknown where the interval spans from green to red.

    Args:
        point: predicted relative time.
        low: lower end of the 90 % interval.
        high: upper end.
        bounds: from which slowdown it is yellow, and red.
    """
    grade = np.where(point >= bounds.red, Grade.RED, np.where(point >= bounds.yellow, Grade.YELLOW, Grade.GREEN))
    return np.where(_spans(low, high, bounds), Grade.UNKNOWN, grade).astype(np.uint8)


def _spans(low: Floats, high: Floats, bounds: Thresholds) -> Bools:
    result: Bools = (low < bounds.yellow) & (high >= bounds.red)
    return result


def confidence(grade: NDArray[np.uint8], point: Floats, low: Floats, high: Floats, bounds: Thresholds) -> Floats:
    """Return the probability of each grade; of an unknown one, 0: nothing is claimed."""
    green = _below(bounds.yellow, point, low, high)
    red = 1.0 - _below(bounds.red, point, low, high)
    yellow = np.clip(1.0 - green - red, 0.0, 1.0)
    chances = {Grade.GREEN: green, Grade.YELLOW: yellow, Grade.RED: red}
    return np.select([grade == g for g in chances], list(chances.values()), 0.0)
