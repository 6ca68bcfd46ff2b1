"""A board in the making: what the fold still changes."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scorer.grading.series import Bools, Floats
from scorer.model.board import Finding


@dataclass(slots=True, eq=False)
class Draft:
    """A board in the making.

    Attributes:
        slowdown: float64 (N, J, V).
        low: float64 (N, J, V).
        high: float64 (N, J, V).
        grade: uint8 (N, J, V, S).
        fault: uint8 (N, J, V): the grade that faults alone give.
        confidence: float64 (N, J, V, S).
        gpu_grade: uint8 (G, J, V, S).
        findings: of each node.
        fresh: bool (N,): whether every GPU that may be handed out has a young enough probe.
    """

    slowdown: Floats
    low: Floats
    high: Floats
    grade: NDArray[np.uint8]
    fault: NDArray[np.uint8]
    confidence: Floats
    gpu_grade: NDArray[np.uint8]
    findings: list[tuple[Finding, ...]]
    fresh: Bools
