"""Evidence to baselines to grades. Pure: no input or output, the clock is an argument, NumPy columns throughout."""

from scorer.grading.board import fold
from scorer.grading.explain import (
    DimensionFigure,
    GpuExplanation,
    JobGrade,
    NodeExplanation,
    bad_gpus,
    choose_action,
    explain_node,
    overall,
    telling,
    untold,
)

__all__ = [
    "DimensionFigure",
    "GpuExplanation",
    "JobGrade",
    "NodeExplanation",
    "bad_gpus",
    "choose_action",
    "explain_node",
    "fold",
    "overall",
    "telling",
    "untold",
]
