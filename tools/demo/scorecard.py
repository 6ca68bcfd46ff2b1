"""The grades beside the emulator's truth: what is really slow or sick, and what was found."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpugrade.v1 import grading_pb2 as g

from scorer.model.dimension import Dimension
from scorer.model.jobtype import DEFAULT_JOB_TYPES


@dataclass(frozen=True, slots=True)
class Scorecard:
    """How often the grades of one job type were right.

    Attributes:
        bad: nodes that are really slow (from yellow's bound on) or have a physical fault.
        found: of those, graded yellow or red.
        missed: of those, graded green; they lie just above the bound, or show nothing.
        unknown: of those, graded unknown.
        good: nodes that are really fine.
        false_alarms: of those, graded yellow or red.
        passing: nodes in a slow episode right now, left out of both: whether a probe has met it yet is chance.
    """

    bad: int
    found: int
    missed: tuple[str, ...]
    unknown: int
    good: int
    false_alarms: tuple[str, ...]
    passing: int


def score(
    truth: Iterable[Mapping[str, Any]], grades: Mapping[str, int], job_type: str, yellow_from: float
) -> Scorecard:
    """Compare.

    Args:
        truth: rows of ``tools.fleet.truth``.
        grades: of each node, as in ``gpugrade.v1.Grade``.
        job_type: for which they are.
        yellow_from: slowdown from which the type's class calls a node yellow.
    """
    job = next(job for job in DEFAULT_JOB_TYPES if job.name == job_type)
    weights = job.weights_for(job.shape.variant)
    time_of: dict[str, float] = {}
    sick: set[str] = set()
    passing: set[str] = set()
    for row in truth:
        time = sum(float(weights[Dimension.parse(name)]) * value for name, value in row["slowdown"].items())
        time_of[row["node"]] = max(time_of.get(row["node"], 0.0), time)
        if row["faults"]:
            sick.add(row["node"])
        if row["episode"]:
            passing.add(row["node"])
    bad = ({name for name, time in time_of.items() if time >= yellow_from} | sick) - passing
    good = time_of.keys() - bad - passing
    alarmed = {name for name, grade in grades.items() if grade in (g.GRADE_YELLOW, g.GRADE_RED)}
    unknown = {name for name, grade in grades.items() if grade == g.GRADE_UNKNOWN}
    return Scorecard(
        bad=len(bad),
        found=len(bad & alarmed),
        missed=tuple(sorted(bad - alarmed - unknown)),
        unknown=len(bad & unknown),
        good=len(good),
        false_alarms=tuple(sorted(good & alarmed)),
        passing=len(passing),
    )
